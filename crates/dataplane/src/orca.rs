//! Load reports in the ORCA form (`xds.data.orca.v3.OrcaLoadReport`): what an endpoint says of its
//! load.
//!
//! They come with the trailers of an answer (`endpoint-load-metrics-bin`) or out of band. A report
//! is a claim of somebody else: every value is checked where it comes in, and one that is not
//! finite, negative or absurd counts as absent (LB-17). A report never fails a call.

use std::collections::{BTreeMap, HashMap};

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::Engine;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use prost::Message;

use crate::ewma::AtomicF64;

/// Where a report stands in trailers, in base64.
pub static LOAD_METRICS: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Where an answer asks for a pause before the next try (gRFC A6).
pub static PUSH_BACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Longest pause that is believed: one endpoint must not put itself out of use for good.
const PUSH_BACK_MAX_NS: u64 = 60_000_000_000;

/// Bytes of a report beyond which it is not looked at.
pub(crate) const REPORT_BYTES_MAX: usize = 16 * 1024;

/// gRPC pads or does not, as it likes (H2-27).
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Largest values that can be meant: beyond, somebody divided by almost zero.
const UTILIZATION_MAX: f64 = 1e3;
const RATE_MAX: f64 = 1e9;
const CALLS_MAX: f64 = 1e6;
const SERVICE_TIME_S_MAX: f64 = 86_400.0;
const STARTED_S_MAX: f64 = 1e11;
const METRIC_MAX: f64 = 1e9;

/// What an endpoint reported; a value that it did not report, or that cannot be true, is absent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// Share of the processor in use; may exceed 1.
    pub cpu_utilization: Option<f64>,
    /// Share of memory in use.
    pub mem_utilization: Option<f64>,
    /// Share of whatever the application is bound by; may exceed 1.
    pub application_utilization: Option<f64>,
    /// Calls per second.
    pub qps: Option<f64>,
    /// Failed calls per second.
    pub eps: Option<f64>,
    /// Largest of the metrics that the balancer was configured to go by.
    pub metric: Option<f64>,
    /// `attnroute.inflight`: calls in the endpoint when the answer left, its own excluded.
    pub inflight: Option<f64>,
    /// `attnroute.queue`: calls that wait there for a worker.
    pub queue: Option<f64>,
    /// `attnroute.concurrency`: calls that it works on at a time.
    pub concurrency: Option<f64>,
    /// `attnroute.service_time_s`: of the carrying call, without queueing.
    pub service_time_s: Option<f64>,
    /// `attnroute.started_s`: Unix time of its start.
    pub started_s: Option<f64>,
}

/// Where the values of a report stand, beyond the fields of its message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricNames {
    /// What a balancer is configured to go by (gRFC A114).
    metrics: Box<[Metric]>,
    /// Where the application reports the value of each of [`OWN_NAMES`], if elsewhere.
    others: [Option<Metric>; OWN_NAMES.len()],
}

/// Named metrics that mean something here. An application that has such a value under another name
/// need not be changed: the policy says which one it is.
pub const OWN_NAMES: [&str; 5] = [
    "attnroute.inflight",
    "attnroute.queue",
    "attnroute.concurrency",
    "attnroute.service_time_s",
    "attnroute.started_s",
];

/// Largest value that is believed of each of them.
const OWN_MAX: [f64; OWN_NAMES.len()] = [
    CALLS_MAX,
    CALLS_MAX,
    CALLS_MAX,
    SERVICE_TIME_S_MAX,
    STARTED_S_MAX,
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Metric {
    Cpu,
    Mem,
    Application,
    Named(String),
}

/// The message on the wire; fields that nobody here reads are skipped.
#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(double, tag = "1")]
    cpu_utilization: f64,
    #[prost(double, tag = "2")]
    mem_utilization: f64,
    /// Deprecated in favour of `rps_fractional`, still sent by old reporters.
    #[prost(uint64, tag = "3")]
    rps: u64,
    #[prost(double, tag = "6")]
    rps_fractional: f64,
    #[prost(double, tag = "7")]
    eps: f64,
    #[prost(map = "string, double", tag = "8")]
    named_metrics: HashMap<String, f64>,
    #[prost(double, tag = "9")]
    application_utilization: f64,
}

