//! `maglev`: consistent hashing in a table (Eisenbud et al., "Maglev: A fast and reliable software
//! network load balancer", NSDI 2016, 3.4), with bounded load.
//!
//! Each endpoint has its own order of all places, `offset + j * skip` modulo a prime number of
//! them; in turn each takes the first place of its order that is free, until all are taken. Shares
//! are even to a place, a look-up is one index, and when an endpoint leaves, few keys of others
//! move. A weight below the largest makes an endpoint skip turns (as in Envoy); its first turn it
//! always has.

use std::sync::Arc;

use super::hashing::{key_of, shares, walk, Bound};
use super::View;
use crate::attempt::RequestInfo;
use crate::config::MaglevConfig;
use crate::hash::mix;
use crate::rng::Rng;

/// The table of one snapshot.
#[derive(Debug)]
pub struct Maglev {
    bound: Bound,
    identity: Vec<(u64, f32)>,
    /// Position of the endpoint of each place among the usable ones; empty if nobody is usable.
    table: Arc<[u32]>,
}

impl Maglev {
    /// The table of the usable endpoints; that of `previous`, if it is the same.
    #[must_use]
    pub fn new(config: &MaglevConfig, view: View<'_>, previous: Option<&Self>) -> Self {
        let identity = view.identity();
        let table = match previous {
            Some(previous)
                if previous.identity == identity
                    && previous.table.len() == config.table_size as usize =>
            {
                Arc::clone(&previous.table)
            }
            _ => table(view, u64::from(config.table_size)).into(),
        };
        Self {
            bound: Bound::new(config.bounded_load, view),
            identity,
            table,
        }
    }

    pub(super) fn pick(
        &self,
        view: View<'_>,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
    ) -> u32 {
        let key = key_of(request, rng);
        let count = self.table.len();
        let place = (key % count as u64) as usize;
        let owner = |place: usize| view.usable[self.table[place] as usize];
        walk(view, self.bound, (now_ns, key), (place, count), owner)
    }

    pub(super) fn weights(&self, view: View<'_>, _now_ns: u64, out: &mut [f32]) {
        let count = self.table.len();
        let owner = |place: usize| view.usable[self.table[place] as usize];
        shares(view, self.bound, count, owner, |_| 1.0 / count as f64, out);
    }
}

/// Nobody has the place.
const FREE: u32 = u32::MAX;

struct Order {
    next: u64,
    skip: u64,
    /// Share of a turn that its weight gives.
    weight: f64,
    credit: f64,
}

fn table(view: View<'_>, size: u64) -> Vec<u32> {
    if view.usable.is_empty() {
        return Vec::new();
    }
    let weights = view
        .usable
        .iter()
        .map(|&index| f64::from(view.static_weight(index)));
    let heaviest = weights.fold(0.0, f64::max);
    let mut orders: Vec<_> = view
        .usable
        .iter()
        .map(|&index| {
            let name = view.endpoint(index).name_hash;
            Order {
                next: name % size,
                // A table of two places has only one step.
                skip: mix(name) % (size - 1).max(1) + 1,
                weight: f64::from(view.static_weight(index)) / heaviest,
                credit: 1.0,
            }
        })
        .collect();
    let mut table = vec![FREE; size as usize];
    let mut free = size;
    loop {
        for (position, order) in (0_u32..).zip(&mut orders) {
            if order.credit < 1.0 {
                order.credit += order.weight;
                continue;
            }
            order.credit += order.weight - 1.0;
            while table[order.next as usize] != FREE {
                order.next = (order.next + order.skip) % size;
            }
            table[order.next as usize] = position;
            free -= 1;
            if free == 0 {
                return table;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, Bench};
    use crate::config::{BalancerConfig, MaglevConfig};

    fn config(bounded_load: f64) -> BalancerConfig {
        BalancerConfig::Maglev(MaglevConfig {
            bounded_load,
            ..MaglevConfig::default()
        })
    }

    #[test]
    fn shares_are_even_to_a_place() {
        let bench = Bench::new(config(0.0), &[1.0; 10]);
        for weight in bench.weights(0) {
            let places = f64::from(weight) * 65_537.0;
            assert!((6_553.0 - 0.5..=6_554.5).contains(&places), "{places}");
        }
    }

    #[test]
    fn shares_follow_weights() {
        let bench = Bench::new(config(0.0), &[1.0, 0.0, 3.0, 4.0]);
        for (found, expected) in bench.weights(0).iter().zip([0.125, 0.0, 0.375, 0.5]) {
            assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        }
        let mut counts = [0_u32; 4];
        for id in 0..20_000 {
            counts[bench.pick_key(0, key(id)) as usize] += 1;
        }
        // 2,500, 7,500, 10,000 with deviations of 47, 68, 71.
        assert_eq!(counts[1], 0);
        assert!((2_260..=2_740).contains(&counts[0]), "{counts:?}");
        assert!((9_640..=10_360).contains(&counts[3]), "{counts:?}");
    }

    #[test]
    fn few_keys_of_others_move() {
        let bench = Bench::new(config(0.0), &[1.0; 10]);
        let before: Vec<_> = (0..5000).map(|id| bench.pick_key(0, key(id))).collect();
        bench.set_weights(&[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let mut moved = 0;
        for (id, owner) in before.into_iter().enumerate() {
            let after = bench.pick_key(0, key(id as u64));
            assert_ne!(after, 3);
            moved += u32::from(after != owner && owner != 3);
        }
        // The paper measures some percent; a plain modulus would move 90 %.
        assert!(moved < 500, "{moved} of 4500");
    }

    #[test]
    fn a_full_endpoint_passes_calls_on() {
        let bench = Bench::new(config(1.25), &[1.0; 4]);
        let owner = bench.pick_key(0, key(7));
        let held: Vec<_> = (0..40).map(|_| bench.begin_key(0, key(7))).collect();
        let mut counts = [0_u32; 4];
        for attempt in &held {
            counts[attempt.index() as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count <= 13), "{counts:?}");
        assert!(counts[owner as usize] >= 12, "{counts:?}");
        assert_eq!(bench.weights(0)[owner as usize], 0.0);
    }
}
