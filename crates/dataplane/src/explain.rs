//! The pick that would be made now, with every term: what `learned` reads of each endpoint and what
//! follows, computed by the picker's own code. Nothing is counted and nobody is picked.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{json, Value};

use crate::balancer::learned::cost::{Costs, Read};
use crate::balancer::learned::{trace::described, Learned};
use crate::balancer::Balancer;
use crate::class::Traits;
use crate::error::ConfigError;
use crate::service::{Reason, Service, Snapshot};

/// The call that is asked about.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// `:path`.
    pub method: String,
    /// Size of its first message; `None`: it is not there at the pick.
    #[serde(default)]
    pub message_bytes: Option<u64>,
    /// Request headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl Question {
    /// Parses it.
    ///
    /// # Errors
    /// It is none; the error names the place.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let question: Self = serde_json::from_slice(json).map_err(|error| ConfigError {
            path: "question".into(),
            message: error.to_string(),
        })?;
        question.header_map()?;
        Ok(question)
    }

    fn header_map(&self) -> Result<HeaderMap, ConfigError> {
        let wrong = |name: &str| ConfigError {
            path: format!("headers.{name}"),
            message: "is no header".into(),
        };
        let pair = |(name, value): (&String, &String)| {
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong(name))?;
            let value = HeaderValue::from_str(value).map_err(|_| wrong(name))?;
            Ok((key, value))
        };
        self.headers.iter().map(pair).collect()
    }
}

/// The answer, as JSON.
///
/// # Errors
/// The question is none.
pub fn explain(service: &Service, question: &Question, now_ns: u64) -> Result<Value, ConfigError> {
    let snapshot = service.snapshot();
    let headers = question.header_map()?;
    let settings = &snapshot.settings;
    let mut request = settings.request_info(settings.routes.find(&question.method), &headers);
    let traits = Traits {
        path: &question.method,
        message_bytes: question.message_bytes,
        headers: &headers,
        timeout: None,
    };
    let classes = &snapshot.learning.classes;
    if let Some(tracking) = &settings.tracking {
        request.class = tracking.classifier.known(classes, &traits);
    }
    let (class, _) = classes.place(request.class);
    let entry = &classes.entries()[class as usize];
    let left = snapshot.left_for(request.rule);
    let mut answer = json!({
        "service": service.name,
        "balancer": snapshot.balancer.name(),
        "request_class": &*entry.names.class,
        "kind": &*entry.names.kind,
        "endpoint_epoch": snapshot.epoch,
        "class_epoch": classes.epoch(),
        "sidecars": snapshot.sidecars,
    });
    let found = match &snapshot.balancer {
        Balancer::Learned(rule) => by_costs(&snapshot, rule, left, now_ns, request),
        _ => by_weights(&snapshot, left, now_ns, request.rule),
    };
    if let (Value::Object(answer), Value::Object(found)) = (&mut answer, found) {
        answer.extend(found);
    }
    let reason = match (left, snapshot.panic, snapshot.pinned) {
        ([], ..) => Value::Null,
        (_, true, _) => Reason::Panic.name().into(),
        (_, _, true) => Reason::Pinned.name().into(),
        ([_], ..) => Reason::Single.name().into(),
        _ => answer["reason"].clone(),
    };
    answer["reason"] = reason;
    Ok(answer)
}

fn by_costs(
    snapshot: &Snapshot,
    rule: &Learned,
    left: &[u32],
    now_ns: u64,
    request: crate::attempt::RequestInfo,
) -> Value {
    let mut examined = rule.examine(snapshot.view(), left, now_ns, request.class);
    let table = rule.table();
    let row = table.row(snapshot.learning.classes.place(request.class).0);
    let name = |index: u32| snapshot.members[index as usize].endpoint.name.as_ref();
    let rows: Vec<_> = examined
        .iter()
        .map(|one| {
            let place = one.index as usize;
            json!({
                "endpoint": name(one.index),
                "read": described(Read::<1>::NAMES, &one.read.values()),
                "terms": described(Costs::<1>::NAMES, &one.costs.values()),
                "spread": row.map(|row| row.spread[place]),
                "probability": row.map(|row| row.probability[place]),
            })
        })
        .collect();
    let by_probability = rule.is_by_probability(snapshot.view(), now_ns, request.class);
    examined.sort_by(|one, other| {
        if by_probability {
            let [one, other] =
                [one, other].map(|one| row.map_or(0.0, |row| row.probability[one.index as usize]));
            return other.total_cmp(&one);
        }
        let weighted = [one, other].map(|one| one.costs.weighted_s[0]);
        weighted[0].total_cmp(&weighted[1])
    });
    let margin_s = match &*examined {
        [first, second, ..] if !by_probability => {
            let [first, second] = [first, second].map(|one| f64::from(one.costs.weighted_s[0]));
            Some(second - first)
        }
        _ => None,
    };
    let reason = rule.reason_now(snapshot.view(), now_ns, request.class);
    json!({
        "endpoints": rows,
        "chosen": examined.first().map(|one| name(one.index)),
        "runner_up": examined.get(1).map(|one| name(one.index)),
        "margin_s": margin_s,
        "reason": reason.name(),
        "full_scan": rule.scans(left.len()),
        "factors": rule.factors(),
        "table_epoch": table.epoch,
        "table_age_s": (table.epoch > 0)
            .then(|| now_ns.saturating_sub(table.published_ns) as f64 * 1e-9),
        "model": table.model,
    })
}

fn by_weights(snapshot: &Snapshot, left: &[u32], now_ns: u64, rule: u32) -> Value {
    let weights = snapshot.weights_for(rule, now_ns);
    let mut best: Vec<_> = left.to_vec();
    best.sort_by(|one, other| {
        let weight = |index: &u32| weights[*index as usize];
        weight(other).total_cmp(&weight(one))
    });
    let name = |index: &u32| snapshot.members[*index as usize].endpoint.name.as_ref();
    let rows: Vec<_> = left
        .iter()
        .map(|index| {
            json!({
                "endpoint": name(index),
                "probability": weights[*index as usize],
            })
        })
        .collect();
    json!({
        "endpoints": rows,
        "chosen": best.first().map(name),
        "runner_up": best.get(1).map(name),
        "margin_s": null,
        "reason": snapshot.balancer.name(),
    })
}
