//! `random`: at random, in proportion to static weights; no state, so nothing that could herd.
//!
//! Unequal weights are drawn from an alias table (Walker 1974, in the form of Vose 1991): one draw,
//! one comparison, whatever the number of endpoints.

use super::{equally_weighted, static_shares, View};
use crate::rng::Rng;

/// The draw of one snapshot.
#[derive(Debug)]
pub struct Random {
    /// Empty where all weights are equal.
    places: Vec<Place>,
}

/// As likely as every other place; below `keep` it stands for itself, else for `alias`.
#[derive(Debug, Clone, Copy)]
struct Place {
    keep: f64,
    /// Position among the usable endpoints.
    alias: u32,
}

impl Random {
    /// The draw among the usable endpoints of a view.
    #[must_use]
    pub fn new(view: View<'_>) -> Self {
        if equally_weighted(view) {
            return Self { places: Vec::new() };
        }
        let weights: Vec<_> = view
            .usable
            .iter()
            .map(|&index| f64::from(view.static_weight(index)))
            .collect();
        Self {
            places: alias_table(&weights),
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        view.ramped(now_ns, rng, |rng| self.draw(view, rng))
    }

    fn draw(&self, view: View<'_>, rng: &mut Rng) -> u32 {
        let position = rng.below(view.usable.len() as u32);
        let Some(place) = self.places.get(position as usize) else {
            return view.usable[position as usize];
        };
        let chosen = if rng.unit_f64() < place.keep {
            position
        } else {
            place.alias
        };
        view.usable[chosen as usize]
    }

    pub(super) fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        static_shares(view, now_ns, out);
    }
}

fn alias_table(weights: &[f64]) -> Vec<Place> {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let (mut light, mut heavy): (Vec<_>, Vec<_>) =
        (0..weights.len()).partition(|&position| left[position] < 1.0);
    let mut places: Vec<_> = (0..weights.len() as u32)
        .map(|alias| Place { keep: 1.0, alias })
        .collect();
    while let (Some(lesser), Some(&greater)) = (light.pop(), heavy.last()) {
        places[lesser] = Place {
            keep: left[lesser],
            alias: greater as u32,
        };
        left[greater] -= 1.0 - left[lesser];
        if left[greater] < 1.0 {
            heavy.pop();
            light.push(greater);
        }
    }
    // What is left over differs from 1 by rounding alone, and keeps its whole place.
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::Fleet;
    use super::{alias_table, Random};
    use crate::rng::Rng;

    #[test]
    fn a_table_is_as_computed_by_hand() {
        // Mean 2: 0.5, 1.5, 1. The first leaves half of its place to the third, which then leaves
        // half of its own to the second.
        let places = alias_table(&[1.0, 3.0, 2.0]);
        let found: Vec<_> = places
            .iter()
            .map(|place| (place.keep, place.alias))
            .collect();
        assert_eq!(found, [(0.5, 2), (1.0, 1), (0.5, 1)]);
    }

    #[test]
    fn draws_by_weight() {
        let fleet = Fleet::new(&[(1.0, 0), (0.0, 0), (3.0, 0), (6.0, 0)]);
        let random = Random::new(fleet.view());
        let mut rng = Rng::new(5);
        let mut counts = [0_u32; 4];
        for _ in 0..10_000 {
            counts[random.pick(fleet.view(), 0, &mut rng) as usize] += 1;
        }
        // 1,000, 3,000, 6,000 expected with deviations of 30, 46, 49.
        assert_eq!(counts[1], 0);
        assert!((850..=1_150).contains(&counts[0]), "{counts:?}");
        assert!((2_770..=3_230).contains(&counts[2]), "{counts:?}");
        assert!((5_755..=6_245).contains(&counts[3]), "{counts:?}");
    }

    proptest! {
        #[test]
        fn a_table_holds_every_weight(
            weights in proptest::collection::vec(1e-3_f64..1e3, 1..50),
        ) {
            let places = alias_table(&weights);
            let total: f64 = weights.iter().sum();
            let mut shares = vec![0.0; weights.len()];
            for (position, place) in places.iter().enumerate() {
                shares[position] += place.keep / weights.len() as f64;
                shares[place.alias as usize] += (1.0 - place.keep) / weights.len() as f64;
            }
            for (share, weight) in shares.iter().zip(&weights) {
                prop_assert!((share - weight / total).abs() < 1e-9);
            }
        }
    }
}
