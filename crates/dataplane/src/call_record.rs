//! What is noted of a call that somebody looks at: for the access log, and for a span.
//!
//! Notes are shared pointers and numbers; text is made of them on another thread, after the call.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde::Serialize;

use crate::attempt::Attempt;
use crate::decisions::wall_ns;
use crate::endpoint::Endpoint;
use crate::grpc::Code;
use crate::reason::Reason;
use crate::sampling::Sampled;
use crate::service::Service;

static TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// What is noted of a sampled call while it runs.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    sampled: Sampled,
    uri: Uri,
    authority: Option<Authority>,
    trace_parent: Option<HeaderValue>,
    trace_state: Option<HeaderValue>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) picks: Picks,
    pub(crate) request_bytes: Cell<u64>,
    pub(crate) response_bytes: Cell<u64>,
}

/// Whom a call was given to.
#[derive(Debug, Default, Clone)]
pub(crate) struct Picks {
    attempts: u32,
    last: Option<(Arc<Endpoint>, Reason)>,
}

/// A call that ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedCall {
    record: Box<CallRecord>,
    service: Option<Arc<Service>>,
    at_ns: u64,
    latency_ns: u64,
    code: Code,
}

/// A call as the access log has it.
#[derive(Serialize)]
struct Line<'a> {
    ts: &'a str,
    service: Option<&'a str>,
    method: &'a str,
    authority: Option<&'a str>,
    endpoint: Option<&'a str>,
    reason: Option<&'static str>,
    attempts: u32,
    grpc_status: &'static str,
    latency_ms: f64,
    #[serde(skip)]
    latency_us: u64,
    request_bytes: u64,
    response_bytes: u64,
    deadline_ms: Option<u64>,
    trace_id: Option<&'a str>,
}

/// A call that gets a span.
#[derive(Serialize)]
struct Span<'a> {
    #[serde(flatten)]
    line: Line<'a>,
    start_ns: u64,
    end_ns: u64,
    trace_parent: Option<&'a str>,
    trace_state: Option<&'a str>,
    grpc_code: u8,
}

impl CallRecord {
    pub(crate) fn new(
        sampled: Sampled,
        uri: &Uri,
        authority: Option<&Authority>,
        headers: &HeaderMap,
    ) -> Self {
        Self {
            sampled,
            uri: uri.clone(),
            authority: authority.cloned(),
            trace_parent: headers.get(&TRACE_PARENT).cloned(),
            trace_state: headers.get(&TRACE_STATE).cloned(),
            deadline: None,
            picks: Picks::default(),
            request_bytes: Cell::new(0),
            response_bytes: Cell::new(0),
        }
    }
}

impl Picks {
    /// An endpoint was chosen, for the first or another attempt.
    pub(crate) fn note(&mut self, attempt: &Attempt) {
        self.attempts += 1;
        self.settle(attempt);
    }

    /// The client gets the answer of this one.
    pub(crate) fn settle(&mut self, attempt: &Attempt) {
        self.last = Some((Arc::clone(attempt.endpoint()), attempt.reason()));
    }
}

impl EndedCall {
    pub(crate) fn new(
        record: Box<CallRecord>,
        service: Option<Arc<Service>>,
        latency_ns: u64,
        code: Code,
    ) -> Self {
        Self {
            record,
            service,
            at_ns: wall_ns(),
            latency_ns,
            code,
        }
    }

    /// Whether it goes into the access log.
    pub(crate) fn is_logged(&self) -> bool {
        self.record.sampled.access_log
    }

    /// Whether it gets a span: a caller whose trace is not recorded wants none of ours in it.
    pub(crate) fn is_traced(&self) -> bool {
        self.record.sampled.tracing && self.record.trace_parent.as_ref().is_none_or(is_recorded)
    }

    /// Appends its line of the access log.
    pub(crate) fn write_line(&self, out: &mut Vec<u8>, stamp: &mut Stamp) {
        self.line(stamp.text(self.at_ns)).write(out);
        out.push(b'\n');
    }

    /// Appends what a span is made of.
    pub(crate) fn write_span(&self, out: &mut Vec<u8>) {
        fn text(value: Option<&HeaderValue>) -> Option<&str> {
            value.and_then(|value| value.to_str().ok())
        }
        let span = Span {
            line: self.line(""),
            start_ns: self.at_ns.saturating_sub(self.latency_ns),
            end_ns: self.at_ns,
            trace_parent: text(self.record.trace_parent.as_ref()),
            trace_state: text(self.record.trace_state.as_ref()),
            grpc_code: self.code.number(),
        };
        let _ = serde_json::to_writer(out, &span);
    }

