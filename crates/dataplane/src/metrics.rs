//! What the data plane counts, as Prometheus text (exposition format 0.0.4).
//!
//! Written by hand because the Rust client writes OpenMetrics only, which readers of the plain
//! format take for untyped counters. Families are few and bounded: nothing has labels of method
//! and endpoint, or of class and endpoint, at once.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::class::Newcomers;
use crate::connect::Content;
use crate::constraints::Void;
use crate::endpoint::Endpoint;
use crate::grpc::Code;
use crate::health::Verdict;
use crate::hedge::TailSource;
use crate::histogram::{HistogramSnapshot, BOUNDS_NS};
use crate::inbound::{Load, ServerReport, Shed};
use crate::listener::{ListenerStats, Stranger};
use crate::outlier::Cause;
use crate::probe::Finding;
use crate::repetition::RepetitionStats;
use crate::retry::Refused;
use crate::runtime::DataPlane;
use crate::service::{Reason, ServiceStats, Snapshot};
use crate::stats::{Limit, RetryReason};

/// The page under construction.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for character in text.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// One sample per status that ever occurred.
    fn statuses(&mut self, name: &str, labels: &[(&str, &str)], ended: &[AtomicU64; Code::COUNT]) {
        for (code, count) in Code::ALL.iter().zip(ended) {
            let count = count.load(Relaxed);
            if count > 0 {
                let mut labels = labels.to_vec();
                labels.push(("grpc_status", code.name()));
                self.sample(name, &labels, count);
            }
        }
    }

    fn histogram(&mut self, name: &str, label: (&str, &str), histogram: &HistogramSnapshot) {
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        let bounds = BOUNDS_NS
            .iter()
            .map(|bound| seconds(*bound))
            .chain(["+Inf".to_owned()]);
        for (count, bound) in histogram.counts.iter().zip(bounds) {
            sum += count;
            self.sample(&bucket, &[label, ("le", &bound)], sum);
        }
        self.sample(&format!("{name}_sum"), &[label], seconds(histogram.sum_ns));
        self.sample(&format!("{name}_count"), &[label], sum);
    }
}

