//! A call's way past the limits of its service: whom it may be given to, and that it is counted in.
//!
//! A full endpoint is left out of the pick while the rules of the call's route leave one that has
//! room. The counts are taken before they are compared, so that a limit holds whatever number of
//! data threads pick at once.

use crate::attempt::{Attempt, RequestInfo, Tried};
use crate::endpoint::{Full, Most};
use crate::rng::Rng;
use crate::service::{Refusal, Service, Snapshot};

/// Picks that other data threads may spoil before the call is refused.
const TRIES: u32 = 8;

impl Service {
    /// Chooses an endpoint that is not full, and counts the attempt in. Those that the call was
    /// given to before are left out while the rules of its route leave another one.
    ///
    /// # Errors
    /// A [`Refusal`] if no endpoint can take the call.
    pub fn begin_within_limits(
        &self,
        snapshot: &Snapshot,
        now_ns: u64,
        request: RequestInfo,
        tried: &Tried,
        rng: &mut Rng,
    ) -> Result<Attempt, Refusal> {
        let limits = &snapshot.settings.limits;
        let most = Most {
            of_service: limits.max_inflight,
            of_endpoint: limits.max_inflight_per_endpoint.unwrap_or(u32::MAX),
        };
        let most_held = limits.max_held_bytes_per_endpoint.unwrap_or(u64::MAX);
        let endpoint = |index: u32| &snapshot.members[index as usize].endpoint;
        let is_full = |of_all: u32| of_all >= most.of_service;
        let any = snapshot.members.first();
        if any.is_some_and(|any| is_full(any.endpoint.live.in_flight_of_all())) {
            return Err(Refusal::MaxInflight(most.of_service));
        }
        let held = any.map_or(0, |any| any.endpoint.live.held_bytes_of_all());
        if held >= limits.max_held_bytes {
            return Err(Refusal::MaxHeldBytes(limits.max_held_bytes));
        }
        let is_limited = most.of_endpoint != u32::MAX || most_held != u64::MAX;
        let has_room = |index: u32| !is_limited || endpoint(index).live.has_room(limits);
        let is_new = |index: u32| has_room(index) && !tried.contains(endpoint(index).id);
        for _ in 0..TRIES {
            let mut chosen = self.choose_among(snapshot, now_ns, request, rng, &is_new)?;
            if !has_room(chosen.0) && !tried.is_empty() {
                chosen = self.choose_among(snapshot, now_ns, request, rng, &has_room)?;
            }
            if !has_room(chosen.0) {
                if endpoint(chosen.0).live.held_bytes() >= most_held {
                    return Err(Refusal::MaxHeldBytesPerEndpoint(most_held));
                }
                break;
            }
            let taker = endpoint(chosen.0);
            let expected = snapshot.expected(now_ns, request, chosen.0);
            match Attempt::try_begin(taker, chosen, request, now_ns, (expected, most)) {
                Ok(attempt) => {
                    self.count_pick(chosen.1);
                    return Ok(attempt);
                }
                Err(Full::Service) => return Err(Refusal::MaxInflight(most.of_service)),
                Err(Full::Endpoint) => {}
            }
        }
        Err(Refusal::MaxInflightPerEndpoint(most.of_endpoint))
    }
}

#[cfg(test)]
mod tests {
    use crate::attempt::{Attempt, RequestInfo, Tried};
    use crate::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
    use crate::rng::Rng;
    use crate::service::{Refusal, Service};
    use std::sync::atomic::Ordering::Relaxed;

    struct Fixture {
        service: Service,
        rng: Rng,
    }

    impl Fixture {
        /// A service of three endpoints, with `extra` in its configuration.
        fn new(extra: &str) -> Self {
            let json = format!(r#"{{"name":"cart","authorities":[]{extra}}}"#);
            let config = ServiceConfig::parse(json.as_bytes()).expect("it is valid");
            let service = Service::new(config, 1);
            let set = br#"{"endpoints":[{"address":"10.0.0.1:1"},{"address":"10.0.0.2:1"},
                {"address":"10.0.0.3:1"}]}"#;
            let set = EndpointSetConfig::parse(set, &ServiceLimits::default()).expect("valid");
            service.apply_endpoints(set);
            Self {
                service,
                rng: Rng::stream(1, 1),
            }
        }