    fn line<'a>(&'a self, ts: &'a str) -> Line<'a> {
        let record = &self.record;
        let picked = record.picks.last.as_ref();
        Line {
            ts,
            service: self.service.as_ref().map(|service| service.name.as_str()),
            method: record.uri.path(),
            authority: record.authority.as_ref().map(Authority::as_str),
            endpoint: picked.map(|(endpoint, _)| endpoint.name.as_ref()),
            reason: picked.map(|(_, reason)| reason.name()),
            attempts: record.picks.attempts,
            grpc_status: self.code.name(),
            // Whole microseconds: more digits would only look exact.
            latency_ms: (self.latency_ns / 1_000) as f64 / 1_000.0,
            latency_us: self.latency_ns / 1_000,
            request_bytes: record.request_bytes.get(),
            response_bytes: record.response_bytes.get(),
            deadline_ms: record.deadline.map(|deadline| deadline.as_millis() as u64),
            trace_id: record.trace_parent.as_ref().and_then(trace_id),
        }
    }
}

impl Line<'_> {
    /// Appends it as JSON, as its derived form has it. By hand, because every call pays for it where
    /// all are logged: a quarter of what the derived form takes.
    fn write(&self, out: &mut Vec<u8>) {
        let Self {
            ts,
            service,
            method,
            authority,
            endpoint,
            reason,
            attempts,
            grpc_status,
            latency_us,
            latency_ms: _,
            request_bytes,
            response_bytes,
            deadline_ms,
            trace_id,
        } = *self;
        out.extend_from_slice(b"{\"ts\":\"");
        out.extend_from_slice(ts.as_bytes());
        out.push(b'"');
        text(out, ",\"service\":", service);
        text(out, ",\"method\":", Some(method));
        text(out, ",\"authority\":", authority);
        text(out, ",\"endpoint\":", endpoint);
        text(out, ",\"reason\":", reason);
        number(out, ",\"attempts\":", Some(attempts.into()));
        text(out, ",\"grpc_status\":", Some(grpc_status));
        number(out, ",\"latency_ms\":", Some(latency_us / 1_000));
        fraction(out, latency_us % 1_000);
        number(out, ",\"request_bytes\":", Some(request_bytes));
        number(out, ",\"response_bytes\":", Some(response_bytes));
        number(out, ",\"deadline_ms\":", deadline_ms);
        text(out, ",\"trace_id\":", trace_id);
        out.push(b'}');
    }
}

fn text(out: &mut Vec<u8>, key: &str, value: Option<&str>) {
    out.extend_from_slice(key.as_bytes());
    // Neither a Vec nor a text can fail.
    let _ = serde_json::to_writer(out, &value);
}

fn number(out: &mut Vec<u8>, key: &str, value: Option<u64>) {
    out.extend_from_slice(key.as_bytes());
    let _ = serde_json::to_writer(out, &value);
}

/// Thousandths behind a whole number, without zeros at the end but for the first.
fn fraction(out: &mut Vec<u8>, thousandths: u64) {
    let digit = |place: u64| b'0' + (thousandths / place % 10) as u8;
    let digits = [b'.', digit(100), digit(10), digit(1)];
    let length = match digits {
        [.., b'0', b'0'] => 2,
        [.., b'0'] => 3,
        _ => 4,
    };
    out.extend_from_slice(&digits[..length]);
}

/// Whether the flags of a `traceparent` say that the caller records the trace.
fn is_recorded(value: &HeaderValue) -> bool {
    let flags = value.to_str().ok().and_then(|text| text.split('-').nth(3));
    flags
        .and_then(|flags| u8::from_str_radix(flags, 16).ok())
        .is_none_or(|flags| flags & 1 == 1)
}

/// The trace id of a `traceparent` (W3C Trace Context 3.2): `version-id-parent-flags`.
fn trace_id(value: &HeaderValue) -> Option<&str> {
    let id = value.to_str().ok()?.split('-').nth(1)?;
    let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then_some(id)
}

/// Times as text, of calls that end one after the other: most of them in the same second.
#[derive(Debug, Default)]
pub(crate) struct Stamp {
    second: Option<u64>,
    text: String,
}

impl Stamp {
    /// A time in UTC with microseconds.
    fn text(&mut self, ns: u64) -> &str {
        let second = ns / 1_000_000_000;
        if self.second != Some(second) {
            self.second = Some(second);
            self.text = rfc3339(ns);
            return &self.text;
        }
        let micros = ns % 1_000_000_000 / 1_000;
        let start = self.text.len() - "000000Z".len();
        self.text.truncate(start);
        let mut place = 100_000;
        while place > 0 {
            self.text
                .push(char::from(b'0' + (micros / place % 10) as u8));
            place /= 10;
        }
        self.text.push('Z');
        &self.text
    }
}

