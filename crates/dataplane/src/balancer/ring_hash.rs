//! `ring_hash`: consistent hashing on a ring (Karger et al. 1997; as in Envoy and gRFC A42), with
//! bounded load.
//!
//! Each endpoint has points on a ring of 2^64, by default 100 for a mean static weight and at least
//! one; a key belongs to the first point at or after its hash. When one of equals leaves, only its
//! keys move, because the points of the others stay where they are. Shares are as uneven as chance
//! places the points: with 100 some 10 % around the fair one. `maglev` is even, and moves a few keys
//! of others.

use std::sync::Arc;

use super::hashing::{key_of, shares, walk, Bound};
use super::View;
use crate::attempt::RequestInfo;
use crate::config::RingHashConfig;
use crate::hash::mix;
use crate::rng::Rng;

/// Points on a ring at most, whatever is configured: 16 MiB.
const POINTS_MAX: f64 = 1_048_576.0;

/// The ring of one snapshot.
#[derive(Debug)]
pub struct RingHash {
    points_per_endpoint: u32,
    bound: Bound,
    identity: Vec<(u64, f32)>,
    /// Hash of each point, ascending, and position of its endpoint among the usable ones.
    points: Arc<[(u64, u32)]>,
}

impl RingHash {
    /// The ring of the usable endpoints; that of `previous`, if it is the same.
    #[must_use]
    pub fn new(config: &RingHashConfig, view: View<'_>, previous: Option<&Self>) -> Self {
        let identity = view.identity();
        let points = match previous {
            Some(previous)
                if previous.identity == identity
                    && previous.points_per_endpoint == config.points_per_endpoint =>
            {
                Arc::clone(&previous.points)
            }
            _ => points(view, config.points_per_endpoint).into(),
        };
        Self {
            points_per_endpoint: config.points_per_endpoint,
            bound: Bound::new(config.bounded_load, view),
            identity,
            points,
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
        let place = self.points.partition_point(|(hash, _)| *hash < key);
        let place = if place < self.points.len() { place } else { 0 };
        let around = (place, self.points.len());
        walk(view, self.bound, (now_ns, key), around, |place| {
            self.owner(view, place)
        })
    }

    fn owner(&self, view: View<'_>, place: usize) -> u32 {
        view.usable[self.points[place].1 as usize]
    }

    pub(super) fn weights(&self, view: View<'_>, _now_ns: u64, out: &mut [f32]) {
        let before = |place: usize| match place {
            0 => self.points[self.points.len() - 1].0,
            _ => self.points[place - 1].0,
        };
        // The arc that ends at a point; one point alone has the whole ring.
        let arc = |place: usize| {
            if self.points.len() == 1 {
                return 1.0;
            }
            self.points[place].0.wrapping_sub(before(place)) as f64 / 2_f64.powi(64)
        };
        let owner = |place| self.owner(view, place);
        shares(view, self.bound, self.points.len(), owner, arc, out);
    }
}

fn points(view: View<'_>, points_per_endpoint: u32) -> Vec<(u64, u32)> {
    if view.usable.is_empty() {
        return Vec::new();
    }
    let weights = || {
        view.usable
            .iter()
            .map(|&index| f64::from(view.static_weight(index)))
    };
    let count = view.usable.len() as f64;
    let mean = weights().sum::<f64>() / count;
    let each = f64::from(points_per_endpoint).min(POINTS_MAX / count);
    let mut points = Vec::with_capacity((each * count) as usize + view.usable.len());
    for (position, (&index, weight)) in (0_u32..).zip(view.usable.iter().zip(weights())) {
        let copies = (each * weight / mean).round().max(1.0) as u64;
        let name = view.endpoint(index).name_hash;
        points.extend((0..copies).map(|copy| (mix(name.wrapping_add(copy)), position)));
    }
    points.sort_unstable();
    points
}

#[cfg(test)]
mod tests {
    use super::super::testing::{key, Bench};
    use crate::config::{BalancerConfig, RingHashConfig};

    fn config(bounded_load: f64) -> BalancerConfig {
        BalancerConfig::RingHash(RingHashConfig {
            bounded_load,
            ..RingHashConfig::default()
        })
    }

    #[test]
    fn a_key_stays_and_only_keys_of_who_leaves_move() {
        let bench = Bench::new(config(0.0), &[1.0; 10]);
        let before: Vec<_> = (0..1000).map(|id| bench.pick_key(0, key(id))).collect();
        let again: Vec<_> = (0..1000).map(|id| bench.pick_key(9, key(id))).collect();
        assert_eq!(before, again);
        bench.set_weights(&[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        for (id, owner) in before.into_iter().enumerate() {
            let after = bench.pick_key(0, key(id as u64));
            assert!(after == owner || owner == 3, "key {id}: {owner} to {after}");
            assert_ne!(after, 3);
        }
    }

    #[test]
    fn shares_follow_weights_and_are_those_of_the_ring() {
        let bench = Bench::new(config(0.0), &[1.0, 3.0, 4.0]);
        let weights = bench.weights(0);
        for (found, expected) in weights.iter().zip([0.125, 0.375, 0.5]) {
            // Of n points, a share p varies by about sqrt(p (1 - p) / n): 3 deviations.
            assert!((found - expected).abs() < 0.09, "{weights:?}");
        }
        let mut counts = [0_u32; 3];
        for id in 0..20_000 {
            counts[bench.pick_key(0, key(id)) as usize] += 1;
        }
        for (count, weight) in counts.iter().zip(&weights) {
            assert!(
                (f64::from(*count) / 2e4 - f64::from(*weight)).abs() < 0.018,
                "{counts:?}"
            );
        }
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
        // Of 40 calls each may have ceil(1.25 * 40 / 4) = 13.
        assert!(counts.iter().all(|count| *count <= 13), "{counts:?}");
        assert!(counts[owner as usize] >= 12, "{counts:?}");
        assert_eq!(bench.weights(0)[owner as usize], 0.0);
        assert!((bench.weights(0).iter().sum::<f32>() - 1.0).abs() < 1e-5);
        drop(held);
        assert_eq!(bench.pick_key(0, key(7)), owner);
    }

    #[test]
    fn a_call_without_a_key_goes_anywhere() {
        let bench = Bench::new(config(1.25), &[1.0; 4]);
        let mut counts = [0_u32; 4];
        for _ in 0..4000 {
            counts[bench.pick(0).0 as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (700..1300).contains(count)),
            "{counts:?}"
        );
    }
}
