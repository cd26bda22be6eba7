//! Calls as clients make them: when, of which class, at which sidecar, and how much work.
//!
//! One stream of draws feeds all of it and nothing else draws from it, so that every balancer meets
//! the same calls with the same work: a comparison is paired by seed.

use attnroute_dataplane::rng::Rng;

use crate::draws::{exponential, Sampler};
use crate::scenario::{Pattern, Scenario, Trace};

const NS_PER_MS: f64 = 1e6;

/// Steps in which a ramp changes.
const RAMP_STEP_NS: f64 = 1e8;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) at_ns: u64,
    pub(crate) class: u32,
    pub(crate) sidecar: u32,
    /// Work on a worker of speed 1 without affinity.
    pub(crate) work_ns: f64,
    /// What consistent hashing goes by.
    pub(crate) key: u64,
}

/// Keys for consistent hashing, equally popular.
const KEYS: u32 = 10_000;

/// Odd, so that different keys stay different; spreads them over 64 bits as a hash would.
const KEY_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The calls of a run, one after the other.
#[derive(Debug)]
pub(crate) struct Arrivals {
    rng: Rng,
    sampler: Sampler,
    sidecars: u32,
    /// Mean work of each class.
    pub(crate) class_work_ns: Vec<f64>,
    /// Summed shares of classes.
    bounds: Vec<f64>,
    now_ns: f64,
    end_ns: f64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Random(Intensity),
    Recorded { trace: Trace, next: usize },
}

/// The rate of a Poisson process, constant in pieces.
#[derive(Debug)]
struct Intensity {
    mean_per_ns: f64,
    pattern: Pattern,
    /// Of bursts: whether one goes on, and until when that stays so.
    burst: bool,
    until_ns: f64,
}

impl Arrivals {
    pub(crate) fn new(scenario: &Scenario, rng: Rng) -> Self {
        let (class_work_ns, bounds) = classes(scenario);
        let source = match &scenario.load.trace {
            Some(trace) => Source::Recorded {
                trace: trace.clone(),
                next: 0,
            },
            None => Source::Random(Intensity {
                mean_per_ns: scenario.offered_rps() / 1e9,
                pattern: scenario.load.pattern,
                burst: true,
                until_ns: 0.0,
            }),
        };
        Self {
            rng,
            sampler: Sampler::new(scenario.service_time.law),
            sidecars: scenario.sidecars.count,
            class_work_ns,
            bounds,
            now_ns: 0.0,
            end_ns: (scenario.warmup_ms + scenario.duration_ms) as f64 * NS_PER_MS,
            source,
        }
    }

    /// The next call; None once the run is over.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        let (at_ns, class, recorded_ns) = match &mut self.source {
            Source::Random(intensity) => {
                self.now_ns = intensity.next(self.now_ns, self.end_ns, &mut self.rng)?;
                let drawn = self.rng.unit_f64();
                let class = self.bounds.partition_point(|&bound| bound <= drawn);
                (self.now_ns, class.min(self.bounds.len() - 1) as u32, 0.0)
            }
            Source::Recorded { trace, next } => {
                let at_ns = trace.at_ms.get(*next)? * NS_PER_MS;
                if at_ns >= self.end_ns {
                    return None;
                }
                let row = (at_ns, trace.class[*next], trace.work_ms[*next] * NS_PER_MS);
                *next += 1;
                row
            }
        };
        let sidecar = self.rng.below(self.sidecars);
        let key = u64::from(self.rng.below(KEYS)).wrapping_mul(KEY_STEP);
        let drawn = self.sampler.draw(&mut self.rng);
        let work_ns = if recorded_ns > 0.0 {
            recorded_ns
        } else {
            drawn * self.class_work_ns[class as usize]
        };
        Some(Arrival {
            at_ns: at_ns as u64,
            class,
            sidecar,
            work_ns,
            key,
        })
    }
}

/// Mean work and summed share of each class.
fn classes(scenario: &Scenario) -> (Vec<f64>, Vec<f64>) {
    let kinds = &scenario.request_classes;
    let pairs: Vec<(f64, f64)> = kinds
        .methods
        .iter()
        .flat_map(|method| {
            kinds
                .message_sizes
                .iter()
                .map(move |size| (method.popularity * size.popularity, method.cost * size.cost))
        })
        .collect();
    let total: f64 = pairs.iter().map(|(popularity, _)| popularity).sum();
    let mean: f64 = pairs
        .iter()
        .map(|(popularity, cost)| popularity * cost)
        .sum::<f64>()
        / total;
    let work_ns = pairs
        .iter()
        .map(|(_, cost)| scenario.service_time.mean_ms * NS_PER_MS * cost / mean)
        .collect();
    let mut sum = 0.0;
    let bounds = pairs
        .iter()
        .map(|(popularity, _)| {
            sum += popularity / total;
            sum
        })
        .collect();
    (work_ns, bounds)
}

impl Intensity {
    /// The next point of the process after `now_ns`, if it comes before `end_ns`.
    fn next(&mut self, mut now_ns: f64, end_ns: f64, rng: &mut Rng) -> Option<f64> {
        // Points of rate 1 in the integral of the rate.
        let mut left = exponential(rng);
        while now_ns < end_ns {
            let (rate, until_ns) = self.piece(now_ns, rng);
            let reach = rate * (until_ns - now_ns);
            if left < reach {
                let at_ns = now_ns + left / rate;
                return (at_ns < end_ns).then_some(at_ns);
            }
            left -= reach;
            now_ns = until_ns;
        }
        None
    }

    /// The rate at a time, and until when it stays.
    fn piece(&mut self, now_ns: f64, rng: &mut Rng) -> (f64, f64) {
        match self.pattern {
            Pattern::Constant => (self.mean_per_ns, f64::INFINITY),
            Pattern::Mmpp {
                factor,
                burst_ms,
                calm_ms,
            } => {
                while self.until_ns <= now_ns {
                    self.burst = !self.burst;
                    let mean_ms = if self.burst { burst_ms } else { calm_ms };
                    self.until_ns += mean_ms * NS_PER_MS * exponential(rng);
                }
                let multiple = if self.burst {
                    factor
                } else {
                    // Such that the mean over both is 1.
                    (burst_ms + calm_ms - factor * burst_ms) / calm_ms
                };
                (self.mean_per_ns * multiple, self.until_ns)
            }
            Pattern::Ramp {
                from,
                to,
                at_ms,
                over_ms,
            } => {
                let (at_ns, over_ns) = (at_ms as f64 * NS_PER_MS, over_ms as f64 * NS_PER_MS);
                if now_ns < at_ns {
                    (self.mean_per_ns * from, at_ns)
                } else if now_ns >= at_ns + over_ns {
                    (self.mean_per_ns * to, f64::INFINITY)
                } else {
                    let until_ns = (now_ns + RAMP_STEP_NS).min(at_ns + over_ns);
                    let middle = (0.5 * (now_ns + until_ns) - at_ns) / over_ns;
                    (self.mean_per_ns * (from + (to - from) * middle), until_ns)
                }
            }
        }
    }
}
