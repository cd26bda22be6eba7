//! The part of the configuration that says when an endpoint is left alone.

use serde::Deserialize;

use super::balancer::{positive, within};
use super::check;
use crate::error::ConfigError;

/// When calls show that an endpoint is ill, and for how long it then gets none. The rules and
/// where their defaults come from stand in docs/health.md.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierConfig {
    /// Failures in a row that eject; 0 switches the criterion off.
    pub consecutive_errors: u32,
    /// Time between two judgements by success rate and latency.
    pub interval_ms: u64,
    /// Length of the first ejection; it doubles with each further one.
    pub base_ejection_ms: u64,
    /// Longest ejection.
    pub max_ejection_ms: u64,
    /// Share of the endpoints that may be ejected at once, judged after the ejection, 0..=1.
    pub max_ejected: f64,
    /// Ejects whose success rate is far below the others'.
    pub success_rate: Option<SuccessRateConfig>,
    /// Ejects whose latency is far above the others'.
    pub latency: Option<LatencyOutlierConfig>,
}

impl Default for OutlierConfig {
    fn default() -> Self {
        Self {
            consecutive_errors: 5,
            interval_ms: 10_000,
            base_ejection_ms: 30_000,
            max_ejection_ms: 300_000,
            max_ejected: 0.5,
            success_rate: None,
            latency: None,
        }
    }
}

/// By success rate.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuccessRateConfig {
    /// Standard deviations below the mean of all endpoints, > 0.
    pub stdev_factor: f64,
    /// Endpoints that must have enough calls, >= 2.
    pub min_endpoints: u32,
    /// Calls in an interval that are enough, >= 1.
    pub min_calls: u32,
}

impl Default for SuccessRateConfig {
    fn default() -> Self {
        Self {
            stdev_factor: 1.9,
            min_endpoints: 5,
            min_calls: 100,
        }
    }
}

/// By latency.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LatencyOutlierConfig {
    /// Times the median of all endpoints' mean latencies, > 1.
    pub factor: f64,
    /// Endpoints that must have enough calls, >= 2.
    pub min_endpoints: u32,
    /// Successes in an interval that are enough, >= 1.
    pub min_calls: u32,
}

impl Default for LatencyOutlierConfig {
    fn default() -> Self {
        Self {
            factor: 4.0,
            min_endpoints: 3,
            min_calls: 20,
        }
    }
}

impl OutlierConfig {
    /// Checks every value; errors name it below `at`.
    ///
    /// # Errors
    /// A value out of its range.
    pub fn validate(&self, at: &str) -> Result<(), ConfigError> {
        positive(self.interval_ms, at, "interval_ms")?;
        positive(self.base_ejection_ms, at, "base_ejection_ms")?;
        check(
            self.max_ejection_ms >= self.base_ejection_ms,
            &format!("{at}.max_ejection_ms"),
            || "must be at least base_ejection_ms".into(),
        )?;
        within(self.max_ejected, 0.0..=1.0, at, "max_ejected")?;
        if let Some(rate) = &self.success_rate {
            let at = format!("{at}.success_rate");
            within(rate.stdev_factor, 0.01..=100.0, &at, "stdev_factor")?;
            enough(rate.min_endpoints, rate.min_calls, &at)?;
        }
        if let Some(latency) = &self.latency {
            let at = format!("{at}.latency");
            within(latency.factor, 1.01..=1e6, &at, "factor")?;
            enough(latency.min_endpoints, latency.min_calls, &at)?;
        }
        Ok(())
    }
}

/// How endpoints are asked for their health (`grpc.health.v1.Health/Check`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcHealthConfig {
    /// Time between two checks of an endpoint.
    pub interval_ms: u64,
    /// From its begin to the answer.
    pub timeout_ms: u64,
    /// Checks in a row without an answer that make a healthy endpoint unhealthy, >= 1.
    pub unhealthy_after: u32,
    /// Checks in a row that make an unhealthy one healthy, >= 1.
    pub healthy_after: u32,
    /// Whose health is asked for; empty: that of the whole server.
    pub service: String,
    /// Checks of the service at a time, >= 1.
    pub max_checks: usize,
}

impl Default for GrpcHealthConfig {
    fn default() -> Self {
        Self {
            interval_ms: 5_000,
            timeout_ms: 1_000,
            unhealthy_after: 3,
            healthy_after: 1,
            service: String::new(),
            max_checks: 100,
        }
    }
}

impl GrpcHealthConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        positive(self.interval_ms, at, "interval_ms")?;
        positive(self.timeout_ms, at, "timeout_ms")?;
        positive(self.unhealthy_after.into(), at, "unhealthy_after")?;
        positive(self.healthy_after.into(), at, "healthy_after")?;
        positive(self.max_checks as u64, at, "max_checks")?;
        check(self.service.len() <= 1024, &format!("{at}.service"), || {
            "must have at most 1024 bytes".into()
        })
    }
}

fn enough(endpoints: u32, calls: u32, at: &str) -> Result<(), ConfigError> {
    check(endpoints >= 2, &format!("{at}.min_endpoints"), || {
        "must be at least 2".into()
    })?;
    check(calls >= 1, &format!("{at}.min_calls"), || {
        "must be at least 1".into()
    })
}