/// The report is none: not base64, not the message, or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl MetricNames {
    /// From names that a configuration was found valid with: of the metrics that a balancer goes
    /// by, and by name of ours that of the application.
    #[must_use]
    pub fn new(metrics: &[String], others: &BTreeMap<String, String>) -> Self {
        Self {
            metrics: metrics.iter().map(|name| Metric::new(name)).collect(),
            others: OWN_NAMES.map(|own| others.get(own).map(|name| Metric::new(name))),
        }
    }

    /// Whether a text names a value of a report.
    #[must_use]
    pub fn is_valid(name: &str) -> bool {
        match Metric::new(name) {
            Metric::Named(rest) => rest != name && !rest.is_empty(),
            Metric::Cpu | Metric::Mem | Metric::Application => true,
        }
    }
}

impl Metric {
    fn new(name: &str) -> Self {
        match name {
            "cpu_utilization" => Self::Cpu,
            "mem_utilization" => Self::Mem,
            "application_utilization" => Self::Application,
            name => Self::Named(name.strip_prefix("named_metrics.").unwrap_or(name).into()),
        }
    }
}

impl LoadReport {
    /// The report in the values of `endpoint-load-metrics-bin`. Of several the last that is one
    /// counts.
    ///
    /// # Errors
    /// None of them can be read.
    pub fn of_values(values: &[HeaderValue], names: &MetricNames) -> Result<Self, Malformed> {
        let parts = values
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let mut found = Err(Malformed);
        for part in parts {
            let report = decode_base64(part).and_then(|bytes| Self::decode(&bytes, names));
            found = report.or(found);
        }
        found
    }

    /// The report of a serialised message.
    ///
    /// # Errors
    /// It is no such message, or too long.
    pub fn decode(message: &[u8], names: &MetricNames) -> Result<Self, Malformed> {
        if message.len() > REPORT_BYTES_MAX {
            return Err(Malformed);
        }
        let wire = Wire::decode(message).map_err(|_| Malformed)?;
        let rps = if wire.rps_fractional == 0.0 {
            wire.rps as f64
        } else {
            wire.rps_fractional
        };
        // Of a plain field the wire cannot tell 0 from absent.
        let plain = |value: f64, most: f64| believable(value, most).filter(|value| *value > 0.0);
        let named = |name: &str, most: f64| {
            let value = wire.named_metrics.get(name)?;
            believable(*value, most)
        };
        let mut report = Self {
            cpu_utilization: plain(wire.cpu_utilization, UTILIZATION_MAX),
            mem_utilization: plain(wire.mem_utilization, UTILIZATION_MAX),
            application_utilization: plain(wire.application_utilization, UTILIZATION_MAX),
            qps: plain(rps, RATE_MAX),
            eps: plain(wire.eps, RATE_MAX),
            ..Self::default()
        };
        let value = |metric: &Metric, most: f64| match metric {
            Metric::Cpu => report.cpu_utilization.filter(|value| *value <= most),
            Metric::Mem => report.mem_utilization.filter(|value| *value <= most),
            Metric::Application => report
                .application_utilization
                .filter(|value| *value <= most),
            Metric::Named(name) => named(name, most),
        };
        let own: [Option<f64>; OWN_NAMES.len()] = std::array::from_fn(|index| {
            let other = names.others[index].as_ref();
            let mapped = other.and_then(|metric| value(metric, OWN_MAX[index]));
            mapped.or_else(|| named(OWN_NAMES[index], OWN_MAX[index]))
        });
        let metrics = names.metrics.iter();
        report.metric = metrics
            .filter_map(|metric| value(metric, METRIC_MAX).filter(|value| *value > 0.0))
            .reduce(f64::max);
        [
            report.inflight,
            report.queue,
            report.concurrency,
            report.service_time_s,
            report.started_s,
        ] = own;
        report.concurrency = report.concurrency.filter(|calls| *calls >= 1.0);
        Ok(report)
    }
}

