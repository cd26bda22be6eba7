use std::sync::Arc;

use http::HeaderMap;
use proptest::prelude::*;
use serde_json::{json, Value};

use super::cost::{costs, Costs};
use super::trace::{self, replay, Tracing};
use super::Learned;
use crate::attempt::{Attempt, RequestClass, RequestInfo, Sample};
use crate::balancer::Balancer;
use crate::class::Traits;
use crate::config::{EndpointSetConfig, ServiceConfig};
use crate::endpoint::{Endpoint, Outcome};
use crate::ewma::decay;
use crate::explain::{explain, Question};
use crate::grpc::Code;
use crate::ledger::{Ended, Expected, Pace, Ratio};
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::score_table::{Scores, ScoresError};
use crate::service::{Service, Snapshot};

mod selection;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const OK: Outcome = Outcome::Answered(Code::Ok);

/// A service that learns, with classes `/0`, `/1`, ... beside `other`.
struct Bench {
    service: Service,
    rng: Rng,
}

impl Bench {
    fn new(endpoints: usize, classes: usize, balancer: Value) -> Self {
        let mut config = json!({
            "name": "cart", "authorities": [], "balancer": {"type": "learned"},
            "request_class": {"message_bytes_buckets": []},
        });
        let settings = balancer.as_object().expect("settings");
        config["balancer"]
            .as_object_mut()
            .expect("it is one")
            .extend(settings.clone());
        let config = ServiceConfig::parse(config.to_string().as_bytes()).expect("it is valid");
        let bench = Self {
            service: Service::new(config, 1),
            rng: Rng::new(7),
        };
        bench.apply(&(0..endpoints).collect::<Vec<_>>());
        for number in 0..classes {
            let class = bench.class(number);
            bench.service.newcomers().answered(class.unknown, true);
            bench.service.maintain(0);
        }
        bench
    }

    fn apply(&self, numbers: &[usize]) {
        let address = |number: &usize| format!("10.0.{}.{}:1", number / 250, number % 250);
        let rows: Vec<_> = numbers
            .iter()
            .map(|number| json!({"address": address(number)}))
            .collect();
        let set = json!({ "endpoints": rows }).to_string();
        let limits = self.service.snapshot().settings.limits.clone();
        let set = EndpointSetConfig::parse(set.as_bytes(), &limits).expect("it is valid");
        self.service.apply_endpoints(set);
    }

    fn class(&self, number: usize) -> RequestClass {
        let traits = Traits {
            path: &format!("/{number}"),
            message_bytes: None,
            headers: &HeaderMap::new(),
            timeout: None,
        };
        self.service.classify(&self.service.snapshot(), &traits).0
    }

    /// Publishes S for each class (`other` first) and endpoint, the table's being ten times that.
    fn publish(&self, costs_s: &[Vec<f32>], model: &str, now_ns: u64) -> Result<u64, ScoresError> {
        let columns = self.service.snapshot().members.len();
        let cost_s = costs_s.concat();
        let table_cost_s: Vec<_> = cost_s.iter().map(|one| one * 10.0).collect();
        let probability = vec![1.0 / columns as f32; cost_s.len()];
        self.service.publish_scores(
            &Scores {
                endpoint_epoch: self.service.snapshot().epoch,
                class_epoch: self.service.classes().epoch(),
                cost_s: &cost_s,
                table_cost_s: &table_cost_s,
                spread: &probability,
                probability: &probability,
                mean_service_s: &vec![0.02; columns],
                concurrency: &vec![2.0; columns],
                sidecars: 1,
                model,
            },
            now_ns,
        )
    }

    fn pick(&mut self, number: usize, now_ns: u64) -> (u32, Reason) {
        let request = RequestInfo {
            class: self.class(number),
            ..RequestInfo::default()
        };
        let snapshot = self.service.snapshot();
        self.service
            .choose(&snapshot, now_ns, request, &mut self.rng)
            .expect("somebody is usable")
    }

    fn endpoint(&self, index: usize) -> Arc<Endpoint> {
        Arc::clone(&self.service.snapshot().members[index].endpoint)
    }

