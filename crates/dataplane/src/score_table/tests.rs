use std::sync::Arc;

use proptest::prelude::*;

use super::{Alias, ScoreTable, Scores, ScoresError};
use crate::class::ClassSet;
use crate::rng::Rng;

fn table(endpoints: u64) -> ScoreTable {
    ScoreTable::unknown(ClassSet::none(), (0..endpoints).collect(), 0)
}

fn scores<'a>(values: &'a [f32], probability: &'a [f32]) -> Scores<'a> {
    Scores {
        endpoint_epoch: 1,
        class_epoch: 1,
        cost_s: values,
        table_cost_s: values,
        spread: values,
        probability,
        mean_service_s: values,
        concurrency: &[1.0, 2.0],
        sidecars: 1,
        model: "",
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    let refused = |scores: &Scores<'_>| match table(2).published(scores, 0) {
        Err(ScoresError::Invalid(message)) => message,
        other => panic!("{other:?}"),
    };
    let good = [0.01, 0.02];
    let half = [0.5, 0.5];
    assert!(table(2).published(&scores(&good, &half), 0).is_ok());
    assert_eq!(
        refused(&scores(&[0.01], &half)),
        "`cost_s` has 1 values, expected 2 for 1 classes and 2 endpoints"
    );
    assert_eq!(
        refused(&scores(&[0.01, f32::NAN], &half)),
        "`cost_s` has NaN at 1, expected 0 to 1000000"
    );
    for bad in [-1.0, f32::INFINITY, f32::NEG_INFINITY, 1.1e6] {
        assert!(refused(&scores(&[bad, 0.1], &half)).starts_with("`cost_s` has"));
    }
    assert_eq!(
        refused(&scores(&good, &[0.5, 0.4])),
        "row 0 of `probability` sums to 0.9000000059604645, expected 1"
    );
    let low = Scores {
        concurrency: &[1.0, 0.5],
        ..scores(&good, &half)
    };
    assert!(refused(&low).starts_with("`concurrency` has 0.5 at 1, expected 1 to"));
}

#[test]
fn nothing_published_means_twenty_milliseconds_for_all() {
    let table = table(2);
    assert_eq!((table.epoch, table.row(0)), (0, None));
    assert_eq!(*table.mean_service_s, [0.02, 0.02]);
    assert_eq!(*table.concurrency, [1.0, 1.0]);
}

#[test]
fn columns_follow_ids() {
    let old = Arc::new(
        table(2)
            .published(&scores(&[0.01, 0.03], &[0.25, 0.75]), 5)
            .expect("valid"),
    );
    let (classes, same) = (ClassSet::none(), [0, 1].into());
    assert!(Arc::ptr_eq(&old.carried(&classes, &same, 0, None), &old));
    let moved = old.carried(&classes, &[1, 7].into(), 0, None);
    assert_eq!((moved.epoch, moved.published_ns), (1, 5));
    let row = moved.row(0).expect("it has one");
    assert_eq!(*row.cost_s, [0.03, 0.06]);
    assert_eq!(
        *row.probability,
        [0.6, 0.4],
        "0.75 and a half, of their sum"
    );
    assert_eq!(*moved.mean_service_s, [0.03, 0.06]);
    assert_eq!(*moved.concurrency, [2.0, 1.0], "the least that is known");
    let known = old.carried(&classes, &[1, 7].into(), 0, Some(4.0));
    assert_eq!(*known.concurrency, [4.0, 4.0]);
    let nobody = old.carried(&classes, &[].into(), 0, None);
    assert_eq!(nobody.mean_service_s.len(), 0);
    let again = nobody.carried(&classes, &[5].into(), 0, None);
    assert!(again.mean_service_s[0] > 0.0 && again.concurrency[0] >= 1.0);
}

#[test]
fn draws_have_the_given_probabilities() {
    let alias = Alias::new(&[0.5, 0.0, 0.125, 0.375]);
    let mut rng = Rng::new(1);
    let mut counts = [0_u32; 4];
    for _ in 0..8_000 {
        counts[alias.draw(&mut rng) as usize] += 1;
    }
    assert_eq!(counts[1], 0);
    // Deviations are at most 45.
    for (count, expected) in counts.iter().zip([4_000, 0, 1_000, 3_000_u32]) {
        assert!(count.abs_diff(expected) < 220, "{counts:?}");
    }
}

proptest! {
    #[test]
    fn no_row_makes_a_draw_that_is_none(
        probability in proptest::collection::vec(0.0..1.0_f32, 1..50),
        seed: u64,
    ) {
        let alias = Alias::new(&probability);
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            prop_assert!((alias.draw(&mut rng) as usize) < probability.len());
        }
    }
}
