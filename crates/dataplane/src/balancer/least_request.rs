//! `least_request`: the least (in flight + 1) / static weight among a few drawn endpoints, or
//! among all (`algorithms.md` section 1).
//!
//! Draws are uniform and, by default, distinct: drawing with replacement, as Envoy does, leaves a
//! floor of k^2 / n^2 of the picks on k slow endpoints of n. Ties fall at random. Two loads are
//! compared by cross-multiplication, so that nothing is divided and equal ratios are equal exactly.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use super::{equally_weighted, static_weight, View};
use crate::config::ChoiceCount;
use crate::rng::Rng;

/// Most draws that a policy can ask for; a pick keeps them on the stack.
const DRAWS_MAX: usize = 100;

/// Calls in flight beyond which an endpoint counts as equally full. With this bound a product of
/// calls and an f32 weight fits the 53 bits of an f64, so comparing never rounds.
const CALLS_MAX: u32 = (1 << 29) - 1;

/// The rule of one snapshot.
#[derive(Debug)]
pub struct LeastRequest {
    choice_count: ChoiceCount,
    with_replacement: bool,
    equal: bool,
}

/// What is compared; the cost is `calls / weight`.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// In flight, and the call to be placed.
    calls: u32,
    weight: f32,
}

impl Load {
    fn compare(self, other: Self) -> Ordering {
        let product = |calls: u32, weight: f32| f64::from(calls) * f64::from(weight);
        let (own, others) = (product(self.calls, other.weight), product(other.calls, self.weight));
        own.partial_cmp(&others).unwrap_or(Ordering::Equal)
    }
}

/// The least loaded so far, with ties decided by reservoir: the t-th of them replaces the one held
/// with probability 1/t, which leaves each with 1/t, and draws only where there is a tie.
struct Least {
    index: u32,
    load: Load,
    ties: u32,
}

impl Least {
    fn offer(&mut self, index: u32, load: Load, order: Ordering, rng: &mut Rng) {
        match order {
            Ordering::Less => *self = Self { index, load, ties: 1 },
            Ordering::Equal => {
                self.ties += 1;
                if rng.below(self.ties) == 0 {
                    self.index = index;
                }
            }
            Ordering::Greater => {}
        }
    }
}

impl LeastRequest {
    /// The rule for the usable endpoints of a view.
    #[must_use]
    pub fn new(choice_count: ChoiceCount, with_replacement: bool, view: View<'_>) -> Self {
        Self { choice_count, with_replacement, equal: equally_weighted(view) }
    }

    pub(super) fn pick(&self, view: View<'_>, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        if count == 1 {
            return view.usable[0];
        }
        match self.choice_count {
            ChoiceCount::Draws(draws) if self.with_replacement => {
                self.pick_with_replacement(view, draws, rng)
            }
            ChoiceCount::Draws(draws) if draws >= count => self.pick_of_all(view, rng),
            ChoiceCount::Draws(2) => self.pick_of_two(view, rng),
            ChoiceCount::Draws(draws) => self.pick_distinct(view, draws, rng),
            ChoiceCount::All => self.pick_of_all(view, rng),
        }
    }

    fn pick_of_two(&self, view: View<'_>, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        let first = rng.below(count);
        let mut second = rng.below(count - 1);
        second += u32::from(second >= first);
        let (first, second) = (view.usable[first as usize], view.usable[second as usize]);
        // Which of two comes first is random already, so it may win the tie.
        match self.compare(load(view, second), load(view, first)) {
            Ordering::Less => second,
            _ => first,
        }
    }

    fn pick_with_replacement(&self, view: View<'_>, draws: u32, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        let mut best = view.usable[rng.below(count) as usize];
        let mut least = load(view, best);
        for _ in 1..draws {
            let index = view.usable[rng.below(count) as usize];
            let load = load(view, index);
            // The first of equals wins; draws are independent, so each is as likely to be it.
            if self.compare(load, least) == Ordering::Less {
                (best, least) = (index, load);
            }
        }
        best
    }

    /// Floyd's sampling: every subset equally likely, one draw each, nothing allocated. The order
    /// in which it yields them is not random, hence the reservoir.
    fn pick_distinct(&self, view: View<'_>, draws: u32, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        let draws = draws.clamp(1, DRAWS_MAX as u32);
        let mut drawn = [0_u32; DRAWS_MAX];
        let mut least: Option<Least> = None;
        for (taken, last) in (count - draws..count).enumerate() {
            let mut position = rng.below(last + 1);
            if drawn[..taken].contains(&position) {
                position = last;
            }
            drawn[taken] = position;
            let index = view.usable[position as usize];
            let load = load(view, index);
            match &mut least {
                Some(least) => least.offer(index, load, self.compare(load, least.load), rng),
                None => least = Some(Least { index, load, ties: 1 }),
            }
        }
        least.map_or(view.usable[0], |least| least.index)
    }

    fn pick_of_all(&self, view: View<'_>, rng: &mut Rng) -> u32 {
        let first = view.usable[0];
        let mut least = Least { index: first, load: load(view, first), ties: 1 };
        for &index in &view.usable[1..] {
            let load = load(view, index);
            least.offer(index, load, self.compare(load, least.load), rng);
        }
        least.index
    }

    fn compare(&self, one: Load, other: Load) -> Ordering {
        if self.equal {
            one.calls.cmp(&other.calls)
        } else {
            one.compare(other)
        }
    }

    /// Exact. With s endpoints strictly less loaded than a group of g equals among n, the least
    /// drawn one stands in the group if all draws miss the s, but not also the g:
    /// `(q(n - s) - q(n - s - g)) / g` for each, q(m) being the probability that all draws fall
    /// among given m: (m/n)^k with replacement, C(m, k)/C(n, k) without.
    pub(super) fn weights(&self, view: View<'_>, out: &mut [f32]) {
        let mut loads: Vec<(u32, Load)> =
            view.usable.iter().map(|&index| (index, load(view, index))).collect();
        loads.sort_by(|(_, one), (_, other)| self.compare(*one, *other));
        let mut worse = loads.len();
        for group in
            loads.chunk_by(|(_, one), (_, other)| self.compare(*one, *other) == Ordering::Equal)
        {
            let reach = self.all_among(worse, loads.len());
            worse -= group.len();
            let share = (reach - self.all_among(worse, loads.len())) / group.len() as f64;
            for (index, _) in group {
                out[*index as usize] = share as f32;
            }
        }
    }

    /// Probability that every draw falls among `some` given endpoints of `count`.
    fn all_among(&self, some: usize, count: usize) -> f64 {
        let ratio = some as f64 / count as f64;
        match self.choice_count {
            ChoiceCount::Draws(draws) if self.with_replacement => ratio.powi(draws as i32),
            ChoiceCount::Draws(draws) if (draws as usize) < count => (0..draws as usize)
                .map(|taken| some.saturating_sub(taken) as f64 / (count - taken) as f64)
                .product(),
            _ => f64::from(u8::from(some == count)),
        }
    }
}

fn load(view: View<'_>, index: u32) -> Load {
    let in_flight = view.members[index as usize].endpoint.live.in_flight.load(Relaxed);
    Load { calls: in_flight.min(CALLS_MAX - 1) + 1, weight: static_weight(view, index) }
}
