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
        HistogramSnapshot {
            counts,
            sum_ns: self.sum_ns.load(Relaxed),
        }
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
pub(crate) fn bucket(latency_ns: u64) -> usize {
    let width = (u64::BITS - latency_ns.leading_zeros()) as usize;
    let first = usize::from(FIRST[width]);
    let above =
        |index: usize| usize::from(latency_ns > BOUNDS_NS.get(index).copied().unwrap_or(u64::MAX));
    first + above(first) + above(first + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{bucket, Histogram, HistogramSnapshot, BOUNDS, BOUNDS_NS, BUCKETS};

    #[test]
    fn bounds_are_what_is_published() {
        assert_eq!(
            BOUNDS_NS[..6],
            [100_000, 160_000, 256_000, 409_600, 655_360, 1_048_576]
        );
        for (index, bound) in BOUNDS_NS.into_iter().enumerate() {
            let exact = 1e5 * 1.6_f64.powi(index as i32);
            assert!(
                (0.0..1.001).contains(&(exact - bound as f64)),
                "{index}: {exact} {bound}"
            );
        }
        let last = BOUNDS_NS[BOUNDS - 1] as f64;
        assert!(last <= 60e9 && last * 1.6 > 60e9);
    }

    #[test]
    fn bounds_belong_to_their_buckets() {
        for (index, bound) in BOUNDS_NS.into_iter().enumerate() {
            assert_eq!(bucket(bound - 1), index);
            assert_eq!(bucket(bound), index);
            assert_eq!(bucket(bound + 1), index + 1);
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BOUNDS);
    }

    #[test]
    fn counts_from_many_threads() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.record(150_000)));
            }
        });
        let mut snapshot = histogram.snapshot();
        assert_eq!((snapshot.counts[1], snapshot.count()), (4000, 4000));
        assert_eq!(snapshot.sum_ns, 4000 * 150_000);
        snapshot.add(&snapshot.clone());
        assert_eq!((snapshot.count(), snapshot.sum_ns), (8000, 8000 * 150_000));
        assert_eq!(
            Histogram::default().snapshot(),
            HistogramSnapshot::default()
        );
    }

    proptest! {
        #[test]
        fn finds_the_bucket_that_a_scan_finds(latency: u64, shift in 0_u32..64) {
            let latency_ns = latency >> shift;
            let scanned = BOUNDS_NS.iter().filter(|bound| **bound < latency_ns).count();
            prop_assert_eq!(bucket(latency_ns), scanned);
            prop_assert!(scanned < BUCKETS);
        }
    }
}
