//! Rules of a route, between the set of usable endpoints and the balancer.
//!
//! In this order: `pin` leaves only the named ones, and is void while none of them is usable;
//! `sticky` places a call that has the key by rendezvous hashing with bounded load, which moves no
//! more keys than it must when the set changes; zone preference keeps the rest in the own zone as
//! far as enough of it is well; `max_share` masks who had its share of the last picks; `explore` now
//! and then takes one that had too few. What depends on the set is prepared with the snapshot: the
//! balancer of a route with pins, and of each side of a zone boundary, is one of its own, so that
//! whatever it does it cannot leave its set.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use super::share::{Recent, Seconds};
use crate::attempt::RequestInfo;
use crate::balancer::learned::trace;
use crate::balancer::{Balancer, Bound, View};
use crate::config::{BalancerConfig, LocalityConfig, RulesConfig};
use crate::endpoint::Member;
use crate::hash::mix;
use crate::reason::Reason;
use crate::rng::Rng;

/// Calls in flight at most at a sticky endpoint, relative to a fair share.
const BOUND: f64 = 1.25;

/// Picks of a balancer that may be refused before the least loaded of the others is taken.
const TRIES: u32 = 8;

/// A rule that could not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Void {
    /// None of the pinned endpoints is usable.
    Pin,
    /// So few endpoints are left that some must have more.
    MaxShare,
}

impl Void {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Pin, Self::MaxShare];

    /// Its key in the policy, and its metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::MaxShare => "max_share",
        }
    }
}

/// How often each rule could not be kept.
pub type Voids = [AtomicU64; Void::ALL.len()];

/// What the rules of one route leave of a snapshot.
#[derive(Debug)]
pub(crate) struct Ruled {
    config: RulesConfig,
    /// Whom pins leave, ascending.
    usable: Box<[u32]>,
    pinned: bool,
    pin_void: bool,
    /// One side, or the own zone and the others; empty where the service's own balancer will do.
    sides: Box<[Side]>,
    /// Share of the calls that the first side takes.
    first_share: f64,
    history: Arc<History>,
}

#[derive(Debug)]
struct Side {
    usable: Box<[u32]>,
    balancer: Balancer,
}

/// Picks of a route; it outlives snapshots.
#[derive(Debug)]
struct History {
    ids: Box<[u64]>,
    recent: Option<Recent>,
    seconds: Option<Seconds>,
}

/// What the rules of a snapshot are built from.
pub(crate) struct Ground<'a> {
    pub(crate) view: View<'a>,
    pub(crate) balancer: &'a BalancerConfig,
    pub(crate) locality: Option<&'a LocalityConfig>,
}

impl Ruled {
    pub(crate) fn new(
        config: &RulesConfig,
        ground: &Ground<'_>,
        previous: Option<&Self>,
        rng: &mut Rng,
    ) -> Self {
        let view = ground.view;
        let is_pinned = |member: &Member| config.pin.contains(&member.endpoint.address);
        let select = |takes: &dyn Fn(&Member) -> bool| -> Box<[u32]> {
            let usable = view.usable.iter().copied();
            usable
                .filter(|index| takes(&view.members[*index as usize]))
                .collect()
        };
        let named = select(&is_pinned);
        let pinned = !named.is_empty();
        let pin_void = !pinned && !config.pin.is_empty();
        let among = |member: &Member| !pinned || is_pinned(member);
        let mut first_share = 1.0;
        let mut sets: Vec<Box<[u32]>> = Vec::new();
        if let Some(locality) = ground.locality {
            let own = |member: &Member| among(member) && member.zone == locality.own_zone;
            let far = |member: &Member| among(member) && member.zone != locality.own_zone;
            let takers = view
                .members
                .iter()
                .filter(|member| member.static_weight > 0.0);
            let priorities = view.usable.iter();
            let priorities = priorities.map(|index| view.members[*index as usize].priority);
            let (least, most) = (priorities.clone().min(), priorities.max());
            let in_use = |priority| Some(priority) >= least && Some(priority) <= most;
            let takers = takers.filter(|member| own(member) && in_use(member.priority));
            let takers = takers.count();
            sets = vec![select(&own), select(&far)];
            first_share = match (&*sets[0], &*sets[1]) {
                ([], _) => 0.0,
                (_, []) => 1.0,
                (own, _) => (own.len() as f64 / takers as f64 / locality.min_healthy).min(1.0),
            };
        } else if pinned {
            sets.push(named.clone());
        }
        let previous = previous.filter(|previous| previous.config == *config);
        let mut before = previous.map_or(&[][..], |previous| &previous.sides).iter();
        let mut side = |usable: Box<[u32]>| {
            let view = View {
                usable: &usable,
                ..view
            };
            let before = before.next().map(|side| &side.balancer);
            let balancer = Balancer::new(ground.balancer, view, before, rng);
            Side { usable, balancer }
        };
        Self {
            sides: sets.into_iter().map(&mut side).collect(),
            usable: if pinned { named } else { view.usable.into() },
            pinned,
            pin_void,
            first_share,
            history: History::following(previous.map(|previous| &previous.history), config, view),
            config: config.clone(),
        }
    }

