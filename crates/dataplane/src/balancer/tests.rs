//! What holds for every balancer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use proptest::prelude::*;

use super::testing::{choose, key, picks, Bench, Fleet, MS, SECOND};
use super::Balancer;
use crate::attempt::{Attempt, Probe, RequestInfo, Sample};
use crate::config::{BalancerConfig, ChoiceCount, ServiceConfig, SlowStartConfig};
use crate::endpoint::Outcome;
use crate::grpc::Code;
use crate::orca::LoadReport;
use crate::rng::Rng;

/// Every balancer as it is by default, and the full scan.
fn all_configs() -> Vec<BalancerConfig> {
    let mut configs = vec![choose(ChoiceCount::All)];
    for name in BalancerConfig::NAMES {
        let json = format!(r#"{{"type":"{name}"}}"#);
        configs.push(serde_json::from_str(&json).expect("a balancer"));
    }
    configs
}

fn any_config() -> impl Strategy<Value = BalancerConfig> {
    let draws = (2_u32..=100, any::<bool>()).prop_map(|(draws, with_replacement)| {
        BalancerConfig::LeastRequest {
            choice_count: ChoiceCount::Draws(draws),
            with_replacement,
        }
    });
    prop_oneof![prop::sample::select(all_configs()), draws]
}

fn any_weight() -> impl Strategy<Value = f32> {
    prop_oneof![
        3 => Just(1.0_f32),
        1 => Just(0.0),
        2 => 0.01_f32..100.0,
        1 => prop::sample::select(vec![f32::from_bits(1), f32::MIN_POSITIVE, 1e-6, 1e6]),
    ]
}

fn any_fleet() -> impl Strategy<Value = Fleet> {
    proptest::collection::vec((any_weight(), 0_u32..5), 1..40)
        .prop_filter("someone must be usable", |all| {
            all.iter().any(|(weight, _)| *weight > 0.0)
        })
        .prop_map(|all| Fleet::new(&all))
}

#[test]
fn names_are_the_policys() {
    let fleet = Fleet::new(&[(1.0, 0)]);
    for config in all_configs() {
        let balancer = Balancer::new(&config, fleet.view(), None, &mut Rng::new(0));
        assert_eq!(balancer.name(), config.name());
    }
}

#[test]
fn is_built_before_any_endpoint_is_usable() {
    let fleet = Fleet::new(&[(0.0, 0), (0.0, 0)]);
    for config in all_configs() {
        let balancer = Balancer::new(&config, fleet.view(), None, &mut Rng::new(0));
        let mut weights = [f32::NAN; 2];
        balancer.weights(fleet.view(), 0, &mut weights);
        assert_eq!(weights, [0.0, 0.0]);
    }
}

#[test]
fn lb_06_extreme_weights_neither_overflow_nor_divide_by_zero() {
    let sharing = vec![(100.0 / 101.0, 0); 101];
    let huge = vec![(1e6, 0); 4295]; // 2^32 in total.
    let uneven = [(f32::from_bits(1), 0), (1e6, 0), (1e6, u32::MAX)];
    let only_zero_besides = [(0.0, 0), (1.0, 0)];
    for all in [&sharing[..], &huge, &uneven, &only_zero_besides] {
        let fleet = Fleet::new(all);
        for config in all_configs() {
            let mut rng = Rng::new(6);
            let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
            let counts = picks(&balancer, &fleet, 10_000, &mut rng);
            let mut weights = vec![0.0; all.len()];
            balancer.weights(fleet.view(), 0, &mut weights);
            let sum: f32 = weights.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{sum}");
            assert!(counts
                .iter()
                .zip(all)
                .all(|(count, (weight, _))| *count == 0 || *weight > 0.0));
        }
    }
}

#[test]
fn lb_03_ties_leave_nobody_with_twice_a_fair_share() {
    for config in all_configs() {
        let bench = Bench::new(config.clone(), &[1.0; 8]);
        let mut idle = [0; 8];
        for _ in 0..800 {
            idle[bench.pick(0).0 as usize] += 1;
        }
        assert!(
            idle.iter().all(|count| (50..200).contains(count)),
            "{config:?} {idle:?}"
        );
        // Calls that stay count at once, before anything else is known.
        let held: Vec<_> = (0..800)
            .map(|_| bench.begin_key(0, RequestInfo::default()))
            .collect();
        for index in 0..8 {
            let calls = bench.endpoint(index).live.in_flight();
            assert!((50..=200).contains(&calls), "{config:?} {calls}");
        }
        drop(held);
    }
}

#[test]
fn lb_03_own_calls_count_between_reports() {
    for config in all_configs() {
        let bench = Bench::new(config.clone(), &[1.0; 8]);
        let report = LoadReport {
            inflight: Some(0.0),
            service_time_s: Some(0.02),
            ..LoadReport::default()
        };
        let mut held = Vec::new();
        for call in 0..800_u64 {
            let now_ns = call * MS;
            // Reports come once, at the beginning; every endpoint has answered alike.
            if call == 0 {
                for index in 0..8 {
                    for _ in 0..10 {
                        bench.answer(index, now_ns, 20 * MS);
                    }
                    bench.report(index, now_ns, &report);
                }
            }
            held.push(bench.begin_key(now_ns, RequestInfo::default()));
        }
        let counts: Vec<_> = (0..8)
            .map(|index| bench.endpoint(index).live.in_flight())
            .collect();
        let fair = |calls: &u32| (50..200).contains(calls);
        // Calls of which nothing has ended yet show a prediction no load: its ties are fair alone.
        assert!(counts.iter().all(fair), "{config:?} {counts:?}");
    }
}

/// Plays open-loop calls, one each `every_ns`, that take what `latency_ns(index, nth)` says, the
/// nth call at that endpoint; returns who was picked.
fn play(
    bench: &Bench,
    calls: u64,
    every_ns: u64,
    latency_ns: impl Fn(u32, u64) -> u64,
) -> Vec<u32> {
    let mut open: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut attempts = Vec::new();
    let mut seen = HashMap::new();
    let mut picked = Vec::new();
    let end = |attempts: &mut Vec<Option<Attempt>>, place: usize, at_ns: u64| {
        if let Some(attempt) = attempts[place].take() {
            let latency_ns = at_ns - attempt.started_ns();
            bench.end(attempt, at_ns, latency_ns);
        }
    };
    for call in 0..calls {
        let now_ns = (call + 1) * every_ns;
        while let Some(Reverse((at_ns, place))) = open.peek().copied() {
            if at_ns > now_ns {
                break;
            }
            open.pop();
            end(&mut attempts, place, at_ns);
        }
        let attempt = bench.begin_key(now_ns, RequestInfo::default());
        let index = attempt.index();
        let nth = seen.entry(index).or_insert(0);
        open.push(Reverse((now_ns + latency_ns(index, *nth), attempts.len())));
        *nth += 1;
        picked.push(index);
        attempts.push(Some(attempt));
    }
    picked
}

#[test]
fn lb_02_a_slow_spell_is_forgotten() {
    for config in all_configs() {
        if matches!(
            config,
            BalancerConfig::RingHash(_) | BalancerConfig::Maglev(_)
        ) {
            // Shares by hash do not go by latency; those of a ring are uneven from the start.
            continue;
        }
        let bench = Bench::new(config.clone(), &[1.0; 5]);
        let slow_at_first = |index, nth| {
            if index == 2 && nth < 3 {
                2 * SECOND
            } else {
                20 * MS
            }
        };
        // What is believed falls from 2 s to 20 ms within 10 s * ln(100) = 46 s, after each of the
        // three slow calls. 7 calls a second: 214 s, of which the last 43 are looked at.
        // `learned` prefers whom it knows while one of them is idle, so they are given enough to do.
        let (calls, every_ns) = match config {
            BalancerConfig::Learned(_) => (16_000, 4 * MS),
            _ => (1_500, SECOND / 7),
        };
        let picked = play(&bench, calls, every_ns, slow_at_first);
        let share = picked[picked.len() - 300..]
            .iter()
            .filter(|index| **index == 2)
            .count();
        assert!((45..=75).contains(&share), "{config:?}: {share} of 300");
    }
}

#[test]
fn a_black_hole_attracts_nothing_that_goes_by_latency() {
    for name in ["peak_ewma", "c3", "prequal", "latency_observation"] {
        let json = format!(r#"{{"type":"{name}"}}"#);
        let config: BalancerConfig = serde_json::from_str(&json).expect("a balancer");
        let bench = Bench::new(config, &[1.0; 5]);
        let mut failed = 0;
        for call in 0..2_000_u64 {
            let now_ns = call * 10 * MS;
            let (index, _) = bench.pick(now_ns);
            if index == 2 {
                failed += 1;
                bench.fail(2, now_ns, MS);
            } else {
                bench.answer(index, now_ns, 20 * MS);
            }
        }
        // A fair share would be 400.
        assert!(failed < 120, "{name}: {failed} of 2000");
    }
}

#[test]
fn slow_start_sends_some_then_all() {
    for config in all_configs() {
        let ramped = |settings: &mut ServiceConfig| {
            settings.slow_start = SlowStartConfig {
                window_ms: 10_000,
                aggression: 1.0,
            };
        };
        let bench = Bench::with(config.clone(), &[1.0; 4], ramped);
        let share = |from_ns: u64| {
            let mut count = 0;
            for call in 0..4_000_u64 {
                let now_ns = from_ns + call * 10_000;
                let attempt = bench.begin_key(now_ns, RequestInfo::default());
                count += u32::from(attempt.index() == 4);
                bench.end(attempt, now_ns, 20 * MS);
            }
            f64::from(count) / 4_000.0
        };
        share(0);
        share(20 * SECOND);
        bench.set_weights(&[1.0; 5]);
        let (begin, end) = (share(40 * SECOND), share(55 * SECOND));
        // Fair is 0.2; a tenth of it at the least. A rule that goes by latency may find the new one
        // attractive in spite of its ramp, because it knows nothing of it.
        let curious = matches!(
            config,
            BalancerConfig::C3(_)
                | BalancerConfig::Prequal(_)
                | BalancerConfig::LatencyObservation(_)
        );
        assert!(begin > 0.01, "{config:?}: {begin} at the beginning");
        assert!(
            curious || begin < 0.05,
            "{config:?}: {begin} at the beginning"
        );
        // `learned` prefers whom it knows while nobody is busy, and here nobody is.
        let wary = matches!(config, BalancerConfig::Learned(_));
        assert!(
            wary || (0.12..0.3).contains(&end),
            "{config:?}: {end} at the end"
        );
    }
}

#[test]
fn weights_sum_to_one_under_slow_start() {
    for config in all_configs() {
        let bench = Bench::with(config.clone(), &[1.0, 2.0, 3.0], |settings| {
            settings.slow_start.window_ms = 10_000;
        });
        bench.pick(0);
        for now_ns in [0, 5 * SECOND, 20 * SECOND] {
            let sum: f32 = bench.weights(now_ns).iter().sum();
            assert!((sum - 1.0).abs() < 1e-5, "{config:?} {sum}");
        }
    }
}

/// What can happen to a service.
#[derive(Debug, Clone)]
enum Event {
    Pick(u64),
    End(prop::sample::Index, u64, u32),
    Drop(prop::sample::Index),
    Report(prop::sample::Index, [f64; 4]),
    Probe(prop::sample::Index, u32, u64),
    Weights(Vec<f32>),
    Failing(prop::sample::Index, bool),
    Wait(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let index = || any::<prop::sample::Index>();
    let value = || prop_oneof![0.0..2.0_f64, Just(0.0), Just(1e6), Just(1e-300)];
    let weights = proptest::collection::vec(any_weight(), 1..8);
    prop_oneof![
        8 => any::<u64>().prop_map(Event::Pick),
        4 => (index(), any::<u64>(), 0_u32..17).prop_map(|(i, ns, code)| Event::End(i, ns, code)),
        1 => index().prop_map(Event::Drop),
        2 => (index(), [value(), value(), value(), value()])
            .prop_map(|(index, values)| Event::Report(index, values)),
        2 => (index(), any::<u32>(), any::<u64>()).prop_map(|(i, n, ns)| Event::Probe(i, n, ns)),
        1 => weights
            .prop_filter("someone must be usable", |all| all.iter().any(|weight| *weight > 0.0))
            .prop_map(Event::Weights),
        1 => (index(), any::<bool>()).prop_map(|(index, failing)| Event::Failing(index, failing)),
        2 => (0_u64..20_000_000_000).prop_map(Event::Wait),
    ]
}

/// Lets it all happen; returns the picks. Checks each pick and all weights.
fn live_through(config: BalancerConfig, slow_start: bool, events: &[Event]) -> Vec<u32> {
    let bench = Bench::with(config, &[1.0, 2.0, 1.0], |settings| {
        settings.slow_start.window_ms = if slow_start { 5_000 } else { 0 };
    });
    let mut open: Vec<Attempt> = Vec::new();
    let (mut now_ns, mut picked) = (0_u64, Vec::new());
    for event in events {
        let count = bench.service.snapshot().members.len();
        match event {
            Event::Pick(id) => {
                let attempt = bench.begin_key(now_ns, key(*id));
                let snapshot = bench.service.snapshot();
                assert!(
                    snapshot.usable.contains(&attempt.index()),
                    "an unusable endpoint"
                );
                picked.push(attempt.index());
                open.push(attempt);
            }
            Event::End(index, latency_ns, code) if !open.is_empty() => {
                let attempt = open.swap_remove(index.index(open.len()));
                let outcome = Outcome::Answered(Code::from_number(*code));
                let sample = Sample::new(outcome, *latency_ns);
                bench.service.end_attempt(attempt, now_ns, &sample);
            }
            Event::Drop(index) if !open.is_empty() => {
                open.swap_remove(index.index(open.len()));
            }
            Event::End(..) | Event::Drop(_) => {}
            Event::Report(index, [qps, utilization, inflight, service_time_s]) => {
                let report = LoadReport {
                    qps: Some(*qps),
                    cpu_utilization: Some(*utilization),
                    inflight: Some(*inflight),
                    service_time_s: Some(*service_time_s),
                    ..LoadReport::default()
                };
                bench.report(index.index(count) as u32, now_ns, &report);
            }
            Event::Probe(index, inflight, latency_ns) => {
                let probe = Probe {
                    inflight: *inflight,
                    latency_ns: *latency_ns,
                };
                let endpoint = bench.endpoint(index.index(count) as u32);
                bench.service.probed(&endpoint, now_ns, probe);
            }
            Event::Weights(weights) => bench.set_weights(weights),
            Event::Failing(index, failing) => {
                let endpoint = bench.endpoint(index.index(count) as u32);
                bench.service.set_failing(&endpoint, *failing);
            }
            Event::Wait(wait_ns) => now_ns += wait_ns,
        }
        let weights = bench.weights(now_ns);
        let sum: f32 = weights.iter().sum();
        assert!((sum - 1.0).abs() < 1e-3, "weights {weights:?}");
        assert!(
            weights.iter().all(|weight| (0.0..=1.0001).contains(weight)),
            "{weights:?}"
        );
    }
    picked
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn picks_only_what_is_usable(config in any_config(), fleet in any_fleet(), seed: u64) {
        let mut rng = Rng::new(seed);
        let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
        for now_ns in 0..100 {
            let (picked, _) = balancer.pick(fleet.view(), now_ns, RequestInfo::default(), &mut rng);
            prop_assert!(fleet.usable.contains(&picked));
        }
    }

    #[test]
    fn the_same_seed_picks_the_same(config in any_config(), fleet in any_fleet(), seed: u64) {
        let [first, second] = [(); 2].map(|()| {
            let mut rng = Rng::new(seed);
            let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
            [(); 50].map(|()| balancer.pick(fleet.view(), 0, RequestInfo::default(), &mut rng))
        });
        prop_assert_eq!(first, second);
    }

    #[test]
    fn whatever_happens_picks_are_usable_and_replay(
        config in any_config(),
        slow_start: bool,
        events in proptest::collection::vec(any_event(), 1..120),
    ) {
        let first = live_through(config.clone(), slow_start, &events);
        prop_assert_eq!(first, live_through(config, slow_start, &events));
    }

    #[test]
    fn weights_are_a_distribution(config in any_config(), fleet in any_fleet()) {
        let balancer = Balancer::new(&config, fleet.view(), None, &mut Rng::new(0));
        let mut weights = vec![f32::NAN; fleet.members.len()];
        balancer.weights(fleet.view(), 0, &mut weights);
        let sum: f32 = weights.iter().sum();
        prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
        for (index, weight) in weights.iter().enumerate() {
            prop_assert!((0.0..=1.0).contains(weight));
            prop_assert!(*weight == 0.0 || fleet.usable.contains(&(index as u32)));
        }
    }
}
