//! When a second attempt is sent beside the first: the measured tail of a kind of call at an endpoint,
//! and how many calls may have one. Sans-IO. Where a model has told the spread of a class, the tail
//! that it predicts goes before the measured one (`balancer/learned/tail.rs`).
//!
//! The tail of an attempt that lost is not known, only that it is longer than the time after which
//! the attempt was cancelled. That time is counted all the same: it lies beyond the quantile at which
//! the other attempt was sent, so the quantile stays where it is. Left out, the tail of an endpoint
//! that has become slow would shrink with every call that it lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::streaming::Method;

/// How the time of a hedge was found, where the route names a percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TailSource {
    /// By published scores.
    Predicted,
    /// By the answers of this endpoint.
    Measured,
    /// Not at all: too little is known, and no hedge is sent.
    Unknown,
}

impl TailSource {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Predicted, Self::Measured, Self::Unknown];

    /// The metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Measured => "measured",
            Self::Unknown => "unknown",
        }
    }
}

/// Pairs of kind and endpoint that a data thread remembers.
const PAIRS_MAX: usize = 4_096;

/// Answers that make a quantile.
const ANSWERS_MIN: u32 = 20;

/// Answers at which all counts are halved, so that what was long ago fades.
const ANSWERS_MAX: u32 = 1_000;

/// 2^16 ns, the upper bound of the first bucket.
const FIRST_BITS: u32 = 16;

/// 2^36 ns, 69 s, is the lower bound of the last.
const LAST_BITS: u32 = 36;

/// Buckets between two powers of 2: a quantile is off by 6 % at most.
const STEPS: u64 = 8;

const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) as u64 * STEPS) as usize + 2;

/// Calls that are alike: of one method, and of one request class where classes are kept. An index that
/// has come to mean another class of the method is taken for the old one until its answers outweigh
/// those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Method.
    pub method: Method,
    /// Index of the request class; 0: none of its own.
    pub class: u32,
}

/// Times from the start of an attempt to the head of its answer.
#[derive(Debug)]
struct Tail {
    counts: [u16; BUCKETS],
    total: u32,
    /// Since the last look for what can be forgotten.
    is_used: bool,
}

impl Tail {
    const fn new() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            is_used: true,
        }
    }

    fn record(&mut self, latency_ns: u64) {
        self.is_used = true;
        self.counts[bucket(latency_ns)] += 1;
        self.total += 1;
        if self.total >= ANSWERS_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
    }

    /// The time within which that share of the answers came; `None` while they are too few to say.
    fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let total = f64::from(self.total);
        if self.total < ANSWERS_MIN || total * (1.0 - quantile) < 1.0 - 1e-9 {
            return None;
        }
        let rank = quantile * total;
        let mut below = 0.0;
        for (index, count) in self.counts.iter().enumerate() {
            let count = f64::from(*count);
            if count > 0.0 && below + count >= rank {
                let (low, high) = (lower_ns(index), lower_ns(index + 1));
                let part = (rank - below) / count;
                return Some(low + ((high - low) as f64 * part) as u64);
            }
            below += count;
        }
        None
    }
}

fn bucket(latency_ns: u64) -> usize {
    let bits = 63 - (latency_ns | 1).leading_zeros();
    if bits < FIRST_BITS {
        return 0;
    }
    if bits >= LAST_BITS {
        return BUCKETS - 1;
    }
    let step = (latency_ns >> (bits - 3)) & (STEPS - 1);
    1 + (u64::from(bits - FIRST_BITS) * STEPS + step) as usize
}

fn lower_ns(bucket: usize) -> u64 {
    match bucket as u64 {
        0 => 0,
        above => {
            let (octave, step) = ((above - 1) / STEPS, (above - 1) % STEPS);
            let power = 1_u64 << (u64::from(FIRST_BITS) + octave);
            power + power / STEPS * step
        }
    }
}

/// What one data thread has measured of the routes that hedge.
#[derive(Debug, Default)]
pub struct Tails {
    pairs: HashMap<(Kind, u64), Box<Tail>>,
}

impl Tails {
    /// Counts an answer of an endpoint, or how long one did not come that was no longer waited for.
    pub fn record(&mut self, kind: Kind, endpoint_id: u64, latency_ns: u64) {
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&(kind, endpoint_id)) {
            self.pairs
                .retain(|_, tail| std::mem::replace(&mut tail.is_used, false));
            if self.pairs.len() >= PAIRS_MAX {
                return;
            }
        }
        let tail = self.pairs.entry((kind, endpoint_id));
        tail.or_insert_with(|| Box::new(Tail::new()))
            .record(latency_ns);
    }

    /// When an attempt of this kind at this endpoint takes longer than that share of them.
    #[must_use]
    pub fn quantile_ns(&self, kind: Kind, endpoint_id: u64, quantile: f64) -> Option<u64> {
        let tail = self.pairs.get(&(kind, endpoint_id))?;
        tail.quantile_ns(quantile)
    }
}

/// Hedges that may come at once, however small their share.
const BURST: u64 = 10;

