//! `weighted_round_robin`: in turn, in proportion to weights that follow from load reports (gRFC A58,
//! metric names of A114).
//!
//! weight = qps / (utilization + penalty * eps / qps): how many calls the endpoint takes per unit of
//! load. Utilization is the largest of the configured metrics, else `application_utilization`, else
//! `cpu_utilization`; a report in which it or qps is 0 or absurd is none. A weight counts once the
//! endpoint has been reporting for the blackout (its first numbers are those of a cold process) and
//! until the last report has expired. Endpoints without a weight that counts get the mean of the
//! others; with fewer than two that count the turn is plain round robin, and the pick says so.
//! Static weights and ramps scale the result.
//!
//! The schedule is rebuilt each update period by whoever ends a call or brings a report then, never
//! by a pick. While no call ends, nothing is learned either, and the last schedule stays.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::stride::{Schedule, Sequence};
use super::{Rule, View};
use crate::attempt::{Attempt, Sample};
use crate::config::WeightedRoundRobinConfig;
use crate::endpoint::Endpoint;
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;

/// What one endpoint reported.
#[derive(Debug, Default)]
pub(super) struct Cell(Mutex<Option<Reported>>);

#[derive(Debug, Clone, Copy)]
struct Reported {
    weight: f64,
    /// When the last valid report came.
    updated_ns: u64,
    /// Since when reports have been coming; `None` starts the blackout anew.
    since_ns: Option<u64>,
}

impl Cell {
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }

    /// The next report starts the blackout.
    pub(super) fn black_out(&self) {
        if let Some(reported) = self.0.lock().as_mut() {
            reported.since_ns = None;
        }
    }
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct WeightedRoundRobin {
    blackout_ns: u64,
    expiration_ns: u64,
    update_ns: u64,
    penalty: f64,
    sequence: Arc<Sequence>,
    identity: Vec<(u64, f32)>,
    built: ArcSwap<Built>,
    /// When a schedule was last built, shared with successors; [`NEVER`] before the first.
    built_ns: Arc<AtomicU64>,
}

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
struct Built {
    schedule: Schedule,
    weights: Vec<(u32, f64)>,
    /// Fewer than two endpoints have a weight that counts.
    fallback: bool,
}

