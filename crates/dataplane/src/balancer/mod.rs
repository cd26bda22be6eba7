//! Balancers: which of the usable endpoints takes the next call.
//!
//! Sans-IO and deterministic: a pick is a function of the view, the live counters, the time and
//! the draws it is handed, so that the simulator drives the very code that production runs. A
//! balancer is built anew with each snapshot, off the path of calls; what must outlive a snapshot
//! (the position of a schedule) it takes over from its predecessor.

mod least_request;
mod round_robin;

pub use least_request::LeastRequest;
pub use round_robin::RoundRobin;

use crate::config::BalancerConfig;
use crate::endpoint::Member;
use crate::rng::Rng;

/// What a pick may look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Every endpoint of the snapshot.
    pub members: &'a [Member],
    /// Indices of those that may take calls, ascending, never empty; static weights are > 0.
    pub usable: &'a [u32],
}

/// The balancer of a service, as its policy names it.
#[derive(Debug)]
pub enum Balancer {
    /// In turn, in proportion to static weights.
    RoundRobin(RoundRobin),
    /// The least loaded of a few drawn endpoints, or of all.
    LeastRequest(LeastRequest),
}

impl Balancer {
    /// The balancer for a snapshot; `previous` is the one of the snapshot that it replaces.
    ///
    /// Every later call must hand in a view equal to this one. Unlike there, `usable` may be empty
    /// here.
    #[must_use]
    pub fn new(
        config: &BalancerConfig,
        view: View<'_>,
        previous: Option<&Self>,
        rng: &mut Rng,
    ) -> Self {
        match config {
            BalancerConfig::RoundRobin {} => {
                let previous = match previous {
                    Some(Self::RoundRobin(previous)) => Some(previous),
                    _ => None,
                };
                Self::RoundRobin(RoundRobin::new(view, previous, rng))
            }
            BalancerConfig::LeastRequest { choice_count, with_replacement } => {
                Self::LeastRequest(LeastRequest::new(*choice_count, *with_replacement, view))
            }
        }
    }

    /// Its name in policies, metrics and admin.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin(_) => "round_robin",
            Self::LeastRequest(_) => "least_request",
        }
    }

    /// Index into the members of the endpoint that takes the next call.
    ///
    /// `now_ns` is monotonic time, for rules that let what they know decay; it never allocates.
    #[must_use]
    pub fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        // The rules of this enum so far know no time; those that follow do.
        let _ = now_ns;
        debug_assert!(!view.usable.is_empty(), "the caller answers when no endpoint is usable");
        match self {
            Self::RoundRobin(balancer) => balancer.pick(view),
            Self::LeastRequest(balancer) => balancer.pick(view, rng),
        }
    }

    /// The probability that the rule gives each member now: `out` has one place per member, 0 for
    /// what is not usable; the rest sums to 1. Not for the path of calls: it allocates.
    pub fn weights(&self, view: View<'_>, out: &mut [f32]) {
        debug_assert_eq!(out.len(), view.members.len());
        out.fill(0.0);
        match self {
            Self::RoundRobin(balancer) => balancer.weights(view, out),
            Self::LeastRequest(balancer) => balancer.weights(view, out),
        }
    }
}

/// Whether every usable endpoint has the same static weight, which spares a pick the arithmetic.
fn equally_weighted(view: View<'_>) -> bool {
    let mut weights = view.usable.iter().map(|&index| static_weight(view, index));
    match weights.next() {
        Some(first) => weights.all(|weight| weight == first),
        None => true,
    }
}

fn static_weight(view: View<'_>, index: u32) -> f32 {
    view.members[index as usize].static_weight
}
