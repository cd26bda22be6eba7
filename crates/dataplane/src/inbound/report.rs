//! The load report of a server, as the ORCA message that clients read.
//!
//! What the application reports itself is appended to what is measured here: in the wire form of
//! Protocol Buffers the last value of a field or of a key of a map is the one that counts, so the
//! application's values win under their own names, fields that nobody here knows included.

use base64::Engine;
use http::{HeaderMap, HeaderValue};

use super::Load;
use crate::orca::{last_report, BASE64, LOAD_METRICS};

/// Bytes of a report of ours at most.
pub(super) const BYTES_MAX: usize = 256;

const RPS_FRACTIONAL: u8 = 6;
const EPS: u8 = 7;
const NAMED_METRICS: u8 = 8;
const APPLICATION_UTILIZATION: u8 = 9;

/// Wire types of Protocol Buffers.
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;

/// A message under construction.
#[derive(Debug)]
pub(super) struct Encoded {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl Encoded {
    /// The report of a load. Without a limit nobody sees what waits inside the server, so that
    /// nothing is said of it.
    pub(super) fn new(load: &Load, started_s: f64) -> Self {
        let mut report = Self {
            bytes: [0; BYTES_MAX],
            length: 0,
        };
        report.number(RPS_FRACTIONAL, load.qps);
        report.number(EPS, load.eps);
        report.named("attnroute.inflight", load.inflight.into());
        report.named("attnroute.started_s", started_s);
        if let Some(concurrency) = load.concurrency {
            report.number(APPLICATION_UTILIZATION, load.utilization.unwrap_or(0.0));
            report.named("attnroute.concurrency", concurrency.into());
            report.named("attnroute.queue", load.queued.into());
        }
        if let Some(service_ns) = load.service_ns {
            report.named("attnroute.service_time_s", service_ns as f64 / 1e9);
        }
        report
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn number(&mut self, field: u8, value: f64) {
        self.put(&[field << 3 | FIXED64]);
        self.put(&value.to_le_bytes());
    }

    /// An entry of the map: its key is field 1, its value field 2. Names here are short enough for
    /// lengths of one byte.
    fn named(&mut self, name: &str, value: f64) {
        let length = name.len() as u8;
        self.put(&[
            NAMED_METRICS << 3 | LENGTH,
            length + 11,
            1 << 3 | LENGTH,
            length,
        ]);
        self.put(name.as_bytes());
        self.number(2, value);
    }
}

/// The report with the application's own behind it.
pub(super) fn merged(own: &Encoded, theirs: &[u8]) -> Vec<u8> {
    [own.as_bytes(), theirs].concat()
}

/// Puts the report into trailers, merged with the application's if there is one. One that cannot be
/// read is replaced: nobody else could read it either.
pub(super) fn append(trailers: &mut HeaderMap, load: &Load, started_s: f64) {
    let own = Encoded::new(load, started_s);
    let theirs = match trailers.get_all(&LOAD_METRICS).iter().next() {
        Some(_) => last_report(trailers.get_all(&LOAD_METRICS)),
        None => None,
    };
    let value = match theirs {
        Some(theirs) => HeaderValue::try_from(BASE64.encode(merged(&own, &theirs))),
        None => {
            let mut text = [0; BYTES_MAX * 4 / 3 + 4];
            let length = BASE64.encode_slice(own.as_bytes(), &mut text);
            HeaderValue::from_bytes(&text[..length.unwrap_or(0)])
        }
    };
    // Base64 is always a field value.
    if let Ok(value) = value {
        trailers.insert(&LOAD_METRICS, value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base64::Engine;
    use http::{HeaderMap, HeaderValue};

    use super::{append, Encoded};
    use crate::inbound::Load;
    use crate::orca::{LoadReport, MetricNames, BASE64, LOAD_METRICS};

    fn load() -> Load {
        Load {
            inflight: 3,
            queued: 1,
            concurrency: Some(2),
            utilization: Some(0.75),
            service_ns: Some(20_000_000),
            qps: 12.5,
            eps: 0.5,
            latency_ns: None,
        }
    }

    fn names() -> MetricNames {
        MetricNames::new(&["named_metrics.fill".to_owned()], &BTreeMap::new())
    }

    fn read(trailers: &HeaderMap) -> LoadReport {
        let values: Vec<_> = trailers.get_all(&LOAD_METRICS).iter().cloned().collect();
        assert_eq!(values.len(), 1);
        LoadReport::of_values(&values, &names()).expect("a report")
    }

    fn reported(bytes: &[u8]) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        let value = HeaderValue::try_from(BASE64.encode(bytes)).expect("a value");
        trailers.insert(&LOAD_METRICS, value);
        trailers
    }

    #[test]
    fn what_is_measured_is_read_again() {
        let mut trailers = HeaderMap::new();
        append(&mut trailers, &load(), 1.7e9);
        let expected = LoadReport {
            application_utilization: Some(0.75),
            qps: Some(12.5),
            eps: Some(0.5),
            inflight: Some(3.0),
            queue: Some(1.0),
            concurrency: Some(2.0),
            service_time_s: Some(0.02),
            started_s: Some(1.7e9),
            ..LoadReport::default()
        };
        assert_eq!(read(&trailers), expected);
    }

    #[test]
    fn without_a_limit_nothing_is_said_of_what_waits() {
        let load = Load {
            concurrency: None,
            utilization: None,
            service_ns: None,
            ..load()
        };
        let report = Encoded::new(&load, 5.0);
        let report = LoadReport::decode(report.as_bytes(), &names()).expect("a report");
        let expected = LoadReport {
            qps: Some(12.5),
            eps: Some(0.5),
            inflight: Some(3.0),
            started_s: Some(5.0),
            ..LoadReport::default()
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn the_application_wins_under_its_own_names() {
        // Its own inflight (9), cpu_utilization 0.5 and a metric of its own, "fill" 0.25.
        let entry = |name: &str, value: f64| {
            let length = name.len() as u8;
            let head = [0x42, length + 11, 0x0a, length];
            let number = [&[0x11][..], &value.to_le_bytes()].concat();
            [&head[..], name.as_bytes(), &number].concat()
        };
        let theirs = [
            &[0x09][..],
            &0.5_f64.to_le_bytes(),
            &entry("attnroute.inflight", 9.0),
            &entry("fill", 0.25),
        ];
        let mut trailers = reported(&theirs.concat());
        append(&mut trailers, &load(), 1.7e9);
        let report = read(&trailers);
        assert_eq!(report.inflight, Some(9.0));
        assert_eq!(report.cpu_utilization, Some(0.5));
        assert_eq!(report.metric, Some(0.25));
        assert_eq!((report.queue, report.concurrency), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn a_report_that_cannot_be_read_is_replaced() {
        let mut trailers = reported(&[0xff, 0xff, 0xff]);
        append(&mut trailers, &load(), 1.7e9);
        assert_eq!(read(&trailers).inflight, Some(3.0));
    }

    #[test]
    fn the_longest_report_fits() {
        let most = Load {
            inflight: u32::MAX,
            queued: u32::MAX,
            concurrency: Some(u32::MAX),
            utilization: Some(f64::MAX),
            service_ns: Some(u64::MAX),
            qps: f64::MAX,
            eps: f64::MAX,
            latency_ns: Some(f64::MAX),
        };
        assert!(Encoded::new(&most, f64::MAX).as_bytes().len() <= super::BYTES_MAX);
    }
}
