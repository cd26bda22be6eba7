//! What a call passes on its way to an endpoint allocates nothing: at tens of thousands of calls
//! a second and core, the allocator would be the largest single cost of a pick.
#![expect(
    unsafe_code,
    reason = "a counting allocator cannot be written without; tests only"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use attnroute_dataplane::address::Address;
use attnroute_dataplane::attempt::{RequestInfo, Sample};
use attnroute_dataplane::balancer::{Balancer, View};
use attnroute_dataplane::config::{
    BalancerConfig, ChoiceCount, EndpointSetConfig, PathMatch, RouteConfig, RulesConfig,
    ServiceConfig, ServiceLimits,
};
use attnroute_dataplane::deadline;
use attnroute_dataplane::endpoint::{Endpoint, Member, Outcome};
use attnroute_dataplane::grpc::Code;
use attnroute_dataplane::histogram::Histogram;
use attnroute_dataplane::rng::Rng;
use attnroute_dataplane::route::{check_authority, Authorities, Routes};
use attnroute_dataplane::service::Service;
use http::header::{HeaderMap, HeaderValue};

struct Counting;

thread_local! {
    /// Of this thread: others of the test runner allocate when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; the counter
// is a plain cell without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    run();
    ALLOCATIONS.with(Cell::get) - before
}

fn allocated_bytes(run: impl FnOnce()) -> usize {
    let before = BYTES.with(Cell::get);
    run();
    BYTES.with(Cell::get) - before
}

fn members(static_weight: impl Fn(u16) -> f32) -> Vec<Member> {
    let member = |index| Member {
        endpoint: Arc::new(Endpoint::new(
            u64::from(index),
            Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, index))),
        )),
        static_weight: static_weight(index),
        zone: String::new(),
        labels: BTreeMap::new(),
        priority: 0,
        operator_override: None,
    };
    (1..=200).map(member).collect()
}

