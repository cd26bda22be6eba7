//! `latency_observation`: the least latency that recent calls predict for the calls in flight now
//! (llm-d-router's latency observer and scorer, 2026-08).
//!
//! Per endpoint the last 100 calls, at most 3 minutes old, are kept with their latency and our own
//! calls in flight at their pick. Each second three points of its curve are published: the floor,
//! which is the latency without load (0 calls; P10 of the P10s of the minutes so far); low load
//! (latency P25, mean calls of the P15..P35); typical load (latency P50, mean calls of P40..P60).
//! Between them and beyond the last the prediction is linear, never below the floor. The low point
//! is left out unless it is 2 calls away from the typical one and the three latencies rise: else
//! the slope between two points at the same load would be noise.
//!
//! A curve counts only if it rises: one whose typical call met nobody, or was no slower than the
//! floor, does not say what load costs, and its endpoint would take every call until the next
//! publication. Endpoints without a curve that counts are tried with probability 0.1 each, so that
//! they become known, while fewer than 10 of our calls are in them: those will tell. If no curve
//! counts, nobody is tried; those of which nothing is known come first, then the least floor times
//! (calls in flight + 1).

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::least::{least_shares, Least};
use super::{Rule, View};
use crate::attempt::{Attempt, Sample};
use crate::config::LatencyObservationConfig;
use crate::endpoint::Endpoint;
use crate::rng::Rng;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Calls that are kept.
const CALLS_MAX: usize = 100;
/// Calls below which nothing is predicted.
const CALLS_MIN: usize = 10;
/// Age at which a call is dropped.
const AGE_MAX_NS: u64 = 3 * MINUTE_NS;
/// Time between two publications.
const PUBLISH_NS: u64 = SECOND_NS;
/// Minutes whose P10 makes the floor: what an endpoint could do half an hour ago says little.
const MINUTES_MAX: usize = 30;
/// Calls of a minute that its P10 looks at.
const MINUTE_CALLS_MAX: usize = 1000;
/// Calls that the low and the typical point must lie apart.
const GAP_MIN: f64 = 2.0;

/// What is known of one endpoint; boxed, because only this rule needs it.
#[derive(Debug, Default)]
pub(super) struct Cell(OnceLock<Box<Observed>>);

#[derive(Debug, Default)]
struct Observed {
    curve: ArcSwapOption<Curve>,
    window: Mutex<Window>,
}

/// One endpoint's latency, in nanoseconds, against our own calls in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Curve {
    floor_ns: f64,
    low: (f64, f64),
    typical: (f64, f64),
    /// When the tenth newest call becomes too old.
    expires_ns: u64,
}

/// Nanoseconds that a call would take.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Prediction {
    /// Too few calls lately.
    Nothing,
    /// None of them shows what load costs: each call in flight is taken to cost as much as one
    /// without load.
    Floor(f64),
    Curve(f64),
}

#[derive(Debug, Clone, Copy)]
struct Call {
    latency_ns: f64,
    in_flight: u32,
    ended_ns: u64,
}

#[derive(Debug, Default)]
struct Window {
    calls: VecDeque<Call>,
    /// Latencies of the minute under way.
    minute: Vec<f64>,
    minute_number: u64,
    /// P10 of complete minutes.
    floors: VecDeque<f64>,
    published_ns: Option<u64>,
}

impl Cell {
    pub(super) fn clear(&self) {
        if let Some(observed) = self.0.get() {
            *observed.window.lock() = Window::default();
            observed.curve.store(None);
        }
    }

    /// What is expected of an endpoint with `in_flight` calls.
    fn predict(&self, in_flight: u32, now_ns: u64) -> Prediction {
        let Some(observed) = self.0.get() else {
            return Prediction::Nothing;
        };
        let curve = observed.curve.load();
        let Some(curve) = curve.as_ref() else {
            return Prediction::Nothing;
        };
        let in_flight = f64::from(in_flight);
        if now_ns >= curve.expires_ns {
            Prediction::Nothing
        } else if curve.rises() {
            Prediction::Curve(curve.predict(in_flight))
        } else {
            Prediction::Floor(curve.floor_ns * (in_flight + 1.0))
        }
    }
}

impl Curve {
    /// Whether it says what load costs. A curve that does not would take every call of a second.
    fn rises(&self) -> bool {
        self.typical.0 > 0.0 && self.typical.1 > self.floor_ns
    }

