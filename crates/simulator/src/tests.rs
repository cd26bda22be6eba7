//! The simulator against queueing theory, against itself, and against what it must hide.

use std::sync::Arc;

use attnroute_dataplane::config::BalancerConfig;
use attnroute_dataplane::rng::Rng;
use serde_json::{json, Value};

use crate::outcome::Outcome;
use crate::scenario::Scenario;
use crate::sidecar::{number_of, Incoming, Seen, Sidecar};
use crate::world::{Pickers, World};
use crate::{simulate as play, Balancer, Simulation};

/// One sidecar, one endpoint of one worker, no network; `changes` are laid over it.
fn scenario(changes: &Value) -> Scenario {
    let mut base = json!({
        "name": "test",
        "sidecars": {"count": 1},
        "endpoints": [{"name": "all", "count": 1, "workers": 1}],
        "request_classes": {"methods": [{"name": "m"}], "message_sizes": [{"name": "s"}]},
        "service_time": {"mean_ms": 10.0, "law": {"exponential": {}}},
        "load": {"rate": {"fraction": 0.7}},
        "warmup_ms": 20_000,
        "duration_ms": 1_000_000,
    });
    for (key, value) in changes.as_object().expect("an object") {
        base[key] = value.clone();
    }
    Scenario::parse(base.to_string().as_bytes()).expect("a valid scenario")
}

fn simulate(scenario: &Scenario, balancer: &Balancer, seed: u64) -> Outcome {
    play(Arc::new(scenario.clone()), balancer, seed)
}

fn balancer(json: &Value) -> Balancer {
    Balancer::parse(json.to_string().as_bytes()).expect("a valid balancer")
}

fn random() -> Balancer {
    balancer(&json!({"type": "round_robin"}))
}

fn least_request(choice_count: Value) -> Balancer {
    balancer(&json!({"type": "least_request", "choice_count": choice_count}))
}

/// Mean over seeds and half the width of its 99 % interval.
fn mean_and_margin(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Student's t for 9 degrees of freedom; every test here takes 10 seeds.
    assert_eq!(values.len(), 10);
    (mean, 3.25 * (variance / count).sqrt())
}

/// Ten seeds' mean latency lies where theory says, within its own margin and a tight one at that.
fn holds(scenario: &Scenario, balancer: &Balancer, expected_ms: f64) {
    let means: Vec<_> = (0..10)
        .map(|seed| simulate(scenario, balancer, seed).mean_ms.expect("calls"))
        .collect();
    let (mean, margin) = mean_and_margin(&means);
    assert!(
        margin < 0.03 * expected_ms,
        "{mean} +- {margin} is no evidence"
    );
    assert!(
        (mean - expected_ms).abs() <= margin,
        "{mean} +- {margin} ms, theory says {expected_ms}"
    );
}

#[test]
fn m_m_1() {
    // W = s / (1 - rho).
    holds(&scenario(&json!({})), &random(), 10.0 / 0.3);
}

#[test]
fn m_m_c() {
    // Erlang C for 4 workers at 0.8: a = 3.2, P(wait) = 0.59642; W = s + P s / (c (1 - rho)).
    let changes = json!({
        "endpoints": [{"name": "all", "count": 1, "workers": 4}],
        "load": {"rate": {"fraction": 0.8}},
        "duration_ms": 500_000,
    });
    let offered: f64 = 3.2;
    let mut term = 1.0;
    let mut below = 0.0;
    for calls in 0..4 {
        below += term;
        term *= offered / f64::from(calls + 1);
    }
    let waits = term / 0.2 / (below + term / 0.2);
    holds(
        &scenario(&changes),
        &random(),
        10.0 + waits * 10.0 / (4.0 * 0.2),
    );
}

#[test]
fn m_g_1_by_pollaczek_and_khinchine() {
    // W = s + rho s (1 + cv2) / (2 (1 - rho)).
    let sigma: f64 = 0.6;
    let small: f64 = 1.0 / (0.9 + 0.1 * 5.0);
    let laws = [
        (json!({"constant": {}}), 0.0),
        (
            json!({"lognormal": {"sigma": sigma}}),
            (sigma * sigma).exp() - 1.0,
        ),
        (
            json!({"bimodal": {"ratio": 5.0, "share": 0.1}}),
            small * small * (0.9 + 0.1 * 25.0) - 1.0,
        ),
        // alpha 6: 1 / (alpha (alpha - 2)).
        (json!({"pareto": {"alpha": 6.0}}), 1.0 / 24.0),
    ];
    for (law, spread) in laws {
        let changes = json!({"service_time": {"mean_ms": 10.0, "law": law}});
        let expected = 10.0 + 0.7 * 10.0 * (1.0 + spread) / (2.0 * 0.3);
        holds(&scenario(&changes), &random(), expected);
    }
}

