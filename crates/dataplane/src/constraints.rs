//! What stands above every balancer: which endpoints it may pick from at all.
//!
//! An endpoint takes calls if its static weight is positive, no operator drained it, connects to it
//! work, it is not ejected, and its health checks pass. Below the panic threshold the fault is more
//! likely with the network or with what all endpoints depend on than with each of them, and the few
//! that look well would be overrun: then ejections and health checks are ignored until enough are
//! well again. Endpoints that cannot be connected to stay out even then, since a call can do nothing
//! with them, unless there is no other.
//!
//! Where endpoints have priorities, the threshold decides about each of them first: the lowest number
//! of which enough endpoints are well takes all calls. Only if none has enough are all one set, and
//! that set in a panic.

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
    /// Indices that are well and get none, because another priority takes them, ascending.
    pub(crate) standby: Box<[u32]>,
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
                standby: Box::default(),
                reachable: false,
            };
        }
        let well = select(&|member| works(member) && member.is_well());
        if let Some(of_one) = by_priority(members, &all, &well, panic_threshold) {
            return of_one;
        }
        let enough = well.len() as f64 >= panic_threshold * all.len() as f64;
        let panic = !enough && well.len() < reachable.len();
        Self {
            usable: if panic { reachable } else { well },
            standby: Box::default(),
            panic,
            reachable: true,
        }
    }
}

/// Those of `well` that have the lowest priority of which enough are well, and the others of them.
/// `None` where there is one priority only, or none has enough: then all are one set.
fn by_priority(
    members: &[Member],
    all: &[u32],
    well: &[u32],
    panic_threshold: f64,
) -> Option<Candidates> {
    let priority = |index: &u32| members[*index as usize].priority;
    let mut priorities: Vec<u32> = all.iter().map(priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    if priorities.len() == 1 {
        return None;
    }
    let chosen = priorities.into_iter().find(|level| {
        let of_level =
            |indices: &[u32]| indices.iter().filter(|one| priority(one) == *level).count();
        let well = of_level(well);
        well > 0 && well as f64 >= panic_threshold * of_level(all) as f64
    })?;
    let (usable, standby): (Vec<_>, Vec<_>) = well.iter().partition(|one| priority(one) == chosen);
    Some(Candidates {
        usable: usable.into(),
        standby: standby.into(),
        panic: false,
        reachable: true,
    })
}
