//! Calls that get a span, until the control side takes them.
//!
//! As recorded picks: the ring is bounded, and a call never waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::call_record::EndedCall;

/// Calls between two looks of the control side.
const RING_MAX: usize = 4_096;

/// The ring, and what it lost.
#[derive(Debug, Default)]
pub struct Spans {
    ring: Mutex<VecDeque<EndedCall>>,
    dropped: AtomicU64,
}

impl Spans {
    /// What finds the ring full, or held, is dropped.
    pub(crate) fn push(&self, ended: EndedCall) {
        match self.ring.try_lock() {
            Some(mut ring) if ring.len() < RING_MAX => ring.push_back(ended),
            _ => {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Calls that were lost before somebody took them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Takes the oldest calls as a JSON list.
    #[must_use]
    pub fn take(&self, max: usize) -> Vec<u8> {
        let taken: Vec<_> = {
            let mut ring = self.ring.lock();
            let count = ring.len().min(max);
            ring.drain(..count).collect()
        };
        let mut rows = vec![b'['];
        for (index, ended) in taken.iter().enumerate() {
            if index > 0 {
                rows.push(b',');
            }
            ended.write_span(&mut rows);
        }
        rows.push(b']');
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::{Spans, RING_MAX};
    use crate::call_record::EndedCall;

    fn taken(spans: &Spans, max: usize) -> usize {
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&spans.take(max)).unwrap();
        rows.len()
    }

    #[test]
    fn each_is_handed_out_once_and_what_is_too_much_is_counted() {
        let spans = Spans::default();
        for _ in 0..RING_MAX + 3 {
            spans.push(EndedCall::example(None));
        }
        assert_eq!(spans.dropped(), 3);
        assert_eq!(taken(&spans, 4_000), 4_000);
        assert_eq!(taken(&spans, 4_000), RING_MAX - 4_000);
        assert_eq!(taken(&spans, 4_000), 0);
    }

    #[test]
    fn nobody_waits_for_whoever_takes() {
        let spans = Spans::default();
        let held = spans.ring.lock();
        spans.push(EndedCall::example(None));
        drop(held);
        assert_eq!((spans.dropped(), taken(&spans, 9)), (1, 0));
    }
}