#[test]
fn processor_sharing_is_blind_to_the_law() {
    // W = s / (1 - rho) whatever the law.
    for law in [
        json!({"constant": {}}),
        json!({"lognormal": {"sigma": 1.0}}),
    ] {
        let changes = json!({
            "endpoints": [
                {"name": "all", "count": 1, "workers": 1, "discipline": "processor_sharing"}
            ],
            "service_time": {"mean_ms": 10.0, "law": law},
        });
        holds(&scenario(&changes), &random(), 10.0 / 0.3);
    }
}

#[test]
fn two_choices_have_the_known_mean() {
    // Mitzenmacher: with n large and d = 2, W = s sum over i >= 1 of rho^(2^i - 2). Draws with
    // replacement, 500 endpoints: the limit is approached as 1/n.
    let changes = json!({
        "endpoints": [{"name": "all", "count": 500, "workers": 1}],
        "load": {"rate": {"fraction": 0.9}},
        "warmup_ms": 4_000,
        "duration_ms": 16_000,
    });
    let rho: f64 = 0.9;
    let expected: f64 = (1..20).map(|i| rho.powf(2_f64.powi(i) - 2.0)).sum::<f64>() * 10.0;
    let two = balancer(&json!({
        "type": "least_request", "choice_count": {"draws": 2}, "with_replacement": true
    }));
    let means: Vec<_> = (0..10)
        .map(|seed| {
            simulate(&scenario(&changes), &two, seed)
                .mean_ms
                .expect("calls")
        })
        .collect();
    let (mean, margin) = mean_and_margin(&means);
    assert!(margin < 0.03 * expected, "{mean} +- {margin}");
    assert!(
        (mean - expected).abs() <= margin + 0.01 * expected,
        "{mean} +- {margin}: {expected}"
    );
}

#[test]
fn two_choices_cut_the_tail_doubly_exponentially() {
    // Share of endpoints with at least k calls: rho^(2^k - 1) with two choices, rho^k at random.
    // Seen from a call through PASTA: latency is a sum of k exponentials, so compare the p99.
    let changes = json!({
        "endpoints": [{"name": "all", "count": 500, "workers": 1}],
        "load": {"rate": {"fraction": 0.9}},
        "service_time": {"mean_ms": 10.0, "law": {"constant": {}}},
        "warmup_ms": 4_000,
        "duration_ms": 10_000,
    });
    let scenario = scenario(&changes);
    let p99 = |balancer: &Balancer| simulate(&scenario, balancer, 1).p99_ms.expect("calls");
    // A call that joins k others leaves after at most (k + 1) s. With two choices fewer than 1 %
    // join 4 or more: rho^(2 (2^4 - 1)) = 0.04; 5 or more: rho^(2 (2^5 - 1)) = 0.0015.
    let two = p99(&least_request(json!({"draws": 2})));
    assert!((30.0..=50.0).contains(&two), "{two}");
    let all = p99(&least_request(json!("all")));
    assert!(all <= 20.5, "{all}");
}

