use std::sync::Arc;

use super::Verdict;
use crate::attempt::RequestInfo;
use crate::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
use crate::endpoint::Endpoint;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::{Refusal, Service};

const CHECKED: &str = r#""grpc_health":{"unhealthy_after":3,"healthy_after":2}"#;

fn config(rest: &str) -> ServiceConfig {
    let json = format!(r#"{{"name":"cart","authorities":[],{rest}}}"#);
    ServiceConfig::parse(json.as_bytes()).expect("a valid service")
}

/// A service of three endpoints.
fn service(rest: &str) -> Service {
    let service = Service::new(config(rest), 1);
    let set = br#"{"endpoints":[{"address":"10.0.0.1:1"},{"address":"10.0.0.1:2"},{"address":"10.0.0.1:3"}]}"#;
    let set = EndpointSetConfig::parse(set, &ServiceLimits::default()).expect("a valid set");
    service.apply_endpoints(set);
    service
}

fn endpoint(service: &Service, index: usize) -> Arc<Endpoint> {
    Arc::clone(&service.snapshot().members[index].endpoint)
}

fn check(service: &Service, index: usize, verdict: &Verdict) {
    service.checked(&endpoint(service, index), verdict);
}

fn usable(service: &Service) -> Vec<u32> {
    service.snapshot().usable.to_vec()
}

fn failed() -> Verdict {
    Verdict::Failed("no answer".into())
}

const NOT_SERVING: Verdict = Verdict::NotServing("NOT_SERVING");

#[test]
fn it_takes_some_failures_in_a_row_and_some_passes_to_return() {
    let service = service(CHECKED);
    check(&service, 0, &Verdict::Serving);
    for verdict in [failed(), failed(), Verdict::Serving, failed(), failed()] {
        check(&service, 0, &verdict);
        assert_eq!(usable(&service), [0, 1, 2]);
    }
    check(&service, 0, &failed());
    assert_eq!(usable(&service), [1, 2]);
    for verdict in [Verdict::Serving, failed(), Verdict::Serving] {
        check(&service, 0, &verdict);
        assert_eq!(usable(&service), [1, 2]);
    }
    check(&service, 0, &Verdict::Serving);
    assert_eq!(usable(&service), [0, 1, 2]);
}

#[test]
fn who_says_that_it_does_not_serve_is_believed_at_once() {
    let service = service(CHECKED);
    check(&service, 1, &Verdict::Serving);
    check(&service, 1, &NOT_SERVING);
    assert_eq!(usable(&service), [0, 2]);
}

#[test]
fn one_failure_is_enough_before_the_first_pass() {
    let service = service(CHECKED);
    check(&service, 2, &failed());
    assert_eq!(usable(&service), [0, 1]);
}

#[test]
fn no_connection_says_nothing_and_no_health_service_nothing_bad() {
    let service = service(CHECKED);
    for _ in 0..5 {
        check(&service, 0, &Verdict::NotConnected);
        check(&service, 1, &Verdict::Unimplemented);
    }
    assert_eq!(usable(&service), [0, 1, 2]);
    let stats = &service.stats.health_checks;
    let counts: Vec<_> = stats
        .iter()
        .map(|count| count.load(std::sync::atomic::Ordering::Relaxed))
        .collect();
    assert_eq!(counts, [0, 0, 0, 5, 5]);
}

#[test]
fn below_the_panic_threshold_checks_are_ignored() {
    let service = service(CHECKED);
    check(&service, 0, &NOT_SERVING);
    check(&service, 1, &NOT_SERVING);
    assert_eq!(usable(&service), [0, 1, 2]);
    assert!(service.snapshot().panic);
}

#[test]
fn without_a_panic_threshold_nobody_is_left() {
    let service = service(&format!(r#"{CHECKED},"panic_threshold":0"#));
    for index in 0..3 {
        check(&service, index, &NOT_SERVING);
    }
    let snapshot = service.snapshot();
    let mut rng = Rng::stream(1, 0);
    let chosen = service.choose(&snapshot, 0, RequestInfo::default(), &mut rng);
    assert_eq!(chosen, Err(Refusal::NoneWell(3)));
    check(&service, 1, &Verdict::Serving);
    check(&service, 1, &Verdict::Serving);
    let snapshot = service.snapshot();
    let chosen = service.choose(&snapshot, 0, RequestInfo::default(), &mut rng);
    assert_eq!(chosen, Ok((1, Reason::Single)));
}

#[test]
fn a_policy_without_checks_forgets_them() {
    let service = service(CHECKED);
    check(&service, 0, &NOT_SERVING);
    service.apply_config(config(r#""panic_threshold":0.5"#));
    assert_eq!(usable(&service), [0, 1, 2]);
    // A check that was under way when the policy changed.
    check(&service, 0, &NOT_SERVING);
    assert_eq!(usable(&service), [0, 1, 2]);
}
