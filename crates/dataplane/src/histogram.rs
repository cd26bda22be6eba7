//! Latency counted in fixed buckets, without a lock.
//!
//! The bounds are 100 us * 1.6^j for as long as that stays below 60 s, then +Inf (`contract.md`
//! section 5). They never change: sums over processes and time, and what was learned from them,
//! hold only while everybody counts in the same buckets. Every counter is relaxed; a snapshot
//! taken while calls end may hold a call in its bucket and not yet in the sum, but its total is
//! always the sum of its own buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of finite bounds; 1.6^28 * 100 us is 51.9 s, the next would be 83 s.
pub const BOUNDS: usize = 29;

/// Number of buckets: one up to each bound, one above.
pub const BUCKETS: usize = BOUNDS + 1;

/// Inclusive upper bounds in nanoseconds, ascending.
///
/// Rounded down to whole nanoseconds, which changes no bucket, since latencies are whole too.
pub const BOUNDS_NS: [u64; BOUNDS] = bounds();

/// Bucket of the shortest latency of each bit width, to begin the search at.
const FIRST: [u8; 65] = first();

const fn bounds() -> [u64; BOUNDS] {
    let mut bounds = [0; BOUNDS];
    // 1.6 is 8 / 5: in whole numbers the table is the same on every machine.
    let (mut numerator, mut denominator) = (100_000_u128, 1_u128);
    let mut index = 0;
    while index < BOUNDS {
        bounds[index] = (numerator / denominator) as u64;
        numerator *= 8;
        denominator *= 5;
        index += 1;
    }
    bounds
}

const fn first() -> [u8; 65] {
    let mut first = [0; 65];
    let mut width = 1;
    while width <= 64 {
        let shortest = 1_u64 << (width - 1);
        let mut bucket = 0;
        while bucket < BOUNDS && BOUNDS_NS[bucket] < shortest {
            bucket += 1;
        }
        first[width] = bucket as u8;
        width += 1;
    }
    first
}

/// Counters that any thread may add to.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// A copy of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistogramSnapshot {
    /// Calls per bucket, not cumulative.
    pub counts: [u64; BUCKETS],
    /// Sum of latencies. It wraps after 584 years of latency, which readers of counters take for
    /// a restart.
    pub sum_ns: u64,
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&self, latency_ns: u64) {
        self.counts[bucket(latency_ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(latency_ns, Relaxed);
    }

    /// The counters as they are now.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut counts = [0; BUCKETS];
        for (copy, count) in counts.iter_mut().zip(&self.counts) {
            *copy = count.load(Relaxed);
        }
        HistogramSnapshot { counts, sum_ns: self.sum_ns.load(Relaxed) }
    }
}

impl HistogramSnapshot {
    /// Number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another one, bucket by bucket.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// Index of the bucket that holds a latency.
///
/// Latencies of one bit width span a factor below 2, and three bounds in a row span 2.56, so at
/// most two bounds lie among them: a table and two comparisons find the bucket without a branch
/// to mispredict.
fn bucket(latency_ns: u64) -> usize {
    let width = (u64::BITS - latency_ns.leading_zeros()) as usize;
    let first = usize::from(FIRST[width]);
    let above =
        |index: usize| usize::from(latency_ns > BOUNDS_NS.get(index).copied().unwrap_or(u64::MAX));
    first + above(first) + above(first + 1)
}