/// Everything at once, small.
fn busy_world() -> Scenario {
    scenario(&json!({
        "sidecars": {"count": 3, "zones": ["a", "b"]},
        "endpoints": [
            {"name": "fast", "count": 4, "workers": 2, "speed": 2.0, "zones": ["a", "b"]},
            {"name": "slow", "count": 4, "workers": 3, "zones": ["b", "c"],
             "discipline": "processor_sharing"}
        ],
        "request_classes": {
            "methods": [{"name": "m0"}, {"name": "m1", "cost": 2.0}],
            "message_sizes": [{"name": "s"}, {"name": "l", "cost": 3.0, "popularity": 0.2}]
        },
        "service_time": {
            "mean_ms": 10.0, "law": {"lognormal": {"sigma": 0.8}},
            "affinity": {"groups": {"groups": 2, "factor": 3.0}}
        },
        "network": {"rtt_ms": 0.5, "pairs": [{"zones": ["a", "c"], "rtt_ms": 8.0}]},
        "load": {
            "rate": {"fraction": 0.7},
            "pattern": {"mmpp": {"factor": 1.3, "burst_ms": 500, "calm_ms": 1000}}
        },
        "noise": [{"endpoints": {"every": 4}, "speed": 0.5, "slow_ms": 300, "normal_ms": 900}],
        "reports": {"out_of_band_ms": 700, "service_time": true},
        "deadline_ms": 900,
        "events": [
            {"at_ms": 2_000, "action": {"slow": {
                "endpoints": {"group": "fast", "count": 1}, "speed": 0.3, "for_ms": 1_500}}},
            {"at_ms": 3_000, "action": {"fail": {
                "endpoints": {"group": "slow", "count": 1}, "mode": "trailers_only",
                "share": 1.0, "for_ms": 1_000}}},
            {"at_ms": 4_000, "action": {"hang": {
                "endpoints": {"every": 8}, "for_ms": 800}}},
            {"at_ms": 5_000, "action": {"restart": {
                "endpoints": {"group": "slow", "every": 2}, "down_ms": 600,
                "cold": {"speed": 0.2, "for_ms": 1_000}}}},
            {"at_ms": 5_500, "action": {"affinity_shift": {}}},
            {"at_ms": 6_000, "action": {"add": {
                "group": "fast", "count": 2, "cold": {"speed": 0.2, "for_ms": 1_000}}}},
            {"at_ms": 7_000, "action": {"remove": {"endpoints": {"group": "slow", "count": 1}}}},
            {"at_ms": 7_500, "action": {"report_loss": {"endpoints": {}, "for_ms": 1_000}}},
            {"at_ms": 8_000, "action": {"fail": {
                "endpoints": {"group": "fast", "count": 1}, "mode": "after_headers",
                "share": 0.5, "for_ms": 1_000}}}
        ],
        "warmup_ms": 1_000,
        "duration_ms": 9_000,
    }))
}

fn text(outcome: &Outcome) -> String {
    serde_json::to_string(outcome).expect("serialises")
}

#[test]
fn one_seed_is_one_result() {
    let scenario = busy_world();
    for config in [
        json!({"type": "least_request", "choice_count": "all"}),
        json!({"type": "round_robin"}),
        json!({"type": "oracle"}),
    ] {
        let balancer = balancer(&config);
        let first = text(&simulate(&scenario, &balancer, 7));
        assert_eq!(first, text(&simulate(&scenario, &balancer, 7)));
        assert_ne!(first, text(&simulate(&scenario, &balancer, 8)));
    }
}

#[test]
fn steps_change_nothing() {
    let scenario = Arc::new(busy_world());
    for config in [
        json!({"type": "prequal", "probe_source": "endpoints"}),
        json!({"type": "oracle"}),
    ] {
        let balancer = balancer(&config);
        let whole = text(&simulate(&scenario, &balancer, 7));
        // Ends of steps that meet events, and steps in which nothing comes.
        for step_ns in [100_000_000, 333_333_333, 40_000_000_000] {
            let mut run = Simulation::new(Arc::clone(&scenario), &balancer, 7);
            let mut until_ns = step_ns;
            while run.run_until(until_ns) {
                assert_eq!(run.now_ns(), until_ns);
                until_ns += step_ns;
            }
            assert_eq!(text(&run.finish()), whole, "{step_ns}");
        }
    }
}

#[test]
fn every_balancer_meets_the_same_calls() {
    let scenario = busy_world();
    let runs = [
        least_request(json!("all")),
        random(),
        balancer(&json!({"type": "oracle"})),
    ]
    .map(|balancer| simulate(&scenario, &balancer, 3));
    for run in &runs {
        assert_eq!(run.calls, runs[0].calls);
        let ended: u64 = run.timeline.iter().map(|second| second.calls).sum();
        assert!(ended > run.calls, "warm-up calls are in the timeline too");
        let picked: u64 = run.endpoints.iter().map(|endpoint| endpoint.calls).sum();
        assert_eq!(picked + run.refused, run.calls);
        assert_eq!(run.unfinished, 0);
    }
    assert!(runs[2].mean_ms < runs[0].mean_ms && runs[0].mean_ms < runs[1].mean_ms);
}

