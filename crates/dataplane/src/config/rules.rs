//! The part of the configuration that stands above a balancer's choice.

use serde::Deserialize;

use super::balancer::within;
use super::check;
use crate::address::Address;
use crate::error::ConfigError;

/// Rules of a route. What they mean stands in docs/rules.md.
#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct RulesConfig {
    /// Only these endpoints, while one of them is usable.
    pub pin: Vec<Address>,
    /// Calls with the same key go to the same endpoint.
    pub sticky: Option<StickyConfig>,
    /// Share of the route's last picks that one endpoint may have, > 0..=1.
    pub max_share: Option<f64>,
    /// Probability with which a call tries an endpoint that had too few, 0..=1.
    pub explore: f64,
}

/// Where the key of a sticky call is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StickyConfig {
    /// Request header, in lower case; a call without it is not sticky.
    pub header: String,
}

/// Zone preference of a service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalityConfig {
    /// The sidecar's own zone.
    pub own_zone: String,
    /// Share of the own zone's endpoints, > 0..=1, that must be usable for it to take all calls.
    pub min_healthy: f64,
}

impl RulesConfig {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        if let Some(share) = self.max_share {
            within(share, 0.001..=1.0, at, "max_share")?;
        }
        if let Some(sticky) = &self.sticky {
            let valid = http::HeaderName::from_bytes(sticky.header.as_bytes()).is_ok();
            check(valid, &format!("{at}.sticky.header"), || {
                format!("found `{}`, expected a header name", sticky.header)
            })?;
        }
        within(self.explore, 0.0..=1.0, at, "explore")
    }
}

impl LocalityConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        within(self.min_healthy, 0.01..=1.0, at, "min_healthy")
    }
}
