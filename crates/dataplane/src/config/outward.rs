//! How a service reaches its endpoints: limits, connections, and calls that wait.

use std::time::Duration;

use serde::Deserialize;

use super::check;
use crate::error::ConfigError;

/// Limits of one service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceLimits {
    /// Calls in flight over all endpoints; one more fails or waits.
    pub max_inflight: u32,
    /// Calls in flight at one endpoint, which is left out of picks then; none if missing.
    pub max_inflight_per_endpoint: Option<u32>,
    /// Connections over all endpoints and data threads; none if missing.
    pub max_open_connections: Option<u32>,
    /// Connections per endpoint and data thread.
    pub max_connections_per_endpoint: usize,
    /// Calls that wait for a connection, per endpoint and data thread.
    pub max_pending: usize,
    /// Calls that wait for room or for an endpoint.
    pub max_waiting: u32,
    /// Bytes that its calls may hold because one side does not take them, over all endpoints.
    pub max_held_bytes: u64,
    /// The same for one endpoint, which is left out of picks then; none if missing.
    pub max_held_bytes_per_endpoint: Option<u64>,
    /// Length of one message, in both directions; none if missing.
    pub max_message_bytes: Option<u32>,
    /// Bytes of a request's body that are kept until its answer begins, so that it can be sent
    /// again; 0 keeps nothing, headers included.
    pub max_replay_bytes: usize,
    /// The same of all calls of routes with `retry` or `hedge` together.
    pub max_replay_bytes_total: usize,
    /// Endpoints of the service; a larger set is refused.
    pub max_endpoints: usize,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            max_inflight: 10_000,
            max_inflight_per_endpoint: None,
            max_open_connections: None,
            max_connections_per_endpoint: 4,
            max_pending: 1_000,
            max_waiting: 1_000,
            max_held_bytes: 512 * 1024 * 1024,
            max_held_bytes_per_endpoint: None,
            max_message_bytes: None,
            max_replay_bytes: 64 * 1024,
            max_replay_bytes_total: 64 * 1024 * 1024,
            max_endpoints: 10_000,
        }
    }
}

impl ServiceLimits {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let least = [
            self.max_inflight_per_endpoint,
            self.max_open_connections,
            self.max_message_bytes,
        ];
        let positive = self.max_inflight > 0
            && self.max_connections_per_endpoint > 0
            && self.max_pending > 0
            && self.max_waiting > 0
            && self.max_held_bytes > 0
            && self.max_held_bytes_per_endpoint != Some(0)
            && self.max_endpoints > 0
            && !least.contains(&Some(0));
        check(positive, at, || "every limit must be at least 1".into())
    }
}

/// Connections to endpoints.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionConfig {
    /// From the first packet to the endpoint's SETTINGS.
    pub connect_timeout_ms: u64,
    /// Wait after the first failed connect; grows by 1.6 with 20 % jitter.
    pub backoff_base_ms: u64,
    /// Longest wait between two connects to a failing endpoint.
    pub backoff_max_ms: u64,
    /// Streams at most on one connection, whatever the endpoint allows.
    pub max_streams: usize,
    /// Age at which a connection is replaced; 0: never.
    pub max_age_ms: u64,
    /// Share of it by which it differs from connection to connection, 0..=1.
    pub max_age_jitter: f64,
    /// How long calls may stay on a connection that takes no more; 0: as long as they like.
    pub max_leaving_ms: u64,
    /// Whether the endpoint still answers.
    pub keepalive: KeepaliveConfig,
}

/// Pings on a connection with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeepaliveConfig {
    /// Silence after which the endpoint is asked; 0 switches pings off.
    pub interval_ms: u64,
    /// Silence after that for which the connection is given up.
    pub timeout_ms: u64,
}

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self {
            interval_ms: 10_000,
            timeout_ms: 5_000,
        }
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            connect_timeout_ms: 2_000,
            backoff_base_ms: 100,
            backoff_max_ms: 1_000,
            max_streams: 1_000,
            max_age_ms: 0,
            max_age_jitter: 0.1,
            max_leaving_ms: 0,
            keepalive: KeepaliveConfig::default(),
        }
    }
}

impl ConnectionConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let positive = self.connect_timeout_ms > 0
            && self.backoff_base_ms > 0
            && self.backoff_max_ms >= self.backoff_base_ms
            && self.max_streams > 0;
        check(positive, at, || {
            "values must be positive and backoff_max_ms at least backoff_base_ms".into()
        })?;
        check((0.0..=1.0).contains(&self.max_age_jitter), at, || {
            "max_age_jitter must be 0 to 1".into()
        })?;
        let keepalive = &self.keepalive;
        check(
            keepalive.interval_ms == 0 || keepalive.timeout_ms > 0,
            &format!("{at}.keepalive"),
            || "timeout_ms must be positive".into(),
        )
    }

    /// How old a connection becomes, for a draw from 0..1; `None`: as old as it likes.
    #[must_use]
    pub fn age(&self, draw: f64) -> Option<Duration> {
        let factor = 1.0 + self.max_age_jitter * (2.0 * draw - 1.0);
        let age = Duration::from_millis(self.max_age_ms).mul_f64(factor);
        (self.max_age_ms > 0).then_some(age)
    }

    /// How long calls may stay on a connection that takes no more; `None`: as long as they like.
    #[must_use]
    pub fn max_leaving(&self) -> Option<Duration> {
        (self.max_leaving_ms > 0).then(|| Duration::from_millis(self.max_leaving_ms))
    }

    /// From the first packet to the endpoint's SETTINGS.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// What becomes of a call that finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It ends UNAVAILABLE.
    Fail,
    /// It waits.
    Queue,
}

/// Calls that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitingConfig {
    /// Where a limit in flight (`limits.max_inflight` and its like, `limits.max_held_bytes` and
    /// its like) is reached.
    pub when_full: WhenFull,
    /// Whether a call waits while no endpoint can take it; routes may differ.
    pub for_ready: bool,
    /// Longest wait; the deadline of the call may be shorter.
    pub max_time_ms: u64,
}

impl Default for WaitingConfig {
    fn default() -> Self {
        Self {
            when_full: WhenFull::Fail,
            for_ready: false,
            max_time_ms: 30_000,
        }
    }
}

impl WaitingConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        check(self.max_time_ms > 0, at, || {
            "max_time_ms must be positive".into()
        })
    }

    /// Longest wait.
    #[must_use]
    pub fn max_time(&self) -> Duration {
        Duration::from_millis(self.max_time_ms)
    }
}
