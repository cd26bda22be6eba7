//! Nanoseconds per pick of every balancer against the number of endpoints.
//!
//! `cargo bench --bench pick` runs all; a filter such as `least_request_2/` runs some. Endpoints
//! have answered before and have calls in flight, so that no rule takes the short way of knowing
//! nothing, and time passes between picks.

use std::hint::black_box;
use std::time::Duration;

use attnroute_dataplane::attempt::{Attempt, RequestClass, RequestInfo, Sample};
use attnroute_dataplane::class::Traits;
use attnroute_dataplane::config::{BalancerConfig, EndpointSetConfig, ServiceConfig};
use attnroute_dataplane::endpoint::Outcome;
use attnroute_dataplane::grpc::Code;
use attnroute_dataplane::orca::LoadReport;
use attnroute_dataplane::rng::Rng;
use attnroute_dataplane::score_table::Scores;
use attnroute_dataplane::service::Service;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use http::HeaderMap;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn service(balancer: &str, count: usize) -> Service {
    let json = format!(r#"{{"name":"cart","authorities":[],"balancer":{balancer}}}"#);
    let config = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
    let limits = config.limits.clone();
    let service = Service::new(config, 1);
    let address = |index: usize| format!("10.{}.{}.1:80", index / 250, index % 250);
    let endpoints: Vec<_> = (0..count)
        .map(|index| serde_json::json!({ "address": address(index) }))
        .collect();
    let json = serde_json::json!({ "endpoints": endpoints }).to_string();
    let set = EndpointSetConfig::parse(json.as_bytes(), &limits).expect("a valid set");
    service.apply_endpoints(set);
    service
}

/// Calls of each round of the warm-up at most: rules that look at all would take minutes.
const CALLS_MAX: u64 = 200;

/// The class of the calls, as far as the balancer tells calls apart.
fn class(service: &Service) -> RequestClass {
    let traits = Traits {
        path: "/shop.Cart/Get",
        message_bytes: Some(100),
        headers: &HeaderMap::new(),
        timeout: None,
    };
    service.classify(&service.snapshot(), &traits).0
}

/// Scores for the classes and endpoints of a service, where somebody goes by them.
fn publish(service: &Service, now_ns: u64, rng: &mut Rng) {
    let snapshot = service.snapshot();
    let classes = service.classes();
    let (rows, columns) = (classes.entries().len(), snapshot.members.len());
    let costs: Vec<_> = (0..rows * columns)
        .map(|_| 0.005 + 0.01 * rng.unit_f32())
        .collect();
    let probability = vec![1.0 / columns as f32; rows * columns];
    let scores = Scores {
        endpoint_epoch: snapshot.epoch,
        class_epoch: classes.epoch(),
        cost_s: &costs,
        table_cost_s: &costs,
        spread: &costs,
        probability: &probability,
        mean_service_s: &vec![0.01; columns],
        concurrency: &vec![2.0; columns],
        sidecars: 4,
        model: "",
    };
    if snapshot.settings.tracking.is_some() {
        service
            .publish_scores(&scores, now_ns)
            .expect("they are valid");
    }
}

/// Lets calls end and every endpoint report for 12 s; returns calls that stay in flight.
fn warm_up(service: &Service, rng: &mut Rng) -> Vec<Attempt> {
    let snapshot = service.snapshot();
    let begin = |now_ns, rng: &mut Rng| {
        let request = RequestInfo {
            class: class(service),
            key: Some(rng.next_u64()),
            rule: 0,
        };
        service
            .begin_attempt(&service.snapshot(), now_ns, request, rng)
            .expect("someone is usable")
    };
    let calls = CALLS_MAX.min(snapshot.members.len() as u64);
    for round in 0..12 {
        for call in 0..calls {
            let now_ns = round * SECOND + call * (SECOND / calls);
            let attempt = begin(now_ns, rng);
            let sample = Sample::new(Outcome::Answered(Code::Ok), 10 * MS + rng.next_u64() % MS);
            service.end_attempt(attempt, now_ns, &sample);
            service.maintain(now_ns);
        }
        for (number, member) in snapshot.members.iter().enumerate() {
            let report = LoadReport {
                qps: Some(50.0 + number as f64),
                cpu_utilization: Some(0.5),
                inflight: Some((number % 3) as f64),
                service_time_s: Some(0.01),
                ..LoadReport::default()
            };
            service.reported(&member.endpoint, (round + 1) * SECOND, &report);
        }
    }
    publish(service, 12 * SECOND, rng);
    (0..calls).map(|_| begin(12 * SECOND, rng)).collect()
}

fn picks(criterion: &mut Criterion) {
    let mut cases: Vec<_> = BalancerConfig::NAMES
        .iter()
        .map(|name| ((*name).to_owned(), format!(r#"{{"type":"{name}"}}"#)))
        .collect();
    for (name, choice_count) in [("2", r#"{"draws":2}"#), ("all", r#""all""#)] {
        let balancer = format!(r#"{{"type":"least_request","choice_count":{choice_count}}}"#);
        cases.push((format!("least_request_{name}"), balancer));
    }
    cases.retain(|(name, _)| name != "least_request");
    for (name, balancer) in cases {
        let mut group = criterion.benchmark_group(&name);
        group
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_millis(500))
            .sample_size(20);
        for count in [10, 100, 1_000, 10_000] {
            group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
                let service = service(&balancer, count);
                let mut rng = Rng::new(2);
                let held = warm_up(&service, &mut rng);
                let snapshot = service.snapshot();
                let class = class(&service);
                let mut now_ns = 12 * SECOND;
                bencher.iter(|| {
                    now_ns += 1_000;
                    let request = RequestInfo {
                        class,
                        key: Some(now_ns),
                        rule: 0,
                    };
                    let view = snapshot.view();
                    black_box(snapshot.balancer.pick(view, now_ns, request, &mut rng))
                });
                drop(held);
            });
        }
        group.finish();
    }
}

criterion_group!(benches, picks);
criterion_main!(benches);