#[test]
fn a_failing_endpoint_is_detected_by_who_looks_at_failures() {
    let changes = json!({
        "endpoints": [{"name": "all", "count": 10, "workers": 2}],
        "events": [{"at_ms": 30_000, "action": {"fail": {
            "endpoints": {"count": 1}, "mode": "after_headers", "share": 1.0, "for_ms": 0}}}],
        "duration_ms": 40_000,
    });
    let scenario = scenario(&changes);
    let oracle = simulate(&scenario, &balancer(&json!({"type": "oracle"})), 1);
    assert_eq!(oracle.events[0].detected_s, Some(0.0));
    let blind = simulate(&scenario, &random(), 1);
    assert_eq!(blind.events[0].detected_s, None);
    let share = blind.events[0].share_before.expect("picks");
    assert!((share - 0.1).abs() < 0.01, "{share}");
    assert!(blind.errors > 1_000, "{}", blind.errors);
}

#[test]
fn ejection_is_that_of_production() {
    let changes = |ejects: Value| {
        json!({
            "endpoints": [{"name": "all", "count": 10, "workers": 2}],
            "events": [{"at_ms": 30_000, "action": {"fail": {
                "endpoints": {"count": 1}, "mode": "trailers_only", "share": 1.0, "for_ms": 0}}}],
            "outlier_detection": ejects,
            "duration_ms": 40_000,
        })
    };
    let run = |ejects: Value| simulate(&scenario(&changes(ejects)), &random(), 1);
    let (off, on) = (run(Value::Null), run(json!({"base_ejection_ms": 10_000})));
    // A tenth of the calls of 30 s against five before each ejection: at 30, 40 and, the second
    // one lasting 20 s, not again.
    assert_eq!(off.events[0].detected_s, None);
    assert!(off.errors > 1_000, "{}", off.errors);
    assert!(on.events[0].detected_s.is_some());
    assert!((10..30).contains(&on.errors), "{}", on.errors);
}

#[test]
fn the_timeline_ends_with_the_run() {
    let run = |duration_ms: u64| {
        let changes = json!({"warmup_ms": 500, "duration_ms": duration_ms, "load": {"rate": {"fraction": 1.5}}, "allow_overload": true});
        simulate(&scenario(&changes), &random(), 1)
    };
    // Half of what comes is still there at the end, and is played on for a second and more.
    assert_eq!(run(2_500).timeline.len(), 3);
    assert_eq!(run(3_000).timeline.len(), 3);
    assert_eq!(run(300).timeline.len(), 0);
}

#[test]
fn deadlines_end_calls_and_nobody_works_on_dropped_ones() {
    // Twice what it can do: without the deadline the queue would grow for ever.
    let changes = json!({
        "load": {"rate": {"fraction": 2.0}},
        "allow_overload": true,
        "deadline_ms": 200,
        "duration_ms": 60_000,
    });
    let run = simulate(&scenario(&changes), &random(), 1);
    assert!(run.overload);
    assert_eq!(run.unfinished, 0);
    assert_eq!(run.errors, run.deadline_exceeded);
    // At best half of the calls could be answered. The queue keeps them waiting for nearly the whole
    // deadline, so that many run into it while they are worked on. Were the dropped ones worked on
    // as well, the queue would grow without end and nothing would be answered but the first calls.
    let answered = 1.0 - run.errors as f64 / run.calls as f64;
    assert!((0.15..0.5).contains(&answered), "{answered}");
    assert!(run.p999_ms.expect("calls") <= 201.0);
}

#[test]
fn a_hang_without_a_deadline_leaves_unfinished_calls() {
    let changes = json!({
        "events": [{"at_ms": 30_000, "action": {"hang": {"endpoints": {}, "for_ms": 0}}}],
        "duration_ms": 20_000,
    });
    let run = simulate(&scenario(&changes), &random(), 1);
    assert!(
        run.unfinished > 500 && run.errors == run.unfinished,
        "{}",
        run.unfinished
    );
}

#[test]
fn a_restart_loses_what_was_in_it_and_comes_back() {
    let changes = json!({
        "endpoints": [{"name": "all", "count": 2, "workers": 20}],
        "events": [{"at_ms": 40_000, "action": {"restart": {
            "endpoints": {"count": 1}, "down_ms": 5_000, "cold": null}}}],
        "duration_ms": 60_000,
        "load": {"rate": {"fraction": 0.4}},
        "network": {"rtt_ms": 1.0},
    });
    let run = simulate(&scenario(&changes), &least_request(json!("all")), 1);
    assert!((1..20).contains(&run.errors), "{}", run.errors);
    assert_eq!(run.events[0].detected_s, Some(0.0));
    assert!(run.endpoints[0].share > 0.4, "{:?}", run.endpoints[0]);
}

