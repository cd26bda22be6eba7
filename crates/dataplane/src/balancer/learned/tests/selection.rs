//! Picks by the routing probabilities alone.

use serde_json::json;

use super::{Bench, SECOND};
use crate::attempt::RequestInfo;
use crate::balancer::Balancer;
use crate::explain::{explain, Question};
use crate::score_table::Scores;

/// Publishes costs and routing probabilities of `other` and one class.
fn publish_weights(bench: &Bench, cost_s: &[f32], probability: &[f32], now_ns: u64) {
    let columns = cost_s.len();
    let twice = |row: &[f32]| [row, row].concat();
    let scores = Scores {
        endpoint_epoch: bench.service.snapshot().epoch,
        class_epoch: bench.service.classes().epoch(),
        cost_s: &twice(cost_s),
        table_cost_s: &twice(cost_s),
        spread: &vec![0.5; 2 * columns],
        probability: &twice(probability),
        mean_service_s: &vec![0.02; columns],
        concurrency: &vec![2.0; columns],
        sidecars: 1,
        model: "attention-1.0.0",
    };
    bench
        .service
        .publish_scores(&scores, now_ns)
        .expect("it fits");
}

fn shares(bench: &mut Bench, now_ns: u64) -> [f64; 3] {
    let mut counts = [0; 3];
    for _ in 0..2_000 {
        counts[bench.pick(0, now_ns).0 as usize] += 1;
    }
    counts.map(|count| f64::from(count) / 2_000.0)
}

#[test]
fn a_selection_by_weights_alone_does_not_look_at_costs() {
    let (costs_s, weights) = ([0.001, 1.0, 1.0], [0.1, 0.6, 0.3]);
    for (selection, expected) in [
        ("live", [1.0, 0.0, 0.0]),
        ("greedy", [0.0, 1.0, 0.0]),
        ("sampling", [0.1, 0.6, 0.3]),
    ] {
        let mut bench = Bench::new(3, 1, json!({ "selection": selection }));
        publish_weights(&bench, &costs_s, &weights, SECOND);
        let found = shares(&mut bench, SECOND);
        for (share, expected) in found.iter().zip(expected) {
            assert!((share - expected).abs() < 0.05, "{selection}: {found:?}");
        }
        let question = Question::parse(br#"{"method": "/0"}"#).expect("one");
        let answer = explain(&bench.service, &question, SECOND).expect("an answer");
        let best = if selection == "live" {
            "10.0.0.0:1"
        } else {
            "10.0.0.1:1"
        };
        assert_eq!(answer["chosen"], best, "{selection}");
        // Scores that are not fresh any more: costs decide.
        assert_eq!(
            shares(&mut bench, 32 * SECOND),
            [1.0, 0.0, 0.0],
            "{selection}"
        );
    }
}

#[test]
fn a_selection_by_weights_stands_under_the_rules() {
    for selection in ["greedy", "sampling"] {
        let mut bench = Bench::new(3, 1, json!({ "selection": selection }));
        publish_weights(&bench, &[0.001, 1.0, 1.0], &[0.0, 0.6, 0.4], SECOND);
        let snapshot = bench.service.snapshot();
        let request = RequestInfo {
            class: bench.class(0),
            ..RequestInfo::default()
        };
        let Balancer::Learned(rule) = &snapshot.balancer else {
            panic!("it is learned");
        };
        let mut counts = [0; 3];
        for _ in 0..200 {
            let placed = rule.place(snapshot.view(), SECOND, request, &mut bench.rng, |index| {
                index != 1
            });
            counts[placed.expect("another takes it").0 as usize] += 1;
        }
        // The next by weight, not by cost. Draws that meet the refused one every time are left to
        // costs.
        assert_eq!(counts[1], 0, "{selection}");
        let by_cost = if selection == "greedy" { 0 } else { 12 };
        assert!(counts[0] <= by_cost, "{selection}: {counts:?}");
    }
}
