//! The static-stride schedule (gRFC A58) that `round_robin` and `weighted_round_robin` share: in turn,
//! in proportion to weights, lock-free and without a heap of deadlines.
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

use crate::rng::Rng;

/// The weight of a column that is picked in every round.
pub(super) const FULL: u64 = 1 << 32;

/// Columns of an endpoint hold at most this many mean weights each.
const COLUMN_MEANS_MAX: f64 = 2.0;

/// 2^32 divided by the golden ratio: its multiples spread evenly over 0..2^32.
const OFFSET_STEP: u64 = 0x9e37_79b9;

/// The position of the walk, shared by every data thread and on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Sequence(AtomicU64);

/// Endpoints and their weights, prepared.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Indices of the endpoints, for equal weights.
    indices: Vec<u32>,
    /// Empty where all weights are equal.
    pub(super) columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// Index into the members.
    pub(super) index: u32,
    /// 1..=[`FULL`].
    pub(super) weight: u64,
}

impl Schedule {
    /// The schedule of endpoints, by index, with positive weights.
    pub(super) fn new(weights: &[(u32, f64)]) -> Self {
        let equal = weights.windows(2).all(|pair| pair[0].1 == pair[1].1);
        Self {
            indices: weights.iter().map(|(index, _)| *index).collect(),
            columns: if equal { Vec::new() } else { columns(weights) },
        }
    }

    /// Whose turn it is. There must be an endpoint.
    pub(super) fn turn(&self, sequence: &Sequence) -> u32 {
        if self.columns.is_empty() {
            return self.indices[(sequence.step() % self.indices.len() as u64) as usize];
        }
        loop {
            if let Some(index) = due(&self.columns, sequence.step()) {
                return index;
            }
        }
    }
}

impl Sequence {
    /// One that begins anywhere: a schedule that began at its head with every change would give
    /// the first columns more than their share (LB-05).
    pub(super) fn anywhere(schedule: &Schedule, rng: &mut Rng) -> Self {
        Self(AtomicU64::new(random_start(&schedule.columns, rng)))
    }

    fn step(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    #[cfg(test)]
    pub(super) fn position(&self) -> u64 {
        self.0.load(Relaxed)
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

fn columns(weights: &[(u32, f64)]) -> Vec<Column> {
    let count = weights.len() as f64;
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let limit = COLUMN_MEANS_MAX * total / count;
    let mut placed = Vec::with_capacity(weights.len() * 3 / 2 + 1);
    let mut heaviest = 0.0_f64;
    for (rank, &(index, weight)) in weights.iter().enumerate() {
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
