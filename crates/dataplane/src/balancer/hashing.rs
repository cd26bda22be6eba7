//! What placement by a key shares: the bound on an endpoint's load, which sticky calls of a route
//! keep too, and for the consistent-hash balancers a walk over places from the key's own place to
//! the first endpoint that may take the call.
//!
//! Bounded load (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", SODA
//! 2018): an endpoint is full when one more call would be more than `bound` times its share of all
//! calls in flight, rounded up. A full one passes the call on to the next place, as does an endpoint
//! under slow start for the keys beyond its ramp: which keys that are is fixed by hash, so that each
//! key moves to a new endpoint once, and until then stays where it was before.

use super::View;
use crate::attempt::RequestInfo;
use crate::hash::mix;
use crate::rng::Rng;

/// Calls in flight at most, relative to a fair share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    factor: f64,
    /// Sum of static weights.
    total_weight: f64,
}

impl Bound {
    pub(super) fn new(factor: f64, view: View<'_>) -> Self {
        let weights = view
            .usable
            .iter()
            .map(|&index| f64::from(view.static_weight(index)));
        Self::of_weight(factor, weights.sum())
    }

    /// For endpoints whose static weights sum up to `total_weight`.
    pub(crate) const fn of_weight(factor: f64, total_weight: f64) -> Self {
        Self {
            factor,
            total_weight,
        }
    }

    /// Whether one more call would be too many.
    pub(crate) fn is_full(self, view: View<'_>, index: u32) -> bool {
        let live = &view.endpoint(index).live;
        let calls = live.in_flight();
        // The bound is at least 1 for everybody, which also spares an idle endpoint the arithmetic.
        if self.factor == 0.0 || calls == 0 {
            return false;
        }
        let share = f64::from(view.static_weight(index)) / self.total_weight;
        let most = (self.factor * (f64::from(live.in_flight_of_all()) + 1.0) * share).ceil();
        f64::from(calls) + 1.0 > most
    }
}

/// The call's key, evenly spread; without one the call goes anywhere.
pub(super) fn key_of(request: RequestInfo, rng: &mut Rng) -> u64 {
    request.key.map_or_else(|| rng.next_u64(), mix)
}

/// The endpoint of a key whose own place is `start` of `count`.
pub(super) fn walk(
    view: View<'_>,
    bound: Bound,
    (now_ns, key): (u64, u64),
    (start, count): (usize, usize),
    owner: impl Fn(usize) -> u32,
) -> u32 {
    let first = owner(start);
    let (mut last, mut open) = (None, None);
    for step in 0..count {
        let place = start + step;
        let index = owner(if place < count { place } else { place - count });
        if last == Some(index) {
            continue;
        }
        last = Some(index);
        if bound.is_full(view, index) {
            continue;
        }
        if takes_key(view, index, now_ns, key) {
            return index;
        }
        open = open.or(last);
    }
    // Everybody is new, or counters moved meanwhile.
    open.unwrap_or(first)
}

fn takes_key(view: View<'_>, index: u32, now_ns: u64, key: u64) -> bool {
    let Some(slow_start) = view.slow_start else {
        return true;
    };
    let endpoint = view.endpoint(index);
    let ramp = slow_start.ramp(&endpoint.first_ready, now_ns);
    let place = mix(key ^ mix(endpoint.name_hash)) >> 11;
    ramp >= 1.0 || (place as f64) < ramp * (1_u64 << 53) as f64
}

/// Adds the share of each place to the endpoint that takes its calls now. Slow start is left out:
/// it decides key by key.
pub(super) fn shares(
    view: View<'_>,
    bound: Bound,
    count: usize,
    owner: impl Fn(usize) -> u32,
    share: impl Fn(usize) -> f64,
    out: &mut [f32],
) {
    let mut full = vec![false; view.members.len()];
    for &index in view.usable {
        full[index as usize] = bound.is_full(view, index);
    }
    let mut sums = vec![0.0_f64; view.members.len()];
    // Backwards twice: places at the end go on at the beginning.
    let mut taker = None;
    for place in (0..count).rev() {
        let index = owner(place);
        if !full[index as usize] {
            taker = Some(index);
        }
    }
    for place in (0..count).rev() {
        let index = owner(place);
        if !full[index as usize] {
            taker = Some(index);
        }
        sums[taker.unwrap_or(index) as usize] += share(place);
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum as f32;
    }
}
