//! `peak_ewma`: of two drawn endpoints the one with the lesser latency times load (Finagle's
//! "Peak EWMA", also in tower and Linkerd).
//!
//! The cost of an endpoint is an average of its latency that jumps to every peak and falls slowly:
//! cost = rtt if rtt > cost, else cost * w + rtt * (1 - w), w = e^(-dt / tau), dt since the sample
//! before. Read by a pick, it has faded by e^(-age / tau), so that an endpoint that nobody calls
//! because it was slow is tried again. The load is cost * (in flight + 1), divided by the weight.
//!
//! An endpoint that never answered has the configured latency. With 0 it costs nothing while idle
//! and a penalty while its first call is in flight: better than one that is known to be slow, but
//! no herd follows the first call.

use super::least::lesser_of_two_shares;
use super::{two_distinct, Rule, View};
use crate::attempt::{Attempt, Sample};
use crate::config::PeakEwmaConfig;
use crate::ewma::{decay, Average};
use crate::rng::Rng;

/// Load of an endpoint that is unknown and busy, before its calls in flight are added; above any
/// latency in nanoseconds times any number of calls that occurs.
const PENALTY: f64 = 1e18;

/// Latency of one endpoint in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Cell(Average);

impl Cell {
    pub(super) fn clear(&self) {
        self.0.clear();
    }
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct PeakEwma {
    tau_ns: f64,
    default_ns: f64,
}

impl PeakEwma {
    /// The rule.
    #[must_use]
    pub fn new(config: &PeakEwmaConfig) -> Self {
        Self {
            tau_ns: config.decay_ms as f64 * 1e6,
            default_ns: config.default_rtt_ms as f64 * 1e6,
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        if let [only] = *view.usable {
            return only;
        }
        let (first, second) = two_distinct(view, rng);
        if self.load(view, second, now_ns) < self.load(view, first, now_ns) {
            second
        } else {
            // Which of two comes first is random already, so it may win the tie.
            first
        }
    }

    fn load(&self, view: View<'_>, index: u32, now_ns: u64) -> f64 {
        let endpoint = view.endpoint(index);
        let in_flight = f64::from(endpoint.live.unanswered());
        let cost = endpoint.state.peak_ewma.0.faded(now_ns, self.tau_ns);
        let load = match cost {
            Some(cost) => cost * (in_flight + 1.0),
            None if self.default_ns == 0.0 && in_flight > 0.0 => PENALTY + in_flight,
            None => self.default_ns * (in_flight + 1.0),
        };
        load / view.weight(index, now_ns)
    }
}

impl Rule for PeakEwma {
    fn ended(&self, _: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        let cell = &attempt.endpoint().state.peak_ewma.0;
        let Some(rtt) = sample.charged_ns(cell.last().unwrap_or(0.0)) else {
            return;
        };
        cell.update(now_ns, |cost, age_ns| match cost {
            Some(cost) if rtt <= cost => {
                let kept = decay(age_ns, self.tau_ns);
                cost * kept + rtt * (1.0 - kept)
            }
            _ => rtt,
        });
    }

    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let mut loads: Vec<_> = view
            .usable
            .iter()
            .map(|&index| (index, self.load(view, index, now_ns)))
            .collect();
        lesser_of_two_shares(&mut loads, out);
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::E;

    use super::super::testing::{Bench, MS, SECOND};
    use super::PENALTY;
    use crate::config::{BalancerConfig, PeakEwmaConfig};

    fn config(default_rtt_ms: u64) -> BalancerConfig {
        BalancerConfig::PeakEwma(PeakEwmaConfig {
            decay_ms: 10_000,
            default_rtt_ms,
        })
    }

    fn load(bench: &Bench, index: u32, now_ns: u64) -> f64 {
        let snapshot = bench.service.snapshot();
        match &snapshot.balancer {
            super::super::Balancer::PeakEwma(rule) => rule.load(snapshot.view(), index, now_ns),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_cost_is_as_computed_by_hand() {
        let bench = Bench::new(config(30), &[1.0, 2.0]);
        assert_eq!(load(&bench, 0, 0), 30e6);
        assert_eq!(load(&bench, 1, 0), 15e6);
        bench.answer(0, SECOND, 20 * MS);
        assert_eq!(load(&bench, 0, SECOND), 20e6);
        // A peak counts at once.
        bench.answer(0, 2 * SECOND, 100 * MS);
        assert_eq!(load(&bench, 0, 2 * SECOND), 100e6);
        // 10 s later 1/e of it is left: 100/e + 20 (1 - 1/e).
        bench.answer(0, 12 * SECOND, 20 * MS);
        let expected = 100e6 / E + 20e6 * (1.0 - 1.0 / E);
        assert!((load(&bench, 0, 12 * SECOND) - expected).abs() < 1.0);
        // It fades while nobody calls, and each call in flight counts.
        assert!((load(&bench, 0, 22 * SECOND) - expected / E).abs() < 1.0);
        let held = [
            bench.begin_at(0, 12 * SECOND),
            bench.begin_at(0, 12 * SECOND),
        ];
        assert!((load(&bench, 0, 12 * SECOND) - 3.0 * expected).abs() < 1.0);
        drop(held);
    }

    #[test]
    fn an_unknown_endpoint_is_tried_once() {
        let bench = Bench::new(config(0), &[1.0, 1.0]);
        assert_eq!(load(&bench, 0, 0), 0.0);
        let held = bench.begin_at(0, 0);
        assert_eq!(load(&bench, 0, 0), PENALTY + 1.0);
        drop(held);
    }

    #[test]
    fn a_failure_costs_a_second() {
        let bench = Bench::new(config(30), &[1.0, 1.0]);
        bench.fail(0, SECOND, MS);
        assert_eq!(load(&bench, 0, SECOND), 1e9);
    }
}
