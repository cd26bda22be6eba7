//! The part of the configuration that says which balancer picks, and how.

use http::header::HeaderName;
use serde::Deserialize;

use super::{check, LearnedConfig};
use crate::error::ConfigError;
use crate::orca::MetricNames;

/// Which balancer picks; names as in the policy. The rules and where their defaults come from stand
/// in docs/balancers.md.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum BalancerConfig {
    /// In turn, in proportion to static weights.
    RoundRobin {},
    /// Least (in flight + 1) / weight among a few drawn endpoints, or among all.
    LeastRequest {
        /// `{"draws": 2}` or `"all"`.
        #[serde(default)]
        choice_count: ChoiceCount,
        /// Whether one endpoint can be drawn twice, as Envoy does.
        #[serde(default)]
        with_replacement: bool,
    },
    /// At random, in proportion to static weights.
    Random {},
    /// In turn, in proportion to weights that follow from load reports (gRFC A58, A114).
    WeightedRoundRobin(WeightedRoundRobinConfig),
    /// The lesser (peak of latency * (in flight + 1)) of two drawn endpoints.
    PeakEwma(PeakEwmaConfig),
    /// Least expected queue, cubed, over all endpoints (C3, NSDI 2015).
    C3(C3Config),
    /// Least latency among the less loaded of a pool of probes (Prequal, NSDI 2024).
    Prequal(PrequalConfig),
    /// Least latency that recent calls predict for the calls in flight now.
    LatencyObservation(LatencyObservationConfig),
    /// Consistent hash on a ring, with bounded load.
    RingHash(RingHashConfig),
    /// Consistent hash in a table, with bounded load (Maglev, NSDI 2016).
    Maglev(MaglevConfig),
    /// Least expected cost, by what was learned of each class of calls on each endpoint.
    Learned(LearnedConfig),
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self::LeastRequest {
            choice_count: ChoiceCount::All,
            with_replacement: false,
        }
    }
}

/// How many endpoints `least_request` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoiceCount {
    /// That many draws, 2..=100.
    Draws(u32),
    /// Every usable endpoint, ties at random.
    All,
}

impl Default for ChoiceCount {
    fn default() -> Self {
        Self::Draws(2)
    }
}

/// `weighted_round_robin`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeightedRoundRobinConfig {
    /// How long an endpoint must have been reporting before its reports count.
    pub blackout_ms: u64,
    /// Age at which the last report counts no more.
    pub expiration_ms: u64,
    /// Time between two schedules.
    pub update_ms: u64,
    /// Factor of the error share in the utilization.
    pub error_utilization_penalty: f64,
    /// Metrics whose largest value is the utilization: `named_metrics.<name>`, `cpu_utilization`,
    /// `mem_utilization` or `application_utilization`. Without one of them in a report,
    /// `application_utilization` counts, else `cpu_utilization`.
    pub metric_names: Vec<String>,
}

impl Default for WeightedRoundRobinConfig {
    fn default() -> Self {
        Self {
            blackout_ms: 10_000,
            expiration_ms: 180_000,
            update_ms: 1_000,
            error_utilization_penalty: 1.0,
            metric_names: Vec::new(),
        }
    }
}

/// `peak_ewma`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakEwmaConfig {
    /// Time in which what is known of a latency falls to 1/e.
    pub decay_ms: u64,
    /// Latency assumed of an endpoint that never answered; 0: try it when it is idle, avoid it
    /// while its first call is in flight.
    pub default_rtt_ms: u64,
}

impl Default for PeakEwmaConfig {
    fn default() -> Self {
        Self {
            decay_ms: 10_000,
            default_rtt_ms: 30,
        }
    }
}

/// `c3`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct C3Config {
    /// Time without an answer in which what is known of an endpoint falls to 1/e.
    pub decay_ms: u64,
}

impl Default for C3Config {
    fn default() -> Self {
        Self { decay_ms: 10_000 }
    }
}