    fn report(&self, index: usize, now_ns: u64, inflight: f64) {
        let report = LoadReport {
            inflight: Some(inflight),
            ..LoadReport::default()
        };
        self.service
            .reported(&self.endpoint(index), now_ns, &report);
    }
}

fn rule(snapshot: &Snapshot) -> &Learned {
    match &snapshot.balancer {
        Balancer::Learned(rule) => rule,
        other => panic!("{}", other.name()),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn near(found: f32, expected: &Value, what: &str) {
    let (found, expected) = (f64::from(found), number(expected));
    let slack = (1e-3 * expected.abs()).max(1e-9);
    assert!(
        (found - expected).abs() <= slack,
        "{what}: {found}, expected {expected}"
    );
}

/// Both sums of a ratio as of a later moment.
fn faded(ratio: Option<&Ratio>, now_ns: u64) -> [f32; 2] {
    ratio.map_or([0.0; 2], |ratio| {
        let at_ns = ratio.sampled_ns.load(std::sync::atomic::Ordering::Relaxed);
        let kept = decay(now_ns - at_ns, 4e9) as f32;
        [ratio.measured.load() * kept, ratio.expected.load() * kept]
    })
}

/// Plays one worked example of the pick and compares everything that it names.
fn play(example: &Value) {
    let inputs = &example["inputs"];
    let (kinds, name) = (number(&inputs["kinds"]) as usize, &example["name"]);
    let at = |value: &Value| (number(&value["t"]) * 1e9).round() as u64;
    let bench = Bench::new(2, kinds, json!({}));
    let queries = inputs["queries"].as_array().expect("queries");
    let cost_of = |kind: usize| {
        let of_kind = queries.iter().find(|query| query["m"] == kind);
        of_kind.map_or(0.02, |query| number(&query["S"]) as f32)
    };
    let rows = [vec![0.02; 2]];
    let rows: Vec<_> = rows
        .into_iter()
        .chain((0..kinds).map(|kind| vec![cost_of(kind); 2]))
        .collect();
    let snapshot = bench.service.snapshot();
    let scores = Scores {
        endpoint_epoch: snapshot.epoch,
        class_epoch: bench.service.classes().epoch(),
        cost_s: &rows.concat(),
        table_cost_s: &rows.concat(),
        spread: &rows.concat(),
        probability: &vec![0.5; 2 * rows.len()],
        mean_service_s: &[number(&inputs["sbar"]) as f32; 2],
        concurrency: &[number(&inputs["c"]) as f32; 2],
        sidecars: number(&inputs["M"]) as u32,
        model: "",
    };
    bench.service.publish_scores(&scores, 0).expect("valid");
    let endpoint = bench.endpoint(0);
    let ping_ns = (number(&inputs["rtt"]) * 1e9) as u64;
    let places: Vec<_> = (0..kinds)
        .map(|kind| bench.service.classes().place(bench.class(kind)))
        .collect();
    let states = example["expected"]["state_after_event"].as_array();
    let events = inputs["events"].as_array().expect("events");
    for (index, event) in events.iter().enumerate() {
        let failed = event["failed"] == true;
        let outcome = if failed {
            Outcome::Answered(Code::Unavailable)
        } else {
            OK
        };
        let optional = |key: &str| event.get(key).map_or(0.0, number);
        let ended = Ended {
            now_ns: at(event),
            class: places[number(&event["m"]) as usize],
            class_epoch: u64::MAX,
            outcome,
            latency_ns: (optional("latency") * 1e9).round() as u64,
            expected: Expected {
                calls: 0.0,
                latency_s: optional("p") as f32,
            },
            report: None,
            ping_ns,
        };
        endpoint.ledger.ended(&ended, &Pace::default());
        if let Some(inflight) = event.get("n_rep") {
            let report = LoadReport {
                inflight: Some(number(inflight)),
                application_utilization: Some(optional("util")),
                ..LoadReport::default()
            };
            let own = optional("o_rep") as u32;
            let ledger = &endpoint.ledger;
            ledger.reported(at(event), &report, own, &Pace::default());
        }
        let state = &states.expect("states")[index];
        let signals = &endpoint.ledger.signals;
        let [measured, expected] = faded(Some(&signals.ratio), at(event));
        near(measured, &state["A"], "A");
        near(expected, &state["B"], "B");
        near(signals.errors.load(), &state["e"], "e");
        if let Some(others) = state.get("mo") {
            near(signals.others.load(), others, "mo");
        }
        for (kind, place) in places.iter().enumerate() {
            let [measured, expected] = faded(endpoint.ledger.ratio_of(place.1), at(event));
            near(measured, &state["A_m"][kind], "A_m");
            near(expected, &state["B_m"][kind], "B_m");
        }
    }
    if events.is_empty() {
        assert_eq!(ping_ns, 0, "{name}");
    }
    let snapshot = bench.service.snapshot();
    let rule = rule(&snapshot);
    let expected = example["expected"]["costs"].as_array().expect("costs");
    for (query, expected) in queries.iter().zip(expected) {
        let class = bench.class(number(&query["m"]) as usize);
        let ask = rule.ask(snapshot.view(), at(query), class);
        let mut read = rule.examine_one(&ask, 0).read;
        read.own = [number(&query["o"]) as f32];
        let found: Costs<1> = costs(&read, rule.factors());
        near(found.calls[0], &expected["n"], "n");
        near(found.latency_s[0], &expected["p"], "p");
        near(found.ratio[0], &expected["r"], "r");
        near(found.kind_ratio[0], &expected["r_m"], "r_m");
        near(read.utilization[0].min(0.95), &expected["u"], "u");
        near(found.errors[0], &expected["e_read"], "e");
        let terms = [
            read.rtt_s,
            found.service_s,
            found.wait_s,
            found.utilization_s,
            found.queue_s,
            found.class_queue_s,
            found.error_s,
        ];
        for (index, term) in terms.iter().enumerate() {
            near(
                term[0],
                &expected["terms"][index],
                &format!("term {index} of {name}"),
            );
        }
        near(found.cost_s[0], &expected["cost"], "cost");
    }
}

#[test]
fn worked_examples() {
    let text = include_str!("../../../../../tests/golden/vectors.json");
    let vectors: Value = serde_json::from_str(text).expect("it is JSON");
    let examples = vectors["examples"].as_array().expect("a list");
    let of_picks = examples.iter().filter(|one| one["section"] == "3.4");
    let played: Vec<_> = of_picks.inspect(|example| play(example)).collect();
    assert_eq!(played.len(), 4);
}

#[test]
fn the_class_decides_and_reasons_say_by_what() {
    let mut bench = Bench::new(3, 2, json!({}));
    assert_eq!(
        bench.pick(0, 0).1,
        Reason::NoReports,
        "nothing known at all"
    );
    bench.report(2, SECOND, 0.0);
    assert_eq!(bench.pick(0, SECOND).1, Reason::Table);
    let rows = [
        vec![0.02; 3],
        vec![0.01, 0.02, 0.03],
        vec![0.03, 0.02, 0.01],
    ];
    assert_eq!(bench.publish(&rows, "", SECOND), Ok(1));
    assert_eq!(bench.pick(0, SECOND), (0, Reason::Table));
    assert_eq!(bench.pick(1, SECOND), (2, Reason::Table));
    assert_eq!(bench.publish(&rows, "m-1", SECOND), Ok(2));
    assert_eq!(bench.pick(1, SECOND), (2, Reason::Learned));
    assert_eq!(bench.publish(&rows, "m-1", 300 * SECOND), Ok(3));
    assert_eq!(
        bench.pick(1, 300 * SECOND),
        (2, Reason::NoReports),
        "none for 3 min"
    );
}

#[test]
fn old_scores_give_way_to_the_table_and_then_to_the_fallback() {
    let mut bench = Bench::new(2, 1, json!({"fallback": {"type": "round_robin"}}));
    // By the model the first is better, by the table neither.
    let rows = [vec![0.02; 2], vec![1e-9, 2e-9]];
    bench.publish(&rows, "m", SECOND).expect("valid");
    let shares = |bench: &mut Bench, at_s: u64| {
        bench.report(0, at_s * SECOND, 0.0);
        let picks: Vec<_> = (0..100).map(|_| bench.pick(0, at_s * SECOND)).collect();
        let first = picks.iter().filter(|(index, _)| *index == 0).count();
        assert!(picks.iter().all(|(_, reason)| *reason == picks[0].1));
        (picks[0].1, first)
    };
    // 1 ns more or less is far below the jitter: only the reason tells.
    assert_eq!(shares(&mut bench, 31).0, Reason::Learned);
    assert_eq!(shares(&mut bench, 32).0, Reason::Table);
    assert_eq!(shares(&mut bench, 181).0, Reason::Table);
    assert_eq!(shares(&mut bench, 182), (Reason::FallbackExpired, 50));
    bench.publish(&rows, "m", 182 * SECOND).expect("valid");
    assert_eq!(shares(&mut bench, 182).0, Reason::Learned);
}

#[test]
fn stale_scores_are_those_of_the_table() {
    let bench = Bench::new(2, 1, json!({}));
    bench
        .publish(&[vec![0.02; 2], vec![0.01, 0.05]], "m", 0)
        .expect("valid");
    let snapshot = bench.service.snapshot();
    for (at_s, expected) in [(30, 0.05), (31, 0.5)] {
        let rule = rule(&snapshot);
        let ask = rule.ask(snapshot.view(), at_s * SECOND, bench.class(0));
        assert_eq!(rule.examine_one(&ask, 1).read.cost_s, [expected]);
    }
}

#[test]
fn load_moves_calls_away() {
    let mut bench = Bench::new(2, 1, json!({}));
    bench
        .publish(&[vec![0.02; 2], vec![0.01, 0.02]], "", 0)
        .expect("valid");
    assert_eq!(bench.pick(0, SECOND).0, 0);
    // The faster one says that it has eight calls for its two workers.
    bench.report(0, SECOND, 8.0);
    bench.report(1, SECOND, 0.0);
    assert_eq!(bench.pick(0, SECOND).0, 1);
    // Own calls weigh as much.
    let mut bench = Bench::new(2, 1, json!({}));
    bench
        .publish(&[vec![0.02; 2], vec![0.01, 0.02]], "", 0)
        .expect("valid");
    for _ in 0..8 {
        bench.endpoint(0).live.begin();
    }
    assert_eq!(bench.pick(0, SECOND).0, 1);
}

#[test]
fn every_switch_switches_its_term_off() {
    let examine = |settings: Value| {
        let bench = Bench::new(2, 1, settings);
        bench
            .publish(&[vec![0.02; 2], vec![0.01; 2]], "", 0)
            .expect("valid");
        let endpoint = bench.endpoint(0);
        for _ in 0..5 {
            endpoint.live.begin();
        }
        for outcome in [OK, Outcome::Answered(Code::Internal)] {
            let ended = Ended {
                now_ns: SECOND,
                class: bench.service.classes().place(bench.class(0)),
                class_epoch: u64::MAX,
                outcome,
                latency_ns: 50 * MS,
                expected: Expected {
                    calls: 1.0,
                    latency_s: 0.01,
                },
                report: None,
                ping_ns: 0,
            };
            endpoint.ledger.ended(&ended, &Pace::default());
        }
        let report = LoadReport {
            inflight: Some(9.0),
            application_utilization: Some(0.9),
            ..LoadReport::default()
        };
        bench.service.reported(&endpoint, SECOND, &report);
        let snapshot = bench.service.snapshot();
        let rule = rule(&snapshot);
        let ask = rule.ask(snapshot.view(), SECOND + MS, bench.class(0));
        rule.examine_one(&ask, 0).costs
    };
    let all = examine(json!({}));
    for term in [
        all.utilization_s,
        all.queue_s,
        all.class_queue_s,
        all.error_s,
    ] {
        assert!(term[0] > 0.0);
    }
    assert!(all.ratio[0] > 1.0 && all.kind_ratio[0] > all.ratio[0] && all.calls[0] > 8.0);
    assert_eq!(
        examine(json!({"utilization_factor": 0})).utilization_s,
        [0.0]
    );
    assert_eq!(examine(json!({"queue_factor": 0})).queue_s, [0.0]);
    assert_eq!(
        examine(json!({"class_queue_factor": 0})).class_queue_s,
        [0.0]
    );
    assert_eq!(examine(json!({"error_penalty_ms": 0})).error_s, [0.0]);
    assert_eq!(examine(json!({"error_threshold": 1.0})).error_s, [0.0]);
    assert_eq!(examine(json!({"endpoint_ratio": false})).ratio, [1.0]);
    let off = examine(json!({"kind_ratio": false}));
    assert_eq!(off.kind_ratio, off.ratio);
    assert_eq!(examine(json!({"reported_load": false})).calls, [5.0]);
}

#[test]
fn beyond_the_full_scan_candidates_come_from_the_routing_probabilities() {
    let settings = json!({"full_scan_up_to": 10, "candidates": 2});
    let mut bench = Bench::new(200, 1, settings);
    let snapshot = bench.service.snapshot();
    let mut probability = vec![0.0; 400];
    (0..200).for_each(|index| probability[index] = 1.0 / 200.0);
    (probability[200 + 7], probability[200 + 90]) = (0.75, 0.25);
    let costs = vec![0.01; 400];
    let scores = Scores {
        endpoint_epoch: snapshot.epoch,
        class_epoch: bench.service.classes().epoch(),
        cost_s: &costs,
        table_cost_s: &costs,
        spread: &costs,
        probability: &probability,
        mean_service_s: &[0.01; 200],
        concurrency: &[1.0; 200],
        sidecars: 1,
        model: "",
    };
    bench.service.publish_scores(&scores, 0).expect("valid");
    // The better of two draws: the cheap one unless both are the other.
    bench.endpoint(7).live.begin();
    let picks: Vec<_> = (0..2_000).map(|_| bench.pick(0, SECOND).0).collect();
    assert!(picks.iter().all(|index| [7, 90].contains(index)));
    let busy = picks.iter().filter(|index| **index == 7).count();
    // 0.75^2 of 2,000 is 1,125, with a deviation of 22.
    assert!((1_000..1_250).contains(&busy), "{busy}");
    // Whoever is not usable is drawn in vain.
    let (seven, ninety) = (bench.endpoint(7), bench.endpoint(90));
    bench.service.set_failing(&seven, true);
    bench.service.set_failing(&ninety, true);
    let picks: Vec<_> = (0..200).map(|_| bench.pick(0, SECOND).0).collect();
    assert!(picks.iter().all(|index| ![7, 90].contains(index)));
    assert!(picks.iter().collect::<std::collections::HashSet<_>>().len() > 50);
}

#[test]
fn an_overloaded_choice_gives_way_where_the_policy_says_so() {
    for (on, expected) in [(true, Reason::OverloadSplit), (false, Reason::NoReports)] {
        let mut bench = Bench::new(2, 1, json!({"overload_split": on}));
        bench
            .publish(&[vec![0.02; 2], vec![0.001, 0.1]], "", 0)
            .expect("valid");
        for index in [0, 1] {
            for _ in 0..20 {
                bench.endpoint(index).live.begin();
            }
        }
        assert_eq!(bench.pick(0, SECOND).1, expected);
    }
}

#[test]
fn a_share_of_the_picks_is_held_out() {
    let settings = json!({"holdout": 0.25, "fallback": {"type": "random"}});
    let mut bench = Bench::new(4, 1, settings);
    let reasons: Vec<_> = (0..2_000).map(|_| bench.pick(0, SECOND).1).collect();
    let held = reasons
        .iter()
        .filter(|reason| **reason == Reason::Random)
        .count();
    // 500 expected with a deviation of 19.
    assert!((400..600).contains(&held), "{held}");
}

#[test]
fn a_call_that_ends_is_measured_against_what_was_expected() {
    let mut bench = Bench::new(2, 1, json!({}));
    bench
        .publish(&[vec![0.02; 2], vec![0.01, 5.0]], "", 0)
        .expect("valid");
    let request = RequestInfo {
        class: bench.class(0),
        ..RequestInfo::default()
    };
    let snapshot = bench.service.snapshot();
    let attempt = bench
        .service
        .begin_attempt(&snapshot, SECOND, request, &mut bench.rng)
        .expect("a pick");
    assert_eq!(attempt.index(), 0);
    let sample = Sample::new(OK, 30 * MS);
    bench
        .service
        .end_attempt(attempt, SECOND + 30 * MS, &sample);
    let endpoint = bench.endpoint(0);
    let kind = bench.service.classes().place(bench.class(0)).1;
    for ratio in [
        Some(&endpoint.ledger.signals.ratio),
        endpoint.ledger.ratio_of(kind),
    ] {
        let ratio = ratio.expect("there was a call");
        assert!((ratio.measured.load() - 0.03).abs() < 1e-6);
        // 10 ms of service, and hardly any wait for the second of two workers.
        assert!((0.01..0.012).contains(&ratio.expected.load()));
    }
}

#[test]
fn scores_follow_classes_and_endpoints() {
    let mut bench = Bench::new(3, 2, json!({}));
    let rows = [
        vec![0.02; 3],
        vec![0.01, 0.02, 0.03],
        vec![0.03, 0.02, 0.01],
    ];
    bench.publish(&rows, "", 0).expect("valid");
    // Another order, one that left, a new one: the fast one of each class is found again.
    bench.apply(&[2, 9, 0]);
    assert_eq!(bench.pick(0, SECOND).0, 2);
    assert_eq!(bench.pick(1, SECOND).0, 0);
    let snapshot = bench.service.snapshot();
    let row = rule(&snapshot).table().row(1).expect("it has one");
    assert_eq!(*row.cost_s, [0.03, 0.06, 0.01], "new: three times the mean");
    assert!((row.probability.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    // Scores for the set before come too late; those in force stay.
    let stale = bench.service.publish_scores(
        &Scores {
            endpoint_epoch: snapshot.epoch - 1,
            class_epoch: bench.service.classes().epoch(),
            cost_s: &[],
            table_cost_s: &[],
            spread: &[],
            probability: &[],
            mean_service_s: &[],
            concurrency: &[],
            sidecars: 1,
            model: "",
        },
        SECOND,
    );
    assert!(matches!(
        stale,
        Err(ScoresError::Stale {
            what: "endpoint",
            ..
        })
    ));
    // A class that came later costs what calls cost in the mean.
    let class = bench.class(5);
    bench.service.newcomers().answered(class.unknown, true);
    bench.service.maintain(SECOND);
    assert_eq!(bench.pick(1, SECOND).0, 0);
    let snapshot = bench.service.snapshot();
    let rule = rule(&snapshot);
    let ask = rule.ask(snapshot.view(), SECOND, bench.class(5));
    let examined = rule.examine_one(&ask, 2).read;
    assert_eq!(examined.cost_s, examined.mean_service_s);
}

#[test]
fn a_tail_is_predicted_where_a_model_told_the_spread_of_the_class() {
    let mut bench = Bench::new(4, 2, json!({}));
    let rows = [vec![0.05; 4], vec![0.1; 4], vec![0.2; 4]];
    let begin = |bench: &mut Bench, number: usize, now_ns: u64| {
        let snapshot = bench.service.snapshot();
        let request = RequestInfo {
            class: bench.class(number),
            ..RequestInfo::default()
        };
        let begun = bench
            .service
            .begin_attempt(&snapshot, now_ns, request, &mut bench.rng);
        begun.expect("somebody is usable")
    };
    let tail_s = |bench: &Bench, attempt: &Attempt, now_ns: u64| {
        let found = bench.service.snapshot().tail_ns(now_ns, attempt, 0.95);
        found.map(|ns| ns as f64 * 1e-9)
    };
    let first = begin(&mut bench, 0, 1);
    assert_eq!(tail_s(&bench, &first, 1), None, "nothing is published");
    bench.publish(&rows, "", 1).expect("valid");
    assert_eq!(tail_s(&bench, &first, 1), None, "the table knows means");
    bench.publish(&rows, "m", 1).expect("valid");
    drop(first);
    // No call but itself: 100 ms, and 1.26 ms of the bend where waiting begins. Sigma is 0.25.
    let first = begin(&mut bench, 0, 1);
    let alone_s = tail_s(&bench, &first, 1).expect("it is told");
    let expected_s = 0.101_264 * libm::exp(0.25 * 1.644_854 - 0.25 * 0.25 / 2.0);
    assert!(
        (alone_s / expected_s - 1.0).abs() < 1e-3,
        "{alone_s} {expected_s}"
    );
    // Ten more calls at 2 at a time: (10 - 1) / 2 turns of 20 ms to wait for.
    (0..10).for_each(|_| {
        first.endpoint().live.begin();
    });
    let waiting_s = tail_s(&bench, &first, 1).expect("it is told");
    let expected_s = expected_s / 0.101_264 * 0.19;
    assert!(
        (waiting_s / expected_s - 1.0).abs() < 1e-3,
        "{waiting_s} {expected_s}"
    );
    let unknown = begin(&mut bench, 7, 1);
    assert_eq!(tail_s(&bench, &unknown, 1), None, "a class without scores");
    assert_eq!(tail_s(&bench, &first, 31 * SECOND), None, "old scores");
    bench.apply(&[0, 1, 2, 3].map(|index| index + 10));
    assert_eq!(tail_s(&bench, &first, 1), None, "its endpoint has left");
}

/// A few picks on the record, with what each compared.
fn recorded(bench: &mut Bench, count: u64) -> Vec<Value> {
    let picked = |bench: &mut Bench, step: u64| {
        let tracing = Tracing::begin();
        let (index, _) = bench.pick(step as usize % 2, step * 7 * MS);
        let name = bench.endpoint(index as usize).name.clone();
        bench.endpoint(index as usize).live.begin();
        let learned = tracing.take().describe().expect("it compared some");
        json!({ "endpoint": &*name, "learned": learned })
    };
    let records: Vec<_> = (1..=count).map(|step| picked(bench, step)).collect();
    // As if written to a file and read again.
    let text = serde_json::to_string(&records).expect("it is JSON");
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn a_record_computes_again_bit_for_bit_and_tells_what_was_changed() {
    for settings in [
        json!({}),
        json!({"full_scan_up_to": 5, "candidates": 4}),
        json!({"overload_split": true, "kind_ratio": false}),
        json!({"selection": "greedy"}),
        json!({"selection": "sampling"}),
    ] {
        let mut bench = Bench::new(20, 2, settings);
        let mut rng = Rng::new(3);
        let mut row = || {
            (0..20)
                .map(|_| 0.01 + rng.unit_f32() / 30.0)
                .collect::<Vec<_>>()
        };
        let rows = [row(), row(), row()];
        bench.publish(&rows, "m", 0).expect("valid");
        (0..20).for_each(|index| bench.report(index, MS * index as u64, index as f64 / 3.0));
        for mut record in recorded(&mut bench, 60) {
            let replayed = replay(&record).expect("a record");
            assert_eq!(replayed["identical"], true, "{replayed}");
            let read = &mut record["learned"]["compared"][0]["read"]["own"];
            *read = json!(number(read) + 1.0);
            let replayed = replay(&record).expect("a record");
            assert_eq!(replayed["identical"], false);
            assert_eq!(replayed["differences"].as_array().map(Vec::len), Some(1));
            record["endpoint"] = json!("another:1");
            assert_eq!(replay(&record).expect("a record")["identical"], false);
        }
    }
    assert!(!trace::is_on(), "nothing is noted any more");
    let empty = json!({"learned": {"factors": null, "compared": []}});
    assert!(replay(&empty).is_err() && replay(&json!({})).is_err());
}

#[test]
fn an_explanation_names_the_pick_and_every_term_of_it() {
    let mut bench = Bench::new(3, 2, json!({}));
    let rows = [
        vec![0.02; 3],
        vec![0.01, 0.02, 0.03],
        vec![0.03, 0.02, 0.01],
    ];
    bench.publish(&rows, "", 0).expect("valid");
    (0..3).for_each(|index| bench.report(index, MS, 1.0));
    for class in [0, 1] {
        let json = json!({"method": format!("/{class}"), "message_bytes": 10}).to_string();
        let question = Question::parse(json.as_bytes()).expect("a question");
        let answer = explain(&bench.service, &question, 2 * MS).expect("an answer");
        let (index, reason) = bench.pick(class, 2 * MS);
        assert_eq!(answer["chosen"], &*bench.endpoint(index as usize).name);
        assert_eq!(answer["reason"], reason.name());
        assert_eq!(answer["request_class"], format!("/{class}"));
        assert_ne!(answer["runner_up"], answer["chosen"]);
        assert!(number(&answer["margin_s"]) > 0.0);
        let endpoints = answer["endpoints"].as_array().expect("a list");
        assert_eq!(endpoints.len(), 3);
        for endpoint in endpoints {
            let of = |key: &str| number(&endpoint["terms"][key]);
            let parts = [
                "service_s",
                "wait_s",
                "utilization_s",
                "queue_s",
                "class_queue_s",
            ];
            let sum: f64 = parts.iter().map(|key| of(key)).sum();
            let sum = sum + of("error_s") + number(&endpoint["read"]["rtt_s"]);
            assert!((sum - of("cost_s")).abs() < 1e-6);
        }
    }
    assert!(Question::parse(b"{}").is_err());
    assert!(Question::parse(br#"{"method": "/a", "headers": {"a b": "c"}}"#).is_err());
}

#[test]
fn same_seed_same_picks() {
    let run = || {
        let mut bench = Bench::new(120, 2, json!({"full_scan_up_to": 60}));
        let rows = vec![vec![0.01; 120]; 3];
        bench.publish(&rows, "", 0).expect("valid");
        (0..200)
            .map(|step| bench.pick(step % 2, step as u64 * MS).0)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_published_and_reported_somebody_usable_is_picked(
        values in proptest::collection::vec(prop_oneof![
            Just(0.0_f32), Just(f32::NAN), Just(f32::INFINITY), Just(-1.0), Just(1e6),
            Just(f32::MIN_POSITIVE), 0.0..1.0_f32,
        ], 15),
        probability in proptest::collection::vec(0.0..1.0_f32, 5),
        inflight in proptest::collection::vec(prop_oneof![
            Just(f64::NAN), Just(f64::INFINITY), Just(1e6), 0.0..100.0_f64], 5),
        scan in 0_u32..8,
        latency_ns: u64,
        failing in 0_usize..5,
    ) {
        let mut bench = Bench::new(5, 1, json!({"full_scan_up_to": scan, "overload_split": true}));
        let sum: f32 = probability.iter().sum();
        let row: Vec<_> = probability.iter().map(|one| one / sum.max(1e-30)).collect();
        let probability = [row.clone(), row].concat();
        let snapshot = bench.service.snapshot();
        let scores = Scores {
            endpoint_epoch: snapshot.epoch,
            class_epoch: bench.service.classes().epoch(),
            cost_s: &values[..10],
            table_cost_s: &values[..10],
            spread: &values[..10],
            probability: &probability,
            mean_service_s: &values[10..],
            concurrency: &[1.0, 2.0, 1e6, 1.5, 3.0],
            sidecars: u32::MAX,
            model: "x",
        };
        let bad = values.iter().any(|value| !(0.0..=1e6).contains(value));
        let published = bench.service.publish_scores(&scores, 0);
        prop_assert_eq!(published.is_err(), bad);
        for (index, inflight) in inflight.iter().enumerate() {
            bench.report(index, SECOND, *inflight);
        }
        let ill = bench.endpoint(failing);
        bench.service.set_failing(&ill, true);
        for step in 0..20 {
            let now_ns = SECOND + step * 40 * MS;
            let request = RequestInfo { class: bench.class(0), ..RequestInfo::default() };
            let snapshot = bench.service.snapshot();
            let attempt = bench
                .service
                .begin_attempt(&snapshot, now_ns, request, &mut bench.rng)
                .expect("four are usable");
            prop_assert_ne!(attempt.index() as usize, failing);
            let sample = Sample::new(OK, latency_ns >> step);
            bench.service.end_attempt(attempt, now_ns + MS, &sample);
            let rule = rule(&snapshot);
            let ask = rule.ask(snapshot.view(), now_ns, bench.class(0));
            for index in 0..5 {
                let costs = rule.examine_one(&ask, index).costs;
                prop_assert!(!costs.cost_s[0].is_nan(), "{:?}", costs);
            }
        }
    }
}
