//! `c3`: the endpoint with the least expected queue, cubed (Suresh et al., "C3: Cutting tail latency
//! in cloud data stores via adaptive replica selection", NSDI 2015), without its rate control.
//!
//! score = R - 1/mu + q^3 / mu with q = 1 + M o + q_reported: R is the average latency seen here,
//! 1/mu the average service time and q_reported the average number of calls that the endpoint
//! reports, o our own calls in flight there, M the number of sidecars, as if each had as many. The
//! cube makes a long queue expensive before it hurts. The least score of all takes the call, ties
//! at random.
//!
//! Averages take half of each sample. Without reports 1/mu = R and q_reported = 0; before the first
//! answer the score is q^3 times 0.1 ms, so that a new endpoint is tried at once. Unlike in the
//! paper, all three fade with the time since the last sample (before a sample enters, too), else an endpoint that was slow once
//! and is never called again could not show that it has recovered.

use super::least::{least_shares, Least};
use super::{Rule, View};
use crate::attempt::{Attempt, Sample};
use crate::config::C3Config;
use crate::endpoint::Endpoint;
use crate::ewma::{decay, Average};
use crate::orca::LoadReport;
use crate::rng::Rng;

/// Share of the old value in an average.
const KEPT: f64 = 0.5;

/// Service time assumed before the first answer, in nanoseconds.
const UNKNOWN_NS: f64 = 1e5;

/// Averages of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// Latency seen here, in nanoseconds.
    response: Average,
    /// Reported service time, in nanoseconds.
    service: Average,
    /// Reported calls in the endpoint, plus 1, because 0 is a value here and none in an average.
    queue: Average,
}

impl Cell {
    pub(super) fn clear(&self) {
        self.response.clear();
        self.service.clear();
        self.queue.clear();
    }
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct C3 {
    tau_ns: f64,
}

impl C3 {
    /// The rule.
    #[must_use]
    pub fn new(config: &C3Config) -> Self {
        Self {
            tau_ns: config.decay_ms as f64 * 1e6,
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        let mut least = Least::new(view.usable[0]);
        for &index in view.usable {
            least.offer(index, self.cost(view, index, now_ns), rng);
        }
        least.index()
    }

    /// The score, in nanoseconds, divided by the weight. Never negative: q >= 1.
    fn cost(&self, view: View<'_>, index: u32, now_ns: u64) -> f64 {
        let endpoint = view.endpoint(index);
        let cell = &endpoint.state.c3;
        let own = f64::from(endpoint.live.unanswered()) * f64::from(view.sidecars);
        let reported = self.reported_calls(&cell.queue, now_ns);
        let queue = 1.0 + own + reported;
        let cube = queue * queue * queue;
        let score = match cell.response.faded(now_ns, self.tau_ns) {
            None => cube * UNKNOWN_NS,
            Some(response) => {
                let service = cell.service.faded(now_ns, self.tau_ns).unwrap_or(response);
                response + (cube - 1.0) * service
            }
        };
        score / view.weight(index, now_ns)
    }
}

/// The next average, of what is left of the old one and a sample.
fn half_of_each(old: f64, sample: f64) -> f64 {
    KEPT * old + (1.0 - KEPT) * sample
}

impl C3 {
    fn enter(&self, average: &Average, now_ns: u64, sample: f64) {
        average.update(now_ns, |old, age_ns| {
            let old = old.map(|old| old * decay(age_ns, self.tau_ns));
            half_of_each(old.unwrap_or(sample), sample)
        });
    }

    fn reported_calls(&self, queue: &Average, now_ns: u64) -> f64 {
        let calls = queue.last().map_or(0.0, |queue| queue - 1.0);
        calls * decay(queue.age_ns(now_ns), self.tau_ns)
    }
}

impl Rule for C3 {
    fn ended(&self, _: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        let response = &attempt.endpoint().state.c3.response;
        if let Some(latency) = sample.charged_ns(response.last().unwrap_or(0.0)) {
            self.enter(response, now_ns, latency);
        }
    }

    fn reported(&self, _: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        let cell = &endpoint.state.c3;
        if let Some(service_time_s) = report.service_time_s {
            self.enter(&cell.service, now_ns, service_time_s * 1e9);
        }
        if let Some(calls) = report.inflight.or(report.queue) {
            let before = cell
                .queue
                .last()
                .map(|_| self.reported_calls(&cell.queue, now_ns));
            cell.queue.update(now_ns, |_, _| {
                half_of_each(before.unwrap_or(calls), calls) + 1.0
            });
        }
    }

    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let costs: Vec<_> = view
            .usable
            .iter()
            .map(|&index| (index, self.cost(view, index, now_ns)))
            .collect();
        least_shares(&costs, out);
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::E;

    use super::super::testing::{Bench, MS, SECOND};
    use super::super::Balancer;
    use crate::config::{BalancerConfig, C3Config};
    use crate::orca::LoadReport;

    fn bench(weights: &[f32]) -> Bench {
        Bench::new(BalancerConfig::C3(C3Config::default()), weights)
    }

    fn cost(bench: &Bench, index: u32, now_ns: u64) -> f64 {
        let snapshot = bench.service.snapshot();
        match &snapshot.balancer {
            Balancer::C3(rule) => rule.cost(snapshot.view(), index, now_ns),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_score_is_as_computed_by_hand() {
        let bench = bench(&[1.0, 2.0]);
        // Nothing known: 1^3 * 0.1 ms; with one own call and 4 sidecars 5^3 * 0.1 ms.
        assert_eq!(cost(&bench, 0, 0), 1e5);
        assert_eq!(cost(&bench, 1, 0), 5e4);
        let held = bench.begin_at(0, 0);
        assert_eq!(cost(&bench, 0, 0), 125e5);
        drop(held);
        // R = 20 ms, then (20 + 40)/2 = 30 ms; no report: 1/mu = R, so q^3 R.
        bench.answer(0, SECOND, 20 * MS);
        assert_eq!(cost(&bench, 0, SECOND), 20e6);
        bench.answer(0, SECOND, 40 * MS);
        assert_eq!(cost(&bench, 0, SECOND), 30e6);
        let held = bench.begin_at(0, SECOND);
        assert_eq!(cost(&bench, 0, SECOND), 125.0 * 30e6);
        drop(held);
        // 1/mu = 10 ms, q = 1 + 2: 30 - 10 + 27 * 10 = 290 ms.
        let report = LoadReport {
            service_time_s: Some(0.01),
            inflight: Some(2.0),
            queue: Some(1.0),
            ..LoadReport::default()
        };
        bench.report(0, SECOND, &report);
        assert!((cost(&bench, 0, SECOND) - 290e6).abs() < 1.0);
        // 10 s later 1/e is left of R, 1/mu and q_reported.
        let queue = 1.0 + 2.0 / E;
        let faded = (20e6 + queue * queue * queue * 10e6) / E;
        assert!((cost(&bench, 0, 11 * SECOND) - faded).abs() < 1.0);
    }

    #[test]
    fn a_failure_costs_a_second() {
        let bench = bench(&[1.0, 1.0]);
        bench.fail(0, SECOND, MS);
        assert_eq!(cost(&bench, 0, SECOND), 1e9);
        bench.fail_with_push_back(0, SECOND, MS, 3 * SECOND);
        assert_eq!(cost(&bench, 0, SECOND), 2e9);
    }
}