/// Nanoseconds as seconds, exact and without an exponent.
fn seconds(ns: u64) -> String {
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let text = format!("{whole}.{rest:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The whole page.
#[must_use]
pub fn exposition(data_plane: &DataPlane) -> String {
    let mut page = Page::default();
    calls(&mut page, data_plane);
    endpoints(&mut page, data_plane);
    listeners(&mut page, data_plane);
    limits(&mut page, data_plane);
    inbound(&mut page, data_plane);
    records(&mut page, data_plane);
    page.text
}

fn records(page: &mut Page, data_plane: &DataPlane) {
    let shared = data_plane.shared();
    page.family(
        "attnroute_pick_records_dropped_total",
        "counter",
        "Picks that were not recorded because the records were just being read",
    );
    let dropped = shared.recording.dropped();
    page.sample("attnroute_pick_records_dropped_total", &[], dropped);
    page.family(
        "attnroute_spans_dropped_total",
        "counter",
        "Calls that got no span, lost before the control side took them",
    );
    page.sample("attnroute_spans_dropped_total", &[], shared.spans.dropped());
    let counters = shared.access_log.counters();
    page.family(
        "attnroute_access_log_lines_total",
        "counter",
        "Calls written to the access log",
    );
    let written = counters.written.load(Relaxed);
    page.sample("attnroute_access_log_lines_total", &[], written);
    page.family(
        "attnroute_access_log_dropped_total",
        "counter",
        "Sampled calls that are missing in the access log",
    );
    for (reason, count) in [
        ("queue", &counters.dropped_by_queue),
        ("output", &counters.dropped_by_output),
    ] {
        let count = count.load(Relaxed);
        page.sample(
            "attnroute_access_log_dropped_total",
            &[("reason", reason)],
            count,
        );
    }
}

fn services(data_plane: &DataPlane) -> Vec<NamedService> {
    let routing = data_plane.shared().routing.load();
    let mut services: Vec<_> = routing
        .services
        .iter()
        .map(|(name, one)| (name.clone(), one.clone()))
        .collect();
    services.sort_by(|(one, _), (other, _)| one.cmp(other));
    services
}

type PerService = fn(&ServiceStats) -> u64;

fn calls(page: &mut Page, data_plane: &DataPlane) {
    let services = services(data_plane);
    let unrouted = &data_plane.shared().stats.unrouted;
    let all = || {
        let known = services
            .iter()
            .map(|(name, service)| (name.as_str(), &service.stats));
        known.chain([("", unrouted)])
    };
    page.family(
        "attnroute_requests_total",
        "counter",
        "Calls ended, by final gRPC status; service is empty for calls that no service takes",
    );
    for (name, stats) in all() {
        page.statuses(
            "attnroute_requests_total",
            &[("service", name)],
            &stats.ended,
        );
    }
    page.family(
        "attnroute_request_duration_seconds",
        "histogram",
        "Duration of ended calls",
    );
    for (name, service) in &services {
        let duration = service.stats.duration.snapshot();
        page.histogram(
            "attnroute_request_duration_seconds",
            ("service", name),
            &duration,
        );
    }
    let families: [(&str, &str, &str, PerService); 4] = [
        ("attnroute_requests_inflight", "gauge", "Calls accepted and not ended", |stats| {
            stats.in_flight.load(Relaxed).into()
        }),
        ("attnroute_request_bytes_total", "counter", "DATA bytes from clients", |stats| {
            stats.request_bytes.load(Relaxed)
        }),
        ("attnroute_response_bytes_total", "counter", "DATA bytes to clients", |stats| {
            stats.response_bytes.load(Relaxed)
        }),
        (
            "attnroute_connect_retries_total",
            "counter",
            "Calls that went to another endpoint because a connect failed, before anything was sent",
            |stats| stats.connect_retries.load(Relaxed),
        ),
    ];
    for (name, kind, help, read) in families {
        page.family(name, kind, help);
        for (service, stats) in all() {
            page.sample(name, &[("service", service)], read(stats));
        }
    }
    let family = "attnroute_requests_waiting";
    page.family(
        family,
        "gauge",
        "Calls that wait for room or for an endpoint",
    );
    for (name, service) in &services {
        let labels = [("service", name.as_str())];
        page.sample(family, &labels, service.crowd.waiting.calls());
    }
    let family = "attnroute_held_bytes";
    page.family(
        family,
        "gauge",
        "Bytes that calls may hold because one side does not take them: their windows",
    );
    for (name, service) in &services {
        let labels = [("service", name.as_str())];
        page.sample(family, &labels, service.crowd.held_bytes.load(Relaxed));
    }
    let family = "attnroute_retries_total";
    page.family(family, "counter", "Calls sent again, by the reason");
    for (name, service) in &services {
        for (reason, count) in RetryReason::ALL.iter().zip(&service.stats.retries) {
            let labels = [("service", name.as_str()), ("reason", reason.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_malformed_load_reports_total";
    page.family(family, "counter", "Load reports that could not be read");
    for (name, service) in &services {
        let count = service.stats.malformed_reports.load(Relaxed);
        page.sample(family, &[("service", name)], count);
    }
    let family = "attnroute_probes_total";
    page.family(family, "counter", "Probes of endpoints by how they ended");
    for (name, service) in &services {
        for (kind, count) in Finding::KINDS.iter().zip(&service.stats.probes) {
            let labels = [("service", name.as_str()), ("result", kind)];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    page.family("attnroute_picks_total", "counter", "Picks by reason");
    for (name, service) in &services {
        for (reason, count) in Reason::ALL.iter().zip(&service.stats.picks) {
            let labels = [("service", name.as_str()), ("reason", reason.name())];
            page.sample("attnroute_picks_total", &labels, count.load(Relaxed));
        }
    }
    voids(page, &services);
    classes(page, &services, data_plane.now_ns());
    repetitions(page, &services);
}

type PerRepetition = fn(&RepetitionStats) -> u64;

fn repetitions(page: &mut Page, services: &[NamedService]) {
    let family = "attnroute_retries_refused_total";
    let help = "Calls not tried again, though their status is one that is, by the reason";
    page.family(family, "counter", help);
    for (name, service) in services {
        for (why, count) in Refused::ALL.iter().zip(&service.stats.repetition.refused) {
            let labels = [("service", name.as_str()), ("reason", why.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_hedge_tails_total";
    let help = "Attempts on routes that hedge at a percentile, by how its time was found";
    page.family(family, "counter", help);
    for (name, service) in services {
        for (source, count) in TailSource::ALL.iter().zip(&service.stats.repetition.tails) {
            let labels = [("service", name.as_str()), ("source", source.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let families: [(&str, &str, &str, PerRepetition); 4] = [
        (
            "attnroute_hedges_total",
            "counter",
            "Further attempts of calls on routes that hedge",
            |stats| stats.hedges.load(Relaxed),
        ),
        (
            "attnroute_hedges_won_total",
            "counter",
            "Of them, those whose answer the client got",
            |stats| stats.hedges_won.load(Relaxed),
        ),
        (
            "attnroute_hedges_refused_total",
            "counter",
            "Attempts that were not sent because hedge.max_share was used up",
            |stats| stats.hedges_refused.load(Relaxed),
        ),
        (
            "attnroute_replay_bytes",
            "gauge",
            "Bytes of requests kept to be sent again",
            |stats| stats.replay_bytes.load(Relaxed),
        ),
    ];
    for (family, kind, help, read) in families {
        page.family(family, kind, help);
        for (name, service) in services {
            let value = read(&service.stats.repetition);
            page.sample(family, &[("service", name)], value);
        }
    }
}

fn voids(page: &mut Page, services: &[NamedService]) {
    let family = "attnroute_rule_voids_total";
    page.family(
        family,
        "counter",
        "Calls for which a rule could not be kept",
    );
    for (name, service) in services {
        for (void, count) in Void::ALL.iter().zip(&service.stats.voids) {
            let labels = [("service", name.as_str()), ("rule", void.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
}

fn classes(page: &mut Page, services: &[NamedService], now_ns: u64) {
    let family = "attnroute_request_classes";
    page.family(
        family,
        "gauge",
        "Request classes by which calls are told apart, the one of all others included",
    );
    for (name, service) in services {
        let count = service.classes().entries().len();
        page.sample(family, &[("service", name)], count);
    }
    let family = "attnroute_score_table_epoch";
    page.family(
        family,
        "gauge",
        "Number of the scores in force, 0 before the first",
    );
    for (name, service) in services {
        let epoch = service.snapshot().learning.table.epoch;
        page.sample(family, &[("service", name)], epoch);
    }
    let family = "attnroute_score_table_age_seconds";
    page.family(
        family,
        "gauge",
        "Time since the scores in force were published",
    );
    for (name, service) in services {
        let table = &service.snapshot().learning.table;
        if table.epoch > 0 {
            let age = seconds(now_ns.saturating_sub(table.published_ns));
            page.sample(family, &[("service", name)], age);
        }
    }
    type Read = fn(&Newcomers) -> &AtomicU64;
    let families: [(&str, &str, Read); 2] = [
        (
            "attnroute_request_class_folded_total",
            "Calls that share the class of all others for lack of room",
            |newcomers| &newcomers.folded,
        ),
        (
            "attnroute_request_class_evictions_total",
            "Request classes that made room for others",
            |newcomers| &newcomers.evicted,
        ),
    ];
    for (family, help, read) in families {
        page.family(family, "counter", help);
        for (name, service) in services {
            let count = read(service.newcomers()).load(Relaxed);
            page.sample(family, &[("service", name)], count);
        }
    }
}

type PerEndpoint = fn(&Endpoint) -> u64;

fn endpoints(page: &mut Page, data_plane: &DataPlane) {
    let services = services(data_plane);
    page.family(
        "attnroute_endpoint_epoch",
        "gauge",
        "Version of the endpoint set in force",
    );
    for (name, service) in &services {
        let epoch = service.snapshot().epoch;
        page.sample("attnroute_endpoint_epoch", &[("service", name)], epoch);
    }
    page.family(
        "attnroute_endpoints_usable",
        "gauge",
        "Endpoints that take calls now",
    );
    for (name, service) in &services {
        let snapshot = service.snapshot();
        let usable = if snapshot.panic {
            0
        } else {
            snapshot.usable.len()
        };
        page.sample("attnroute_endpoints_usable", &[("service", name)], usable);
    }
    ejections(page, &services);
    health_checks(page, &services);
    page.family(
        "attnroute_endpoint_requests_total",
        "counter",
        "Attempts ended, by gRPC status",
    );
    for (name, service) in &services {
        service.visit_endpoints(|endpoint| {
            let labels = [
                ("service", name.as_str()),
                ("endpoint", endpoint.name.as_ref()),
            ];
            page.statuses(
                "attnroute_endpoint_requests_total",
                &labels,
                &endpoint.live.ended,
            );
        });
    }
    let families: [(&str, &str, &str, PerEndpoint); 5] = [
        (
            "attnroute_endpoint_inflight",
            "gauge",
            "Attempts picked and not ended",
            |endpoint| endpoint.live.in_flight.load(Relaxed).into(),
        ),
        (
            "attnroute_endpoint_picks_total",
            "counter",
            "Attempts picked",
            |endpoint| endpoint.live.picks.load(Relaxed),
        ),
        (
            "attnroute_endpoint_connections",
            "gauge",
            "Open connections",
            |endpoint| endpoint.live.connections.load(Relaxed).into(),
        ),
        (
            "attnroute_endpoint_connect_failures_total",
            "counter",
            "Connects that failed",
            |endpoint| endpoint.live.connect_failures.load(Relaxed),
        ),
        (
            "attnroute_endpoint_silences_total",
            "counter",
            "Connections given up because no PING was answered",
            |endpoint| endpoint.live.silences.load(Relaxed),
        ),
    ];
    for (family, kind, help, read) in families {
        page.family(family, kind, help);
        for (name, service) in &services {
            service.visit_endpoints(|endpoint| {
                let labels = [
                    ("service", name.as_str()),
                    ("endpoint", endpoint.name.as_ref()),
                ];
                page.sample(family, &labels, read(endpoint));
            });
        }
    }
}

type PerSnapshot = fn(&Snapshot) -> usize;
type NamedService = (String, std::sync::Arc<crate::service::Service>);

fn ejections(page: &mut Page, services: &[NamedService]) {
    let gauges: [(&str, &str, PerSnapshot); 2] = [
        (
            "attnroute_endpoints_ejected",
            "Endpoints that outlier detection keeps calls from",
            |snapshot| {
                let members = snapshot.members.iter();
                members
                    .filter(|member| member.endpoint.outlier.is_ejected())
                    .count()
            },
        ),
        (
            "attnroute_panic",
            "1 while endpoints that are not well are used, because too few are well",
            |snapshot| usize::from(snapshot.panic),
        ),
    ];
    for (family, help, read) in gauges {
        page.family(family, "gauge", help);
        for (name, service) in services {
            page.sample(family, &[("service", name)], read(&service.snapshot()));
        }
    }
    let family = "attnroute_endpoint_ejections_total";
    page.family(family, "counter", "Ejections by the criterion that was met");
    for (name, service) in services {
        for (cause, count) in Cause::ALL.iter().zip(&service.stats.ejections) {
            let labels = [("service", name.as_str()), ("reason", cause.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_endpoint_ejections_refused_total";
    page.family(
        family,
        "counter",
        "Ejections that outlier_detection.max_ejected forbade",
    );
    for (name, service) in services {
        let count = service.stats.ejections_refused.load(Relaxed);
        page.sample(family, &[("service", name)], count);
    }
}

fn health_checks(page: &mut Page, services: &[NamedService]) {
    let family = "attnroute_endpoints_standby";
    page.family(
        family,
        "gauge",
        "Endpoints that are well and get no calls, because another priority takes them",
    );
    for (name, service) in services {
        let count = service.snapshot().standby.len();
        page.sample(family, &[("service", name)], count);
    }
    let family = "attnroute_endpoints_unhealthy";
    page.family(
        family,
        "gauge",
        "Endpoints that health checks keep calls from",
    );
    for (name, service) in services {
        let snapshot = service.snapshot();
        let members = snapshot.members.iter();
        let unhealthy = members.filter(|member| member.endpoint.health.is_unhealthy());
        page.sample(family, &[("service", name)], unhealthy.count());
    }
    let family = "attnroute_health_checks_total";
    page.family(family, "counter", "Health checks by what came of them");
    for (name, service) in services {
        for (kind, count) in Verdict::KINDS.iter().zip(&service.stats.health_checks) {
            let labels = [("service", name.as_str()), ("result", kind)];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
}

type PerListener = fn(&ListenerStats) -> u64;

fn listeners(page: &mut Page, data_plane: &DataPlane) {
    let listeners = data_plane.listeners();
    let named = listeners
        .into_iter()
        .map(|listener| (listener.name(), listener));
    let listeners: BTreeMap<_, _> = named.collect();
    let families: [(&str, &str, &str, PerListener); 3] = [
        (
            "attnroute_listener_open_connections",
            "gauge",
            "Open client connections",
            |stats| stats.open.load(Relaxed) as u64,
        ),
        (
            "attnroute_listener_connections_total",
            "counter",
            "Client connections accepted",
            |stats| stats.accepted.load(Relaxed),
        ),
        (
            "attnroute_listener_accept_errors_total",
            "counter",
            "Accepts that the system refused",
            |stats| stats.accept_errors.load(Relaxed),
        ),
    ];
    for (family, kind, help, read) in families {
        page.family(family, kind, help);
        for (name, listener) in &listeners {
            let labels = [("listener", name.as_str())];
            page.sample(family, &labels, read(&listener.stats));
        }
    }
    let family = "attnroute_listener_refused_total";
    page.family(
        family,
        "counter",
        "Connections closed before HTTP/2 began, by what they spoke",
    );
    for (name, listener) in &listeners {
        for (kind, count) in Stranger::ALL.iter().zip(&listener.stats.refused) {
            let labels = [("listener", name.as_str()), ("reason", kind.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_listener_tunnels_total";
    page.family(
        family,
        "counter",
        "CONNECT tunnels by what they hold; other than http2 passes through unbalanced",
    );
    for (name, listener) in &listeners {
        for (content, count) in Content::ALL.iter().zip(&listener.stats.tunnels.opened) {
            let labels = [("listener", name.as_str()), ("content", content.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
}

type PerLoad = fn(&Load) -> Option<f64>;

/// What stands in front of servers.
fn inbound(page: &mut Page, data_plane: &DataPlane) {
    let services = services(data_plane);
    let servers: Vec<_> = services
        .iter()
        .filter_map(|(name, service)| Some((name.as_str(), service.inbound()?)))
        .collect();
    let now_ns = data_plane.now_ns();
    let gauges: [(&str, &str, PerLoad); 4] = [
        (
            "attnroute_inbound_inflight",
            "Calls in the server or waiting for it, without streams that were answered",
            |load| Some(load.inflight.into()),
        ),
        (
            "attnroute_inbound_queued",
            "Calls that wait for a place in the server",
            |load| Some(load.queued.into()),
        ),
        (
            "attnroute_inbound_max_concurrency",
            "Places in the server, where they are limited",
            |load| load.concurrency.map(f64::from),
        ),
        (
            "attnroute_inbound_utilization_ratio",
            "Share of the places taken over the last second, where they are limited",
            |load| load.utilization,
        ),
    ];
    let loads: Vec<_> = servers
        .iter()
        .map(|(name, server)| (*name, server.load(now_ns)))
        .collect();
    for (family, help, read) in gauges {
        page.family(family, "gauge", help);
        for (name, load) in &loads {
            if let Some(value) = read(load) {
                page.sample(family, &[("listener", name)], value);
            }
        }
    }
    let family = "attnroute_inbound_shed_total";
    page.family(
        family,
        "counter",
        "Calls refused because the server is full",
    );
    for (name, server) in &servers {
        for (shed, count) in Shed::ALL.iter().zip(&server.stats.shed) {
            let labels = [("listener", *name), ("reason", shed.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_inbound_queue_duration_seconds";
    page.family(
        family,
        "histogram",
        "Wait of calls that had to, and were let in",
    );
    for (name, server) in &servers {
        let waited = server.stats.waited.snapshot();
        page.histogram(family, ("listener", name), &waited);
    }
    let family = "attnroute_inbound_probes_total";
    page.family(family, "counter", "Probes answered");
    for (name, server) in &servers {
        let count = server.stats.probes.load(Relaxed);
        page.sample(family, &[("listener", name)], count);
    }
    let family = "attnroute_inbound_server_reports_total";
    let help = "Reports that the server itself was asked for between calls, by what came";
    page.family(family, "counter", help);
    for (name, server) in &servers {
        for (what, count) in ServerReport::ALL.iter().zip(server.server_reports()) {
            let labels = [("listener", *name), ("result", what.name())];
            page.sample(family, &labels, count.load(Relaxed));
        }
    }
    let family = "attnroute_inbound_report_streams";
    page.family(family, "gauge", "Open streams of load reports out of band");
    for (name, server) in &servers {
        let count = server.stats.report_streams.load(Relaxed);
        page.sample(family, &[("listener", name)], count);
    }
}

fn limits(page: &mut Page, data_plane: &DataPlane) {
    let stats = &data_plane.shared().stats;
    page.family(
        "attnroute_limit_hits_total",
        "counter",
        "Times a configured limit was reached",
    );
    for limit in Limit::ALL {
        page.sample(
            "attnroute_limit_hits_total",
            &[("limit", limit.name())],
            stats.hits(limit),
        );
    }
    let family = "attnroute_malformed_requests_total";
    page.family(
        family,
        "counter",
        "Requests that are no valid HTTP/2 requests; their stream is reset",
    );
    page.sample(family, &[], stats.malformed_requests.load(Relaxed));
}

#[cfg(test)]
mod tests {
    use super::{seconds, Page};

    #[test]
    fn seconds_are_exact() {
        assert_eq!(seconds(0), "0");
        assert_eq!(seconds(100_000), "0.0001");
        assert_eq!(seconds(60_000_000_000), "60");
        assert_eq!(seconds(1_500_000_001), "1.500000001");
    }

    #[test]
    fn label_values_are_escaped() {
        let mut page = Page::default();
        page.sample("a_total", &[("x", "q\"b\\n\nl"), ("y", "")], 3);
        assert_eq!(page.text, "a_total{x=\"q\\\"b\\\\n\\nl\",y=\"\"} 3\n");
    }
}