    /// Only of a curve that rises.
    fn predict(&self, in_flight: f64) -> f64 {
        let (floor_ns, low, typical) = (self.floor_ns, self.low, self.typical);
        let bent =
            typical.0 - low.0 >= GAP_MIN && typical.1 > low.1 && low.1 > floor_ns && low.0 > 0.0;
        let (from, to) = match (bent, in_flight < low.0) {
            (true, true) => ((0.0, floor_ns), low),
            (true, false) => (low, typical),
            (false, _) => ((0.0, floor_ns), typical),
        };
        let slope = (to.1 - from.1) / (to.0 - from.0);
        (from.1 + (in_flight - from.0) * slope).max(floor_ns)
    }
}

impl Window {
    fn record(&mut self, call: Call) {
        let minute = call.ended_ns / MINUTE_NS;
        if minute != self.minute_number {
            if self.minute.len() >= CALLS_MIN {
                if self.floors.len() == MINUTES_MAX {
                    self.floors.pop_front();
                }
                self.floors.push_back(quantile(&mut self.minute, 0.10));
            }
            self.minute.clear();
            self.minute_number = minute;
        }
        if self.minute.len() < MINUTE_CALLS_MAX {
            self.minute.push(call.latency_ns);
        }
        if self.calls.len() == CALLS_MAX {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// The curve, if one is due and enough is known.
    fn publish(&mut self, now_ns: u64) -> Option<Curve> {
        let published_ns = self.published_ns.unwrap_or(0);
        if self.published_ns.is_some() && now_ns < published_ns.saturating_add(PUBLISH_NS) {
            return None;
        }
        while self
            .calls
            .front()
            .is_some_and(|call| now_ns.saturating_sub(call.ended_ns) >= AGE_MAX_NS)
        {
            self.calls.pop_front();
        }
        if self.calls.len() < CALLS_MIN {
            return None;
        }
        self.published_ns = Some(now_ns);
        let tenth_newest = self.calls[self.calls.len() - CALLS_MIN].ended_ns;
        let mut sorted: Vec<_> = self.calls.iter().copied().collect();
        sorted.sort_by(|one, other| one.latency_ns.total_cmp(&other.latency_ns));
        Some(Curve {
            floor_ns: self.floor(&sorted),
            low: point(&sorted, 0.25, (0.15, 0.35)),
            typical: point(&sorted, 0.50, (0.40, 0.60)),
            expires_ns: tenth_newest.saturating_add(AGE_MAX_NS),
        })
    }

    fn floor(&self, sorted: &[Call]) -> f64 {
        let mut floors: Vec<_> = self.floors.iter().copied().collect();
        if self.minute.len() >= CALLS_MIN {
            floors.push(quantile(&mut self.minute.clone(), 0.10));
        }
        if floors.is_empty() {
            // Too few calls in every single minute.
            return sorted[place(sorted.len(), 0.10)].latency_ns;
        }
        quantile(&mut floors, 0.10)
    }
}

/// The latency at quantile `at`, and the mean of the calls in flight between two quantiles around.
fn point(sorted: &[Call], at: f64, (from, to): (f64, f64)) -> (f64, f64) {
    let around = &sorted[place(sorted.len(), from)..=place(sorted.len(), to)];
    let sum: f64 = around.iter().map(|call| f64::from(call.in_flight)).sum();
    let mean = sum / around.len() as f64;
    (mean, sorted[place(sorted.len(), at)].latency_ns)
}

/// The element of a sorted list that stands for a quantile.
fn place(count: usize, quantile: f64) -> usize {
    ((count as f64 * quantile) as usize).min(count - 1)
}

fn quantile(values: &mut [f64], quantile: f64) -> f64 {
    let place = place(values.len(), quantile);
    *values.select_nth_unstable_by(place, f64::total_cmp).1
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct LatencyObservation {
    exploration: f64,
}

impl LatencyObservation {
    /// The rule.
    #[must_use]
    pub fn new(config: &LatencyObservationConfig) -> Self {
        Self {
            exploration: config.exploration,
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        let first = view.usable[0];
        let (mut best, mut tried) = (Least::new(first), Least::new(first));
        let (mut floor, mut unknown) = (Least::new(first), Least::new(first));
        for &index in view.usable {
            match cost(view, index, now_ns) {
                Prediction::Curve(cost) => {
                    best.offer(index, cost, rng);
                    continue;
                }
                Prediction::Floor(cost) => floor.offer(index, cost, rng),
                Prediction::Nothing => unknown.offer(index, 0.0, rng),
            }
            if may_be_tried(view, index) && rng.unit_f64() < self.exploration {
                tried.offer(index, 0.0, rng);
            }
        }
        // Without a curve there is nobody that the others would have to be tried against.
        let ranked = if best.is_some() {
            [tried, best]
        } else {
            [unknown, floor]
        };
        let found = ranked.into_iter().find(|least| least.is_some());
        found.map_or(first, Least::index)
    }
}

/// Whether more calls would still tell something: once enough are under way their answers will, and
/// a flood until then would be all that is learned.
fn may_be_tried(view: View<'_>, index: u32) -> bool {
    (view.endpoint(index).live.unanswered() as usize) < CALLS_MIN
}

fn cost(view: View<'_>, index: u32, now_ns: u64) -> Prediction {
    let endpoint = view.endpoint(index);
    let weight = view.weight(index, now_ns);
    match predict(endpoint, endpoint.live.unanswered(), now_ns) {
        Prediction::Curve(latency_ns) => Prediction::Curve(latency_ns / weight),
        Prediction::Floor(latency_ns) => Prediction::Floor(latency_ns / weight),
        Prediction::Nothing => Prediction::Nothing,
    }
}

fn predict(endpoint: &Endpoint, in_flight: u32, now_ns: u64) -> Prediction {
    endpoint
        .state
        .latency_observation
        .predict(in_flight, now_ns)
}

impl Rule for LatencyObservation {
    fn ended(&self, _: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        let endpoint = attempt.endpoint();
        let believed = match predict(endpoint, attempt.in_flight(), now_ns) {
            Prediction::Curve(latency_ns) | Prediction::Floor(latency_ns) => latency_ns,
            Prediction::Nothing => 0.0,
        };
        let Some(latency_ns) = sample.charged_ns(believed) else {
            return;
        };
        let observed = endpoint
            .state
            .latency_observation
            .0
            .get_or_init(Box::default);
        let mut window = observed.window.lock();
        window.record(Call {
            latency_ns,
            in_flight: attempt.in_flight(),
            ended_ns: now_ns,
        });
        if let Some(curve) = window.publish(now_ns) {
            observed.curve.store(Some(Arc::new(curve)));
        }
    }

    /// With u endpoints too little known, at least one of them is tried with 1 - (1 - p)^u.
    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let (mut curves, mut floors, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for &index in view.usable {
            match cost(view, index, now_ns) {
                Prediction::Curve(cost) => curves.push((index, cost)),
                Prediction::Floor(cost) => floors.push((index, cost)),
                Prediction::Nothing => unknown.push((index, 0.0)),
            }
        }
        let tried: Vec<u32> = floors
            .iter()
            .chain(&unknown)
            .map(|(index, _)| *index)
            .filter(|index| !curves.is_empty() && may_be_tried(view, *index))
            .collect();
        let untried = libm::pow(1.0 - self.exploration, tried.len() as f64);
        let ranked = [&curves, &unknown, &floors];
        if let Some(candidates) = ranked.into_iter().find(|costs| !costs.is_empty()) {
            least_shares(candidates, out);
        }
        for share in &mut *out {
            *share *= untried as f32;
        }
        for index in &tried {
            out[*index as usize] += ((1.0 - untried) / tried.len() as f64) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, MS, SECOND};
    use super::{predict, Curve, Prediction};
    use crate::config::{BalancerConfig, LatencyObservationConfig};

    fn bench(count: usize) -> Bench {
        let config = LatencyObservationConfig::default();
        Bench::new(
            BalancerConfig::LatencyObservation(config),
            &vec![1.0; count],
        )
    }

    #[test]
    fn the_curve_is_as_computed_by_hand() {
        let curve = Curve {
            floor_ns: 10.0,
            low: (2.0, 14.0),
            typical: (6.0, 34.0),
            expires_ns: 1,
        };
        // Floor to low: 2 per call; low to typical and beyond: 5 per call.
        let at = [0.0, 1.0, 2.0, 4.0, 6.0, 10.0].map(|calls| curve.predict(calls));
        assert_eq!(at, [10.0, 12.0, 14.0, 24.0, 34.0, 54.0]);
        // Without the low point: 4 per call from the floor.
        for low in [(4.5, 14.0), (2.0, 34.0), (2.0, 10.0), (0.0, 14.0)] {
            assert_eq!(Curve { low, ..curve }.predict(4.0), 26.0, "{low:?}");
        }
        assert!(curve.rises());
        // No load, or no cost of load.
        for typical in [(6.0, 10.0), (0.0, 34.0)] {
            assert!(!Curve { typical, ..curve }.rises(), "{typical:?}");
        }
    }

    /// Ten calls of 1..=10 units, each picked with as many calls in flight as it takes units, less
    /// 1. Floor: element 1, 2 units. Typical: element 5, 6 units, calls of elements 4..=6, mean 5.
    fn learn(bench: &Bench, index: u32, now_ns: u64, unit_ns: u64) {
        let held: Vec<_> = (0..10).map(|_| bench.begin_at(index, 0)).collect();
        for (units, attempt) in (1..).zip(held) {
            bench.end(attempt, now_ns, units * unit_ns);
        }
    }

    #[test]
    fn a_window_of_calls_makes_the_curve_computed_by_hand() {
        let bench = bench(2);
        // 20 calls of 1..=20 ms, each picked with as many calls in flight as it takes ms, less 1.
        let held: Vec<_> = (0..20).map(|_| bench.begin_at(0, 0)).collect();
        for (calls, attempt) in (0_u64..).zip(held) {
            assert_eq!(u64::from(attempt.in_flight()), calls);
            bench.end(attempt, SECOND + calls, (calls + 1) * MS);
        }
        bench.answer(0, 2 * SECOND + 30, 100 * MS);
        let endpoint = bench.endpoint(0);
        let at = |calls| match predict(&endpoint, calls, 2 * SECOND + 40) {
            Prediction::Curve(ns) => ns / 1e6,
            other => panic!("{other:?}"),
        };
        // 21 calls. Floor: element 2, 3 ms. Low: element 5, 6 ms, calls of elements 3..=7, mean 5.
        // Typical: element 10, 11 ms, calls of elements 8..=12, mean 10.
        assert_eq!(at(0), 3.0);
        assert!((at(5) - 6.0).abs() < 1e-9);
        assert!((at(10) - 11.0).abs() < 1e-9);
        assert!((at(12) - 13.0).abs() < 1e-9);
        // The tenth newest call ended 3 minutes ago.
        assert_eq!(predict(&endpoint, 0, 182 * SECOND), Prediction::Nothing);
    }

    #[test]
    fn ten_calls_are_needed() {
        let bench = bench(2);
        for call in 0..9 {
            bench.answer(0, call * SECOND, 5 * MS);
        }
        assert_eq!(
            predict(&bench.endpoint(0), 0, 9 * SECOND),
            Prediction::Nothing
        );
        bench.answer(0, 9 * SECOND, 5 * MS);
        // Not one of them met another, so that each is taken to cost 5 ms.
        assert_eq!(
            predict(&bench.endpoint(0), 2, 9 * SECOND),
            Prediction::Floor(15e6)
        );
    }

    #[test]
    fn what_is_unknown_is_tried_now_and_then() {
        let bench = bench(4);
        assert_eq!(bench.weights(0), [0.25; 4]);
        learn(&bench, 0, 0, 2 * MS);
        learn(&bench, 1, 0, 4 * MS);
        // Two unknown: 1 - 0.9^2 for both, the rest for the best.
        let expected = [0.81, 0.0, 0.095, 0.095];
        bench.assert_weights(SECOND, &expected);
        let mut counts = [0_u32; 4];
        for _ in 0..10_000 {
            counts[bench.pick(SECOND).0 as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        for (count, share) in counts.iter().zip(expected) {
            // Five deviations.
            assert!(
                (f64::from(*count) - share * 1e4).abs() <= 200.0,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn a_curve_that_does_not_rise_attracts_nothing() {
        let bench = bench(2);
        learn(&bench, 0, 0, 20 * MS);
        // A floor of 1 ms against 40 ms, but no call that met another.
        for call in 0..10 {
            bench.answer(1, call, MS);
        }
        bench.assert_weights(SECOND, &[0.9, 0.1]);
        // Ten under way will tell.
        let held: Vec<_> = (0..10).map(|_| bench.begin_at(1, SECOND)).collect();
        bench.assert_weights(SECOND, &[1.0, 0.0]);
        assert!((0..100).all(|_| bench.pick(SECOND).0 == 0));
        drop(held);
    }

    #[test]
    fn without_curves_the_floor_is_paid_for_each_call() {
        let bench = bench(2);
        for call in 0..10 {
            bench.answer(0, call, 5 * MS);
            bench.answer(1, call, 9 * MS);
        }
        bench.assert_weights(SECOND, &[1.0, 0.0]);
        let held = bench.begin_at(0, SECOND);
        // 2 * 5 against 9.
        bench.assert_weights(SECOND, &[0.0, 1.0]);
        assert_eq!(bench.pick(SECOND).0, 1);
        drop(held);
    }

    #[test]
    fn a_failure_costs_a_second() {
        let bench = bench(2);
        for call in 0..10 {
            bench.fail(0, call, MS);
        }
        assert_eq!(
            predict(&bench.endpoint(0), 0, SECOND),
            Prediction::Floor(1e9)
        );
    }
}
