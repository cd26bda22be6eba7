//! What came out of a run, and the histogram that its percentiles are read from.

use serde::Serialize;

/// Buckets per doubling: an upper edge is at most 1/128 above its lower edge, so a percentile read
/// as the middle of its bucket is at most 0.4 % off.
const BITS: u32 = 7;
const PER_DOUBLING: usize = 1 << BITS;

/// Counts of durations in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Counts {
    buckets: Vec<u32>,
    pub(crate) count: u64,
    sum_ns: f64,
    /// Range of buckets in use, to read and clear only those.
    low: usize,
    high: usize,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![0; PER_DOUBLING * (65 - BITS as usize)],
            count: 0,
            sum_ns: 0.0,
            low: usize::MAX,
            high: 0,
        }
    }

    pub(crate) fn add(&mut self, value_ns: u64) {
        let bucket = bucket(value_ns);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ns += value_ns as f64;
        self.low = self.low.min(bucket);
        self.high = self.high.max(bucket);
    }

    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns / self.count as f64 / 1e6)
    }

    /// The `share`-quantile, the middle of its bucket.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for bucket in self.low..=self.high {
            seen += u64::from(self.buckets[bucket]);
            if seen >= rank {
                return Some(middle_ns(bucket) / 1e6);
            }
        }
        None
    }

    pub(crate) fn clear(&mut self) {
        if self.count > 0 {
            self.buckets[self.low..=self.high].fill(0);
        }
        (self.count, self.sum_ns, self.low, self.high) = (0, 0.0, usize::MAX, 0);
    }
}

fn bucket(value_ns: u64) -> usize {
    if value_ns < PER_DOUBLING as u64 {
        return value_ns as usize;
    }
    let shift = 63 - value_ns.leading_zeros() - BITS;
    ((shift as usize) << BITS) + (value_ns >> shift) as usize
}

fn middle_ns(bucket: usize) -> f64 {
    if bucket < 2 * PER_DOUBLING {
        return bucket as f64;
    }
    let shift = (bucket >> BITS) as u32 - 1;
    let lower = ((bucket & (PER_DOUBLING - 1)) + PER_DOUBLING) as f64;
    (lower + 0.5) * f64::from(2_u32).powi(shift as i32)
}

/// A run of one balancer with one seed. Milliseconds and seconds; `None` where there was no call.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The scenario.
    pub scenario: String,
    /// The balancer's `type`.
    pub balancer: String,
    /// The seed.
    pub seed: u64,
    /// What the endpoints of the beginning can do, blind to classes.
    pub capacity_rps: f64,
    /// Mean rate of arrivals.
    pub offered_rps: f64,
    /// Whether more arrives than that.
    pub overload: bool,
    /// Measured calls: those that arrived after the warm-up.
    pub calls: u64,
    /// Those that failed, the ones that ran into the deadline included.
    pub errors: u64,
    /// Those that ran into the deadline.
    pub deadline_exceeded: u64,
    /// Those that no endpoint could take.
    pub refused: u64,
    /// Those without an answer when the run was cut off.
    pub unfinished: u64,
    /// Latency of answered calls and of those that ran into the deadline.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 90th percentile.
    pub p90_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile.
    pub p999_ms: Option<f64>,
    /// Latency at shares of the calls.
    pub cdf: Vec<CdfPoint>,
    /// Measured calls by endpoint.
    pub endpoints: Vec<EndpointShare>,
    /// What was noticed of events that concern endpoints.
    pub events: Vec<Detection>,
    /// Each second from the start of the run.
    pub timeline: Vec<Second>,
    /// Fingerprint of every pick in order, in hex.
    pub picks: String,
}

/// A point of the distribution of latencies.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CdfPoint {
    /// Share of the calls.
    pub share: f64,
    /// Latency that it does not exceed.
    pub latency_ms: f64,
}

/// What an endpoint got.
#[derive(Debug, Clone, Serialize)]
pub struct EndpointShare {
    /// Its group.
    pub group: String,
    /// Its zone.
    pub zone: String,
    /// When it joined, from the start of the run.
    pub joined_s: f64,
    /// Measured calls that were picked for it.
    pub calls: u64,
    /// Their share of all.
    pub share: f64,
}

/// How long it took until picks avoided the endpoints of an event.
#[derive(Debug, Clone, Serialize)]
pub struct Detection {
    /// What happened.
    pub event: &'static str,
    /// When, from the start of the run.
    pub at_s: f64,
    /// Number of endpoints concerned.
    pub endpoints: u32,
    /// Their share of the picks in the 10 s before.
    pub share_before: Option<f64>,
    /// After it, until their share over 1 s was at most half of that; `None`: never while it
    /// lasted.
    pub detected_s: Option<f64>,
}

/// One second of arrivals.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Second {
    /// Its beginning, from the start of the run.
    pub at_s: u64,
    /// Calls that ended in it.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// As in the whole.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
}

/// Shares at which the distribution is given: dense at the top.
pub(crate) fn cdf_shares() -> impl Iterator<Item = f64> {
    let body = (1..100).map(|step| f64::from(step) / 100.0);
    let tail = (1..10).map(|step| 0.99 + f64::from(step) / 1_000.0);
    body.chain(tail).chain([0.9995, 0.9999, 1.0])
}

#[cfg(test)]
mod tests {
    use attnroute_dataplane::rng::Rng;

    use super::{bucket, middle_ns, Counts};

    #[test]
    fn a_bucket_is_within_the_stated_resolution() {
        let mut rng = Rng::new(1);
        for _ in 0..100_000 {
            let value = rng.next_u64() >> rng.below(64);
            let error = (middle_ns(bucket(value)) - value as f64).abs();
            assert!(error <= value as f64 / 250.0, "{value}");
        }
        for value in [0, 1, 127, 128, 129, 255, 256, u64::MAX] {
            assert!((middle_ns(bucket(value)) - value as f64).abs() <= value as f64 / 250.0);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut counts = Counts::new();
        for value in (1..=1_000_u64).rev() {
            counts.add(value * 1_000_000);
        }
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1_000.0)] {
            let found = counts.quantile_ms(share).expect("calls");
            assert!((found / exact - 1.0).abs() < 0.004, "{share}: {found}");
        }
        assert_eq!(counts.mean_ms(), Some(500.5));
        counts.clear();
        assert_eq!(counts.quantile_ms(0.5), None);
        counts.add(2_000_000);
        assert!((counts.quantile_ms(0.5).expect("one call") - 2.0).abs() < 0.01);
    }
}