/// A time in UTC with microseconds, as the other log lines have it. Days to a date by the algorithm
/// of Howard Hinnant, "chrono-compatible low-level date algorithms", with years that begin in March.
fn rfc3339(ns: u64) -> String {
    let (seconds, micros) = (ns / 1_000_000_000, ns % 1_000_000_000 / 1_000);
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
impl EndedCall {
    /// A call of `/a/B` that took 1.234567 ms and found nothing.
    pub(crate) fn example(trace_parent: Option<&str>) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(text) = trace_parent {
            headers.insert("traceparent", HeaderValue::from_str(text).unwrap());
        }
        let sampled = Sampled {
            tracing: true,
            ..Sampled::default()
        };
        let record = CallRecord::new(sampled, &Uri::from_static("/a/B"), None, &headers);
        Self::new(Box::new(record), None, 1_234_567, Code::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::{rfc3339, trace_id, EndedCall, Line, Stamp};

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    #[test]
    fn a_line_says_what_was_noted() {
        let mut line = Vec::new();
        EndedCall::example(None).write_line(&mut line, &mut Stamp::default());
        assert_eq!(line.pop(), Some(b'\n'));
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&line["method"], &line["latency_ms"]),
            (&"/a/B".into(), &1.234.into())
        );
        assert!(line["endpoint"].is_null());
    }

    #[test]
    fn a_line_is_what_its_derived_form_is() {
        let odd = "\"\\\u{7}\u{2603}\u{1f600}/";
        for latency_us in [
            0,
            1,
            10,
            100,
            120,
            999,
            1_000,
            1_050,
            1_234_567,
            3_600_000_000,
        ] {
            for some in [None, Some(odd)] {
                let line = Line {
                    ts: "2026-12-31T23:59:59.000000Z",
                    service: some,
                    method: odd,
                    authority: some,
                    endpoint: some,
                    reason: some.map(|_| "least_request"),
                    attempts: 3,
                    grpc_status: "OK",
                    latency_ms: latency_us as f64 / 1_000.0,
                    latency_us,
                    request_bytes: u64::MAX,
                    response_bytes: 0,
                    deadline_ms: some.map(|_| 1_500),
                    trace_id: some,
                };
                let mut written = Vec::new();
                line.write(&mut written);
                let derived = serde_json::to_string(&line).unwrap();
                assert_eq!(String::from_utf8(written).unwrap(), derived);
            }
        }
    }

    #[test]
    fn stamps_are_the_times_whatever_came_before() {
        let mut stamp = Stamp::default();
        let second = 1_000_000_000;
        for ns in [
            0,
            1_000,
            999_999_999,
            second,
            second + 70_000,
            5,
            951_827_696 * second,
        ] {
            assert_eq!(stamp.text(ns), rfc3339(ns));
            assert_eq!(
                stamp.text(ns + 123_456_000 % second),
                rfc3339(ns + 123_456_000 % second)
            );
        }
    }

    #[test]
    fn a_span_has_times_and_the_context_of_its_caller() {
        let parent = format!("{TRACE}-01");
        let mut row = Vec::new();
        EndedCall::example(Some(&parent)).write_span(&mut row);
        let row: serde_json::Value = serde_json::from_slice(&row).unwrap();
        assert_eq!(
            (&row["grpc_code"], &row["method"]),
            (&5.into(), &"/a/B".into())
        );
        assert_eq!(row["trace_parent"], parent);
        let time = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(time("end_ns") - time("start_ns"), 1_234_567);
    }

    #[test]
    fn no_span_comes_into_a_trace_that_its_caller_does_not_record() {
        let traced =
            |flags: &str| EndedCall::example(Some(&format!("{TRACE}-{flags}"))).is_traced();
        assert_eq!(
            ["00", "01", "02", "03"].map(traced),
            [false, true, false, true]
        );
        assert!(EndedCall::example(None).is_traced());
        assert!(EndedCall::example(Some("no trace")).is_traced());
    }

    #[test]
    fn times_are_dates() {
        let second = 1_000_000_000;
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            rfc3339(951_827_696 * second + 789_000),
            "2000-02-29T12:34:56.000789Z"
        );
        assert_eq!(
            rfc3339(1_798_761_599 * second),
            "2026-12-31T23:59:59.000000Z"
        );
    }

    #[test]
    fn trace_ids_are_read_or_left() {
        let of = |text| trace_id(&HeaderValue::from_static(text)).map(str::to_owned);
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(
            of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            Some(id.into())
        );
        assert_eq!(of("00-short-00f067aa0ba902b7-01"), None);
        assert_eq!(of("no trace"), None);
    }
}
