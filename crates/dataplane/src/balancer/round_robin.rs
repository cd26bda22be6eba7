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
            .map(|&index| (view.members[index as usize].endpoint.id, static_weight(view, index)))
            .collect();
        let sequence = match previous {
            Some(previous) if previous.scheduled == scheduled => Arc::clone(&previous.sequence),
            // 2^48 possible starts, and 2^63 picks until the counter would wrap.
            _ => Arc::new(Sequence(AtomicU64::new(rng.next_u64() >> 16))),
        };
        let columns = if equally_weighted(view) { Vec::new() } else { columns(view) };
        Self { sequence, scheduled, columns }
    }

    pub(super) fn pick(&self, view: View<'_>) -> u32 {
        if self.columns.is_empty() {
            return view.usable[(self.step() % view.usable.len() as u64) as usize];
        }
        let count = self.columns.len() as u64;
        loop {
            let step = self.step();
            let (round, position) = (step / count, step % count);
            let column = self.columns[position as usize];
            let offset = position.wrapping_mul(OFFSET_STEP);
            let due = column.weight.wrapping_mul(round).wrapping_add(offset) % FULL;
            if due >= FULL - column.weight {
                return column.index;
            }
        }
    }

    fn step(&self) -> u64 {
        self.sequence.0.fetch_add(1, Relaxed)
    }

    pub(super) fn weights(&self, view: View<'_>, out: &mut [f32]) {
        let total: f64 = view.usable.iter().map(|&i| f64::from(static_weight(view, i))).sum();
        for &index in view.usable {
            out[index as usize] = (f64::from(static_weight(view, index)) / total) as f32;
        }
    }
}

fn columns(view: View<'_>) -> Vec<Column> {
    let count = view.usable.len() as f64;
    let total: f64 = view.usable.iter().map(|&i| f64::from(static_weight(view, i))).sum();
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
    placed.into_iter().map(|(_, index, share)| Column { index, weight: scale(share) }).collect()
}
