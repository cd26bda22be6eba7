//! `least_request`: the least (in flight + 1) / static weight among a few drawn endpoints, or
//! among all (`algorithms.md` section 1).
//!
//! Draws are uniform and, by default, distinct: drawing with replacement, as Envoy does, leaves a
//! floor of k^2 / n^2 of the picks on k slow endpoints of n. Ties fall at random. Two loads are
//! compared by cross-multiplication, so that nothing is divided and equal ratios are equal exactly.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use super::{equally_weighted, two_distinct, View};
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
        let (own, others) = (
            product(self.calls, other.weight),
            product(other.calls, self.weight),
        );
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
            Ordering::Less => {
                *self = Self {
                    index,
                    load,
                    ties: 1,
                }
            }
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
    /// Whether it compares every usable endpoint.
    pub(super) const fn scans_all(&self) -> bool {
        matches!(self.choice_count, ChoiceCount::All)
    }

    /// The rule for the usable endpoints of a view.
    #[must_use]
    pub fn new(choice_count: ChoiceCount, with_replacement: bool, view: View<'_>) -> Self {
        Self {
            choice_count,
            with_replacement,
            equal: equally_weighted(view) && view.slow_start.is_none(),
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        if count == 1 {
            return view.usable[0];
        }
        match self.choice_count {
            ChoiceCount::Draws(draws) if self.with_replacement => {
                self.pick_with_replacement(view, now_ns, draws, rng)
            }
            ChoiceCount::Draws(draws) if draws >= count => self.pick_of_all(view, now_ns, rng),
            ChoiceCount::Draws(2) => self.pick_of_two(view, now_ns, rng),
            ChoiceCount::Draws(draws) => self.pick_distinct(view, now_ns, draws, rng),
            ChoiceCount::All => self.pick_of_all(view, now_ns, rng),
        }
    }

    fn pick_of_two(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        let (first, second) = two_distinct(view, rng);
        // Which of two comes first is random already, so it may win the tie.
        match self.compare(load(view, second, now_ns), load(view, first, now_ns)) {
            Ordering::Less => second,
            _ => first,
        }
    }

    fn pick_with_replacement(&self, view: View<'_>, now_ns: u64, draws: u32, rng: &mut Rng) -> u32 {
        let count = view.usable.len() as u32;
        let mut best = view.usable[rng.below(count) as usize];
        let mut least = load(view, best, now_ns);
        for _ in 1..draws {
            let index = view.usable[rng.below(count) as usize];
            let load = load(view, index, now_ns);
            // The first of equals wins; draws are independent, so each is as likely to be it.
            if self.compare(load, least) == Ordering::Less {
                (best, least) = (index, load);
            }
        }
        best
    }

    /// Floyd's sampling: every subset equally likely, one draw each, nothing allocated. The order
    /// in which it yields them is not random, hence the reservoir.
    fn pick_distinct(&self, view: View<'_>, now_ns: u64, draws: u32, rng: &mut Rng) -> u32 {
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
            let load = load(view, index, now_ns);
            match &mut least {
                Some(least) => least.offer(index, load, self.compare(load, least.load), rng),
                None => {
                    least = Some(Least {
                        index,
                        load,
                        ties: 1,
                    })
                }
            }
        }
        least.map_or(view.usable[0], |least| least.index)
    }

    fn pick_of_all(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        let first = view.usable[0];
        let mut least = Least {
            index: first,
            load: load(view, first, now_ns),
            ties: 1,
        };
        for &index in &view.usable[1..] {
            let load = load(view, index, now_ns);
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
    pub(super) fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let mut loads: Vec<(u32, Load)> = view
            .usable
            .iter()
            .map(|&index| (index, load(view, index, now_ns)))
            .collect();
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

fn load(view: View<'_>, index: u32, now_ns: u64) -> Load {
    let in_flight = view.endpoint(index).live.in_flight.load(Relaxed);
    Load {
        calls: in_flight.min(CALLS_MAX - 1) + 1,
        weight: match view.slow_start {
            None => view.static_weight(index),
            // The least weight times the least ramp is still more than nothing.
            Some(_) => (view.weight(index, now_ns) as f32).max(f32::from_bits(1)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{choose, picks, Fleet};
    use super::super::Balancer;
    use crate::attempt::RequestInfo;
    use crate::config::{BalancerConfig, ChoiceCount};
    use crate::rng::Rng;

    fn with_replacement(draws: u32) -> BalancerConfig {
        BalancerConfig::LeastRequest {
            choice_count: ChoiceCount::Draws(draws),
            with_replacement: true,
        }
    }

    fn weights(config: &BalancerConfig, fleet: &Fleet) -> Vec<f32> {
        let balancer = Balancer::new(config, fleet.view(), None, &mut Rng::new(0));
        let mut weights = vec![f32::NAN; fleet.members.len()];
        balancer.weights(fleet.view(), 0, &mut weights);
        weights
    }

    fn shares(config: &BalancerConfig, fleet: &Fleet, count: u32, seed: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        let balancer = Balancer::new(config, fleet.view(), None, &mut rng);
        let counts = picks(&balancer, fleet, count, &mut rng);
        counts
            .into_iter()
            .map(|picked| f64::from(picked) / f64::from(count))
            .collect()
    }

    #[test]
    fn weights_are_as_computed_by_hand() {
        // One at 0, two at 1, one at 2 calls. Two distinct of four, 6 pairs: 3 hold the first, 3 of
        // the others hold one of the two, none is left for the last.
        let fleet = Fleet::new(&[(1.0, 1), (1.0, 0), (0.0, 0), (1.0, 2), (1.0, 1)]);
        let two = weights(&choose(ChoiceCount::Draws(2)), &fleet);
        assert_eq!(two, [0.25, 0.5, 0.0, 0.0, 0.25]);
        // With replacement, 16 pairs: 7 hold the first, 8 more one of the two, 1 only the last.
        let replaced = weights(&with_replacement(2), &fleet);
        assert_eq!(replaced, [0.25, 0.4375, 0.0, 0.0625, 0.25]);
        let all = [0.0, 1.0, 0.0, 0.0, 0.0];
        assert_eq!(weights(&choose(ChoiceCount::All), &fleet), all);
        assert_eq!(weights(&choose(ChoiceCount::Draws(4)), &fleet), all);
        assert_eq!(weights(&choose(ChoiceCount::Draws(100)), &fleet), all);
    }

    #[test]
    fn static_weight_divides_the_load() {
        // (2 + 1)/3 ties with (0 + 1)/1 exactly; (1 + 1)/1.9 is more than both.
        let fleet = Fleet::new(&[(3.0, 2), (1.9, 1), (1.0, 0)]);
        assert_eq!(weights(&choose(ChoiceCount::All), &fleet), [0.5, 0.0, 0.5]);
        let found = shares(&choose(ChoiceCount::All), &fleet, 10_000, 1);
        assert_eq!(found[1], 0.0);
        assert!((found[0] - 0.5).abs() < 0.025, "{found:?}");
        // One call more, and the lighter one is the better.
        let fleet = Fleet::new(&[(3.0, 3), (1.9, 1), (1.0, 0)]);
        assert_eq!(weights(&choose(ChoiceCount::All), &fleet), [0.0, 0.0, 1.0]);
    }

    #[test]
    fn picks_agree_with_the_weights() {
        let fleets = [
            Fleet::new(&[
                (1.0, 0),
                (1.0, 3),
                (1.0, 1),
                (1.0, 1),
                (0.0, 0),
                (1.0, 7),
                (1.0, 0),
            ]),
            Fleet::new(&[
                (1.0, 0),
                (2.0, 1),
                (0.5, 0),
                (4.0, 3),
                (1.5, 2),
                (0.0, 0),
                (3.0, 8),
            ]),
            Fleet::new(&[(1.0, 0); 9]),
            Fleet::new(&[(1.0, 4), (2.0, 4)]),
            Fleet::new(&[(0.0, 0), (1.0, 9)]),
        ];
        let mut configs = vec![choose(ChoiceCount::All)];
        for draws in [2, 3, 5, 8, 100] {
            configs.extend([choose(ChoiceCount::Draws(draws)), with_replacement(draws)]);
        }
        let count = 40_000;
        for (number, fleet) in fleets.iter().enumerate() {
            for (seed, config) in (0..).zip(&configs) {
                let expected = weights(config, fleet);
                for (share, weight) in shares(config, fleet, count, seed).iter().zip(&expected) {
                    let weight = f64::from(*weight);
                    // Five deviations: the seeds are fixed, so this holds once and for all.
                    let slack = 5.0 * (weight * (1.0 - weight) / f64::from(count)).sqrt() + 1e-6;
                    assert!(
                        (share - weight).abs() <= slack,
                        "fleet {number}, {config:?}: {share} against {weight}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_slowest_gets_nothing_from_distinct_draws_and_a_floor_with_replacement() {
        let mut all = [(1.0, 0); 10];
        all[3].1 = 5;
        let fleet = Fleet::new(&all);
        assert_eq!(weights(&choose(ChoiceCount::Draws(2)), &fleet)[3], 0.0);
        assert!((weights(&with_replacement(2), &fleet)[3] - 0.01).abs() < 1e-6);
    }

    #[test]
    fn draws_only_where_there_is_a_tie() {
        let fleet = Fleet::new(&[(1.0, 1), (1.0, 0), (1.0, 2)]);
        let mut rng = Rng::new(12);
        let balancer = Balancer::new(&choose(ChoiceCount::All), fleet.view(), None, &mut rng);
        let (picked, _) = balancer.pick(fleet.view(), 0, RequestInfo::default(), &mut rng);
        assert_eq!(picked, 1);
        assert_eq!(rng.counter(), 0);
    }

    #[test]
    fn absurd_loads_still_compare() {
        let fleet = Fleet::new(&[(1e6, u32::MAX), (1e-6, 0), (1e6, u32::MAX - 1)]);
        let found = weights(&choose(ChoiceCount::All), &fleet);
        assert_eq!(found, [0.5, 0.0, 0.5]); // 537 against 1,000,000.
    }
}
