//! Live state as fixed-layout rows; the twin of `ENDPOINT_DTYPE` in `attnroute/dataplane.py`.

use std::sync::atomic::Ordering::Relaxed;

use attnroute_dataplane::cells::Window;
use attnroute_dataplane::config::Override;
use attnroute_dataplane::endpoint::Member;
use attnroute_dataplane::service::{Service, Snapshot};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Endpoint epoch, class epoch, length, rows of endpoints, rows of cells.
pub(crate) type WindowRows<'py> = (u64, u64, u64, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

pub(crate) fn window<'py>(py: Python<'py>, window: &Window) -> WindowRows<'py> {
    (
        window.endpoint_epoch,
        window.class_epoch,
        window.length_ns,
        PyBytes::new(py, &window.endpoints),
        PyBytes::new(py, &window.cells),
    )
}

pub(crate) fn classes<'py>(py: Python<'py>, service: &Service) -> (u64, Bound<'py, PyBytes>) {
    let classes = service.classes();
    (classes.epoch(), PyBytes::new(py, &classes.to_json()))
}

/// The scores in force as JSON; `null` for a balancer without any.
pub(crate) fn scores_in_force(snapshot: &Snapshot, now_ns: u64) -> Vec<u8> {
    let Some(scores) = snapshot.balancer.in_force(snapshot.view(), now_ns) else {
        return b"null".to_vec();
    };
    let classes = scores.classes.iter().map(|class| {
        serde_json::json!({
            "request_class": &*class.class,
            "weights": &*class.weights,
            "predicted_s": &*class.predicted_s,
            "spread": &*class.spread,
        })
    });
    let document = serde_json::json!({
        "table_epoch": scores.table_epoch,
        "table_age_s": scores.table_age_s,
        "model": &*scores.model,
        "reason": scores.reason.name(),
        "classes": classes.collect::<Vec<_>>(),
    });
    document.to_string().into_bytes()
}

/// Bytes of a row: 5 x u64, 7 x u32, 2 x f32.
const ROW_BYTES: usize = 76;

/// One little-endian row per endpoint, in index order. `now_ns` is on the clock of the picks.
pub(crate) fn encode(snapshot: &Snapshot, now_ns: u64) -> Vec<u8> {
    let weights = snapshot.weights(now_ns);
    let mut usable = vec![0_u32; snapshot.members.len()];
    for index in &snapshot.usable {
        usable[*index as usize] = 1;
    }
    let mut standby = vec![0_u32; snapshot.members.len()];
    for index in &snapshot.standby {
        standby[*index as usize] = 1;
    }
    let mut rows = Vec::with_capacity(snapshot.members.len() * ROW_BYTES);
    let states = usable.into_iter().zip(standby);
    for ((member, weight), (usable, standby)) in snapshot.members.iter().zip(weights).zip(states) {
        let live = &member.endpoint.live;
        let failing = live.failing.load(Relaxed);
        let longs = [
            member.endpoint.id,
            live.picks.load(Relaxed),
            live.successes.load(Relaxed),
            live.failures.load(Relaxed),
            live.latency_ns.load(Relaxed),
        ];
        let ints = [
            live.in_flight.load(Relaxed),
            live.connections.load(Relaxed),
            usable,
            u32::from(failing),
            u32::from(member.endpoint.outlier.is_ejected()),
            u32::from(member.endpoint.health.is_unhealthy()),
            standby,
        ];
        rows.extend(longs.iter().flat_map(|value| value.to_le_bytes()));
        rows.extend(ints.iter().flat_map(|value| value.to_le_bytes()));
        rows.extend(
            [member.static_weight, weight]
                .iter()
                .flat_map(|value| value.to_le_bytes()),
        );
    }
    rows
}

/// What discovery said of each endpoint, as a JSON list in index order.
pub(crate) fn describe(members: &[Member]) -> Vec<u8> {
    let list: Vec<_> = members
        .iter()
        .map(|member| {
            serde_json::json!({
                "address": &*member.endpoint.name,
                "static_weight": member.static_weight,
                "zone": member.zone,
                "labels": member.labels,
                "priority": member.priority,
                "override": member.operator_override.map(Override::name),
            })
        })
        .collect();
    serde_json::Value::Array(list).to_string().into_bytes()
}
