//! RS-12: a call that was given to some endpoints goes to another one.

use attnroute_dataplane::attempt::{Attempt, RequestInfo, Sample, Tried};
use attnroute_dataplane::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
use attnroute_dataplane::endpoint::Outcome;
use attnroute_dataplane::grpc::Code;
use attnroute_dataplane::rng::Rng;
use attnroute_dataplane::service::Service;

const MS: u64 = 1_000_000;

fn service(keys: &str, endpoints: usize) -> Service {
    let json = format!(r#"{{"name":"cart","authorities":[]{keys}}}"#);
    let service = Service::new(
        ServiceConfig::parse(json.as_bytes()).expect("it is valid"),
        1,
    );
    let address = |index| format!(r#"{{"address":"10.0.0.{index}:1","zone":"z{index}"}}"#);
    let set: Vec<_> = (1..=endpoints).map(address).collect();
    let set = format!(r#"{{"endpoints":[{}]}}"#, set.join(","));
    let set =
        EndpointSetConfig::parse(set.as_bytes(), &ServiceLimits::default()).expect("it is valid");
    service.apply_endpoints(set);
    service
}

/// `None` if there is no other.
fn another(service: &Service, now_ns: u64, tried: &[u64], rng: &mut Rng) -> Option<Attempt> {
    let request = RequestInfo {
        key: Some(7),
        rule: service
            .snapshot()
            .settings
            .routes
            .find("/a")
            .map_or(0, |route| route.rule),
        ..RequestInfo::default()
    };
    let mut given = Tried::default();
    tried.iter().for_each(|id| given.add(*id));
    let snapshot = service.snapshot();
    let attempt = service.begin_within_limits(&snapshot, now_ns, request, &given, rng);
    let attempt = attempt.expect("somebody is usable");
    let has_another = service.has_another(&snapshot, request, &given);
    assert_eq!(has_another, !tried.contains(&attempt.endpoint().id));
    has_another.then_some(attempt)
}

#[test]
fn rs_12_every_balancer_leaves_out_who_was_tried() {
    let names = [
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
    ];
    for name in names {
        let header = if matches!(name, "ring_hash" | "maglev") {
            r#","header":"x-key""#
        } else {
            ""
        };
        let service = service(&format!(r#","balancer":{{"type":"{name}"{header}}}"#), 4);
        let mut rng = Rng::new(3);
        for _ in 0..50 {
            let mut tried = Vec::new();
            let mut attempts = Vec::new();
            while let Some(attempt) = another(&service, MS, &tried, &mut rng) {
                assert!(!tried.contains(&attempt.endpoint().id), "{name}");
                tried.push(attempt.endpoint().id);
                attempts.push(attempt);
            }
            assert_eq!(tried.len(), 4, "{name}");
        }
    }
}

#[test]
fn rs_12_rules_hold_for_another_one() {
    let rules =
        r#","routes":[{"match":{"path":"/a"},"rules":{"pin":["10.0.0.2:1","10.0.0.3:1"]}}]"#;
    let service = service(rules, 4);
    let mut rng = Rng::new(3);
    let first = another(&service, 0, &[], &mut rng).unwrap();
    let second = another(&service, 0, &[first.endpoint().id], &mut rng).unwrap();
    let mut names = [
        first.endpoint().name.as_ref(),
        second.endpoint().name.as_ref(),
    ];
    names.sort();
    assert_eq!(names, ["10.0.0.2:1", "10.0.0.3:1"]);
    let tried = [first.endpoint().id, second.endpoint().id];
    assert!(another(&service, 0, &tried, &mut rng).is_none());
}

#[test]
fn an_attempt_is_charged_from_its_own_start() {
    // The first endpoint lets the call wait for 2 s, the second answers after 10 ms.
    let service = service(r#","balancer":{"type":"peak_ewma"}"#, 2);
    let mut rng = Rng::new(3);
    let first = another(&service, 0, &[], &mut rng).unwrap();
    let slow = first.index();
    let tried = [first.endpoint().id];
    service.end_attempt(
        first,
        2_000 * MS,
        &Sample::new(Outcome::Answered(Code::DeadlineExceeded), 2_000 * MS),
    );
    let second = another(&service, 2_000 * MS, &tried, &mut rng).unwrap();
    assert_eq!(second.started_ns(), 2_000 * MS);
    let latency_ns = 2_010 * MS - second.started_ns();
    let sample = Sample::new(Outcome::Answered(Code::Ok), latency_ns);
    service.end_attempt(second, 2_010 * MS, &sample);
    let mut expected = [1.0, 0.0];
    if slow == 0 {
        expected.reverse();
    }
    assert_eq!(service.snapshot().weights(2_010 * MS), expected);
}
