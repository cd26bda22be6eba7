use super::Service;
use crate::attempt::RequestInfo;
use crate::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
use crate::rng::Rng;

/// Endpoints of a large service.
const MANY: usize = 10_000;

fn set_of(addresses: impl Iterator<Item = usize>) -> EndpointSetConfig {
    let endpoint = |index: usize| {
        let (high, low) = (index / 256, index % 256);
        format!(r#"{{"address":"10.0.{high}.{low}:1"}}"#)
    };
    let endpoints: Vec<_> = addresses.map(endpoint).collect();
    let json = format!(r#"{{"endpoints":[{}]}}"#, endpoints.join(","));
    EndpointSetConfig::parse(json.as_bytes(), &ServiceLimits::default()).expect("a valid set")
}

#[test]
fn the_first_pick_after_a_change_looks_after_who_is_new_alone() {
    let json = r#"{"name":"cart","authorities":[],"slow_start":{"window_ms":10000}}"#;
    let service = Service::new(ServiceConfig::parse(json.as_bytes()).expect("valid"), 1);
    let mut rng = Rng::new(1);
    let mut pick = || {
        let snapshot = service.snapshot();
        let fresh = snapshot.fresh.len();
        service
            .choose(&snapshot, 1, RequestInfo::default(), &mut rng)
            .expect("somebody is usable");
        fresh
    };
    service.apply_endpoints(set_of(0..MANY - 1));
    assert_eq!(pick(), MANY - 1);
    // One comes, one goes, and one that cannot be connected to comes back.
    service.apply_endpoints(set_of(0..MANY));
    assert_eq!(pick(), 1);
    service.apply_endpoints(set_of(1..MANY));
    assert_eq!(pick(), 0);
    let one = service.snapshot().members[0].endpoint.clone();
    service.set_failing(&one, true);
    service.set_failing(&one, false);
    assert_eq!(pick(), 0);
    one.first_ready.clear();
    service.apply_endpoints(set_of(0..MANY));
    assert_eq!(pick(), 2, "a new one, and one that has restarted");
}

#[test]
fn who_stays_in_a_large_set_stays_the_same_endpoint() {
    let json = r#"{"name":"cart","authorities":[]}"#;
    let service = Service::new(ServiceConfig::parse(json.as_bytes()).expect("valid"), 1);
    service.apply_endpoints(set_of(0..MANY));
    let before = service.snapshot();
    let (epoch, left) = service.apply_endpoints(set_of(1..=MANY));
    let after = service.snapshot();
    assert_eq!((epoch, after.epoch), (2, 2));
    assert_eq!(left, [before.members[0].endpoint.id]);
    let ids = |snapshot: &super::Snapshot| -> Vec<u64> {
        let members = snapshot.members.iter();
        members.map(|member| member.endpoint.id).collect()
    };
    assert_eq!(ids(&before)[1..], ids(&after)[..MANY - 1]);
    // The set that is in force already is no change.
    assert_eq!(service.apply_endpoints(set_of(1..=MANY)), (2, Vec::new()));
}