    /// Places a call. `view` and `balancer` are the service's own; whom `takes` denies is left out
    /// while the other rules leave another one.
    pub(crate) fn pick(
        &self,
        view: View<'_>,
        balancer: &Balancer,
        (now_ns, request): (u64, RequestInfo),
        voids: &Voids,
        rng: &mut Rng,
        takes: &dyn Fn(u32) -> bool,
    ) -> (u32, Reason) {
        if self.pin_void {
            voids[Void::Pin as usize].fetch_add(1, Relaxed);
        }
        let share = self.share(now_ns, voids);
        let takes = |index: u32| match (&self.history.recent, share) {
            (Some(recent), Some(share)) => takes(index) && !recent.is_full(index, share),
            _ => takes(index),
        };
        let placed = self
            .place_sticky(view, request, takes)
            .or_else(|| self.explore(now_ns, rng, takes))
            .unwrap_or_else(|| self.balance(view, balancer, (now_ns, request), rng, takes));
        if let Some(recent) = &self.history.recent {
            recent.add(placed.0, now_ns);
        }
        if let Some(seconds) = &self.history.seconds {
            seconds.add(placed.0, now_ns);
        }
        placed
    }

    /// The share that nobody may exceed, if it can be kept.
    fn share(&self, now_ns: u64, voids: &Voids) -> Option<f64> {
        let share = self.config.max_share?;
        if let Some(recent) = &self.history.recent {
            recent.expire(now_ns);
        }
        if self.usable.len() as f64 * share < 1.0 - 1e-9 {
            voids[Void::MaxShare as usize].fetch_add(1, Relaxed);
            return None;
        }
        Some(share)
    }

    /// Rendezvous: of those with room the one whose hash with the key is the largest; a weight w
    /// scales it as -w / ln(hash).
    fn place_sticky(
        &self,
        view: View<'_>,
        request: RequestInfo,
        takes: impl Fn(u32) -> bool,
    ) -> Option<(u32, Reason)> {
        self.config.sticky.as_ref()?;
        let key = request.key?;
        self.usable.first()?;
        let weight = |index: u32| f64::from(view.members[index as usize].static_weight);
        let total: f64 = self.usable.iter().map(|&index| weight(index)).sum();
        let bound = Bound::of_weight(BOUND, total);
        let (mut best, mut open) = ((f64::MIN, 0), (f64::MIN, None));
        for &index in &self.usable {
            let endpoint = view.endpoint(index);
            let place = (mix(key ^ mix(endpoint.name_hash)) >> 11) as f64 + 0.5;
            let score = -weight(index) / libm::log(place / (1_u64 << 53) as f64);
            if score > best.0 {
                best = (score, index);
            }
            let has_room = !bound.is_full(view, index) && takes(index);
            if has_room && score > open.0 {
                open = (score, Some(index));
            }
        }
        Some((open.1.unwrap_or(best.1), Reason::Sticky))
    }

    fn explore(
        &self,
        now_ns: u64,
        rng: &mut Rng,
        takes: impl Fn(u32) -> bool,
    ) -> Option<(u32, Reason)> {
        let seconds = self.history.seconds.as_ref()?;
        if rng.unit_f64() >= self.config.explore {
            return None;
        }
        let share = self.config.explore / self.usable.len() as f64;
        seconds
            .neglected(&self.usable, share, now_ns, rng, takes)
            .map(|index| (index, Reason::Explore))
    }

    fn balance(
        &self,
        view: View<'_>,
        balancer: &Balancer,
        (now_ns, request): (u64, RequestInfo),
        rng: &mut Rng,
        takes: impl Fn(u32) -> bool,
    ) -> (u32, Reason) {
        let (usable, balancer) = match &*self.sides {
            [] => (view.usable, balancer),
            [only] => (&*only.usable, &only.balancer),
            [first, others, ..] => {
                let in_first = self.first_share >= 1.0
                    || (self.first_share > 0.0 && rng.unit_f64() < self.first_share);
                let side = if in_first { first } else { others };
                (&*side.usable, &side.balancer)
            }
        };
        let view = View { usable, ..view };
        let mut placed = match *usable {
            [only] => (only, Reason::Single),
            _ => pick_among(view, balancer, (now_ns, request), rng, &takes),
        };
        if !takes(placed.0) {
            placed = by_load(view, &self.usable, &takes).unwrap_or(placed);
        }
        match placed {
            (index, _) if self.pinned => (index, Reason::Pinned),
            placed => placed,
        }
    }

