//! `round_robin`: in turn, in proportion to static weights.
//!
//! Equal weights need only a shared counter. Otherwise a static-stride schedule (gRFC A58) decides,
//! which is lock-free and needs no heap of deadlines:
//!
//! Imagine a table with a column for each endpoint and a row for each round. A counter walks it
//! cell by cell, row after row. In round g, column i has been due `floor((w g + o) / M)` times,
//! where w is its weight, M the largest weight and o an offset of its own; the cell is a pick
//! exactly if round g raises that number, which is if `(w g + o) mod M >= M - w`, else the walk
//! skips it. The heaviest has w = M and is picked in every round, so a walk ends within one row,
//! and in any G rows each column is picked G w / M times, rounded up or down: exact shares without
//! randomness. The offsets keep light endpoints from all being due in the same round.
//!
//! M is 2^32, so that `mod` is a mask and wrapping arithmetic is exact for ever.
//!
//! Skips cost: M / mean(w) steps per pick. One endpoint of weight 1,000,000 among 9,999 of weight 1
//! would take some 10,000. gRPC caps weights at a multiple of their mean, which would break the
//! operator's word. Here an endpoint heavier than twice the mean gets several columns that share
//! its weight, spread over the row: at most half as many columns on top, at most three steps per
//! pick on average, and the shares stay exact.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use super::{equally_weighted, static_weight, View};
use crate::rng::Rng;

/// The weight of a column that is picked in every round.
const FULL: u64 = 1 << 32;

/// Columns of an endpoint hold at most this many mean weights each.
const COLUMN_MEANS_MAX: f64 = 2.0;

/// 2^32 divided by the golden ratio: its multiples spread evenly over 0..2^32.
const OFFSET_STEP: u64 = 0x9e37_79b9;

/// The position of the walk, shared by every data thread and on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Sequence(AtomicU64);

/// The schedule of one snapshot.
#[derive(Debug)]
pub struct RoundRobin {
    sequence: Arc<Sequence>,
    /// Identity and weight of every usable endpoint, to see whether a new set is the old one.
    scheduled: Vec<(u64, f32)>,
    /// Empty where all weights are equal.
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// Index into the members.
    index: u32,
    /// 1..=[`FULL`].
    weight: u64,
}

impl RoundRobin {
    /// A schedule that goes on where `previous` is, if the usable endpoints and their weights are
    /// the same; else it starts anywhere: one that began at its head with every change would give
    /// the first columns more than their share (LB-05).
    #[must_use]
    pub fn new(view: View<'_>, previous: Option<&Self>, rng: &mut Rng) -> Self {
        let scheduled: Vec<_> = view
            .usable
            .iter()
            .map(|&index| {
                (
                    view.members[index as usize].endpoint.id,
                    static_weight(view, index),
                )
            })
            .collect();
        let columns = if equally_weighted(view) {
            Vec::new()
        } else {
            columns(view)
        };
        let sequence = match previous {
            Some(previous) if previous.scheduled == scheduled => Arc::clone(&previous.sequence),
            _ => Arc::new(Sequence(AtomicU64::new(random_start(&columns, rng)))),
        };
        Self {
            sequence,
            scheduled,
            columns,
        }
    }

    pub(super) fn pick(&self, view: View<'_>) -> u32 {
        if self.columns.is_empty() {
            return view.usable[(self.step() % view.usable.len() as u64) as usize];
        }
        loop {
            if let Some(index) = due(&self.columns, self.step()) {
                return index;
            }
        }
    }

    fn step(&self) -> u64 {
        self.sequence.0.fetch_add(1, Relaxed)
    }

    pub(super) fn weights(&self, view: View<'_>, out: &mut [f32]) {
        let total: f64 = view
            .usable
            .iter()
            .map(|&i| f64::from(static_weight(view, i)))
            .sum();
        for &index in view.usable {
            out[index as usize] = (f64::from(static_weight(view, index)) / total) as f32;
        }
    }
}

