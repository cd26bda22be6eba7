//! A seeded simulator that drives the production picker: no sockets, no Python inside.
//!
//! The life of a simulated call, by file:
//! 1. `arrivals` draws when it comes, its class and its work, the same for every balancer.
//! 2. `world` hands it to a `sidecar`, which is a production [`Service`] with a view of its own and
//!    knows no more than a real one.
//! 3. `world` lets it travel; the model in `endpoint` lets it wait and works on it, while `script`
//!    makes endpoints slow, fail, hang, restart, join and leave.
//! 4. Back at its sidecar, the balancer learns from it, and `recorder` writes it down for the
//!    `outcome`.
//!
//! `simulation` lets somebody drive a run step by step, to learn from it meanwhile.
//!
//! `agenda` keeps what comes next in order, `scenario` says what is simulated, and `oracle` is the
//! picker that knows everything. One seed gives one result, bit for bit, on any machine.
//!
//! [`Service`]: attnroute_dataplane::service::Service
#![forbid(unsafe_code)]

mod agenda;
mod arrivals;
mod draws;
mod endpoint;
mod oracle;
pub mod outcome;
mod recorder;
pub mod scenario;
mod script;
mod sidecar;
mod simulation;
#[cfg(test)]
mod tests;
mod world;

use std::sync::Arc;

use attnroute_dataplane::config::ServiceConfig;
use attnroute_dataplane::error::{ConfigError, Error};
pub use simulation::Simulation;

use outcome::Outcome;
use scenario::Scenario;
use serde_json::{json, Value};

/// The balancer that only exists here.
pub const ORACLE: &str = "oracle";

/// Who picks, checked.
#[derive(Debug, Clone)]
pub struct Balancer {
    name: String,
    /// None: the oracle.
    config: Option<ServiceConfig>,
}

impl Balancer {
    /// From the balancer of a compiled policy, such as `{"type": "least_request"}`, or
    /// `{"type": "oracle"}`.
    ///
    /// # Errors
    /// The data plane refuses it.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let balancer: Value = serde_json::from_slice(json).map_err(|error| ConfigError {
            path: ".".into(),
            message: error.to_string(),
        })?;
        let name = balancer["type"].as_str().unwrap_or_default().to_owned();
        if balancer == json!({ "type": ORACLE }) {
            return Ok(Self { name, config: None });
        }
        let service = json!({
            "name": "simulated",
            "authorities": ["*"],
            "balancer": balancer,
            "limits": {"max_inflight": u32::MAX, "max_endpoints": 100_000},
        });
        let config = ServiceConfig::parse(service.to_string().as_bytes())?;
        Ok(Self {
            name,
            config: Some(config),
        })
    }
}

/// Plays a scenario once. It runs for as long as it takes: some microseconds for each call.
#[must_use]
pub fn simulate(scenario: Arc<Scenario>, balancer: &Balancer, seed: u64) -> Outcome {
    Simulation::new(scenario, balancer, seed).finish()
}
