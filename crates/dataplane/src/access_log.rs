//! The access log: one JSON line per sampled call, written by a thread of its own.
//!
//! A data thread hands over what it knows of a call as shared pointers and numbers, through a
//! bounded queue that it never waits for; lines are made and written on the other side. The writer
//! sleeps between batches, so that one wake-up serves every call of some milliseconds: waking it
//! per call would cost more than the line.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use serde::Serialize;

use crate::attempt::Attempt;
use crate::config::AccessLogConfig;
use crate::decisions::wall_ns;
use crate::endpoint::Endpoint;
use crate::grpc::Code;
use crate::reason::Reason;
use crate::service::Service;

/// Calls that wait for the writer; one more is dropped and counted.
const QUEUE_MAX: usize = 16_384;

/// How long the writer collects.
const PAUSE: Duration = Duration::from_millis(20);

/// What is left for the last lines when the data plane stops.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Bytes of one write to a file.
const FILE_BYTES: usize = 256 * 1024;

/// Bytes of one write to a standard stream: so much a pipe takes in one piece, whoever else writes.
const STREAM_BYTES: usize = 4_096;

/// What is noted of a sampled call while it runs.
#[derive(Debug)]
pub(crate) struct CallRecord {
    uri: Uri,
    authority: Option<Authority>,
    trace_parent: Option<HeaderValue>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) picks: Picks,
    pub(crate) request_bytes: Cell<u64>,
    pub(crate) response_bytes: Cell<u64>,
}

/// Whom a call was given to.
#[derive(Debug, Default)]
pub(crate) struct Picks {
    attempts: u32,
    last: Option<(Arc<Endpoint>, Reason)>,
}

/// A call that ended.
#[derive(Debug)]
struct Ended {
    record: Box<CallRecord>,
    service: Option<Arc<Service>>,
    at_ns: u64,
    latency_ns: u64,
    code: Code,
}

/// The log of a data plane, on or off.
#[derive(Debug, Default)]
pub struct AccessLog {
    queue: ArcSwapOption<SyncSender<Ended>>,
    counters: Arc<Counters>,
    writer: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    output: String,
    /// Disconnected once everything was written.
    done: Receiver<()>,
}

/// What the log counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Lines written.
    pub written: AtomicU64,
    /// Calls dropped because the queue was full.
    pub dropped_by_queue: AtomicU64,
    /// Lines lost because the output refused them.
    pub dropped_by_output: AtomicU64,
    /// Raised to have the file opened anew.
    reopen: AtomicU64,
}

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
    request_bytes: u64,
    response_bytes: u64,
    deadline_ms: Option<u64>,
    trace_id: Option<&'a str>,
}

impl CallRecord {
    pub(crate) fn new(uri: &Uri, authority: Option<&Authority>, headers: &HeaderMap) -> Self {
        Self {
            uri: uri.clone(),
            authority: authority.cloned(),
            trace_parent: headers.get("traceparent").cloned(),
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
        self.last = Some((Arc::clone(attempt.endpoint()), attempt.reason()));
    }
}

impl AccessLog {
    /// Counters, for metrics.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Follows the policy: starts, ends or replaces the writer.
    pub(crate) fn configure(&self, config: Option<&AccessLogConfig>) {
        let mut writer = self.writer.lock();
        let wanted = config.map(|config| config.output.as_str());
        let running = writer.as_ref().map(|running| running.output.as_str());
        if wanted == running {
            return;
        }
        // The thread ends with its last sender, once it wrote what is queued.
        self.queue.store(None);
        *writer = None;
        let Some(output) = wanted.map(str::to_owned) else {
            return;
        };
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let counters = Arc::clone(&self.counters);
        let mut target = Target::new(&output, counters);
        let (ending, done) = sync_channel(1);
        let spawned = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                target.write_all(&receiver);
                drop(ending);
            });
        match spawned {
            Ok(_) => {
                self.queue.store(Some(Arc::new(sender)));
                *writer = Some(Running { output, done });
            }
            Err(error) => tracing::error!(%error, "cannot start the access log"),
        }
    }

    /// Ends the log; what is queued is written first, unless the output hangs.
    pub(crate) fn close(&self) {
        self.queue.store(None);
        if let Some(running) = self.writer.lock().take() {
            let _ = running.done.recv_timeout(LAST_WRITES);
        }
    }

    /// Has the file opened anew, after somebody moved it away.
    pub fn reopen(&self) {
        self.counters.reopen.fetch_add(1, Relaxed);
    }

    /// Hands a call over; never waits.
    pub(crate) fn ended(
        &self,
        record: Box<CallRecord>,
        service: Option<Arc<Service>>,
        latency_ns: u64,
        code: Code,
    ) {
        let queue = self.queue.load();
        let Some(queue) = queue.as_ref() else {
            return;
        };
        let ended = Ended {
            record,
            service,
            at_ns: wall_ns(),
            latency_ns,
            code,
        };
        if queue.try_send(ended).is_err() {
            self.counters.dropped_by_queue.fetch_add(1, Relaxed);
        }
    }
}