/// The endpoint of a step, if the schedule picks there.
fn due(columns: &[Column], step: u64) -> Option<u32> {
    let count = columns.len() as u64;
    let (round, position) = (step / count, step % count);
    let column = columns[position as usize];
    let offset = position.wrapping_mul(OFFSET_STEP);
    let phase = column.weight.wrapping_mul(round).wrapping_add(offset) % FULL;
    (phase >= FULL - column.weight).then_some(column.index)
}

/// A random step at which the schedule picks.
///
/// Any random step would not do: the first pick after it would be whatever column follows the
/// skipped ones, so that two endpoints of weights 10 to 1 that restart with every pick would be
/// picked 19 to 1. Among steps that pick, each column stands in proportion to its weight.
fn random_start(columns: &[Column], rng: &mut Rng) -> u64 {
    // 2^48 possible starts, and 2^63 picks until the counter would wrap.
    let mut start = rng.next_u64() >> 16;
    if columns.is_empty() {
        return start;
    }
    // At least every third step picks, so this gives up once in 10^11 times, harmlessly.
    for _ in 0..64 {
        if due(columns, start).is_some() {
            break;
        }
        start = rng.next_u64() >> 16;
    }
    start
}

fn columns(view: View<'_>) -> Vec<Column> {
    let count = view.usable.len() as f64;
    let total: f64 = view
        .usable
        .iter()
        .map(|&i| f64::from(static_weight(view, i)))
        .sum();
    let limit = COLUMN_MEANS_MAX * total / count;
    let mut placed = Vec::with_capacity(view.usable.len() * 3 / 2 + 1);
    let mut heaviest = 0.0_f64;
    for (rank, &index) in view.usable.iter().enumerate() {
        let weight = f64::from(static_weight(view, index));
        let copies = (weight / limit).ceil().max(1.0);
        let share = weight / copies;
        heaviest = heaviest.max(share);
        for copy in 0..copies as u32 {
            let place = (f64::from(copy) + (rank as f64 + 0.5) / count) / copies;
            placed.push((place, index, share));
        }
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    // Scaled to the heaviest column; the lightest keep at least one part in 2^32, so that a tiny
    // weight is rare and not never.
    let scale = |share: f64| ((share / heaviest * FULL as f64).round() as u64).clamp(1, FULL);
    placed
        .into_iter()
        .map(|(_, index, share)| Column {
            index,
            weight: scale(share),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::testing::Fleet;
    use super::RoundRobin;
    use crate::rng::Rng;

    fn counts(balancer: &RoundRobin, fleet: &Fleet, picks: usize) -> Vec<u32> {
        let mut counts = vec![0; fleet.members.len()];
        for _ in 0..picks {
            counts[balancer.pick(fleet.view()) as usize] += 1;
        }
        counts
    }

    fn weighted(weights: &[f32]) -> Fleet {
        Fleet::new(
            &weights
                .iter()
                .map(|weight| (*weight, 0))
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn equal_weights_go_in_turn() {
        let fleet = weighted(&[1.0, 0.0, 1.0, 1.0]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(4));
        assert!(balancer.columns.is_empty());
        let order: Vec<_> = (0..6).map(|_| balancer.pick(fleet.view())).collect();
        assert_eq!(order[..3], order[3..]);
        let mut sorted = order[..3].to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 2, 3]);
    }

    #[test]
    fn lb_05_an_unchanged_set_keeps_its_place() {
        let fleet = weighted(&[100.0, 10.0]);
        let mut rng = Rng::new(5);
        let mut balancer = RoundRobin::new(fleet.view(), None, &mut rng);
        let mut light = 0;
        for _ in 0..10 {
            light += counts(&balancer, &fleet, 30)[1];
            let next = RoundRobin::new(fleet.view(), Some(&balancer), &mut rng);
            // One counter, not a copy: data threads may still pick from the old snapshot.
            assert!(Arc::ptr_eq(&next.sequence, &balancer.sequence));
            balancer = next;
        }
        assert!((27..=28).contains(&light), "{light} of 300, expected 27.3");
    }

    #[test]
    fn lb_05_a_changed_set_starts_anywhere() {
        let mut rng = Rng::new(55);
        let fleets = [weighted(&[100.0, 10.0]), weighted(&[200.0, 20.0])];
        let mut balancer = RoundRobin::new(fleets[0].view(), None, &mut rng);
        let mut light = 0;
        for round in 0..11_000 {
            let fleet = &fleets[round % 2];
            balancer = RoundRobin::new(fleet.view(), Some(&balancer), &mut rng);
            light += counts(&balancer, fleet, 1)[1];
        }
        // 1000 expected with a deviation of 30.
        assert!((850..=1150).contains(&light), "{light}");
    }

    #[test]
    fn what_is_no_longer_usable_is_a_change() {
        let mut fleet = weighted(&[1.0, 1.0, 1.0]);
        let mut rng = Rng::new(8);
        let before = RoundRobin::new(fleet.view(), None, &mut rng);
        fleet.usable.pop();
        let after = RoundRobin::new(fleet.view(), Some(&before), &mut rng);
        assert_ne!(
            before.sequence.0.load(Relaxed),
            after.sequence.0.load(Relaxed)
        );
        assert_eq!(counts(&after, &fleet, 10), [5, 5, 0]);
    }

    #[test]
    fn a_heavy_endpoint_costs_few_steps_and_does_not_come_in_bursts() {
        let mut weights = vec![1.0; 1000];
        weights[500] = 1000.0;
        let fleet = weighted(&weights);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(9));
        let begin = balancer.sequence.0.load(Relaxed);
        let order: Vec<_> = (0..20_000).map(|_| balancer.pick(fleet.view())).collect();
        let steps = balancer.sequence.0.load(Relaxed) - begin;
        assert!(steps <= 3 * 20_000, "{steps}");
        let longest = order.chunk_by(|a, b| a == b).map(<[_]>::len).max();
        assert!(longest <= Some(8), "{longest:?}");
    }

    #[test]
    fn a_tiny_weight_is_rare_and_not_never() {
        let fleet = weighted(&[1.0, 1e-5]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(10));
        let rare = counts(&balancer, &fleet, 1_000_000)[1];
        assert!((9..=11).contains(&rare), "{rare} of 1,000,000, expected 10");
    }

    #[test]
    fn threads_share_one_schedule() {
        let fleet = weighted(&[3.0, 1.0]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(11));
        let heavy: u32 = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| counts(&balancer, &fleet, 1000)[0]));
            threads
                .map(|thread| thread.join().expect("no panic"))
                .into_iter()
                .sum()
        });
        assert!((2996..=3004).contains(&heavy), "{heavy} of 4000");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn shares_are_exact_to_a_pick_per_column(
            weights in proptest::collection::vec(0.1_f32..50.0, 1..20),
            seed: u64,
        ) {
            let fleet = weighted(&weights);
            let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(seed));
            let picks = 2000;
            let found = counts(&balancer, &fleet, picks);
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (index, count) in found.into_iter().enumerate() {
                let share = f64::from(weights[index]) / total;
                let own = balancer.columns.iter().filter(|column| column.index == index as u32);
                // Each column is off by at most one against the rounds walked, and so is each of
                // those that together tell how many rounds that were; two for the cut rounds.
                let slack =
                    own.count().max(1) as f64 + share * balancer.columns.len() as f64 + 2.0;
                let expected = share * picks as f64;
                prop_assert!((f64::from(count) - expected).abs() <= slack);
            }
        }

        #[test]
        fn columns_stay_few_and_one_is_full(
            exponents in proptest::collection::vec(-20_i32..20, 2..60),
        ) {
            let weights: Vec<_> = exponents.iter().map(|exponent| 2_f32.powi(*exponent)).collect();
            let fleet = weighted(&weights);
            let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(0));
            prop_assert!(balancer.columns.len() <= weights.len() * 3 / 2);
            if !balancer.columns.is_empty() {
                let heaviest = balancer.columns.iter().map(|column| column.weight).max();
                prop_assert_eq!(heaviest, Some(super::FULL));
            }
        }
    }
}
