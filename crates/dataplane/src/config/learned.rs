//! The part of the configuration that is `learned`'s.

use serde::Deserialize;

use super::balancer::{positive, within};
use super::{check, BalancerConfig};
use crate::error::ConfigError;

/// Candidates of a pick at most; it keeps them on the stack.
pub const CANDIDATES_MAX: usize = 64;

/// Who of the endpoints gets a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// The least cost by scores and by how busy endpoints are now.
    #[default]
    Live,
    /// The largest routing probability.
    Greedy,
    /// One drawn by the routing probabilities.
    Sampling,
}

/// `learned`. Symbols are those of docs/model.md; every factor of 0 and every `false` switches its
/// term off.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LearnedConfig {
    /// Who picks when nothing was published for `fallback_after_ms`, and for `holdout`.
    pub fallback: Box<BalancerConfig>,
    /// Who gets a call while the scores are fresh.
    pub selection: Selection,
    /// Usable endpoints up to which all are compared.
    pub full_scan_up_to: u32,
    /// Endpoints that are drawn and compared where there are more, 1..=64.
    pub candidates: u32,
    /// Whether a full endpoint gives way to one drawn by the routing probabilities.
    pub overload_split: bool,
    /// Share of the picks that the fallback makes, 0..=1.
    pub holdout: f64,
    /// Whether measured against expected latency scales an endpoint's cost.
    pub endpoint_ratio: bool,
    /// Whether it does so by kind of call.
    pub kind_ratio: bool,
    /// Whether load reports say how many calls of others an endpoint has.
    pub reported_load: bool,
    /// Calls that each other sidecar is taken to have begun for each own one since the report.
    pub peer_share: f64,
    /// Weight of reported utilization.
    pub utilization_factor: f64,
    /// Weight of the cube of calls per concurrency, by the endpoint's mean service time.
    pub queue_factor: f64,
    /// The same, by the service time of the class.
    pub class_queue_factor: f64,
    /// What an endpoint that always fails costs.
    pub error_penalty_ms: u64,
    /// Share of errors up to which they cost nothing.
    pub error_threshold: f64,
    /// Time in which a load report gives way to the mean of those before it.
    pub report_fade_ms: u64,
    /// Time in which measured against expected latency is forgotten.
    pub ratio_decay_ms: u64,
    /// Time in which the share of errors follows.
    pub error_decay_ms: u64,
    /// Time without an answer in which the share of errors is forgotten.
    pub error_fade_ms: u64,
    /// Time in which the mean of others' calls follows.
    pub others_decay_ms: u64,
    /// Age of the scores from which on the model's are left for the table's.
    pub scores_stale_after_ms: u64,
    /// Age of the scores from which on the fallback picks.
    pub fallback_after_ms: u64,
}

impl Default for LearnedConfig {
    fn default() -> Self {
        Self {
            fallback: Box::default(),
            selection: Selection::Live,
            full_scan_up_to: 100,
            candidates: 16,
            overload_split: false,
            holdout: 0.0,
            endpoint_ratio: true,
            kind_ratio: true,
            reported_load: true,
            peer_share: 0.25,
            utilization_factor: 0.2,
            queue_factor: 0.3,
            class_queue_factor: 1.0,
            error_penalty_ms: 1_000,
            error_threshold: 0.02,
            report_fade_ms: 100,
            ratio_decay_ms: 4_000,
            error_decay_ms: 2_000,
            error_fade_ms: 20_000,
            others_decay_ms: 3_000,
            scores_stale_after_ms: 30_000,
            fallback_after_ms: 180_000,
        }
    }
}

impl LearnedConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let classic = !matches!(*self.fallback, BalancerConfig::Learned(_));
        check(classic, &format!("{at}.fallback"), || {
            "must be another balancer than `learned`".into()
        })?;
        self.fallback.validate(&format!("{at}.fallback"))?;
        let candidates = f64::from(self.candidates);
        within(candidates, 1.0..=CANDIDATES_MAX as f64, at, "candidates")?;
        for (key, share) in [
            ("holdout", self.holdout),
            ("error_threshold", self.error_threshold),
        ] {
            within(share, 0.0..=1.0, at, key)?;
        }
        for (key, factor) in [
            ("peer_share", self.peer_share),
            ("utilization_factor", self.utilization_factor),
            ("queue_factor", self.queue_factor),
            ("class_queue_factor", self.class_queue_factor),
        ] {
            within(factor, 0.0..=1e3, at, key)?;
        }
        for (key, value) in [
            ("report_fade_ms", self.report_fade_ms),
            ("ratio_decay_ms", self.ratio_decay_ms),
            ("error_decay_ms", self.error_decay_ms),
            ("error_fade_ms", self.error_fade_ms),
            ("others_decay_ms", self.others_decay_ms),
            ("scores_stale_after_ms", self.scores_stale_after_ms),
            ("fallback_after_ms", self.fallback_after_ms),
        ] {
            positive(value, at, key)?;
        }
        let later = self.fallback_after_ms >= self.scores_stale_after_ms;
        check(later, &format!("{at}.fallback_after_ms"), || {
            "must be at least scores_stale_after_ms".into()
        })
    }
}
