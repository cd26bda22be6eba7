//! The part of the configuration that says how an `inbound` listener treats its server.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{check, EndpointConfig, EndpointSetConfig};
use crate::address::Address;
use crate::error::ConfigError;

/// Longest wait in a queue.
const QUEUE_TIMEOUT_MAX_MS: u64 = 3_600_000;

/// In front of which server a listener stands, and how many calls it lets in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InboundConfig {
    /// Where the server listens.
    pub target: Address,
    /// Calls that it works on at a time; `None`: as many as come.
    #[serde(default)]
    pub max_concurrency: Option<u32>,
    /// Calls that wait for one of those places.
    #[serde(default)]
    pub queue: QueueConfig,
    /// Shortest interval of reports out of band, whatever a client asks for.
    #[serde(default = "min_report_interval_ms")]
    pub min_report_interval_ms: u64,
}

/// Calls that wait in front of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// How many; 0: none waits.
    pub max_length: u32,
    /// For how long.
    pub timeout_ms: u64,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_length: 100,
            timeout_ms: 500,
        }
    }
}

fn min_report_interval_ms() -> u64 {
    100
}

impl InboundConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        check(self.target.port() != Some(0), at, || {
            "target: port 0 cannot be dialled".into()
        })?;
        check(self.max_concurrency != Some(0), at, || {
            "max_concurrency must be at least 1".into()
        })?;
        let timeout_ms = self.queue.timeout_ms;
        check((1..=QUEUE_TIMEOUT_MAX_MS).contains(&timeout_ms), at, || {
            format!("queue.timeout_ms must be 1 to {QUEUE_TIMEOUT_MAX_MS}")
        })?;
        check(self.min_report_interval_ms >= 1, at, || {
            "min_report_interval_ms must be at least 1".into()
        })
    }

    /// The server as the only endpoint of a service.
    pub(crate) fn endpoints(&self) -> EndpointSetConfig {
        EndpointSetConfig {
            endpoints: vec![EndpointConfig {
                address: self.target.clone(),
                static_weight: super::unit_weight(),
                zone: String::new(),
                labels: BTreeMap::new(),
                priority: 0,
                operator_override: None,
            }],
        }
    }
}
