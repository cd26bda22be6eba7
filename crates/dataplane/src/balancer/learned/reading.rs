//! What a comparison reads of endpoints: own calls, reports, answers, scores.
//!
//! One cache line of all endpoints of a block, then the next: endpoints lie far apart, and the
//! processor fetches the lines of several at once only if little else stands between. What is one
//! column for all endpoints is copied whole where the block is of neighbours.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cost::{Read, NEVER_S};
use super::{Age, Ask, Learned};
use crate::endpoint::Endpoint;
use crate::ledger::REPORT_AGE_MAX_NS;
use crate::score_table::UNKNOWN_S;

impl Learned {
    /// Reads what the costs on up to `L` endpoints hang on.
    #[inline]
    pub(super) fn read<const L: usize>(&self, ask: &Ask<'_>, block: &[u32], out: &mut Read<L>) {
        let view = ask.view;
        let mut endpoints = [view.endpoint(block[0]); L];
        for (lane, index) in block.iter().enumerate().take(L) {
            endpoints[lane] = view.endpoint(*index);
        }
        let endpoints = &endpoints[..block.len().min(L)];
        for (lane, endpoint) in endpoints.iter().enumerate() {
            out.own[lane] = endpoint.live.unanswered() as f32;
        }
        self.read_reports(ask.now_ns, endpoints, out);
        read_answers(ask.now_ns, endpoints, out);
        read_kind(ask, endpoints, out);
        self.read_scores(ask, block, out);
        if view.slow_start.is_some() {
            for (lane, index) in block.iter().enumerate().take(L) {
                out.weight[lane] = view.weight(*index, ask.now_ns) as f32;
            }
        }
    }

    #[inline]
    fn read_reports<const L: usize>(
        &self,
        now_ns: u64,
        endpoints: &[&Endpoint],
        out: &mut Read<L>,
    ) {
        for (lane, endpoint) in endpoints.iter().enumerate().take(L) {
            let signals = &endpoint.ledger.signals;
            let reported_ns = signals.reported_ns.load(Relaxed);
            let age_ns = now_ns.saturating_sub(reported_ns);
            if self.reported_load && reported_ns != 0 && age_ns <= REPORT_AGE_MAX_NS {
                out.surplus[lane] = signals.surplus.load();
                out.own_reported[lane] = signals.own_reported.load();
                out.others[lane] = signals.others.load();
                out.report_age_s[lane] = seconds(age_ns);
            } else {
                out.surplus[lane] = 0.0;
                out.own_reported[lane] = 0.0;
                out.others[lane] = 0.0;
                out.report_age_s[lane] = NEVER_S;
            }
            let utilized_ns = signals.utilized_ns.load(Relaxed);
            let is_old = now_ns.saturating_sub(utilized_ns) > REPORT_AGE_MAX_NS;
            out.utilization[lane] = if utilized_ns == 0 || is_old {
                0.0
            } else {
                signals.utilization.load()
            };
        }
    }

    #[inline]
    fn read_scores<const L: usize>(&self, ask: &Ask<'_>, block: &[u32], out: &mut Read<L>) {
        let table = &self.learning.table;
        let costs_s = match (ask.row, ask.age) {
            (None, _) => &table.mean_service_s,
            (Some(row), Age::Fresh) => &row.cost_s,
            (Some(row), _) => &row.table_cost_s,
        };
        let near = neighbours(block);
        let mean_s = &table.mean_service_s;
        read_column(mean_s, block, near, UNKNOWN_S, &mut out.mean_service_s);
        read_column(&table.concurrency, block, near, 1.0, &mut out.concurrency);
        read_column(costs_s, block, near, UNKNOWN_S, &mut out.cost_s);
        read_column(&self.static_weights, block, near, 1.0, &mut out.weight);
    }
}

/// The first place of a block of neighbours, which is the rule while all endpoints are usable.
#[inline(always)]
fn neighbours(block: &[u32]) -> Option<usize> {
    let first = *block.first()?;
    let are = block.iter().zip(first..).all(|(one, next)| *one == next);
    are.then_some(first as usize)
}

/// The values of a block; `unknown` beyond the end. `near`: see [`neighbours`].
#[inline(always)]
fn read_column<const L: usize>(
    column: &[f32],
    block: &[u32],
    near: Option<usize>,
    unknown: f32,
    out: &mut [f32; L],
) {
    if let Some(values) = near.and_then(|first| column.get(first..first + block.len())) {
        match <&[f32; L]>::try_from(values) {
            Ok(values) => *out = *values,
            Err(_) => out
                .iter_mut()
                .zip(values)
                .for_each(|(out, value)| *out = *value),
        }
        return;
    }
    for (out, index) in out.iter_mut().zip(block) {
        *out = column.get(*index as usize).copied().unwrap_or(unknown);
    }
}

#[inline]
fn read_answers<const L: usize>(now_ns: u64, endpoints: &[&Endpoint], out: &mut Read<L>) {
    for (lane, endpoint) in endpoints.iter().enumerate().take(L) {
        let signals = &endpoint.ledger.signals;
        let since = |at_ns: &AtomicU64| seconds(now_ns.saturating_sub(at_ns.load(Relaxed)));
        out.measured_s[lane] = signals.ratio.measured.load();
        out.expected_s[lane] = signals.ratio.expected.load();
        out.ratio_age_s[lane] = since(&signals.ratio.sampled_ns);
        out.errors[lane] = signals.errors.load();
        out.answer_age_s[lane] = since(&signals.answered_ns);
        out.rtt_s[lane] = signals.rtt_s.load();
    }
}

#[inline]
fn read_kind<const L: usize>(ask: &Ask<'_>, endpoints: &[&Endpoint], out: &mut Read<L>) {
    for (lane, endpoint) in endpoints.iter().enumerate().take(L) {
        if let Some(ratio) = endpoint.ledger.ratio_of(ask.kind) {
            let age_ns = ask.now_ns.saturating_sub(ratio.sampled_ns.load(Relaxed));
            out.kind_measured_s[lane] = ratio.measured.load();
            out.kind_expected_s[lane] = ratio.expected.load();
            out.kind_age_s[lane] = seconds(age_ns);
        } else {
            out.kind_measured_s[lane] = 0.0;
            out.kind_expected_s[lane] = 0.0;
            out.kind_age_s[lane] = NEVER_S;
        }
    }
}

#[inline]
fn seconds(ns: u64) -> f32 {
    // Signed: one instruction instead of three.
    ns as i64 as f32 * 1e-9
}