/// What an answer says beside its status. Taken out of its trailers before they are passed on, which
/// copies no bytes, and read afterwards, so that no client waits for it.
#[derive(Debug)]
pub struct Claims {
    reports: Vec<HeaderValue>,
    push_back_ns: Option<u64>,
}

impl Claims {
    /// Those of a block of trailers; `None`, as of most, if there are none.
    #[must_use]
    pub fn of(trailers: &HeaderMap) -> Option<Box<Self>> {
        let reports = trailers.get_all(&LOAD_METRICS).iter().cloned();
        let reports: Vec<_> = reports.collect();
        let push_back_ns = push_back_ns(trailers);
        (!reports.is_empty() || push_back_ns.is_some()).then(|| {
            Box::new(Self {
                reports,
                push_back_ns,
            })
        })
    }

    /// The load report, if there is one.
    ///
    /// # Errors
    /// There is one and it cannot be read.
    #[must_use]
    pub fn report(&self, names: &MetricNames) -> Option<Result<LoadReport, Malformed>> {
        self.has_report()
            .then(|| LoadReport::of_values(&self.reports, names))
    }

    /// Whether there is something that may be one.
    #[must_use]
    pub fn has_report(&self) -> bool {
        !self.reports.is_empty()
    }

    /// How long the endpoint asked not to be called again.
    #[must_use]
    pub fn push_back_ns(&self) -> Option<u64> {
        self.push_back_ns
    }
}

/// `grpc-retry-pushback-ms`, else `retry-after` in seconds, at most [`PUSH_BACK_MAX_NS`]. A negative
/// push-back means "do not try again", which names no time; so does one that is no number.
fn push_back_ns(trailers: &HeaderMap) -> Option<u64> {
    let number = |name: &HeaderName| -> Option<u64> {
        let text = trailers.get(name)?.to_str().ok()?;
        text.parse().ok()
    };
    let asked_ms = number(&PUSH_BACK).or_else(|| {
        let seconds = number(&RETRY_AFTER)?;
        Some(seconds.saturating_mul(1_000))
    })?;
    Some(asked_ms.saturating_mul(1_000_000).min(PUSH_BACK_MAX_NS))
}

/// The serialised message among the values of `endpoint-load-metrics-bin`, of several the last that is
/// one.
pub(crate) fn last_report<'a>(
    values: impl IntoIterator<Item = &'a HeaderValue>,
) -> Option<Vec<u8>> {
    let values = values.into_iter();
    let parts = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let messages = parts.filter_map(|part| decode_base64(part).ok());
    messages
        .filter(|message| message.len() <= REPORT_BYTES_MAX && Wire::decode(&message[..]).is_ok())
        .last()
}

fn decode_base64(text: &[u8]) -> Result<Vec<u8>, Malformed> {
    if text.len() > REPORT_BYTES_MAX * 4 / 3 + 4 {
        return Err(Malformed);
    }
    BASE64.decode(text.trim_ascii()).map_err(|_| Malformed)
}

fn believable(value: f64, most: f64) -> Option<f64> {
    (0.0..=most).contains(&value).then_some(value)
}

/// When an endpoint was started, as far as it says.
#[derive(Debug, Default)]
pub struct Incarnation(AtomicF64);

impl Incarnation {
    /// Unix time of its start; 0 unknown.
    #[must_use]
    pub fn started_s(&self) -> f64 {
        self.0.load()
    }

