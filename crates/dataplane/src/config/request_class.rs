//! The part of the configuration that says how calls are told apart.

use http::header::HeaderName;
use serde::Deserialize;

use super::check;
use crate::error::ConfigError;

/// Bounds of a kind at most: more would never be seen often enough to be learned.
const BUCKETS_MAX: usize = 15;

/// Headers at most that tell calls apart.
const HEADERS_MAX: usize = 8;

/// How the calls of a service are told apart. What it means stands in docs/model.md.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestClassConfig {
    /// Bounds between message sizes, ascending; empty: sizes tell nothing apart.
    pub message_bytes_buckets: Vec<u64>,
    /// Request headers, in lower case.
    pub headers: Vec<String>,
    /// Request header that holds the priority.
    pub priority_header: Option<String>,
    /// Bounds between deadlines, ascending; empty: deadlines tell nothing apart.
    pub deadline_buckets_ms: Vec<u64>,
    /// Classes at most, the one of all others included, 1..=256.
    pub max_classes: usize,
}

impl Default for RequestClassConfig {
    fn default() -> Self {
        Self {
            message_bytes_buckets: vec![1 << 10, 16 << 10, 256 << 10],
            headers: Vec::new(),
            priority_header: None,
            deadline_buckets_ms: Vec::new(),
            max_classes: 256,
        }
    }
}

impl RequestClassConfig {
    pub(super) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        for (key, bounds) in [
            ("message_bytes_buckets", &self.message_bytes_buckets),
            ("deadline_buckets_ms", &self.deadline_buckets_ms),
        ] {
            let rises = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            let valid = rises && bounds.len() <= BUCKETS_MAX && bounds.first() != Some(&0);
            check(valid, &format!("{at}.{key}"), || {
                format!("must be at most {BUCKETS_MAX} positive bounds, each above the one before")
            })?;
        }
        check(
            self.headers.len() <= HEADERS_MAX,
            &format!("{at}.headers"),
            || {
                format!(
                    "found {}, must be at most {HEADERS_MAX}",
                    self.headers.len()
                )
            },
        )?;
        for name in self.headers.iter().chain(&self.priority_header) {
            let valid = HeaderName::from_bytes(name.as_bytes()).is_ok();
            check(valid, at, || {
                format!("found `{name}`, expected a header name")
            })?;
        }
        check(
            (1..=256).contains(&self.max_classes),
            &format!("{at}.max_classes"),
            || "must be 1 to 256".into(),
        )
    }
}
