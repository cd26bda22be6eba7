//! What happens next: events in the order of their time, equal times in the order of their making.
//!
//! Most events come a fixed delay after they are made: a hop over the network, a client's deadline.
//! Those of one delay are made in the order in which they are due, so a queue holds them, and only
//! the rest (ends of service) pays for a heap. Which of the two holds an event changes nothing
//! about the order.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// Delays that get a queue of their own; a network has a handful of distances.
const LINES_MAX: usize = 8;

/// A fixed delay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    pub(crate) ns: u64,
    line: Option<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Entry<E> {
    time_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.time_ns, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: the heap keeps the largest on top, and the earliest is wanted.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// The events to come.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    lines: Vec<(u64, VecDeque<Entry<E>>)>,
    sequence: u64,
}

impl<E: Copy> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            lines: Vec::new(),
            sequence: 0,
        }
    }

    /// Makes a delay known.
    pub(crate) fn delay(&mut self, ns: u64) -> Delay {
        let known = self.lines.iter().position(|(delay, _)| *delay == ns);
        let line = known.or_else(|| {
            (self.lines.len() < LINES_MAX).then(|| {
                self.lines.push((ns, VecDeque::new()));
                self.lines.len() - 1
            })
        });
        Delay {
            ns,
            line: line.map(|line| line as u8),
        }
    }

    pub(crate) fn at(&mut self, time_ns: u64, event: E) {
        let entry = self.entry(time_ns, event);
        self.heap.push(entry);
    }

    /// `now_ns` never goes back between two calls.
    pub(crate) fn after(&mut self, now_ns: u64, delay: Delay, event: E) {
        let entry = self.entry(now_ns.saturating_add(delay.ns), event);
        match delay.line {
            Some(line) => self.lines[usize::from(line)].1.push_back(entry),
            None => self.heap.push(entry),
        }
    }

    /// The next event, if it comes before `limit_ns`.
    pub(crate) fn next_before(&mut self, limit_ns: u64) -> Option<(u64, E)> {
        let mut first = self.heap.peek().map_or((u64::MAX, 0), Entry::key);
        let mut from = None;
        for (line, (_, entries)) in self.lines.iter().enumerate() {
            if let Some(entry) = entries.front() {
                if entry.key() < first {
                    first = entry.key();
                    from = Some(line);
                }
            }
        }
        if first.0 >= limit_ns {
            return None;
        }
        let entry = match from {
            Some(line) => self.lines[line].1.pop_front(),
            None => self.heap.pop(),
        };
        entry.map(|entry| (entry.time_ns, entry.event))
    }

    fn entry(&mut self, time_ns: u64, event: E) -> Entry<E> {
        self.sequence += 1;
        Entry {
            time_ns,
            sequence: self.sequence,
            event,
        }
    }
}

#[cfg(test)]
mod tests {
    use attnroute_dataplane::rng::Rng;

    use super::Agenda;

    #[test]
    fn order_is_time_then_making_whatever_holds_an_event() {
        let mut agenda = Agenda::new();
        let mut rng = Rng::new(5);
        // More delays than lines, so that some go to the heap.
        let delays: Vec<_> = (0..12).map(|step| agenda.delay(step * 7)).collect();
        let mut expected = Vec::new();
        for number in 0..2_000_u64 {
            let now = number / 3;
            if rng.below(2) == 0 {
                let delay = delays[rng.below(12) as usize];
                agenda.after(now, delay, number);
                expected.push((now + delay.ns, number));
            } else {
                let time = now + u64::from(rng.below(90));
                agenda.at(time, number);
                expected.push((time, number));
            }
        }
        expected.sort_unstable();
        let found: Vec<_> = std::iter::from_fn(|| agenda.next_before(u64::MAX)).collect();
        assert_eq!(found, expected);
    }
}
