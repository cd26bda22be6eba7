//! The least of several costs, with ties at random, and the probabilities that such rules give.

use crate::rng::Rng;

/// The least cost so far. Ties are decided by reservoir: the t-th of them replaces the one held
/// with probability 1/t, which leaves each with 1/t, and draws only where there is a tie. A cost
/// that is no number never wins against one that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Least {
    index: u32,
    cost: f64,
    ties: u32,
}

impl Least {
    /// Of nothing yet: `fallback` holds until something is offered.
    pub(super) fn new(fallback: u32) -> Self {
        Self {
            index: fallback,
            cost: f64::INFINITY,
            ties: 0,
        }
    }

    pub(super) fn offer(&mut self, index: u32, cost: f64, rng: &mut Rng) {
        if cost < self.cost {
            *self = Self {
                index,
                cost,
                ties: 1,
            };
        } else if cost == self.cost {
            self.ties += 1;
            if rng.below(self.ties) == 0 {
                self.index = index;
            }
        }
    }

    /// Who has it.
    pub(super) fn index(self) -> u32 {
        self.index
    }

    /// Whether anything was offered.
    pub(super) fn is_some(self) -> bool {
        self.ties > 0
    }
}

/// Equal shares for all that have the least cost.
pub(super) fn least_shares(costs: &[(u32, f64)], out: &mut [f32]) {
    let least = costs
        .iter()
        .fold(f64::INFINITY, |least, (_, cost)| least.min(*cost));
    let ties = costs.iter().filter(|(_, cost)| *cost == least).count();
    for (index, cost) in costs {
        if *cost == least {
            out[*index as usize] = 1.0 / ties as f32;
        }
    }
}

/// Shares of the lesser of two distinct endpoints: with `worse` endpoints of n that cost at least
/// as much as a group of g equals, itself included, one of the group is the lesser of the two if
/// both come from the worse ones, but not both from the strictly worse.
pub(super) fn lesser_of_two_shares(costs: &mut [(u32, f64)], out: &mut [f32]) {
    costs.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let pairs = |count: usize| count as f64 * count.saturating_sub(1) as f64;
    let all = pairs(costs.len());
    let mut worse = costs.len();
    if worse == 1 {
        out[costs[0].0 as usize] = 1.0;
        return;
    }
    for group in costs.chunk_by(|(_, one), (_, other)| one == other) {
        let rest = worse - group.len();
        let share = (pairs(worse) - pairs(rest)) / all / group.len() as f64;
        worse = rest;
        for (index, _) in group {
            out[*index as usize] = share as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{least_shares, lesser_of_two_shares, Least};
    use crate::rng::Rng;

    #[test]
    fn ties_are_equally_likely_and_nothing_else_is_drawn() {
        let mut rng = Rng::new(1);
        let mut counts = [0; 4];
        for _ in 0..9_000 {
            let mut least = Least::new(0);
            for (index, cost) in [(0, 2.0), (1, 1.0), (2, 1.0), (3, 1.0)] {
                least.offer(index, cost, &mut rng);
            }
            counts[least.index() as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        // 3,000 expected with a deviation of 45.
        assert!(
            counts[1..]
                .iter()
                .all(|count| (2_775..=3_225).contains(count)),
            "{counts:?}"
        );
        let before = rng.counter();
        let mut least = Least::new(9);
        least.offer(1, 3.0, &mut rng);
        least.offer(2, 4.0, &mut rng);
        assert_eq!((least.index(), rng.counter()), (1, before));
    }

    #[test]
    fn a_cost_that_is_no_number_loses() {
        let mut rng = Rng::new(1);
        let mut least = Least::new(9);
        assert!(!least.is_some());
        least.offer(1, f64::NAN, &mut rng);
        assert_eq!((least.index(), least.is_some()), (9, false));
        least.offer(2, 1e300, &mut rng);
        assert_eq!((least.index(), least.is_some()), (2, true));
    }

    #[test]
    fn shares_are_as_counted_by_hand() {
        let mut out = [0.0; 4];
        least_shares(&[(0, 2.0), (2, 1.0), (3, 1.0)], &mut out);
        assert_eq!(out, [0.0, 0.0, 0.5, 0.5]);
        // 6 pairs of 4: the best stands in 3, the equals share the other 3, the worst has none.
        let mut out = [0.0; 4];
        lesser_of_two_shares(&mut [(0, 5.0), (1, 1.0), (2, 3.0), (3, 3.0)], &mut out);
        assert_eq!(out, [0.0, 0.5, 0.25, 0.25]);
        let mut out = [0.0; 4];
        lesser_of_two_shares(&mut [(2, 5.0)], &mut out);
        assert_eq!(out, [0.0, 0.0, 1.0, 0.0]);
    }
}