/// Where lines go.
struct Target {
    output: String,
    counters: Arc<Counters>,
    file: Option<File>,
    reopened: u64,
    /// Why the output does not take lines, as it was logged.
    failing: Option<String>,
    batch: Vec<u8>,
    lines: u64,
}

impl Target {
    fn new(output: &str, counters: Arc<Counters>) -> Self {
        Self {
            output: output.to_owned(),
            reopened: counters.reopen.load(Relaxed),
            counters,
            file: None,
            failing: None,
            batch: Vec::new(),
            lines: 0,
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, on which no call waits"
    )]
    fn write_all(&mut self, queue: &Receiver<Ended>) {
        let limit = match self.output.as_str() {
            "stdout" | "stderr" => STREAM_BYTES,
            _ => FILE_BYTES,
        };
        let mut line = Vec::new();
        while let Ok(first) = queue.recv() {
            std::thread::sleep(PAUSE);
            let rest = std::iter::from_fn(|| queue.try_recv().ok());
            for ended in std::iter::once(first).chain(rest) {
                line.clear();
                ended.write(&mut line);
                if self.batch.len() + line.len() > limit {
                    self.flush();
                }
                self.batch.extend_from_slice(&line);
                self.lines += 1;
            }
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let counter = match self.deliver() {
            Ok(()) => {
                self.failing = None;
                &self.counters.written
            }
            Err(error) => {
                let cause = error.to_string();
                if self.failing.as_ref() != Some(&cause) {
                    tracing::error!(output = %self.output, cause, "cannot write the access log");
                    self.failing = Some(cause);
                }
                // Tried afresh with the next batch.
                self.file = None;
                &self.counters.dropped_by_output
            }
        };
        counter.fetch_add(self.lines, Relaxed);
        self.batch.clear();
        self.lines = 0;
    }

    fn deliver(&mut self) -> io::Result<()> {
        match self.output.as_str() {
            "stdout" => io::stdout()
                .write_all(&self.batch)
                .and_then(|()| io::stdout().flush()),
            "stderr" => io::stderr().write_all(&self.batch),
            path => {
                let wanted = self.counters.reopen.load(Relaxed);
                if wanted != self.reopened {
                    self.file = None;
                    self.reopened = wanted;
                }
                let file = match self.file.take() {
                    Some(file) => file,
                    None => OpenOptions::new().create(true).append(true).open(path)?,
                };
                self.file.insert(file).write_all(&self.batch)
            }
        }
    }
}

impl Ended {
    fn write(&self, out: &mut Vec<u8>) {
        let record = &self.record;
        let picked = record.picks.last.as_ref();
        let line = Line {
            ts: &rfc3339(self.at_ns),
            service: self.service.as_ref().map(|service| service.name.as_str()),
            method: record.uri.path(),
            authority: record.authority.as_ref().map(Authority::as_str),
            endpoint: picked.map(|(endpoint, _)| endpoint.name.as_str()),
            reason: picked.map(|(_, reason)| reason.name()),
            attempts: record.picks.attempts,
            grpc_status: self.code.name(),
            // Whole microseconds: more digits would only look exact.
            latency_ms: (self.latency_ns / 1_000) as f64 / 1_000.0,
            request_bytes: record.request_bytes.get(),
            response_bytes: record.response_bytes.get(),
            deadline_ms: record.deadline.map(|deadline| deadline.as_millis() as u64),
            trace_id: record.trace_parent.as_ref().and_then(trace_id),
        };
        // Neither a Vec nor these fields can fail.
        let _ = serde_json::to_writer(&mut *out, &line);
        out.push(b'\n');
    }
}

/// The trace id of a `traceparent` (W3C Trace Context 3.2): `version-id-parent-flags`.
fn trace_id(value: &HeaderValue) -> Option<&str> {
    let id = value.to_str().ok()?.split('-').nth(1)?;
    let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then_some(id)
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
mod tests {
    use http::HeaderValue;

    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc::sync_channel;
    use std::sync::Arc;

    use http::{HeaderMap, Uri};

    use super::{rfc3339, trace_id, AccessLog, CallRecord, Code};

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (sender, receiver) = sync_channel(2);
        let log = AccessLog::default();
        log.queue.store(Some(Arc::new(sender)));
        for _ in 0..5 {
            let record = CallRecord::new(&Uri::from_static("/a/B"), None, &HeaderMap::new());
            log.ended(Box::new(record), None, 1_234_567, Code::Ok);
        }
        assert_eq!(log.counters().dropped_by_queue.load(Relaxed), 3);
        let mut line = Vec::new();
        receiver.try_iter().for_each(|ended| ended.write(&mut line));
        let lines = String::from_utf8(line).unwrap();
        assert_eq!(lines.lines().count(), 2);
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&first["method"], &first["latency_ms"]),
            (&"/a/B".into(), &1.234.into())
        );
        assert!(first["endpoint"].is_null());
    }

    #[test]
    fn without_a_writer_nothing_is_counted() {
        let log = AccessLog::default();
        let record = CallRecord::new(&Uri::from_static("/a/B"), None, &HeaderMap::new());
        log.ended(Box::new(record), None, 1, Code::Ok);
        assert_eq!(log.counters().dropped_by_queue.load(Relaxed), 0);
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