/// One hedge, in the unit in which calls pay.
const WHOLE: u64 = 1_000_000;

/// Holds hedges to a share of the calls: each call pays its part of one in, a hedge takes a whole
/// one out. Over any time there are at most that share of hedges, and [`BURST`].
#[derive(Debug)]
pub struct Purse {
    share: u64,
    saved: AtomicU64,
}

impl Purse {
    /// Full. `share`: hedges per call, 0..=1; at 0 it stays empty.
    #[must_use]
    pub fn new(share: f64) -> Self {
        let share = (share * WHOLE as f64) as u64;
        let saved = if share > 0 { BURST * WHOLE } else { 0 };
        Self {
            share,
            saved: AtomicU64::new(saved),
        }
    }

    /// A call began.
    pub fn pay_in(&self) {
        let more = |saved: u64| Some((saved + self.share).min(BURST * WHOLE));
        let _ = self.saved.fetch_update(Relaxed, Relaxed, more);
    }

    /// Takes a hedge, if there is one left.
    pub fn take(&self) -> bool {
        let less = |saved: u64| saved.checked_sub(WHOLE);
        self.saved.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{bucket, lower_ns, Kind, Purse, Tails, ANSWERS_MIN, BUCKETS, PAIRS_MAX};
    use crate::streaming::Method;

    const MS: u64 = 1_000_000;

    fn kind() -> Kind {
        Kind {
            method: Method::of_path("/a.B/C"),
            class: 0,
        }
    }

    #[test]
    fn a_tail_is_known_from_enough_answers_on() {
        let mut tails = Tails::default();
        for count in 1..=100_u32 {
            let p95 = tails.quantile_ns(kind(), 1, 0.95);
            assert_eq!(p95.is_some(), count > ANSWERS_MIN, "{count}");
            // Of a hundred answers one lies beyond the 99th percentile, so that many it takes.
            assert_eq!(tails.quantile_ns(kind(), 1, 0.99), None);
            tails.record(kind(), 1, u64::from(count) * MS);
        }
        let found = |quantile| tails.quantile_ns(kind(), 1, quantile).unwrap() as f64 / 1e6;
        for (quantile, expected) in [(0.5, 50.0), (0.9, 90.0), (0.95, 95.0), (0.99, 99.0)] {
            let found: f64 = found(quantile);
            assert!((found / expected - 1.0).abs() < 0.07, "{quantile}: {found}");
        }
        assert_eq!(tails.quantile_ns(kind(), 2, 0.95), None);
        let of_a_class = Kind { class: 3, ..kind() };
        assert_eq!(tails.quantile_ns(of_a_class, 1, 0.95), None);
    }

    #[test]
    fn a_tail_follows_an_endpoint_that_changes() {
        let mut tails = Tails::default();
        (0..5_000).for_each(|_| tails.record(kind(), 1, 10 * MS));
        (0..2_000).for_each(|_| tails.record(kind(), 1, 100 * MS));
        let median = tails.quantile_ns(kind(), 1, 0.5).unwrap();
        assert!((90 * MS..110 * MS).contains(&median), "{median}");
    }

    #[test]
    fn what_is_no_longer_called_makes_room() {
        let mut tails = Tails::default();
        let pairs = PAIRS_MAX as u64;
        (0..pairs).for_each(|id| tails.record(kind(), id, MS));
        // All of them were used just now: the first sweep forgets none, the second all but those
        // that were used since.
        tails.record(kind(), pairs, MS);
        assert_eq!(tails.pairs.len(), PAIRS_MAX);
        tails.record(kind(), 7, MS);
        tails.record(kind(), pairs, MS);
        assert_eq!(tails.pairs.len(), 2);
    }

    #[test]
    fn hedges_stay_a_share_of_the_calls() {
        let purse = Purse::new(0.05);
        let mut hedges = 0;
        for _ in 0..10_000 {
            purse.pay_in();
            hedges += u32::from(purse.take());
        }
        assert!((500..=510).contains(&hedges), "{hedges}");
        let none = Purse::new(0.0);
        none.pay_in();
        assert!(!none.take());
    }

    proptest! {
        #[test]
        fn a_bucket_holds_what_falls_into_it(latency: u64, shift in 0_u32..64) {
            let latency_ns = latency >> shift;
            let index = bucket(latency_ns);
            prop_assert!(lower_ns(index) <= latency_ns);
            prop_assert!(index + 1 == BUCKETS || latency_ns < lower_ns(index + 1));
        }

        #[test]
        fn calls_never_pay_for_more_than_they_may(
            share in 0.0..=1.0_f64,
            wishes in proptest::collection::vec(any::<bool>(), 0..500),
        ) {
            let purse = Purse::new(share);
            let (mut calls, mut hedges) = (0.0, 0.0);
            for wish in wishes {
                purse.pay_in();
                calls += 1.0;
                hedges += f64::from(u8::from(wish && purse.take()));
                prop_assert!(hedges <= share * calls + 10.0);
            }
        }
    }
}
