//! Outlier detection: an endpoint whose calls go wrong gets none for a while.
//!
//! Three criteria. Failures in a row are judged with each ended call, because a black hole fails
//! fast and attracts calls: 5 in a row eject, so a sidecar loses no more than those and what was in
//! flight. Success rate and latency are judged once an interval, against the other endpoints: what
//! all of them suffer is no reason to leave one alone. Failures are those of `Code::is_failure`, by
//! the final status wherever it stood, with connection failures and silence until the deadline among
//! them. While connects to an endpoint fail, its calls do not count one by one, since all that wait
//! for one connect fail together; the failed connect counts once.
//!
//! The share of ejected endpoints is bounded by floor(n * max_ejected), judged after the ejection,
//! which is stricter than gRFC A50: a limit that is looked at before is exceeded by one (RS-01). A
//! service of one endpoint never loses it.
//!
//! An ejection lasts base * 2^(k - 1), k the ejections so far, at most the configured longest; each
//! base time that an endpoint then spends without another takes one off k. One that returns begins
//! slow start anew where that is switched on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::config::{LatencyOutlierConfig, OutlierConfig, SuccessRateConfig};
use crate::endpoint::{Endpoint, Live, Member, Outcome};

/// Why an endpoint was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Failures in a row.
    ConsecutiveErrors,
    /// A success rate far below the others'.
    SuccessRate,
    /// A latency far above the others'.
    Latency,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 3] = [Self::ConsecutiveErrors, Self::SuccessRate, Self::Latency];

    /// Its metric label, the key of the criterion in the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConsecutiveErrors => "consecutive_errors",
            Self::SuccessRate => "success_rate",
            Self::Latency => "latency",
        }
    }
}

/// What outlier detection knows of one endpoint, in the endpoint.
#[derive(Debug, Default)]
pub struct Record {
    /// Failures since the last success.
    consecutive: AtomicU32,
    ejected: AtomicBool,
    history: Mutex<History>,
}

#[derive(Debug, Clone, Copy, Default)]
struct History {
    /// End of the ejection, or of the last one.
    until_ns: u64,
    /// Ejections that count towards the next one's length.
    times: u32,
    seen: Seen,
}

/// Counters of an endpoint at a judgement, and what became of them since the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    successes: u64,
    failures: u64,
    latency_ns: u64,
}

impl Record {
    /// Whether the endpoint gets no calls now.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        self.ejected.load(Relaxed)
    }

    /// A connect failed after others had worked.
    pub(crate) fn connect_failed(&self) {
        self.consecutive.fetch_add(1, Relaxed);
    }

    /// When the ejection ends.
    pub(crate) fn until_ns(&self) -> u64 {
        self.history.lock().until_ns
    }

    /// Ends the ejection; failures from before count no more.
    pub(crate) fn restore(&self) {
        self.consecutive.store(0, Relaxed);
        self.ejected.store(false, Relaxed);
    }
}

impl Seen {
    fn of(live: &Live) -> Self {
        Self {
            successes: live.successes.load(Relaxed),
            failures: live.failures.load(Relaxed),
            latency_ns: live.latency_ns.load(Relaxed),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            successes: self.successes.saturating_sub(before.successes),
            failures: self.failures.saturating_sub(before.failures),
            latency_ns: self.latency_ns.saturating_sub(before.latency_ns),
        }
    }

    fn calls(self) -> u64 {
        self.successes + self.failures
    }

    fn success_rate(self) -> f64 {
        self.successes as f64 / self.calls() as f64
    }

    fn mean_latency_ns(self) -> f64 {
        self.latency_ns as f64 / self.successes as f64
    }
}

/// The switched-on setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlier {
    config: OutlierConfig,
}

impl Outlier {
    /// The setting.
    #[must_use]
    pub const fn new(config: OutlierConfig) -> Self {
        Self { config }
    }

    /// Takes in how an attempt ended. True if the endpoint is to be ejected; where the limit
    /// forbids that, it is asked for again after as many more failures.
    pub fn ended(&self, endpoint: &Endpoint, outcome: Outcome) -> bool {
        let record = &endpoint.outlier;
        match outcome {
            Outcome::Censored(_) => false,
            Outcome::Answered(code) if code.is_failure() => {
                let enough = self.config.consecutive_errors;
                if enough == 0 || record.is_ejected() || endpoint.live.failing.load(Relaxed) {
                    return false;
                }
                let failures = record.consecutive.fetch_add(1, Relaxed) + 1;
                failures >= enough && failures.is_multiple_of(enough)
            }
            Outcome::Answered(_) => {
                if record.consecutive.load(Relaxed) != 0 {
                    record.consecutive.store(0, Relaxed);
                }
                false
            }
        }
    }

