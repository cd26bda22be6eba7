//! Who got how many of the last picks: what `max_share` and `explore` go by.
//!
//! Shared by all data threads without a lock. A pick adds to counters and to a ring; whoever takes
//! an entry out of the ring takes it off the counters, so that nothing is counted off twice.
//! Threads that race can misjudge a share by the calls that they place at the same moment.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::rng::Rng;

/// Picks that a share of [`Recent`] is taken of, at most.
pub(super) const PICKS: u64 = 1_000;

/// Age at which a pick counts no more there.
const AGE_MS: u64 = 1_000;

/// Seconds that a share of [`Seconds`] is taken of, and the one that is being counted.
const SECONDS: u64 = 10;
const BUCKETS: usize = SECONDS as usize + 1;

/// Draws until exploration gives up: nearly everybody has a fair share.
const EXPLORE_DRAWS: u32 = 32;

const INDEX_BITS: u32 = 24;

/// The last [`PICKS`] picks or those of the last second, whichever are fewer.
#[derive(Debug)]
pub(super) struct Recent {
    /// Time in ms and index + 1; 0 where nothing counts.
    ring: Box<[AtomicU64]>,
    head: AtomicU64,
    tail: AtomicU64,
    counts: Box<[AtomicU32]>,
    total: AtomicU32,
}

fn zeros<T: Default>(count: usize) -> Box<[T]> {
    std::iter::repeat_with(T::default).take(count).collect()
}

impl Recent {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            ring: zeros(PICKS as usize),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            counts: zeros(endpoints),
            total: AtomicU32::new(0),
        }
    }

    /// The same for a set in which each index has become another, or none.
    pub(super) fn moved(&self, endpoints: usize, index_of: impl Fn(u32) -> Option<u32>) -> Self {
        let next = Self::new(endpoints);
        let head = self.head.load(Relaxed);
        for at in head.saturating_sub(PICKS)..head {
            let entry = self.ring[(at % PICKS) as usize].load(Relaxed);
            if let Some(index) = index_in(entry).and_then(&index_of) {
                next.enter(index, entry >> INDEX_BITS);
            }
        }
        next
    }

    pub(super) fn add(&self, index: u32, now_ns: u64) {
        self.enter(index, now_ns / 1_000_000);
    }

    fn enter(&self, index: u32, time_ms: u64) {
        let entry = (time_ms << INDEX_BITS) | u64::from(index + 1);
        let at = self.head.fetch_add(1, Relaxed) % PICKS;
        self.counts[index as usize].fetch_add(1, Relaxed);
        self.total.fetch_add(1, Relaxed);
        self.release(self.ring[at as usize].swap(entry, Relaxed));
    }

    fn release(&self, entry: u64) {
        if let Some(index) = index_in(entry) {
            self.counts[index as usize].fetch_sub(1, Relaxed);
            self.total.fetch_sub(1, Relaxed);
        }
    }

    /// Forgets what is too old.
    pub(super) fn expire(&self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        let head = self.head.load(Relaxed);
        let mut at = self.tail.load(Relaxed).max(head.saturating_sub(PICKS));
        while at < head {
            let place = &self.ring[(at % PICKS) as usize];
            let entry = place.load(Relaxed);
            if entry != 0 {
                if (entry >> INDEX_BITS) + AGE_MS > now_ms {
                    break;
                }
                if place.compare_exchange(entry, 0, Relaxed, Relaxed).is_ok() {
                    self.release(entry);
                }
            }
            at += 1;
        }
        self.tail.store(at, Relaxed);
    }

    /// Whether one more pick would be more than its share of them, rounded up. Of endpoints that
    /// together may have everything, one is never full.
    pub(super) fn is_full(&self, index: u32, share: f64) -> bool {
        let total = f64::from(self.total.load(Relaxed));
        let most = (share * (total + 1.0) - 1e-9).ceil();
        f64::from(self.counts[index as usize].load(Relaxed)) >= most
    }
}

fn index_in(entry: u64) -> Option<u32> {
    let low = (entry & ((1 << INDEX_BITS) - 1)) as u32;
    low.checked_sub(1)
}

/// Picks of the last 10 s, second by second.
#[derive(Debug)]
pub(super) struct Seconds {
    endpoints: usize,
    /// Which second each bucket holds, + 1.
    seconds: [AtomicU64; BUCKETS],
    totals: [AtomicU32; BUCKETS],
    /// Bucket by bucket.
    counts: Box<[AtomicU32]>,
}

impl Seconds {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            endpoints,
            seconds: Default::default(),
            totals: Default::default(),
            counts: zeros(endpoints * BUCKETS),
        }
    }

    /// The same for a set in which each index has become another, or none.
    pub(super) fn moved(&self, endpoints: usize, index_of: impl Fn(u32) -> Option<u32>) -> Self {
        let next = Self::new(endpoints);
        for bucket in 0..BUCKETS {
            next.seconds[bucket].store(self.seconds[bucket].load(Relaxed), Relaxed);
            for (old, count) in (0_u32..).zip(self.bucket(bucket)) {
                if let Some(index) = index_of(old) {
                    let count = count.load(Relaxed);
                    next.bucket(bucket)[index as usize].store(count, Relaxed);
                    next.totals[bucket].fetch_add(count, Relaxed);
                }
            }
        }
        next
    }

    fn bucket(&self, bucket: usize) -> &[AtomicU32] {
        &self.counts[bucket * self.endpoints..(bucket + 1) * self.endpoints]
    }

    pub(super) fn add(&self, index: u32, now_ns: u64) {
        let second = now_ns / 1_000_000_000 + 1;
        let bucket = (second % BUCKETS as u64) as usize;
        if self.seconds[bucket].swap(second, Relaxed) != second {
            self.totals[bucket].store(0, Relaxed);
            self.bucket(bucket)
                .iter()
                .for_each(|count| count.store(0, Relaxed));
        }
        self.bucket(bucket)[index as usize].fetch_add(1, Relaxed);
        self.totals[bucket].fetch_add(1, Relaxed);
    }

    /// One of `usable` that had less than `share` of the last picks, each as likely.
    pub(super) fn neglected(
        &self,
        usable: &[u32],
        share: f64,
        now_ns: u64,
        rng: &mut Rng,
        takes: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let second = now_ns / 1_000_000_000 + 1;
        let is_recent = |bucket: &usize| {
            let held = self.seconds[*bucket].load(Relaxed);
            held > 0 && held + SECONDS > second
        };
        let sum = |counts: &dyn Fn(usize) -> u32| -> f64 {
            let recent = (0..BUCKETS).filter(is_recent);
            recent.map(|bucket| f64::from(counts(bucket))).sum()
        };
        let total = sum(&|bucket| self.totals[bucket].load(Relaxed));
        (0..EXPLORE_DRAWS)
            .map(|_| usable[rng.below(usable.len() as u32) as usize])
            .find(|&index| {
                let own = sum(&|bucket| self.bucket(bucket)[index as usize].load(Relaxed));
                takes(index) && own <= share * total
            })
    }
}
