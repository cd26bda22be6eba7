//! The part of the configuration that says which calls are tried again, or twice at once.

use serde::Deserialize;

use super::balancer::within;
use super::{check, RouteConfig};
use crate::error::ConfigError;
use crate::grpc::Code;

/// Attempts that one call may have at most: so many gRPC clients allow (gRFC A6).
const ATTEMPTS_MAX: u32 = 5;

/// Calls of a route that failed are tried again.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Attempts of a call, the first one included, 2..=5.
    pub max_attempts: u32,
    /// Statuses that are tried again.
    pub on: Codes,
    /// How many retries there may be.
    pub budget: BudgetConfig,
    /// Upper bound of the wait before the first retry; it doubles with each further one. The wait
    /// itself is drawn evenly from 0 to the bound.
    pub backoff_ms: u64,
    /// Where that bound stops.
    pub max_backoff_ms: u64,
    /// From the start of an attempt to the head of its answer.
    pub per_try_timeout_ms: Option<u64>,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            max_attempts: 2,
            on: Codes::of(&[Code::Unavailable]),
            budget: BudgetConfig::default(),
            backoff_ms: 25,
            max_backoff_ms: 250,
            per_try_timeout_ms: None,
        }
    }
}

/// Retries of a time window, relative to its calls.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetConfig {
    /// Share of the calls that ended in the window or are running, 0..=1.
    pub share: f64,
    /// Length of the window.
    pub window_ms: u64,
    /// Retries in a window that are allowed however few calls there are.
    pub floor: u32,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            share: 0.2,
            window_ms: 10_000,
            floor: 3,
        }
    }
}

/// Calls of a route that take long are tried a second time beside the first.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HedgeConfig {
    /// When.
    pub at: HedgeAt,
    /// Share of the calls, 0..=1.
    #[serde(default = "five_percent")]
    pub max_share: f64,
    /// Attempts of a call, the first one included, 2..=5.
    #[serde(default = "two")]
    pub max_attempts: u32,
}

/// How long an attempt may take until another one is sent.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HedgeAt {
    /// Until this share of the calls of its method at its endpoint had been answered, 0.5..=0.999.
    Quantile(f64),
    /// So long.
    AfterMs(u64),
}

fn five_percent() -> f64 {
    0.05
}

fn two() -> u32 {
    2
}

/// A set of statuses, written as a list of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct Codes(u32);

impl Codes {
    /// Those codes.
    #[must_use]
    pub fn of(codes: &[Code]) -> Self {
        Self(codes.iter().fold(0, |set, code| set | 1 << code.number()))
    }

    /// Whether it holds a code.
    #[must_use]
    pub fn contains(self, code: Code) -> bool {
        self.0 & (1 << code.number()) != 0
    }
}

impl TryFrom<Vec<String>> for Codes {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        let code_of = |name: &String| {
            let mut codes = Code::ALL.into_iter();
            codes
                .find(|code| code.name() == name)
                .ok_or_else(|| format!("`{name}` is no gRPC status"))
        };
        let codes: Result<Vec<_>, _> = names.iter().map(code_of).collect();
        Ok(Self::of(&codes?))
    }
}

impl RetryConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        attempts(self.max_attempts, at)?;
        check(!self.on.contains(Code::Ok), &format!("{at}.on"), || {
            "OK is no failure".into()
        })?;
        let budget = &self.budget;
        within(budget.share, 0.0..=1.0, at, "budget.share")?;
        check(
            (1_000..=3_600_000).contains(&budget.window_ms),
            &format!("{at}.budget.window_ms"),
            || "must be 1000 to 3600000".into(),
        )?;
        check(
            self.max_backoff_ms >= self.backoff_ms,
            &format!("{at}.max_backoff_ms"),
            || "must be at least backoff_ms".into(),
        )?;
        check(
            self.per_try_timeout_ms != Some(0),
            &format!("{at}.per_try_timeout_ms"),
            || "must be positive".into(),
        )
    }
}

impl HedgeConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        attempts(self.max_attempts, at)?;
        within(self.max_share, 0.0..=1.0, at, "max_share")?;
        match self.at {
            HedgeAt::Quantile(quantile) => within(quantile, 0.5..=0.999, at, "at.quantile"),
            HedgeAt::AfterMs(after_ms) => check(after_ms > 0, &format!("{at}.at.after_ms"), || {
                "must be positive".into()
            }),
        }
    }
}

impl RouteConfig {
    pub(super) fn validate_repetition(&self, at: &str) -> Result<(), ConfigError> {
        if let Some(retry) = &self.retry {
            retry.validate(&format!("{at}.retry"))?;
        }
        if let Some(hedge) = &self.hedge {
            hedge.validate(&format!("{at}.hedge"))?;
        }
        let repeats = self.retry.is_some() || self.hedge.is_some();
        check(self.idempotent || !repeats, at, || {
            "retry and hedge need idempotent".into()
        })?;
        check(self.retry.is_none() || self.hedge.is_none(), at, || {
            "retry and hedge exclude each other".into()
        })
    }
}

fn attempts(count: u32, at: &str) -> Result<(), ConfigError> {
    check(
        (2..=ATTEMPTS_MAX).contains(&count),
        &format!("{at}.max_attempts"),
        || format!("must be 2 to {ATTEMPTS_MAX}"),
    )
}