/// `prequal`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrequalConfig {
    /// Quantile of recent calls in flight from which on an endpoint is hot, 0..=1; 0: all are, and
    /// the least loaded one is picked; 1: none is, and the fastest one is picked.
    pub hot_quantile: f64,
    /// Probes at most in the pool, 2..=16.
    pub pool_size: u32,
    /// Probes for each pick, 0..=16; fractions add up.
    pub probes_per_pick: f64,
    /// Probes taken out of the pool after each pick, 0..=16; fractions add up.
    pub removals_per_pick: f64,
    /// Age at which a probe counts no more.
    pub age_limit_ms: u64,
    /// By how much more than is needed a probe may be used again.
    pub reuse_slack: f64,
    /// Who answers probes.
    pub probe_source: ProbeSource,
}

impl Default for PrequalConfig {
    fn default() -> Self {
        Self {
            hot_quantile: 0.0,
            pool_size: 16,
            probes_per_pick: 3.0,
            removals_per_pick: 1.0,
            age_limit_ms: 1_000,
            reuse_slack: 1.0,
            probe_source: ProbeSource::Reports,
        }
    }
}

/// Who answers the probes of `prequal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeSource {
    /// Nobody is asked: the last report of an endpoint and what was measured here stand in.
    Reports,
    /// The endpoints are asked.
    Endpoints,
}

/// `latency_observation`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LatencyObservationConfig {
    /// Probability with which each endpoint that is not known well enough is tried, 0..=1.
    pub exploration: f64,
}

impl Default for LatencyObservationConfig {
    fn default() -> Self {
        Self { exploration: 0.1 }
    }
}

/// `ring_hash`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RingHashConfig {
    /// Points on the ring of an endpoint of mean static weight, 1..=1024.
    pub points_per_endpoint: u32,
    /// Calls in flight at most relative to a fair share, >= 1; 0: unbounded.
    pub bounded_load: f64,
    /// Request header whose value is the key, in lower case; a call without it goes anywhere.
    pub header: Option<String>,
}

impl Default for RingHashConfig {
    fn default() -> Self {
        Self {
            points_per_endpoint: 100,
            bounded_load: 1.25,
            header: None,
        }
    }
}

/// `maglev`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaglevConfig {
    /// Places of the table: a prime up to 5000011, far more than there are endpoints.
    pub table_size: u32,
    /// Calls in flight at most relative to a fair share, >= 1; 0: unbounded.
    pub bounded_load: f64,
    /// Request header whose value is the key, in lower case; a call without it goes anywhere.
    pub header: Option<String>,
}

impl Default for MaglevConfig {
    fn default() -> Self {
        Self {
            table_size: 65_537,
            bounded_load: 1.25,
            header: None,
        }
    }
}

/// How an endpoint that is new gets its first calls.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowStartConfig {
    /// Time from its first possible pick to its full weight; 0 switches slow start off.
    pub window_ms: u64,
    /// 1: the weight rises evenly; more: fast at first, then slowly; > 0.
    pub aggression: f64,
}

impl Default for SlowStartConfig {
    fn default() -> Self {
        Self {
            window_ms: 0,
            aggression: 1.0,
        }
    }
}

