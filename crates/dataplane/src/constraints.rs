//! What stands above every balancer: which endpoints it may pick from at all.
//!
//! An endpoint takes calls if its static weight is positive, no operator drained it, connects to it
//! work, it is not ejected, and its health checks pass. Below the panic threshold the fault is more
//! likely with the network or with what all endpoints depend on than with each of them, and the few
//! that look well would be overrun: then ejections and health checks are ignored until enough are
//! well again. Endpoints that cannot be connected to stay out even then, since a call can do nothing
//! with them, unless there is no other.

mod rules;
mod share;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::Relaxed;

pub(crate) use rules::{pick_among, Ground, Ruled};
pub use rules::{Void, Voids};

use crate::endpoint::Member;

/// The outcome for a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Indices that may take calls, ascending.
    pub(crate) usable: Box<[u32]>,
    /// Endpoints that are not well are among them, for lack of better ones.
    pub(crate) panic: bool,
    /// Connects to some of them work.
    pub(crate) reachable: bool,
}

impl Candidates {
    /// Judges a set. `panic_threshold`: share of the endpoints that must be well, 0..=1.
    pub(crate) fn of(members: &[Member], panic_threshold: f64) -> Self {
        let select = |takes: &dyn Fn(&Member) -> bool| -> Box<[u32]> {
            (0_u32..)
                .zip(members)
                .filter(|(_, member)| member.takes_calls() && takes(member))
                .map(|(index, _)| index)
                .collect()
        };
        let works = |member: &Member| !member.endpoint.live.failing.load(Relaxed);
        let all = select(&|_| true);
        let reachable = select(&works);
        if reachable.is_empty() {
            return Self {
                panic: !all.is_empty(),
                usable: all,
                reachable: false,
            };
        }
        let well = select(&|member| works(member) && member.is_well());
        let enough = well.len() as f64 >= panic_threshold * all.len() as f64;
        let panic = !enough && well.len() < reachable.len();
        Self {
            usable: if panic { reachable } else { well },
            panic,
            reachable: true,
        }
    }
}