    /// Whom pins leave.
    pub(crate) fn usable(&self) -> &[u32] {
        &self.usable
    }

    /// Whether calls are split between zones before the balancer sees them.
    pub(crate) fn has_zones(&self) -> bool {
        self.sides.len() > 1
    }

    /// Whether zones or pins leave it a balancer of its own.
    pub(crate) fn has_sides(&self) -> bool {
        !self.sides.is_empty()
    }

    /// Lets balancers whose schedules follow reports look at them.
    pub(crate) fn refresh(&self, view: View<'_>, now_ns: u64) {
        for side in &self.sides {
            let view = View {
                usable: &side.usable,
                ..view
            };
            side.balancer.refresh(view, now_ns);
        }
    }

    /// The probability that each member is picked with, but for what depends on single calls.
    pub(crate) fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let shares = [self.first_share, 1.0 - self.first_share];
        let mut of_side = vec![0.0; out.len()];
        for (side, share) in self.sides.iter().zip(shares) {
            if side.usable.is_empty() {
                continue;
            }
            let view = View {
                usable: &side.usable,
                ..view
            };
            side.balancer.weights(view, now_ns, &mut of_side);
            for (out, weight) in out.iter_mut().zip(&of_side) {
                *out += weight * share as f32;
            }
        }
    }
}

/// What the balancer picks, as long as it is one that `takes`; else the least loaded that is, if
/// there is one.
#[inline]
pub(crate) fn pick_among(
    view: View<'_>,
    balancer: &Balancer,
    (now_ns, request): (u64, RequestInfo),
    rng: &mut Rng,
    takes: &dyn Fn(u32) -> bool,
) -> (u32, Reason) {
    if let Balancer::Learned(rule) = balancer {
        // It compares all that it may choose: asking again would change nothing.
        if let Some(placed) = rule.place(view, now_ns, request, rng, takes) {
            return placed;
        }
    }
    let mut placed = balancer.pick(view, now_ns, request, rng);
    for _ in 1..TRIES {
        if takes(placed.0) {
            return placed;
        }
        placed = balancer.pick(view, now_ns, request, rng);
    }
    if takes(placed.0) {
        return placed;
    }
    by_load(view, view.usable, takes).unwrap_or(placed)
}

/// The least loaded of those that `takes`, whatever the balancer compared before.
fn by_load(view: View<'_>, among: &[u32], takes: impl Fn(u32) -> bool) -> Option<(u32, Reason)> {
    let index = least_loaded(view, among, takes)?;
    trace::forget();
    Some((index, Reason::LeastRequest))
}

fn least_loaded(view: View<'_>, among: &[u32], takes: impl Fn(u32) -> bool) -> Option<u32> {
    let load = |index: u32| {
        let calls = f64::from(view.endpoint(index).live.in_flight()) + 1.0;
        calls / f64::from(view.members[index as usize].static_weight)
    };
    let open = among.iter().copied().filter(|index| takes(*index));
    open.min_by(|one, other| load(*one).total_cmp(&load(*other)))
}

impl History {
    /// That of the snapshot before, if there was one: moved where the set has changed.
    fn following(previous: Option<&Arc<Self>>, config: &RulesConfig, view: View<'_>) -> Arc<Self> {
        let ids: Box<[u64]> = view
            .members
            .iter()
            .map(|member| member.endpoint.id)
            .collect();
        let count = ids.len();
        let Some(previous) = previous else {
            return Arc::new(Self {
                recent: config.max_share.map(|_| Recent::new(count)),
                seconds: (config.explore > 0.0).then(|| Seconds::new(count)),
                ids,
            });
        };
        if previous.ids == ids {
            return Arc::clone(previous);
        }
        let places: std::collections::HashMap<u64, u32> = ids.iter().copied().zip(0..).collect();
        let index_of = |old: u32| places.get(&previous.ids[old as usize]).copied();
        Arc::new(Self {
            recent: previous
                .recent
                .as_ref()
                .map(|one| one.moved(count, index_of)),
            seconds: previous
                .seconds
                .as_ref()
                .map(|one| one.moved(count, index_of)),
            ids,
        })
    }
}
