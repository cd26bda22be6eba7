//! A run that somebody else drives: it is played up to a time, then looked at, then played on.
//!
//! Learning happens outside, between two steps: whoever drives takes the windows of the sidecars'
//! services and gives them scores, as the control thread of a real sidecar does. How a run is cut
//! into steps changes nothing.

use std::sync::Arc;

use attnroute_dataplane::config::{BalancerConfig, RequestClassConfig};
use attnroute_dataplane::service::Service;

use crate::outcome::Outcome;
use crate::scenario::Scenario;
use crate::world::{Pickers, World};
use crate::Balancer;

/// A run in progress.
#[derive(Debug)]
pub struct Simulation {
    world: World,
    balancer: String,
}

impl Simulation {
    /// A run at its beginning.
    #[must_use]
    pub fn new(scenario: Arc<Scenario>, balancer: &Balancer, seed: u64) -> Self {
        let config = balancer.config.clone().map(|mut config| {
            config.outlier_detection = scenario.outlier_detection;
            if matches!(config.balancer, BalancerConfig::Learned(_)) {
                config.request_class = Some(RequestClassConfig {
                    message_bytes_buckets: scenario.size_bounds(),
                    ..RequestClassConfig::default()
                });
            }
            config
        });
        Self {
            world: World::new(scenario, config.as_ref(), seed),
            balancer: balancer.name.clone(),
        }
    }

    /// Plays all that comes before `until_ns`; false if nothing is left to come.
    pub fn run_until(&mut self, until_ns: u64) -> bool {
        self.world.advance(until_ns)
    }

    /// Time since the beginning.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.world.now_ns
    }

    /// Number of sidecars that pick; 0 where the oracle does.
    #[must_use]
    pub fn sidecars(&self) -> usize {
        match &self.world.pickers {
            Pickers::Sidecars(sidecars) => sidecars.len(),
            Pickers::Oracle(_) => 0,
        }
    }

    /// The service of a sidecar; `None` where there is no such sidecar.
    #[must_use]
    pub fn service(&self, sidecar: usize) -> Option<&Service> {
        match &self.world.pickers {
            Pickers::Sidecars(sidecars) => Some(sidecars.get(sidecar)?.service()),
            Pickers::Oracle(_) => None,
        }
    }

    /// Plays to the end.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        self.world.advance(u64::MAX);
        self.world.outcome(self.balancer)
    }
}
