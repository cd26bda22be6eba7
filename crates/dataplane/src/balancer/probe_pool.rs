//! The pool of `prequal`: the last answers of probes, and which calls in flight count as hot.

/// Answers in a pool at most.
pub(super) const POOL_MAX: usize = 16;

/// RIFs that the hot quantile is taken of.
const RECENT_MAX: usize = 64;

/// Answers of probes.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) entries: Vec<Entry>,
    recent: [u32; RECENT_MAX],
    /// Of `recent`, how many were ever written.
    seen: usize,
    /// RIF from which on an endpoint is hot.
    pub(super) hot: u32,
    /// Fractions of probes, removals and uses that are still owed.
    pub(super) probes_owed: f64,
    removals_owed: f64,
    pub(super) uses_owed: f64,
    /// Whether the next removal takes the worst, not the oldest.
    worst_next: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// Index in the snapshot that the answer came in; checked against `id`.
    pub(super) index: u32,
    pub(super) rif: u32,
    pub(super) latency_ns: f64,
    pub(super) answered_ns: u64,
    pub(super) uses: u32,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self {
            // One more than fits while one is replaced; a pick must not allocate.
            entries: Vec::with_capacity(POOL_MAX + 1),
            recent: [0; RECENT_MAX],
            seen: 0,
            hot: 0,
            probes_owed: 0.0,
            removals_owed: 0.0,
            uses_owed: 0.0,
            worst_next: false,
        }
    }

    /// Remembers calls in flight that somebody answered with.
    pub(super) fn note(&mut self, rif: u32) {
        self.recent[self.seen % RECENT_MAX] = rif;
        self.seen += 1;
    }

    /// Finds from how many calls in flight on an endpoint is hot.
    pub(super) fn find_hot(&mut self, quantile: f64) {
        let count = self.seen.min(RECENT_MAX);
        if count == 0 || quantile >= 1.0 {
            self.hot = u32::MAX;
            return;
        }
        let mut recent = self.recent;
        let place = ((count as f64 * quantile) as usize).min(count - 1);
        self.hot = *recent[..count].select_nth_unstable(place).1;
    }

    pub(super) fn expire(&mut self, now_ns: u64, age_limit_ns: u64) {
        self.entries
            .retain(|entry| now_ns.saturating_sub(entry.answered_ns) < age_limit_ns);
    }

    pub(super) fn remove_some(&mut self, removals: f64) {
        for _ in 0..owed(&mut self.removals_owed, removals) {
            if self.worst_next {
                self.remove_worst();
            } else {
                self.remove_oldest();
            }
            self.worst_next = !self.worst_next;
        }
    }

    /// Answers stand in the order in which they came.
    pub(super) fn remove_oldest(&mut self) {
        if !self.entries.is_empty() {
            self.entries.remove(0);
        }
    }

    /// The hot one with the largest RIF, else the one with the largest latency.
    fn remove_worst(&mut self) {
        let hot = self.hot;
        let badness = |entry: &Entry| {
            let hot = entry.rif >= hot;
            let hotness = if hot { entry.rif } else { 0 };
            (hot, hotness, entry.latency_ns)
        };
        let worst = self
            .entries
            .iter()
            .enumerate()
            .max_by(|(_, one), (_, other)| {
                let (one, other) = (badness(one), badness(other));
                (one.0, one.1)
                    .cmp(&(other.0, other.1))
                    .then(one.2.total_cmp(&other.2))
            });
        if let Some((place, _)) = worst {
            self.entries.remove(place);
        }
    }
}

/// The whole part of what is owed, the fraction of which stays owed.
pub(super) fn owed(owed: &mut f64, more: f64) -> u32 {
    *owed += more;
    let whole = owed.floor();
    *owed -= whole;
    whole as u32
}

#[cfg(test)]
mod tests {
    use super::{Entry, Pool};

    #[test]
    fn removal_takes_the_oldest_and_the_worst_in_turn() {
        let mut pool = Pool::new();
        pool.hot = 5;
        for (id, rif, latency_ns) in [(1, 1, 10.0), (2, 1, 99.0), (3, 7, 1.0), (4, 1, 20.0)] {
            pool.entries.push(Entry {
                id,
                index: 0,
                rif,
                latency_ns,
                answered_ns: 0,
                uses: 1,
            });
        }
        let mut left = || -> Vec<u64> {
            pool.remove_some(1.0);
            pool.entries.iter().map(|entry| entry.id).collect()
        };
        assert_eq!(left(), [2, 3, 4]);
        assert_eq!(left(), [2, 4]);
        assert_eq!(left(), [4]);
    }
}