// --- what is hidden ------------------------------------------------------------------------------

/// Time between two publications of scores.
const SCORED_NS: u64 = 1_000_000_000;

/// What every sidecar of a run was told and did.
fn observed(scenario: &Scenario, balancer: &Balancer, seed: u64) -> Vec<Vec<Seen>> {
    let mut world = World::new(Arc::new(scenario.clone()), balancer.config.as_ref(), seed);
    let Pickers::Sidecars(sidecars) = &mut world.pickers else {
        return Vec::new();
    };
    // The set was applied when the world was made; applying it again changes nothing but is noted.
    for sidecar in sidecars.iter_mut() {
        sidecar.log = Some(vec![Seen::Set(sidecar.current_set())]);
    }
    let mut until_ns = SCORED_NS;
    while world.advance(until_ns) {
        until_ns += SCORED_NS;
        if balancer.name == "learned" {
            let now_ns = world.now_ns;
            if let Pickers::Sidecars(sidecars) = &mut world.pickers {
                sidecars
                    .iter_mut()
                    .for_each(|sidecar| sidecar.scored(now_ns));
            }
        }
    }
    let Pickers::Sidecars(sidecars) = world.pickers else {
        return Vec::new();
    };
    sidecars
        .into_iter()
        .map(|sidecar| sidecar.log.unwrap_or_default())
        .collect()
}

/// Plays observations to a sidecar of another world; its picks and probes.
fn replayed(sidecar: &mut Sidecar, log: &[Seen]) -> Vec<Vec<u32>> {
    let mut open = Vec::new();
    let mut decided = Vec::new();
    for seen in log.iter().cloned() {
        match seen {
            Seen::Set(set) => sidecar.apply_endpoints(&set),
            Seen::Failing(number, failing) => sidecar.set_failing(number, failing),
            Seen::Call(now_ns, path, message_bytes, key, _) => {
                let call = Incoming {
                    path: &path,
                    message_bytes,
                    key,
                };
                let attempt = sidecar.call(now_ns, call);
                let number = attempt
                    .as_ref()
                    .map(|attempt| number_of(attempt.endpoint()));
                decided.push(number.into_iter().collect());
                open.extend(attempt);
            }
            Seen::Answer(now_ns, number, started_ns, outcome, report) => {
                let place = open.iter().position(|attempt| {
                    number_of(attempt.endpoint()) == number && attempt.started_ns() == started_ns
                });
                // A pick that went elsewhere has no such attempt: the picks differ already.
                if let Some(place) = place {
                    sidecar.answered(now_ns, open.remove(place), outcome, report.as_ref());
                }
            }
            Seen::Probes(now_ns, _) => decided.push(sidecar.probes_due(now_ns).to_vec()),
            Seen::Probed(now_ns, number, probe) => sidecar.probed(now_ns, number, probe),
            Seen::Reported(now_ns, number, report) => sidecar.reported(now_ns, number, &report),
            Seen::Scored(now_ns) => sidecar.scored(now_ns),
            Seen::Pinged(number, rtt_ns) => sidecar.pinged(number, rtt_ns),
        }
    }
    decided
}

fn decisions(log: &[Seen]) -> Vec<Vec<u32>> {
    log.iter()
        .filter_map(|seen| match seen {
            Seen::Call(.., number) => Some(number.iter().copied().collect()),
            Seen::Probes(_, due) => Some(due.clone()),
            _ => None,
        })
        .collect()
}

/// The same world with one truth changed.
fn with_another(truth: &str) -> Scenario {
    let mut scenario = busy_world();
    match truth {
        "concurrency" => scenario
            .endpoints
            .iter_mut()
            .for_each(|group| group.workers *= 5),
        "speed" => {
            scenario.endpoints[0].speed = 0.1;
            scenario.events.clear();
            scenario.noise.clear();
        }
        "rtt" => {
            scenario.network.rtt_ms = 30.0;
            scenario.network.pairs.clear();
        }
        "busy time" => {
            scenario.service_time.mean_ms = 500.0;
            scenario.service_time.affinity = None;
        }
        other => panic!("no such truth: {other}"),
    }
    scenario
}

