//! What the routes of a service say about trying calls again, with what that goes by: the budget
//! of retries, the share of hedges. One per route that has a rule, shared by all data threads; it
//! outlives a reload that leaves the rule as it is.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use crate::config::{HedgeConfig, PathMatch, RetryConfig, RouteConfig};
use crate::hedge::{Purse, TailSource};
use crate::retry::{Budget, Refused};

/// The rule of one route.
#[derive(Debug)]
pub struct Repetition {
    matcher: PathMatch,
    /// Calls that fail are tried again.
    pub retry: Option<(RetryConfig, Budget)>,
    /// Calls that take long are tried twice at once.
    pub hedge: Option<(HedgeConfig, Purse)>,
}

impl Repetition {
    /// That of a route, if it has one.
    #[must_use]
    pub fn of(route: &RouteConfig) -> Option<Self> {
        let retry = route.retry.as_ref();
        let hedge = route.hedge.as_ref();
        (retry.is_some() || hedge.is_some()).then(|| Self {
            matcher: route.matcher.clone(),
            retry: retry.map(|rule| (rule.clone(), Budget::new(&rule.budget))),
            hedge: hedge.map(|rule| (rule.clone(), Purse::new(rule.max_share))),
        })
    }

    /// The one of the settings before, where it says the same.
    #[must_use]
    pub fn following(self, previous: &[Arc<Self>]) -> Arc<Self> {
        let mut previous = previous.iter();
        let same = previous.find(|other| {
            let rules = |one: &Self| {
                let retry = one.retry.as_ref().map(|(rule, _)| rule.clone());
                (retry, one.hedge.as_ref().map(|(rule, _)| rule.clone()))
            };
            other.matcher == self.matcher && rules(other) == rules(&self)
        });
        same.map_or_else(|| Arc::new(self), Arc::clone)
    }
}

/// Counters of a service; relaxed, each read for itself.
#[derive(Debug, Default)]
pub struct RepetitionStats {
    /// Attempts that were not followed by another, though their status is one that is, by the
    /// reason.
    pub refused: [AtomicU64; Refused::ALL.len()],
    /// Attempts beside which another may be sent at a percentile, by how its time was found.
    pub tails: [AtomicU64; TailSource::ALL.len()],
    /// Attempts sent beside others that still ran.
    pub hedges: AtomicU64,
    /// Of them, those whose answer the client got.
    pub hedges_won: AtomicU64,
    /// Those that were not sent, because `max_share` is used up.
    pub hedges_refused: AtomicU64,
    /// Bytes that are kept to be sent again, now.
    pub replay_bytes: AtomicU64,
}