    /// Whether the report is that of another incarnation than the one before; it is then known.
    pub fn is_new(&self, report: &LoadReport) -> bool {
        let Some(started_s) = report.started_s.filter(|started_s| *started_s > 0.0) else {
            return false;
        };
        let before = self.0.load();
        if before == started_s {
            return false;
        }
        self.0.store(started_s);
        before > 0.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    use base64::Engine;
    use http::header::{HeaderMap, HeaderValue};
    use proptest::prelude::*;
    use prost::Message;

    use super::{Claims, Incarnation, LoadReport, Malformed, MetricNames, Wire, LOAD_METRICS};

    fn wire() -> Wire {
        let named = [
            ("attnroute.inflight", 0.0),
            ("attnroute.queue", 2.0),
            ("attnroute.concurrency", 4.0),
            ("attnroute.service_time_s", 0.02),
            ("attnroute.started_s", 1.7e9),
            ("fill", 0.7),
        ];
        Wire {
            cpu_utilization: 0.25,
            mem_utilization: 0.5,
            rps: 0,
            rps_fractional: 12.5,
            eps: 1.0,
            named_metrics: HashMap::from(named.map(|(name, value)| (name.to_owned(), value))),
            application_utilization: 1.5,
        }
    }

    fn names(names: &[&str]) -> MetricNames {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        MetricNames::new(&names, &BTreeMap::new())
    }

    fn mapped(pairs: &[(&str, &str)]) -> MetricNames {
        let owned = |&(own, other): &(&str, &str)| (own.to_owned(), other.to_owned());
        MetricNames::new(&[], &pairs.iter().map(owned).collect())
    }

    fn decode(wire: &Wire) -> LoadReport {
        LoadReport::decode(&wire.encode_to_vec(), &names(&[])).expect("a report")
    }

    #[test]
    fn reads_the_bytes_of_the_published_message() {
        // cpu_utilization = 0.5 (field 1), rps = 7 (field 3), request_cost {"a": 1.0} (field 4,
        // skipped), application_utilization = 2.0 (field 9), written by hand.
        let bytes = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f][..],
            &[0x18, 7],
            &[0x22, 12, 0x0a, 1, b'a', 0x11, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
            &[0x49, 0, 0, 0, 0, 0, 0, 0, 0x40],
        ]
        .concat();
        let expected = LoadReport {
            cpu_utilization: Some(0.5),
            qps: Some(7.0),
            application_utilization: Some(2.0),
            ..LoadReport::default()
        };
        assert_eq!(LoadReport::decode(&bytes, &names(&[])), Ok(expected));
    }

    #[test]
    fn reads_named_metrics() {
        let expected = LoadReport {
            cpu_utilization: Some(0.25),
            mem_utilization: Some(0.5),
            application_utilization: Some(1.5),
            qps: Some(12.5),
            eps: Some(1.0),
            metric: None,
            inflight: Some(0.0),
            queue: Some(2.0),
            concurrency: Some(4.0),
            service_time_s: Some(0.02),
            started_s: Some(1.7e9),
        };
        assert_eq!(decode(&wire()), expected);
        let metric = |wanted: &[&str]| {
            let bytes = wire().encode_to_vec();
            LoadReport::decode(&bytes, &names(wanted))
                .expect("a report")
                .metric
        };
        assert_eq!(
            metric(&["mem_utilization", "named_metrics.fill"]),
            Some(0.7)
        );
        assert_eq!(
            metric(&["application_utilization", "named_metrics.fill"]),
            Some(1.5)
        );
        assert_eq!(metric(&["named_metrics.other"]), None);
    }

    #[test]
    fn values_under_other_names_are_used() {
        let named = [
            ("queue_length", 0.0),
            ("workers", 0.5),
            ("attnroute.queue", 2.0),
        ];
        let bytes = Wire {
            cpu_utilization: 0.25,
            named_metrics: HashMap::from(named.map(|(name, value)| (name.to_owned(), value))),
            ..Wire::default()
        }
        .encode_to_vec();
        let read =
            |pairs: &[(&str, &str)]| LoadReport::decode(&bytes, &mapped(pairs)).expect("a report");
        // A count of 0 is one; a concurrency below 1 is none.
        let found = read(&[
            ("attnroute.inflight", "named_metrics.queue_length"),
            ("attnroute.concurrency", "named_metrics.workers"),
            ("attnroute.service_time_s", "cpu_utilization"),
        ]);
        assert_eq!(found.inflight, Some(0.0));
        assert_eq!(found.concurrency, None);
        assert_eq!(found.service_time_s, Some(0.25));
        assert_eq!(found.queue, Some(2.0), "what is not mapped keeps its name");
        // The application's name goes first; what it does not report is looked for under ours.
        let queue = |other| read(&[("attnroute.queue", other)]).queue;
        assert_eq!(queue("named_metrics.queue_length"), Some(0.0));
        assert_eq!(queue("named_metrics.absent"), Some(2.0));
    }