fn balancers() -> Vec<BalancerConfig> {
    let of_name = |name: &&str| serde_json::from_str(&format!(r#"{{"type":"{name}"}}"#));
    let mut configs = BalancerConfig::NAMES
        .iter()
        .map(of_name)
        .collect::<Result<Vec<BalancerConfig>, _>>()
        .expect("every balancer has defaults");
    configs.extend([BalancerConfig::LeastRequest {
        choice_count: ChoiceCount::All,
        with_replacement: false,
    }]);
    for draws in [2, 3, 100] {
        for with_replacement in [false, true] {
            let choice_count = ChoiceCount::Draws(draws);
            configs.push(BalancerConfig::LeastRequest {
                choice_count,
                with_replacement,
            });
        }
    }
    configs
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
}

#[test]
fn a_pick_allocates_nothing() {
    let usable: Vec<u32> = (0..200).collect();
    for members in [members(|_| 1.0), members(f32::from)] {
        let view = View::new(&members, &usable);
        for config in balancers() {
            let mut rng = Rng::new(1);
            let balancer = Balancer::new(&config, view, None, &mut rng);
            // What a thread needs once, it has then.
            let _ = balancer.pick(view, 0, RequestInfo::default(), &mut rng);
            let found = allocations(|| {
                for now_ns in 0..1000 {
                    black_box(balancer.pick(view, now_ns, RequestInfo::default(), &mut rng));
                }
            });
            assert_eq!(found, 0, "{config:?}");
        }
    }
}

/// A service of 10,000 endpoints, one of which is another one with each turn.
fn large_set(turn: usize) -> EndpointSetConfig {
    let address = |index: usize| format!("10.0.{}.{}:1", index / 256, index % 256);
    let mut endpoints: Vec<_> = (0..9_999).map(address).collect();
    endpoints.push(address(10_000 + turn));
    let rows: Vec<_> = endpoints
        .iter()
        .map(|address| format!(r#"{{"address":"{address}"}}"#))
        .collect();
    let json = format!(r#"{{"endpoints":[{}]}}"#, rows.join(","));
    EndpointSetConfig::parse(json.as_bytes(), &ServiceLimits::default()).expect("a valid set")
}

#[test]
fn a_change_among_ten_thousand_endpoints_leaves_nothing_to_build_for_a_pick() {
    for config in balancers() {
        let json = r#"{"name":"cart","authorities":[],"slow_start":{"window_ms":10000}}"#;
        let mut service = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
        service.balancer = config.clone();
        let service = Service::new(service, 1);
        service.apply_endpoints(large_set(0));
        let mut rng = Rng::new(1);
        let mut pick = || {
            let snapshot = service.snapshot();
            let request = RequestInfo {
                key: Some(7),
                ..RequestInfo::default()
            };
            black_box(service.choose(&snapshot, 0, request, &mut rng)).expect("a pick");
        };
        // What a thread needs once, it has then.
        pick();
        let built = allocations(|| {
            service.apply_endpoints(large_set(1));
        });
        assert!(built > 0, "the change is built where it is made");
        assert_eq!(allocations(&mut pick), 0, "{config:?}");
    }
}

#[test]
fn what_a_data_thread_finds_out_of_one_of_many_is_worked_out_beside_it() {
    let json = r#"{"name":"cart","authorities":[],"outlier_detection":{"consecutive_errors":1}}"#;
    let service = Service::new(ServiceConfig::parse(json.as_bytes()).expect("valid"), 1).shared();
    service.apply_endpoints(large_set(0));
    let member = |index: usize| Arc::clone(&service.snapshot().members[index].endpoint);
    let until_usable = |count: usize| {
        let is_there = (0..60_000).any(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
            service.snapshot().usable.len() == count
        });
        assert!(is_there, "{count} of {}", service.snapshot().usable.len());
    };
    for index in 0..20 {
        let dead = member(index);
        // A thread is started, or was asked already: nothing that grows with the set.
        assert!(allocated_bytes(|| service.set_failing(&dead, true)) < STARTED);
    }
    until_usable(9_980);
    let mut rng = Rng::new(1);
    let snapshot = service.snapshot();
    let attempt = service
        .begin_attempt(&snapshot, 0, RequestInfo::default(), &mut rng)
        .expect("somebody is usable");
    let failed = Sample::new(Outcome::Answered(Code::Unavailable), 1);
    assert!(allocated_bytes(|| service.end_attempt(attempt, 0, &failed)) < STARTED);
    until_usable(9_979);
    service.set_failing(&member(0), false);
    until_usable(9_980);
    // One that is not shared does it here, and that takes what grows with the set.
    let alone = Service::new(ServiceConfig::parse(json.as_bytes()).expect("valid"), 1);
    alone.apply_endpoints(large_set(0));
    let dead = Arc::clone(&alone.snapshot().members[0].endpoint);
    assert!(allocated_bytes(|| alone.set_failing(&dead, true)) > 9 * STARTED);
}

/// Bytes that starting a thread takes at most; the indices of 10,000 endpoints alone are 40,000.
const STARTED: usize = 4_096;

#[test]
fn a_pick_under_every_rule_allocates_nothing() {
    let json = r#"{"name":"cart","authorities":[],"locality":{"own_zone":"1","min_healthy":1},"routes":[
        {"match":{"path":"/a/1"},"rules":{"pin":["127.0.0.1:3","127.0.0.1:4"],"max_share":0.6}},
        {"match":{"path":"/a/2"},"rules":{"sticky":{"header":"x-key"}}},
        {"match":{"path":"/a/3"},"rules":{"max_share":0.1,"explore":0.5}}]}"#;
    let config = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
    let service = Service::new(config, 1);
    let address = |port| format!(r#"{{"address":"127.0.0.1:{port}","zone":"{}"}}"#, port % 3);
    let endpoints: Vec<_> = (1..=200).map(address).collect();
    let set = format!(r#"{{"endpoints":[{}]}}"#, endpoints.join(","));
    let set = EndpointSetConfig::parse(set.as_bytes(), &ServiceLimits::default());
    service.apply_endpoints(set.expect("a valid set"));
    let snapshot = service.snapshot();
    let mut rng = Rng::new(1);
    let mut pick = |rule, now_ns| {
        let request = RequestInfo {
            key: Some(now_ns),
            rule,
            ..RequestInfo::default()
        };
        black_box(service.choose(&snapshot, now_ns, request, &mut rng)).expect("a pick");
    };
    for rule in 0..=3 {
        // What a thread needs once, it has then.
        pick(rule, 0);
        // A millisecond apart, so that windows move on, too.
        let found = allocations(|| (1..3_000).for_each(|step| pick(rule, step * 1_000_000)));
        assert_eq!(found, 0, "rule {rule}");
    }
}

#[test]
fn reading_a_call_allocates_nothing() {
    let authorities = Authorities::new([("cart:80".to_owned(), 1), ("pay:*".to_owned(), 2)]);
    let routes = Routes::new(&[RouteConfig {
        matcher: PathMatch::PathPrefix("/shop.Cart/".to_owned()),
        timeout_ms: Some(1),
        wait_for_ready: None,
        rules: RulesConfig::default(),
        idempotent: false,
        retry: None,
        hedge: None,
        rule: 0,
        repetition: 0,
    }]);
    let mut headers = HeaderMap::new();
    headers.insert("grpc-timeout", HeaderValue::from_static("100m"));
    let histogram = Histogram::default();
    let found = allocations(|| {
        assert!(check_authority("pay:81").is_ok());
        assert_eq!(authorities.find("pay:81"), Some(&2));
        assert!(routes.find("/shop.Cart/Get").is_some());
        assert!(deadline::parse(&headers).is_ok_and(|timeout| timeout.is_some()));
        histogram.record(1_000_000);
    });
    assert_eq!(found, 0);
}