/// Every balancer that the data plane has.
fn all_balancers() -> Vec<Value> {
    let mut all: Vec<_> = BalancerConfig::NAMES
        .iter()
        .map(|name| json!({ "type": name }))
        .collect();
    all.push(json!({"type": "least_request", "choice_count": {"draws": 2}}));
    all.push(json!({"type": "prequal", "probe_source": "endpoints"}));
    all
}

#[test]
fn picks_depend_on_no_truth_that_a_sidecar_cannot_see() {
    let recorded_in = busy_world();
    for config in all_balancers() {
        let balancer = balancer(&config);
        let logs = observed(&recorded_in, &balancer, 5);
        for truth in ["concurrency", "speed", "rtt", "busy time"] {
            let other = with_another(truth);
            // Changed for sure: the oracle, which knows it, picks otherwise.
            let oracle = Balancer::parse(br#"{"type": "oracle"}"#).expect("valid");
            let picks = |scenario| simulate(scenario, &oracle, 5).picks;
            assert_ne!(picks(&recorded_in), picks(&other), "{truth}");
            let world = World::new(Arc::new(other), balancer.config.as_ref(), 5);
            let Pickers::Sidecars(mut sidecars) = world.pickers else {
                panic!("sidecars pick");
            };
            for (sidecar, log) in sidecars.iter_mut().zip(&logs) {
                let found = replayed(sidecar, log);
                assert!(found.len() > 500, "{}", found.len());
                assert_eq!(found, decisions(log), "{config}: {truth} shows");
            }
        }
    }
}

#[test]
fn a_replay_notices_a_changed_observation() {
    // The test above could fail: least request that misses an answer picks otherwise.
    let scenario = busy_world();
    let balancer = least_request(json!("all"));
    let mut log = observed(&scenario, &balancer, 5).swap_remove(0);
    let expected = decisions(&log);
    let first = log
        .iter()
        .position(|seen| matches!(seen, Seen::Answer(..)))
        .expect("an answer");
    log.remove(first);
    let mut world = World::new(Arc::new(scenario), balancer.config.as_ref(), 5);
    let Pickers::Sidecars(sidecars) = &mut world.pickers else {
        panic!("sidecars pick");
    };
    assert_ne!(replayed(&mut sidecars[0], &log), expected);
}

// --- bad input -----------------------------------------------------------------------------------

fn refused(changes: &Value) -> (String, String) {
    let mut base = json!({
        "name": "test",
        "sidecars": {"count": 1},
        "endpoints": [{"name": "all", "count": 1, "workers": 1}],
        "request_classes": {"methods": [{"name": "m"}], "message_sizes": [{"name": "s"}]},
        "service_time": {"mean_ms": 10.0, "law": {"exponential": {}}},
        "load": {"rate": {"fraction": 0.7}},
        "warmup_ms": 0,
        "duration_ms": 1_000,
    });
    for (key, value) in changes.as_object().expect("an object") {
        base[key] = value.clone();
    }
    let error = Scenario::parse(base.to_string().as_bytes()).expect_err("refused");
    (error.path, error.message)
}

#[test]
fn overload_is_allowed_only_when_asked_for() {
    let (path, message) = refused(&json!({"load": {"rate": {"rps": 150.0}}}));
    assert_eq!(path, "load.rate.rps");
    assert_eq!(
        message,
        "150 calls per second are 1.500 of the 100 that the endpoints can do; lower the load or \
         write `allow_overload: true`"
    );
    let run = scenario(&json!({
        "load": {"rate": {"rps": 150.0}}, "allow_overload": true, "duration_ms": 1_000
    }));
    assert!(simulate(&run, &random(), 0).overload);
    let ramp = json!({"rate": {"fraction": 0.7}, "pattern": {
        "ramp": {"from": 0.5, "to": 1.5, "at_ms": 0, "over_ms": 500}}});
    assert_eq!(refused(&json!({"load": ramp})).0, "load.rate.fraction");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_its_path() {
    let event = |action: Value| json!({"events": [{"at_ms": 1, "action": action}]});
    let cases = [
        (json!({"endpoints": []}), "endpoints"),
        (json!({"sidecars": {"count": 0}}), "sidecars.count"),
        (
            json!({"sidecars": {"count": 1, "zone": []}}),
            "sidecars.zone",
        ),
        (
            json!({"service_time": {"mean_ms": 1.0, "law": {"pareto": {"alpha": 1.0}}}}),
            "service_time.law.pareto.alpha",
        ),
        (
            event(json!({"add": {"group": "none", "count": 1, "cold": null}})),
            "events[0].action.add.group",
        ),
        (
            event(json!({"affinity_shift": {}})),
            "events[0].action.affinity_shift",
        ),
        (
            event(json!({"hang": {"endpoints": {"every": 0}, "for_ms": 0}})),
            "events[0].action.hang.endpoints.every",
        ),
        (
            json!({"events": [{"at_ms": 1_000, "action": {"remove": {"endpoints": {}}}}]}),
            "events[0].at_ms",
        ),
        (
            json!({"network": {"pairs": [{"zones": ["", "far"], "rtt_ms": 1.0}]}}),
            "network.pairs[0].zones",
        ),
        (
            json!({"load": {"rate": {"rps": 1.0}, "trace": {
                "at_ms": [2.0, 1.0], "class": [0, 0], "work_ms": [0.0, 0.0]}}}),
            "load.trace",
        ),
    ];
    for (changes, path) in cases {
        assert_eq!(refused(&changes).0, path, "{changes}");
    }
}

#[test]
fn a_trace_is_played_as_it_was_recorded() {
    let trace = json!({"rate": {"rps": 1.0}, "trace": {
        "at_ms": [100.0, 102.0, 500.0, 5_000.0],
        "class": [0, 0, 0, 0],
        "work_ms": [10.0, 10.0, 30.0, 10.0]
    }});
    let run = simulate(
        &scenario(&json!({"load": trace, "warmup_ms": 0, "duration_ms": 1_000})),
        &random(),
        0,
    );
    // 10, 8 + 10 and 30 ms; the last one comes after the end.
    assert_eq!(run.calls, 3);
    let mean = run.mean_ms.expect("calls");
    assert!((mean - 58.0 / 3.0).abs() < 1e-3, "{mean}");
}

#[test]
fn rates_of_bursts_and_ramps_have_the_stated_mean() {
    let calls = |pattern: Value| {
        let load = json!({"rate": {"rps": 60.0}, "pattern": pattern});
        let scenario = scenario(&json!({"load": load, "warmup_ms": 0, "duration_ms": 1_000_000}));
        simulate(&scenario, &random(), 2).calls as f64
    };
    // 60,000 expected; the deviation of a Poisson count is 245, of the bursts some 700.
    let bursts = calls(json!({"mmpp": {"factor": 2.5, "burst_ms": 1_000, "calm_ms": 3_000}}));
    assert!((bursts - 60_000.0).abs() < 2_500.0, "{bursts}");
    let ramp = calls(json!({"ramp": {
        "from": 0.5, "to": 1.5, "at_ms": 250_000, "over_ms": 500_000}}));
    assert!((ramp - 60_000.0).abs() < 1_000.0, "{ramp}");
}

#[test]
fn autoscaling_follows_the_load() {
    let changes = json!({
        "endpoints": [{"name": "all", "count": 4, "workers": 2}],
        "load": {"rate": {"rps": 500.0},
            "pattern": {"ramp": {"from": 0.4, "to": 1.2, "at_ms": 60_000, "over_ms": 60_000}}},
        "autoscale": {"group": "all", "target": 0.5, "every_ms": 10_000, "delay_ms": 5_000,
            "min": 2, "max": 40, "cold": null},
        "warmup_ms": 0,
        "duration_ms": 240_000,
    });
    let run = simulate(&scenario(&changes), &least_request(json!("all")), 1);
    // 600 calls/s of 10 ms on 2 workers at 0.5: 6 endpoints.
    let late = run
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.joined_s > 60.0);
    assert!((2..=4).contains(&late.count()), "{:?}", run.endpoints);
}

#[test]
fn arrivals_draw_from_a_stream_of_their_own() {
    let scenario = busy_world();
    let draw = || {
        let stream = Rng::stream(9, crate::world::streams::ARRIVALS);
        let mut arrivals = crate::arrivals::Arrivals::new(&scenario, stream);
        std::iter::from_fn(move || arrivals.next()).collect::<Vec<_>>()
    };
    let (first, second) = (draw(), draw());
    assert!(first.len() > 1_000);
    assert_eq!(first, second);
}