        fn admit(&mut self, tried: &Tried) -> Result<Attempt, Refusal> {
            let snapshot = self.service.snapshot();
            let request = RequestInfo {
                key: Some(7),
                ..RequestInfo::default()
            };
            self.service
                .begin_within_limits(&snapshot, 0, request, tried, &mut self.rng)
        }
    }

    const BALANCERS: [&str; 10] = [
        "least_request",
        "round_robin",
        "random",
        "weighted_round_robin",
        "peak_ewma",
        "c3",
        "prequal",
        "latency_observation",
        "ring_hash",
        "maglev",
    ];

    fn balancer(name: &str) -> String {
        match name {
            "ring_hash" | "maglev" => {
                format!(r#","balancer":{{"type":"{name}","header":"x-key"}}"#)
            }
            name => format!(r#","balancer":{{"type":"{name}"}}"#),
        }
    }

    #[test]
    fn a_full_endpoint_gets_nothing_while_another_has_room() {
        for name in BALANCERS {
            let limits = r#","limits":{"max_inflight_per_endpoint":2}"#;
            let mut fixture = Fixture::new(&(balancer(name) + limits));
            let held: Vec<_> = (0..6)
                .map(|_| fixture.admit(&Tried::default()).expect(name))
                .collect();
            for attempt in &held {
                assert_eq!(attempt.endpoint().live.in_flight(), 2, "{name}");
            }
            let refused = fixture.admit(&Tried::default()).expect_err(name);
            assert_eq!(refused, Refusal::MaxInflightPerEndpoint(2), "{name}");
            drop(held);
            fixture.admit(&Tried::default()).expect(name);
        }
    }

    #[test]
    fn a_tried_endpoint_gets_the_call_again_only_if_there_is_no_other() {
        for name in BALANCERS {
            let mut fixture = Fixture::new(&balancer(name));
            let mut tried = Tried::default();
            let mut seen = Vec::new();
            for _ in 0..3 {
                let attempt = fixture.admit(&tried).expect(name);
                tried.add(attempt.endpoint().id);
                assert!(!seen.contains(&attempt.index()), "{name}");
                seen.push(attempt.index());
            }
            fixture.admit(&tried).expect(name);
        }
    }

    #[test]
    fn the_limit_of_the_service_counts_all_its_endpoints() {
        let mut fixture = Fixture::new(r#","limits":{"max_inflight":4}"#);
        let held: Vec<_> = (0..4)
            .map(|_| fixture.admit(&Tried::default()).expect("room"))
            .collect();
        let refused = fixture.admit(&Tried::default()).expect_err("it is full");
        assert_eq!(refused, Refusal::MaxInflight(4));
        drop(held);
        fixture.admit(&Tried::default()).expect("room again");
    }

    #[test]
    fn an_endpoint_that_holds_too_much_gets_nothing_while_another_has_room() {
        for name in BALANCERS {
            let limits = r#","limits":{"max_held_bytes_per_endpoint":1000}"#;
            let mut fixture = Fixture::new(&(balancer(name) + limits));
            let mut stuck: Vec<Attempt> = Vec::new();
            for _ in 0..3 {
                let mut attempt = fixture.admit(&Tried::default()).expect(name);
                let is_new = |one: &Attempt| one.index() != attempt.index();
                assert!(stuck.iter().all(is_new), "{name}");
                attempt.hold(1, 999);
                attempt.hold(2, 999);
                stuck.push(attempt);
            }
            let refused = fixture.admit(&Tried::default()).expect_err(name);
            assert_eq!(refused, Refusal::MaxHeldBytesPerEndpoint(1000), "{name}");
            // One side takes it: half of it is still below the limit.
            stuck[1].hold(1, 999);
            let taken = fixture.admit(&Tried::default()).expect(name);
            assert_eq!(taken.index(), stuck[1].index(), "{name}");
        }
    }

    #[test]
    fn bytes_of_the_service_count_at_all_its_endpoints_and_go_with_their_calls() {
        let mut fixture = Fixture::new(r#","limits":{"max_held_bytes":3000}"#);
        let mut held: Vec<_> = (0..3)
            .map(|_| fixture.admit(&Tried::default()).expect("room"))
            .collect();
        for attempt in &mut held {
            attempt.hold(1, 1000);
        }
        let live = |fixture: &Fixture| fixture.service.crowd.held_bytes.load(Relaxed);
        assert_eq!(live(&fixture), 3000);
        let refused = fixture.admit(&Tried::default()).expect_err("it is full");
        assert_eq!(refused, Refusal::MaxHeldBytes(3000));
        held.pop();
        assert_eq!(live(&fixture), 2000);
        fixture.admit(&Tried::default()).expect("room again");
        held.clear();
        assert_eq!(live(&fixture), 0);
    }
}
