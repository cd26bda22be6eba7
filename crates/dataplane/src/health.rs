//! Active health checks: each endpoint is asked itself, between calls, whether it serves.
//!
//! A check is a call of `grpc.health.v1.Health/Check`. Two kinds of bad news weigh differently. An
//! endpoint that answers that it does not serve knows better than anybody, and is left alone at
//! once. No answer may be a lost packet or a busy moment, so it takes some in a row; of an endpoint
//! that never passed a check nothing speaks for it, and one is enough. An endpoint is taken for
//! healthy until its first check ends, so that a sidecar serves as soon as it has endpoints.
//!
//! A check that finds no connection is no bad news: the pool knows of that already, keeps calls
//! away while connects fail, and finds the endpoint sooner when it comes back. One that does not
//! know the health service cannot be judged by it and counts as healthy.
//!
//! Who is unhealthy weighs like who is ejected: see `constraints`.

mod checks;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

pub(crate) use checks::Checks;

use crate::config::GrpcHealthConfig;
use crate::endpoint::Endpoint;
use crate::service::Service;

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It serves.
    Serving,
    /// It answers that it does not; with the answer.
    NotServing(&'static str),
    /// No answer that can be understood, for this reason.
    Failed(String),
    /// It has no health service.
    Unimplemented,
    /// Nothing was asked, for lack of a connection.
    NotConnected,
}

impl Verdict {
    /// Names of all kinds, the values of the label `result`.
    pub const KINDS: [&'static str; 5] = [
        "serving",
        "not_serving",
        "failed",
        "unimplemented",
        "not_connected",
    ];

    /// Its place among [`Verdict::KINDS`].
    #[must_use]
    pub const fn kind(&self) -> usize {
        match self {
            Self::Serving => 0,
            Self::NotServing(_) => 1,
            Self::Failed(_) => 2,
            Self::Unimplemented => 3,
            Self::NotConnected => 4,
        }
    }

    fn cause(&self) -> &str {
        match self {
            Self::NotServing(cause) => cause,
            Self::Failed(cause) => cause,
            other => Self::KINDS[other.kind()],
        }
    }
}

/// What checks have shown of one endpoint, in the endpoint.
#[derive(Debug, Default)]
pub struct Record {
    unhealthy: AtomicBool,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// A check has passed since the endpoint was found.
    passed: bool,
    passes: u32,
    failures: u32,
}

impl Record {
    /// Whether checks keep calls from the endpoint.
    #[must_use]
    pub fn is_unhealthy(&self) -> bool {
        self.unhealthy.load(Relaxed)
    }

    /// Takes in a check. True if the endpoint is judged otherwise than before.
    fn take_in(&self, verdict: &Verdict, config: &GrpcHealthConfig) -> bool {
        let mut history = self.history.lock();
        let before = self.is_unhealthy();
        let unhealthy = match verdict {
            Verdict::NotConnected => return false,
            Verdict::Serving | Verdict::Unimplemented => {
                history.failures = 0;
                history.passes = history.passes.saturating_add(1);
                let unhealthy = before && history.passes < config.healthy_after;
                history.passed |= !unhealthy;
                unhealthy
            }
            Verdict::NotServing(_) | Verdict::Failed(_) => {
                history.passes = 0;
                history.failures = history.failures.saturating_add(1);
                let at_once = matches!(verdict, Verdict::NotServing(_)) || !history.passed;
                before || at_once || history.failures >= config.unhealthy_after
            }
        };
        self.unhealthy.store(unhealthy, Relaxed);
        before != unhealthy
    }

    /// Forgets everything: nobody checks any more.
    pub(crate) fn clear(&self) {
        *self.history.lock() = History::default();
        self.unhealthy.store(false, Relaxed);
    }
}

impl Service {
    /// Takes in a check of one of its endpoints.
    pub fn checked(&self, endpoint: &Endpoint, verdict: &Verdict) {
        self.stats.health_checks[verdict.kind()].fetch_add(1, Relaxed);
        self.reconsider(|settings| {
            let config = settings.health.as_ref();
            let changed = config.is_some_and(|config| endpoint.health.take_in(verdict, config));
            if changed && endpoint.health.is_unhealthy() {
                let cause = verdict.cause();
                tracing::warn!(service = %self.name, endpoint = %endpoint.name, cause, "endpoint is unhealthy");
            } else if changed {
                endpoint.first_ready.clear();
                tracing::info!(service = %self.name, endpoint = %endpoint.name, "endpoint is healthy again");
            }
            changed
        });
    }
}

#[cfg(test)]
mod tests;