impl BalancerConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        match self {
            Self::RoundRobin {} | Self::Random {} => Ok(()),
            Self::LeastRequest { choice_count, .. } => {
                let valid = match choice_count {
                    ChoiceCount::Draws(draws) => (2..=100).contains(draws),
                    ChoiceCount::All => true,
                };
                check(valid, &format!("{at}.choice_count"), || {
                    "must be 2 to 100, or all".into()
                })
            }
            Self::WeightedRoundRobin(config) => config.validate(at),
            Self::PeakEwma(config) => positive(config.decay_ms, at, "decay_ms"),
            Self::C3(config) => positive(config.decay_ms, at, "decay_ms"),
            Self::Prequal(config) => config.validate(at),
            Self::LatencyObservation(config) => {
                within(config.exploration, 0.0..=1.0, at, "exploration")
            }
            Self::RingHash(config) => {
                within(
                    config.points_per_endpoint.into(),
                    1.0..=1024.0,
                    at,
                    "points_per_endpoint",
                )?;
                bounded_load(config.bounded_load, at)?;
                header(config.header.as_deref(), at)
            }
            Self::Learned(config) => config.validate(at),
            Self::Maglev(config) => {
                let size = config.table_size;
                check(
                    size <= 5_000_011 && is_prime(size),
                    &format!("{at}.table_size"),
                    || format!("found {size}, must be a prime up to 5000011"),
                )?;
                bounded_load(config.bounded_load, at)?;
                header(config.header.as_deref(), at)
            }
        }
    }

    /// The name of every balancer.
    pub const NAMES: [&'static str; 11] = [
        "round_robin",
        "least_request",
        "random",
        "weighted_round_robin",
        "peak_ewma",
        "c3",
        "prequal",
        "latency_observation",
        "ring_hash",
        "maglev",
        "learned",
    ];

    /// Its name in policies, metrics and admin.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        let index = match self {
            Self::RoundRobin {} => 0,
            Self::LeastRequest { .. } => 1,
            Self::Random {} => 2,
            Self::WeightedRoundRobin(_) => 3,
            Self::PeakEwma(_) => 4,
            Self::C3(_) => 5,
            Self::Prequal(_) => 6,
            Self::LatencyObservation(_) => 7,
            Self::RingHash(_) => 8,
            Self::Maglev(_) => 9,
            Self::Learned(_) => 10,
        };
        Self::NAMES[index]
    }

    /// Request header that calls are placed by.
    #[must_use]
    pub fn hash_header(&self) -> Option<HeaderName> {
        let name = match self {
            Self::RingHash(config) => config.header.as_deref(),
            Self::Maglev(config) => config.header.as_deref(),
            Self::Learned(config) => return config.fallback.hash_header(),
            _ => None,
        };
        name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok())
    }

    /// Metrics that the balancer wants to see in load reports.
    #[must_use]
    pub fn metric_names(&self) -> &[String] {
        match self {
            Self::WeightedRoundRobin(config) => &config.metric_names,
            Self::Learned(config) => config.fallback.metric_names(),
            _ => &[],
        }
    }
}

impl WeightedRoundRobinConfig {
    fn validate(&self, at: &str) -> Result<(), ConfigError> {
        positive(self.expiration_ms, at, "expiration_ms")?;
        positive(self.update_ms, at, "update_ms")?;
        let penalty = self.error_utilization_penalty;
        within(penalty, 0.0..=1e6, at, "error_utilization_penalty")?;
        for name in &self.metric_names {
            check(
                MetricNames::is_valid(name),
                &format!("{at}.metric_names"),
                || {
                    format!(
                        "found `{name}`, expected `named_metrics.<name>` or a utilization field"
                    )
                },
            )?;
        }
        Ok(())
    }
}

impl PrequalConfig {
    fn validate(&self, at: &str) -> Result<(), ConfigError> {
        within(self.hot_quantile, 0.0..=1.0, at, "hot_quantile")?;
        within(self.pool_size.into(), 2.0..=16.0, at, "pool_size")?;
        within(self.probes_per_pick, 0.0..=16.0, at, "probes_per_pick")?;
        within(self.removals_per_pick, 0.0..=16.0, at, "removals_per_pick")?;
        within(self.reuse_slack, 0.0..=1e6, at, "reuse_slack")?;
        positive(self.age_limit_ms, at, "age_limit_ms")
    }
}

impl SlowStartConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let aggression = self.aggression;
        let valid = aggression.is_finite() && aggression > 0.0;
        check(valid, &format!("{at}.aggression"), || {
            format!("found {aggression}, must be positive")
        })
    }
}

pub(super) fn positive(value: u64, at: &str, key: &str) -> Result<(), ConfigError> {
    check(value > 0, &format!("{at}.{key}"), || {
        "must be positive".into()
    })
}

pub(super) fn within(
    value: f64,
    range: std::ops::RangeInclusive<f64>,
    at: &str,
    key: &str,
) -> Result<(), ConfigError> {
    check(range.contains(&value), &format!("{at}.{key}"), || {
        format!(
            "found {value}, must be {} to {}",
            range.start(),
            range.end()
        )
    })
}