    #[test]
    fn names_of_values() {
        for name in [
            "cpu_utilization",
            "named_metrics.a",
            "named_metrics.named_metrics.a",
        ] {
            assert!(MetricNames::is_valid(name), "{name}");
        }
        for name in ["", "qps", "named_metrics.", "named_metrics"] {
            assert!(!MetricNames::is_valid(name), "{name}");
        }
    }

    #[test]
    fn lb_17_what_cannot_be_true_is_absent() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e308] {
            let named = wire().named_metrics.into_keys().map(|name| (name, bad));
            let found = decode(&Wire {
                cpu_utilization: bad,
                mem_utilization: bad,
                rps: 0,
                rps_fractional: bad,
                eps: bad,
                named_metrics: named.collect(),
                application_utilization: bad,
            });
            assert_eq!(found, LoadReport::default(), "{bad}");
        }
        assert_eq!(decode(&Wire::default()), LoadReport::default());
    }

    fn report_of(values: &[&str]) -> Option<Result<LoadReport, Malformed>> {
        let mut trailers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_str(value).expect("a header value");
            trailers.append(&LOAD_METRICS, value);
        }
        Claims::of(&trailers)?.report(&names(&[]))
    }

    #[test]
    fn h2_27_both_paddings_and_joined_values() {
        let bytes = wire().encode_to_vec();
        let (padded, bare) = (STANDARD.encode(&bytes), STANDARD_NO_PAD.encode(&bytes));
        assert_ne!(padded, bare);
        let joined = format!("AAAA, {bare}");
        for values in [&[&*padded][..], &[&*bare], &[&*joined], &[&*bare, "%"]] {
            assert_eq!(report_of(values), Some(Ok(decode(&wire()))), "{values:?}");
        }
        assert_eq!(report_of(&[]), None);
    }

    #[test]
    fn lb_17_garbage_is_malformed() {
        for text in ["%%%", "/////w==", "CQAA"] {
            assert_eq!(report_of(&[text]), Some(Err(Malformed)), "{text}");
        }
        let long = LoadReport::decode(&[0; 20_000], &names(&[]));
        assert_eq!(long, Err(Malformed));
    }

    #[test]
    fn a_push_back_is_bounded() {
        let asked = |name: &'static str, value: &'static str| {
            let mut trailers = HeaderMap::new();
            trailers.insert(name, HeaderValue::from_static(value));
            Claims::of(&trailers).and_then(|claims| claims.push_back_ns())
        };
        assert_eq!(asked("grpc-retry-pushback-ms", "250"), Some(250_000_000));
        assert_eq!(
            asked("grpc-retry-pushback-ms", "999999999999"),
            Some(60_000_000_000)
        );
        assert_eq!(asked("grpc-retry-pushback-ms", "-1"), None);
        assert_eq!(asked("retry-after", "2"), Some(2_000_000_000));
        assert_eq!(asked("retry-after", "Tue, 01 Dec 2026 00:00:00 GMT"), None);
    }

    #[test]
    fn a_new_start_is_a_new_incarnation() {
        let incarnation = Incarnation::default();
        let started = |started_s| LoadReport {
            started_s,
            ..LoadReport::default()
        };
        let seen = [None, Some(5.0), Some(5.0), None, Some(6.0), Some(6.0)];
        let found = seen.map(|started_s| incarnation.is_new(&started(started_s)));
        assert_eq!(found, [false, false, false, false, true, false]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_give_what_is_not_believable(bytes: Vec<u8>) {
            if let Ok(report) = LoadReport::decode(&bytes, &names(&[])) {
                let values = [report.cpu_utilization, report.qps, report.inflight, report.eps];
                prop_assert!(values.iter().flatten().all(|value| (0.0..=1e9).contains(value)));
            }
        }
    }
}
