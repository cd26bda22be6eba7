//! What a recorded pick compared, noted by the pick itself: whoever read the same values a moment
//! earlier or later might have seen others.
//!
//! Per thread, because a pick is on one; off but for sampled picks.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use serde_json::{json, Map, Value};

use super::cost::{costs, Costs, Factors, Read};
use super::JITTER;
use crate::endpoint::Endpoint;
use crate::error::ConfigError;

/// Endpoints that a record names; a pick that compared more cannot be computed again.
const COMPARED_MAX: usize = 1_000;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static SCAN: RefCell<Scan> = const { RefCell::new(Scan::NONE) };
}

/// The comparison that decided.
#[derive(Debug, Clone)]
pub struct Scan {
    factors: Option<Factors>,
    compared: Vec<Compared>,
    overflows: bool,
}

/// One endpoint as a pick saw it.
#[derive(Debug, Clone)]
struct Compared {
    name: Arc<str>,
    read: Read<1>,
    /// U of the cost's factor 1 + 0.001 U.
    jitter: f32,
    /// What was compared.
    total_s: f32,
}

impl Scan {
    const NONE: Self = Self {
        factors: None,
        compared: Vec::new(),
        overflows: false,
    };

    /// For a record; `None` where nothing was compared, or too much.
    #[must_use]
    pub fn describe(&self) -> Option<Value> {
        let is_whole = !self.overflows && !self.compared.is_empty();
        let factors = self.factors.filter(|_| is_whole)?;
        let rows = self.compared.iter().map(|one| {
            json!({
                "address": &*one.name,
                "read": described(Read::<1>::NAMES, &one.read.values()),
                "jitter": one.jitter,
                "total_s": one.total_s,
            })
        });
        let rows: Vec<_> = rows.collect();
        Some(json!({ "factors": factors, "compared": rows }))
    }
}

/// As long as it lives, picks of this thread are noted.
#[derive(Debug)]
pub struct Tracing(());

impl Tracing {
    /// Begins.
    #[must_use]
    pub fn begin() -> Self {
        ON.set(true);
        SCAN.replace(Scan::NONE);
        Self(())
    }

    /// What the last pick compared.
    #[must_use]
    pub fn take(&self) -> Scan {
        SCAN.replace(Scan::NONE)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        ON.set(false);
    }
}

/// Whether this pick is noted.
pub(super) fn is_on() -> bool {
    ON.get()
}

/// A comparison begins; one before did not decide.
pub(super) fn begin_scan(factors: &Factors) {
    SCAN.replace(Scan {
        factors: Some(*factors),
        ..Scan::NONE
    });
}

/// What was compared did not decide: the endpoint was chosen otherwise.
pub(crate) fn forget() {
    if is_on() {
        SCAN.replace(Scan::NONE);
    }
}

/// An endpoint was compared.
pub(super) fn note(endpoint: &Endpoint, read: Read<1>, jitter: f32, total_s: f32) {
    SCAN.with_borrow_mut(|scan| {
        if scan.compared.len() >= COMPARED_MAX {
            scan.overflows = true;
            return;
        }
        scan.compared.push(Compared {
            name: Arc::clone(&endpoint.name),
            read,
            jitter,
            total_s,
        });
    });
}

/// A JSON object of named values.
pub(crate) fn described(names: &[&str], values: &[f32]) -> Value {
    let pairs = names.iter().zip(values);
    let pairs = pairs.map(|(name, value)| ((*name).to_owned(), json!(f64::from(*value))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// The cost of an endpoint with the noise that decides between equals.
#[inline]
pub(super) fn total_s(weighted_s: f32, jitter: f32) -> f32 {
    weighted_s * (1.0 + JITTER * jitter)
}

/// Computes a recorded pick again, as `Scan::describe` wrote it beside `endpoint`: whom it would
/// choose, and every number that comes out otherwise.
///
/// # Errors
/// It is no such record.
pub fn replay(record: &Value) -> Result<Value, ConfigError> {
    let wrong = |path: &str, message: &str| ConfigError {
        path: path.into(),
        message: message.into(),
    };
    let learned = &record["learned"];
    let factors: Factors = serde_json::from_value(learned["factors"].clone())
        .map_err(|error| wrong("learned.factors", &error.to_string()))?;
    let rows = learned["compared"].as_array();
    let rows = rows.ok_or_else(|| wrong("learned.compared", "expected a list"))?;
    let mut differences = Vec::new();
    let left_out = record["left_out"].as_array().map_or(&[][..], Vec::as_slice);
    let mut best: Option<(f32, &str)> = None;
    for (index, row) in rows.iter().enumerate() {
        let at = format!("learned.compared[{index}]");
        let address = row["address"].as_str();
        let address = address.ok_or_else(|| wrong(&at, "lacks `address`"))?;
        let number = |value: &Value| value.as_f64().map(|value| value as f32);
        let values = Read::<1>::NAMES.iter().map(|name| {
            let value = number(&row["read"][*name]);
            value.ok_or_else(|| wrong(&format!("{at}.read"), &format!("lacks `{name}`")))
        });
        let values: Vec<_> = values.collect::<Result<_, _>>()?;
        let read = Read::<1>::of_values(&values);
        let jitter = number(&row["jitter"]).ok_or_else(|| wrong(&at, "lacks `jitter`"))?;
        let found: Costs<1> = costs(&read, &factors);
        let computed = total_s(found.weighted_s[0], jitter);
        let recorded = number(&row["total_s"]).unwrap_or(f32::INFINITY);
        if computed.to_bits() != recorded.to_bits() {
            differences.push(json!({
                "address": address,
                "recorded_s": f64::from(recorded),
                "computed_s": f64::from(computed),
            }));
        }
        if left_out.iter().any(|one| one.as_str() == Some(address)) {
            differences.push(json!({"address": address, "left_out": true}));
        }
        if best.is_none_or(|(least_s, _)| computed < least_s) {
            best = Some((computed, address));
        }
    }
    let (_, chosen) = best.ok_or_else(|| wrong("learned.compared", "is empty"))?;
    let same = record["endpoint"].as_str() == Some(chosen) && differences.is_empty();
    Ok(json!({ "chosen": chosen, "identical": same, "differences": differences }))
}