fn bounded_load(value: f64, at: &str) -> Result<(), ConfigError> {
    let valid = value == 0.0 || (value.is_finite() && value >= 1.0);
    check(valid, &format!("{at}.bounded_load"), || {
        format!("found {value}, must be at least 1, or 0 for unbounded")
    })
}

fn header(name: Option<&str>, at: &str) -> Result<(), ConfigError> {
    let valid = name.is_none_or(|name| HeaderName::from_lowercase(name.as_bytes()).is_ok());
    check(valid, &format!("{at}.header"), || {
        format!(
            "found `{}`, expected the name of a header in lower case",
            name.unwrap_or_default()
        )
    })
}

fn is_prime(number: u32) -> bool {
    let divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number >= 2
        && divisors
            .into_iter()
            .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::super::ServiceConfig;
    use super::BalancerConfig;

    fn parse(balancer: &str) -> Result<BalancerConfig, (String, String)> {
        let json = format!(r#"{{"name":"cart","authorities":[],"balancer":{balancer}}}"#);
        ServiceConfig::parse(json.as_bytes())
            .map(|config| config.balancer)
            .map_err(|error| (error.path, error.message))
    }

    #[test]
    fn every_balancer_has_defaults() {
        for name in BalancerConfig::NAMES {
            let parsed = parse(&format!(r#"{{"type":"{name}"}}"#));
            assert_eq!(parsed.map(|config| config.name()), Ok(name));
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_its_place() {
        let cases = [
            (r#""weighted_round_robin","update_ms":0"#, "update_ms"),
            (
                r#""weighted_round_robin","expiration_ms":0"#,
                "expiration_ms",
            ),
            (
                r#""weighted_round_robin","error_utilization_penalty":-1"#,
                "error_utilization_penalty",
            ),
            (
                r#""weighted_round_robin","metric_names":["named_metrics."]"#,
                "metric_names",
            ),
            (r#""peak_ewma","decay_ms":0"#, "decay_ms"),
            (r#""c3","decay_ms":0"#, "decay_ms"),
            (r#""prequal","hot_quantile":1.5"#, "hot_quantile"),
            (r#""prequal","pool_size":17"#, "pool_size"),
            (r#""prequal","age_limit_ms":0"#, "age_limit_ms"),
            (r#""latency_observation","exploration":-0.1"#, "exploration"),
            (
                r#""ring_hash","points_per_endpoint":0"#,
                "points_per_endpoint",
            ),
            (r#""ring_hash","bounded_load":0.5"#, "bounded_load"),
            (r#""maglev","table_size":65536"#, "table_size"),
            (r#""maglev","header":"x user""#, "header"),
            (
                r#""least_request","choice_count":{"draws":1}"#,
                "choice_count",
            ),
        ];
        for (settings, key) in cases {
            let found = parse(&format!(r#"{{"type":{settings}}}"#));
            let path = found.map_err(|(path, _)| path);
            assert_eq!(path, Err(format!("..balancer.{key}")), "{settings}");
        }
    }

    #[test]
    fn names_of_load_reports_are_checked() {
        let parse = |own: &str, other: &str| {
            let names = format!(r#"{{"names":{{"{own}":"{other}"}}}}"#);
            let json = format!(r#"{{"name":"cart","authorities":[],"load_reports":{names}}}"#);
            ServiceConfig::parse(json.as_bytes()).map_err(|error| error.message)
        };
        let found = parse("attnroute.queue", "named_metrics.waiting");
        assert_eq!(found.expect("it is valid").load_reports.names.len(), 1);
        let found = parse("attnroute.speed", "named_metrics.waiting");
        assert!(found.is_err_and(|message| message.starts_with("`attnroute.speed` is none of")));
        let found = parse("attnroute.queue", "waiting");
        assert!(found.is_err_and(|message| message == "`waiting` names no value of a load report"));
    }

    #[test]
    fn an_unknown_key_is_refused() {
        for name in BalancerConfig::NAMES {
            assert!(
                parse(&format!(r#"{{"type":"{name}","tau":1}}"#)).is_err(),
                "{name}"
            );
        }
    }
}