impl WeightedRoundRobin {
    /// The rule, with a schedule as of the last one that `previous` built.
    #[must_use]
    pub fn new(
        config: &WeightedRoundRobinConfig,
        view: View<'_>,
        previous: Option<&Self>,
        rng: &mut Rng,
    ) -> Self {
        let built_ns = previous.map_or_else(
            || Arc::new(AtomicU64::new(NEVER)),
            |previous| Arc::clone(&previous.built_ns),
        );
        let limits = (
            config.blackout_ms * 1_000_000,
            config.expiration_ms * 1_000_000,
        );
        let built = Built::new(view, built_ns.load(Relaxed), limits);
        let identity = view.identity();
        let sequence = match previous {
            Some(previous) if previous.identity == identity => Arc::clone(&previous.sequence),
            _ => Arc::new(Sequence::anywhere(&built.schedule, rng)),
        };
        Self {
            blackout_ns: limits.0,
            expiration_ns: limits.1,
            update_ns: config.update_ms * 1_000_000,
            penalty: config.error_utilization_penalty,
            sequence,
            identity,
            built: ArcSwap::from_pointee(built),
            built_ns,
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> (u32, Reason) {
        let built = self.built.load();
        let index = view.ramped(now_ns, rng, |_| built.schedule.turn(&self.sequence));
        let reason = if built.fallback {
            Reason::RoundRobin
        } else {
            Reason::WeightedRoundRobin
        };
        (index, reason)
    }

    pub(super) fn rebuild_when_due(&self, view: View<'_>, now_ns: u64) {
        let last_ns = self.built_ns.load(Relaxed);
        let due = last_ns == NEVER || now_ns >= last_ns.saturating_add(self.update_ns);
        // Whoever moves the time on builds; the others go on.
        if due
            && !view.usable.is_empty()
            && self
                .built_ns
                .compare_exchange(last_ns, now_ns, Relaxed, Relaxed)
                .is_ok()
        {
            let built = Built::new(view, now_ns, (self.blackout_ns, self.expiration_ns));
            self.built.store(Arc::new(built));
        }
    }
}

impl Built {
    fn new(view: View<'_>, now_ns: u64, (blackout_ns, expiration_ns): (u64, u64)) -> Self {
        let reported = |index: u32| {
            let mut cell = view.endpoint(index).state.weighted_round_robin.0.lock();
            let reported = cell.as_mut()?;
            let age_ns = now_ns.saturating_sub(reported.updated_ns);
            if now_ns == NEVER || age_ns >= expiration_ns {
                reported.since_ns = None;
                return None;
            }
            let since_ns = reported.since_ns?;
            let trusted = now_ns.saturating_sub(since_ns) >= blackout_ns;
            trusted.then_some(reported.weight)
        };
        let known: Vec<_> = view.usable.iter().map(|&index| reported(index)).collect();
        let valid: Vec<f64> = known.iter().flatten().copied().collect();
        let fallback = valid.len() < 2;
        let mean = valid.iter().sum::<f64>() / valid.len().max(1) as f64;
        let weights: Vec<_> = view
            .usable
            .iter()
            .zip(known)
            .map(|(&index, weight)| {
                let own = if fallback {
                    1.0
                } else {
                    weight.unwrap_or(mean)
                };
                (index, own * f64::from(view.static_weight(index)))
            })
            .collect();
        Self {
            schedule: Schedule::new(&weights),
            weights,
            fallback,
        }
    }
}

impl Rule for WeightedRoundRobin {
    fn ended(&self, view: View<'_>, _: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        // With a report, the schedule is due after it was taken in.
        if sample.report.is_none() {
            self.rebuild_when_due(view, now_ns);
        }
    }

    fn reported(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        if let Some(weight) = weight_of(report, self.penalty) {
            let mut cell = endpoint.state.weighted_round_robin.0.lock();
            let since_ns = cell.and_then(|reported| reported.since_ns);
            *cell = Some(Reported {
                weight,
                updated_ns: now_ns,
                since_ns: since_ns.or(Some(now_ns)),
            });
        }
        self.rebuild_when_due(view, now_ns);
    }

    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let built = self.built.load();
        let ramped = |index: u32, weight: f64| {
            let fixed = f64::from(view.static_weight(index));
            weight * view.weight(index, now_ns) / fixed
        };
        let total: f64 = built
            .weights
            .iter()
            .map(|&(index, weight)| ramped(index, weight))
            .sum();
        for &(index, weight) in &built.weights {
            out[index as usize] = (ramped(index, weight) / total) as f32;
        }
    }
}

/// The weight that a report gives; `None` if it says too little.
fn weight_of(report: &LoadReport, penalty: f64) -> Option<f64> {
    let positive = |value: Option<f64>| value.filter(|value| *value > 0.0);
    let utilization = positive(report.metric)
        .or(positive(report.application_utilization))
        .or(positive(report.cpu_utilization))?;
    let qps = positive(report.qps)?;
    let errors = report.eps.unwrap_or(0.0) / qps;
    let weight = qps / (utilization + penalty * errors);
    // Beyond, somebody divided by almost nothing; times a static weight it could be no number.
    (1e-9..=1e12).contains(&weight).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, SECOND};
    use super::weight_of;
    use crate::config::{BalancerConfig, WeightedRoundRobinConfig};
    use crate::orca::LoadReport;
    use crate::reason::Reason;

    fn report(qps: f64, utilization: f64) -> LoadReport {
        LoadReport {
            qps: Some(qps),
            application_utilization: Some(utilization),
            ..LoadReport::default()
        }
    }

    fn bench(weights: &[f32]) -> Bench {
        let config = WeightedRoundRobinConfig::default();
        Bench::new(BalancerConfig::WeightedRoundRobin(config), weights)
    }

    #[test]
    fn the_weight_is_as_computed_by_hand() {
        let full = LoadReport {
            cpu_utilization: Some(0.25),
            eps: Some(10.0),
            ..report(100.0, 0.4)
        };
        // 100 / (0.4 + 1.0 * 10/100) = 200.
        assert_eq!(weight_of(&full, 1.0), Some(200.0));
        assert_eq!(weight_of(&full, 0.0), Some(250.0));
        // The configured metrics come first, the processor last.
        let metric = LoadReport {
            metric: Some(0.9),
            ..full
        };
        assert_eq!(weight_of(&metric, 1.0), Some(100.0));
        let bare = LoadReport {
            application_utilization: Some(0.0),
            ..full
        };
        assert!((weight_of(&bare, 1.0).expect("a weight") - 100.0 / 0.35).abs() < 1e-9);
        assert_eq!(weight_of(&report(0.0, 0.4), 1.0), None);
        assert_eq!(weight_of(&report(100.0, 0.0), 1.0), None);
        assert_eq!(weight_of(&LoadReport::default(), 1.0), None);
        assert_eq!(weight_of(&report(1e-300, 0.4), 1.0), None);
        assert_eq!(weight_of(&report(100.0, 1e-300), 1.0), None);
    }

