//! Fleets for the tests of balancers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::{Balancer, View};
use crate::address::Address;
use crate::attempt::{Attempt, RequestClass, RequestInfo, Sample};
use crate::config::{BalancerConfig, ChoiceCount, EndpointSetConfig, ServiceConfig};
use crate::endpoint::{Endpoint, Member, Outcome};
use crate::grpc::Code;
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::Service;
use crate::waiting::Crowd;

/// Endpoints of which those with a weight are usable.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) usable: Vec<u32>,
}

impl Fleet {
    /// Static weight and calls in flight of each.
    pub(super) fn new(all: &[(f32, u32)]) -> Self {
        let total: u32 = all
            .iter()
            .fold(0, |sum, (_, calls)| sum.saturating_add(*calls));
        let crowd = Arc::new(Crowd::of(total));
        let members: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(index, (static_weight, in_flight))| {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + index as u16));
                let address = Address::Tcp(address);
                let crowd = Arc::clone(&crowd);
                let endpoint = Endpoint::of_service(index as u64, address, crowd);
                endpoint.live.in_flight.store(*in_flight, Relaxed);
                Member {
                    endpoint: Arc::new(endpoint),
                    static_weight: *static_weight,
                    zone: String::new(),
                    labels: BTreeMap::new(),
                    priority: 0,
                    operator_override: None,
                }
            })
            .collect();
        let usable = (0..)
            .zip(all)
            .filter(|(_, (weight, _))| *weight > 0.0)
            .map(|(index, _)| index);
        Self {
            members,
            usable: usable.collect(),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View::new(&self.members, &self.usable)
    }
}

/// `least_request` with distinct draws.
pub(super) fn choose(choice_count: ChoiceCount) -> BalancerConfig {
    BalancerConfig::LeastRequest {
        choice_count,
        with_replacement: false,
    }
}

/// How often each member is picked while the counters stand still.
pub(super) fn picks(balancer: &Balancer, fleet: &Fleet, count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut counts = vec![0; fleet.members.len()];
    for _ in 0..count {
        let (picked, _) = balancer.pick(fleet.view(), 0, RequestInfo::default(), rng);
        counts[picked as usize] += 1;
    }
    counts
}

/// Nanoseconds of a millisecond.
pub(super) const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// A call with a key.
pub(super) fn key(id: u64) -> RequestInfo {
    RequestInfo {
        class: RequestClass::default(),
        key: Some(id),
        rule: 0,
    }
}

/// A service without sockets, whose endpoints answer as the test says.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) service: Service,
    rng: RefCell<Rng>,
}

impl Bench {
    /// A service with endpoints of these static weights.
    pub(super) fn new(balancer: BalancerConfig, weights: &[f32]) -> Self {
        Self::with(balancer, weights, |_| {})
    }

    /// The same with further settings.
    pub(super) fn with(
        balancer: BalancerConfig,
        weights: &[f32],
        settings: impl FnOnce(&mut ServiceConfig),
    ) -> Self {
        let json = br#"{"name": "cart", "authorities": []}"#;
        let mut config = ServiceConfig::parse(json).expect("a valid service");
        config.balancer = balancer;
        settings(&mut config);
        let bench = Self {
            service: Service::new(config, 1),
            rng: RefCell::new(Rng::new(2)),
        };
        bench.set_weights(weights);
        bench
    }

    /// Replaces the set; endpoints are known by their place.
    pub(super) fn set_weights(&self, weights: &[f32]) {
        let endpoints = weights
            .iter()
            .enumerate()
            .map(|(index, weight)| {
                serde_json::json!({
                    "address": format!("127.0.0.1:{}", index + 1),
                    "static_weight": weight,
                })
            })
            .collect::<Vec<_>>();
        let json = serde_json::json!({ "endpoints": endpoints }).to_string();
        let limits = self.service.snapshot().settings.limits.clone();
        let set = EndpointSetConfig::parse(json.as_bytes(), &limits).expect("a valid set");
        self.service.apply_endpoints(set);
    }

    pub(super) fn endpoint(&self, index: u32) -> Arc<Endpoint> {
        Arc::clone(&self.service.snapshot().members[index as usize].endpoint)
    }

    /// An attempt at a given endpoint, whatever the balancer would say.
    pub(super) fn begin_at(&self, index: u32, now_ns: u64) -> Attempt {
        let chosen = (index, Reason::Single);
        Attempt::begin(
            self.endpoint(index),
            chosen,
            RequestInfo::default(),
            now_ns,
            None,
        )
    }

    /// Ends an attempt with success.
    pub(super) fn end(&self, attempt: Attempt, now_ns: u64, latency_ns: u64) {
        let sample = Sample::new(Outcome::Answered(Code::Ok), latency_ns);
        self.service.end_attempt(attempt, now_ns, &sample);
    }

    /// A call that an endpoint answers.
    pub(super) fn answer(&self, index: u32, now_ns: u64, latency_ns: u64) {
        self.end(self.begin_at(index, now_ns), now_ns, latency_ns);
    }

    /// A call that an endpoint fails.
    pub(super) fn fail(&self, index: u32, now_ns: u64, latency_ns: u64) {
        self.fail_with_push_back(index, now_ns, latency_ns, 0);
    }

    pub(super) fn fail_with_push_back(
        &self,
        index: u32,
        now_ns: u64,
        latency_ns: u64,
        push_back_ns: u64,
    ) {
        let sample = Sample {
            push_back_ns: Some(push_back_ns),
            ..Sample::new(Outcome::Answered(Code::Unavailable), latency_ns)
        };
        let attempt = self.begin_at(index, now_ns);
        self.service.end_attempt(attempt, now_ns, &sample);
    }

    /// A report out of band.
    pub(super) fn report(&self, index: u32, now_ns: u64, report: &LoadReport) {
        self.service.reported(&self.endpoint(index), now_ns, report);
    }

    /// A pick that is counted nowhere.
    pub(super) fn pick(&self, now_ns: u64) -> (u32, Reason) {
        self.choose(now_ns, RequestInfo::default())
    }

    pub(super) fn pick_key(&self, now_ns: u64, request: RequestInfo) -> u32 {
        self.choose(now_ns, request).0
    }

    fn choose(&self, now_ns: u64, request: RequestInfo) -> (u32, Reason) {
        let snapshot = self.service.snapshot();
        let mut rng = self.rng.borrow_mut();
        self.service
            .choose(&snapshot, now_ns, request, &mut rng)
            .expect("someone is usable")
    }

    /// A pick that is in flight until it is ended or dropped.
    pub(super) fn begin_key(&self, now_ns: u64, request: RequestInfo) -> Attempt {
        let snapshot = self.service.snapshot();
        let mut rng = self.rng.borrow_mut();
        self.service
            .begin_attempt(&snapshot, now_ns, request, &mut rng)
            .expect("someone is usable")
    }

    pub(super) fn weights(&self, now_ns: u64) -> Vec<f32> {
        self.service.snapshot().weights(now_ns)
    }

    pub(super) fn assert_weights(&self, now_ns: u64, expected: &[f64]) {
        let found = self.weights(now_ns);
        let close = found
            .iter()
            .zip(expected)
            .all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-5);
        assert!(close, "{found:?}, expected {expected:?}");
    }
}