    /// Endpoints of a set that may be ejected at once.
    #[must_use]
    pub fn limit(&self, members: &[Member]) -> usize {
        let count = takers(members).count();
        if count <= 1 {
            return 0;
        }
        // A share such as 29 % of 100 must not lose one to rounding.
        (count as f64 * self.config.max_ejected + 1e-9).floor() as usize
    }

    /// Ejects an endpoint, whatever the limit says. Returns for how long.
    pub(crate) fn eject(&self, endpoint: &Endpoint, now_ns: u64) -> u64 {
        let mut history = endpoint.outlier.history.lock();
        let base_ns = self.config.base_ejection_ms.saturating_mul(1_000_000);
        let quiet = now_ns.saturating_sub(history.until_ns) / base_ns;
        let forgotten = u32::try_from(quiet).unwrap_or(u32::MAX);
        history.times = history.times.saturating_sub(forgotten).saturating_add(1);
        let length_ns = base_ns
            .saturating_mul(1 << (history.times - 1).min(32))
            .min(self.config.max_ejection_ms.saturating_mul(1_000_000));
        history.until_ns = now_ns.saturating_add(length_ns);
        endpoint.outlier.ejected.store(true, Relaxed);
        length_ns
    }

    /// Time between two judgements; `None` where nothing is judged by the interval.
    #[must_use]
    pub fn interval_ns(&self) -> Option<u64> {
        let judges = self.config.success_rate.is_some() || self.config.latency.is_some();
        judges.then(|| self.config.interval_ms.saturating_mul(1_000_000))
    }

    /// Judges the interval that ends now: indices to eject, the worst first, each with its cause.
    pub(crate) fn judge(&self, members: &[Member]) -> Vec<(u32, Cause)> {
        let mut intervals = Vec::new();
        for (index, member) in takers(members) {
            let now = Seen::of(&member.endpoint.live);
            let mut history = member.endpoint.outlier.history.lock();
            let before = std::mem::replace(&mut history.seen, now);
            if !member.endpoint.outlier.is_ejected() {
                intervals.push((index, now.since(before)));
            }
        }
        let mut found = Vec::new();
        if let Some(config) = &self.config.success_rate {
            let worst = low_success_rates(config, &intervals);
            found.extend(worst.into_iter().map(|index| (index, Cause::SuccessRate)));
        }
        if let Some(config) = &self.config.latency {
            let worst = high_latencies(config, &intervals);
            found.extend(worst.into_iter().map(|index| (index, Cause::Latency)));
        }
        found
    }
}

/// Members that take calls at all, with their indices.
fn takers(members: &[Member]) -> impl Iterator<Item = (u32, &Member)> {
    (0_u32..)
        .zip(members)
        .filter(|(_, member)| member.takes_calls())
}

fn low_success_rates(config: &SuccessRateConfig, intervals: &[(u32, Seen)]) -> Vec<u32> {
    let rates: Vec<_> = intervals
        .iter()
        .filter(|(_, seen)| seen.calls() >= u64::from(config.min_calls))
        .map(|(index, seen)| (*index, seen.success_rate()))
        .collect();
    if rates.len() < config.min_endpoints as usize {
        return Vec::new();
    }
    let count = rates.len() as f64;
    let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / count;
    let squares = rates.iter().map(|(_, rate)| (rate - mean) * (rate - mean));
    let stdev = (squares.sum::<f64>() / count).sqrt();
    let least = mean - config.stdev_factor * stdev;
    worst_first(rates, |rate| -rate, |rate| rate < least)
}

fn high_latencies(config: &LatencyOutlierConfig, intervals: &[(u32, Seen)]) -> Vec<u32> {
    let means: Vec<_> = intervals
        .iter()
        .filter(|(_, seen)| seen.successes >= u64::from(config.min_calls))
        .map(|(index, seen)| (*index, seen.mean_latency_ns()))
        .collect();
    if means.len() < config.min_endpoints as usize {
        return Vec::new();
    }
    let mut sorted: Vec<_> = means.iter().map(|(_, mean)| *mean).collect();
    sorted.sort_by(f64::total_cmp);
    // The lower of two middles: of two endpoints the slow one must not be its own measure.
    let most = config.factor * sorted[(sorted.len() - 1) / 2];
    worst_first(means, |mean| mean, |mean| mean > most)
}

fn worst_first(
    mut values: Vec<(u32, f64)>,
    badness: impl Fn(f64) -> f64,
    is_bad: impl Fn(f64) -> bool,
) -> Vec<u32> {
    values.retain(|(_, value)| is_bad(*value));
    values.sort_by(|(_, one), (_, other)| badness(*other).total_cmp(&badness(*one)));
    values.into_iter().map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests;