    #[test]
    fn lb_17_blackout_expiration_and_fallback() {
        let bench = bench(&[1.0, 1.0, 1.0]);
        let third = [1.0 / 3.0; 3];
        for second in 0..10 {
            bench.report(0, second * SECOND, &report(100.0, 0.5));
            bench.report(1, second * SECOND, &report(100.0, 0.25));
            assert_eq!(bench.weights(second * SECOND), third, "{second} s");
            assert_eq!(bench.pick(second * SECOND).1, Reason::RoundRobin);
        }
        // Blackout over: 200 and 400, and their mean for the one that never reported.
        bench.report(0, 10 * SECOND, &report(100.0, 0.5));
        bench.report(1, 11 * SECOND, &report(100.0, 0.25));
        let expected = [2.0 / 9.0, 4.0 / 9.0, 3.0 / 9.0];
        bench.assert_weights(11 * SECOND, &expected);
        assert_eq!(bench.pick(11 * SECOND).1, Reason::WeightedRoundRobin);
        // What says nothing changes nothing.
        for second in 12..20 {
            bench.report(1, second * SECOND, &report(0.0, 0.9));
            bench.report(1, second * SECOND, &LoadReport::default());
            bench.assert_weights(second * SECOND, &expected);
        }
        // 180 s after its last report the second has none: one weight is too few.
        for second in 20..192 {
            bench.report(0, second * SECOND, &report(100.0, 0.5));
        }
        assert_eq!(bench.weights(191 * SECOND), third);
        assert_eq!(bench.pick(191 * SECOND).1, Reason::RoundRobin);
        // And its blackout begins anew.
        bench.report(1, 192 * SECOND, &report(100.0, 0.25));
        bench.report(1, 201 * SECOND, &report(100.0, 0.25));
        assert_eq!(bench.weights(201 * SECOND), third);
        bench.report(1, 203 * SECOND, &report(100.0, 0.25));
        bench.assert_weights(203 * SECOND, &expected);
    }

    #[test]
    fn lb_17_a_reconnected_or_restarted_endpoint_is_not_trusted_at_once() {
        for restart in [false, true] {
            let bench = bench(&[1.0, 1.0]);
            let first = |second: u64, started_s: f64| {
                let full = LoadReport {
                    started_s: Some(started_s),
                    ..report(100.0, 0.5)
                };
                bench.report(0, second * SECOND, &full);
                bench.report(1, second * SECOND, &report(100.0, 0.25));
            };
            for second in 0..12 {
                first(second, 1e9);
            }
            bench.assert_weights(12 * SECOND, &[1.0 / 3.0, 2.0 / 3.0]);
            if !restart {
                let endpoint = bench.endpoint(0);
                bench.service.set_failing(&endpoint, true);
                bench.service.set_failing(&endpoint, false);
            }
            let started_s = if restart { 2e9 } else { 1e9 };
            for second in 12..22 {
                first(second, started_s);
                assert_eq!(bench.weights(second * SECOND), [0.5, 0.5], "{second}");
            }
            first(23, started_s);
            bench.assert_weights(23 * SECOND, &[1.0 / 3.0, 2.0 / 3.0]);
        }
    }

    #[test]
    fn static_weights_scale_and_picks_follow() {
        let bench = bench(&[3.0, 1.0]);
        for second in 0..12 {
            bench.report(0, second * SECOND, &report(100.0, 0.5));
            bench.report(1, second * SECOND, &report(100.0, 0.25));
        }
        // 3 * 200 to 1 * 400.
        bench.assert_weights(12 * SECOND, &[0.6, 0.4]);
        let picks = (0..1000).filter(|_| bench.pick(12 * SECOND).0 == 0).count();
        assert!((598..=602).contains(&picks), "{picks}");
    }
}
