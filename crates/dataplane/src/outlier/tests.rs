use std::fmt::Write as _;
use std::sync::Arc;

use proptest::prelude::*;

use super::Cause;
use crate::attempt::{RequestInfo, Sample};
use crate::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
use crate::endpoint::{Endpoint, Outcome};
use crate::grpc::Code;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::{Refusal, Service};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A service without sockets, whose endpoints answer as the test says.
struct Bench {
    service: Service,
    rng: Rng,
}

impl Bench {
    /// `rest`: further keys of the service.
    fn new(count: usize, rest: &str) -> Self {
        let json = format!(r#"{{"name":"cart","authorities":[],{rest}}}"#);
        let config = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
        let bench = Self {
            service: Service::new(config, 1),
            rng: Rng::stream(1, 0),
        };
        bench.set(count);
        bench
    }

    fn set(&self, count: usize) {
        let mut json = String::from(r#"{"endpoints":["#);
        for index in 0..count {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(json, r#"{comma}{{"address":"10.0.0.1:{}"}}"#, 1 + index);
        }
        json.push_str("]}");
        let set = EndpointSetConfig::parse(json.as_bytes(), &ServiceLimits::default());
        self.service.apply_endpoints(set.expect("a valid set"));
    }

    fn endpoint(&self, index: usize) -> Arc<Endpoint> {
        Arc::clone(&self.service.snapshot().members[index].endpoint)
    }

    fn pick(&mut self, now_ns: u64) -> Result<(u32, Reason), Refusal> {
        self.service.maintain(now_ns);
        let snapshot = self.service.snapshot();
        self.service
            .choose(&snapshot, now_ns, RequestInfo::default(), &mut self.rng)
    }

    /// A call at an endpoint of the test's choice.
    fn call(&self, index: usize, now_ns: u64, outcome: Outcome, latency_ns: u64) {
        let endpoint = self.endpoint(index);
        let chosen = (index as u32, Reason::RoundRobin);
        let attempt =
            crate::attempt::Attempt::begin(endpoint, chosen, RequestInfo::default(), now_ns, None);
        let sample = Sample::new(outcome, latency_ns);
        self.service.end_attempt(attempt, now_ns, &sample);
    }

    fn fail(&self, index: usize, times: usize, now_ns: u64) {
        for _ in 0..times {
            self.call(index, now_ns, Outcome::Answered(Code::Unavailable), MS);
        }
    }

    fn ejected(&self) -> Vec<usize> {
        let snapshot = self.service.snapshot();
        let members = snapshot.members.iter().enumerate();
        members
            .filter(|(_, member)| member.endpoint.outlier.is_ejected())
            .map(|(index, _)| index)
            .collect()
    }

    fn ejections(&self, cause: Cause) -> u64 {
        let counts = &self.service.stats.ejections;
        counts[cause as usize].load(std::sync::atomic::Ordering::Relaxed)
    }
}

const ON: &str = r#""outlier_detection":{}"#;

#[test]
fn failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let bench = Bench::new(3, ON);
    bench.fail(0, 4, SECOND);
    bench.call(0, SECOND, Outcome::Answered(Code::NotFound), MS);
    bench.fail(0, 4, SECOND);
    bench.call(0, SECOND, Outcome::Censored(Code::Cancelled), MS);
    assert!(bench.ejected().is_empty());
    bench.fail(0, 1, SECOND);
    assert_eq!(bench.ejected(), [0]);
    assert_eq!(bench.service.snapshot().usable.as_ref(), [1, 2]);
    assert_eq!(bench.ejections(Cause::ConsecutiveErrors), 1);
}

#[test]
fn without_outlier_detection_nobody_is_ejected() {
    let bench = Bench::new(3, r#""sidecars":1"#);
    bench.fail(0, 50, SECOND);
    assert!(bench.ejected().is_empty());
}

#[test]
fn an_ejection_ends_and_the_next_one_is_twice_as_long_up_to_the_longest() {
    let rest = r#""outlier_detection":{"base_ejection_ms":1000,"max_ejection_ms":3000}"#;
    let mut bench = Bench::new(3, rest);
    let mut now = SECOND;
    for length_ms in [1_000, 2_000, 3_000, 3_000] {
        bench.fail(1, 5, now);
        assert_eq!(bench.ejected(), [1]);
        let _ = bench.pick(now + (length_ms - 1) * MS);
        assert_eq!(bench.ejected(), [1], "after {length_ms} ms less one");
        let _ = bench.pick(now + length_ms * MS);
        assert!(bench.ejected().is_empty());
        now += length_ms * MS;
    }
    // Four base times without an ejection: four are forgotten.
    now += 4 * SECOND;
    bench.fail(1, 5, now);
    let _ = bench.pick(now + SECOND);
    assert!(bench.ejected().is_empty());
}

#[test]
fn failures_from_before_the_return_count_no_more_and_slow_start_begins_anew() {
    let rest = r#""outlier_detection":{"base_ejection_ms":1000},"slow_start":{"window_ms":10000}"#;
    let mut bench = Bench::new(2, rest);
    let _ = bench.pick(0);
    let now = 60 * SECOND;
    let slow_start = bench.service.snapshot().settings.slow_start.expect("on");
    let ramp = |bench: &Bench, now_ns| slow_start.ramp(&bench.endpoint(0).first_ready, now_ns);
    assert_eq!(ramp(&bench, now), 1.0);
    bench.fail(0, 5, now);
    // In flight when it was ejected.
    bench.fail(0, 4, now);
    let now = now + SECOND;
    let _ = bench.pick(now);
    bench.fail(0, 4, now);
    assert!(bench.ejected().is_empty());
    assert_eq!(ramp(&bench, now), 0.1);
    assert_eq!(ramp(&bench, now + 5 * SECOND), 0.5);
}

#[test]
fn calls_that_wait_for_one_connect_fail_as_one() {
    let bench = Bench::new(3, ON);
    let endpoint = bench.endpoint(0);
    bench.service.set_failing(&endpoint, true);
    bench.fail(0, 100, SECOND);
    bench.service.set_failing(&endpoint, false);
    bench.fail(0, 3, SECOND);
    assert!(bench.ejected().is_empty());
    bench.fail(0, 1, SECOND);
    assert_eq!(bench.ejected(), [0]);
}

#[test]
fn too_few_well_ones_are_a_panic_until_the_first_that_makes_them_enough_returns() {
    let rest = r#""outlier_detection":{"max_ejected":1.0,"base_ejection_ms":1000}"#;
    let mut bench = Bench::new(4, rest);
    bench.fail(0, 5, SECOND);
    bench.fail(1, 5, SECOND + MS);
    assert_ne!(
        bench.pick(SECOND + MS).map(|(_, reason)| reason),
        Ok(Reason::Panic)
    );
    bench.fail(2, 5, SECOND + 2 * MS);
    assert_eq!(
        bench.pick(SECOND + 2 * MS).map(|(_, reason)| reason),
        Ok(Reason::Panic)
    );
    assert_eq!(bench.service.snapshot().usable.as_ref(), [0, 1, 2, 3]);
    assert_ne!(
        bench.pick(2 * SECOND).map(|(_, reason)| reason),
        Ok(Reason::Panic)
    );
    assert_eq!(bench.ejected(), [1, 2]);
}

#[test]
fn in_a_panic_those_that_cannot_be_connected_to_stay_out() {
    let bench = Bench::new(4, ON);
    bench.service.set_failing(&bench.endpoint(0), true);
    bench.service.set_failing(&bench.endpoint(1), true);
    assert!(!bench.service.snapshot().panic);
    bench.fail(2, 5, SECOND);
    let snapshot = bench.service.snapshot();
    assert!(snapshot.panic && snapshot.reachable);
    assert_eq!(snapshot.usable.as_ref(), [2, 3]);
}

#[test]
fn without_a_panic_threshold_nobody_well_is_a_refusal() {
    let rest = r#""outlier_detection":{"max_ejected":1.0},"panic_threshold":0.0"#;
    let mut bench = Bench::new(2, rest);
    bench.fail(0, 5, SECOND);
    bench.fail(1, 5, SECOND);
    assert_eq!(bench.pick(SECOND), Err(Refusal::NoneWell(2)));
}

#[test]
fn a_slow_endpoint_is_ejected_by_its_latency_and_only_then() {
    let rest = r#""outlier_detection":{"latency":{},"base_ejection_ms":1000}"#;
    let mut bench = Bench::new(4, rest);
    let _ = bench.pick(0);
    let play = |bench: &Bench, slow_ms: u64| {
        for _ in 0..20 {
            for index in 0..4 {
                let latency_ms = if index == 3 {
                    slow_ms
                } else {
                    10 + index as u64
                };
                bench.call(index, SECOND, Outcome::Answered(Code::Ok), latency_ms * MS);
            }
        }
    };
    // The median of 10, 11, 12 and this one is 11: up to 44 ms is well.
    play(&bench, 44);
    let _ = bench.pick(10 * SECOND);
    assert!(bench.ejected().is_empty());
    play(&bench, 45);
    let _ = bench.pick(20 * SECOND);
    assert_eq!(bench.ejected(), [3]);
    assert_eq!(bench.ejections(Cause::Latency), 1);
    // 19 calls of one are too few to judge it.
    let _ = bench.pick(30 * SECOND);
    for _ in 0..19 {
        (0..4).for_each(|index| bench.call(index, SECOND, Outcome::Answered(Code::Ok), MS));
        bench.call(3, SECOND, Outcome::Answered(Code::NotFound), MS);
    }
    let _ = bench.pick(40 * SECOND);
    assert!(bench.ejected().is_empty());
}

#[test]
fn a_low_success_rate_ejects_and_a_common_one_does_not() {
    let rest = r#""outlier_detection":{"consecutive_errors":0,"success_rate":{"min_calls":10}}"#;
    let mut bench = Bench::new(6, rest);
    let _ = bench.pick(0);
    for index in 0..6 {
        bench.fail(index, 5, SECOND);
        for _ in 0..5 {
            bench.call(index, SECOND, Outcome::Answered(Code::Ok), MS);
        }
    }
    let _ = bench.pick(10 * SECOND);
    assert!(bench.ejected().is_empty());
    // Rates 1, 1, 1, 1, 1 and 0.5: mean 0.917, deviation 0.186, 1.9 of them below is 0.563.
    for index in 0..6 {
        let failures = if index == 2 { 5 } else { 0 };
        bench.fail(index, failures, SECOND);
        for _ in failures..10 {
            bench.call(index, SECOND, Outcome::Answered(Code::Ok), MS);
        }
    }
    let _ = bench.pick(20 * SECOND);
    assert_eq!(bench.ejected(), [2]);
    assert_eq!(bench.ejections(Cause::SuccessRate), 1);
}

#[test]
fn a_policy_without_it_ends_every_ejection() {
    let bench = Bench::new(3, ON);
    bench.fail(0, 5, SECOND);
    assert_eq!(bench.ejected(), [0]);
    let config = ServiceConfig::parse(br#"{"name":"cart","authorities":[]}"#).expect("valid");
    bench.service.apply_config(config);
    assert!(bench.ejected().is_empty());
    assert_eq!(bench.service.snapshot().usable.len(), 3);
}

proptest! {
    #[test]
    fn rs_01_the_limit_holds_whatever_happens(
        count in 1_usize..12,
        limit in 0_u32..=100,
        steps in proptest::collection::vec((0_usize..12, 0_u8..4, 0_u64..40_000), 0..80),
    ) {
        let share = f64::from(limit) / 100.0;
        let rest = format!(r#""outlier_detection":{{"max_ejected":{share}}}"#);
        let mut bench = Bench::new(count, &rest);
        let (mut count, mut now) = (count, 0);
        for (index, what, passed_ms) in steps {
            now += passed_ms * MS;
            match what {
                0 => { let _ = bench.pick(now); }
                1 => { count = 1 + index; bench.set(count); }
                _ => bench.fail(index % count, 5, now),
            }
            let most = if count == 1 { 0 } else { count * limit as usize / 100 };
            let ejected = bench.ejected();
            prop_assert!(ejected.len() <= most, "{} ejected of {count}, limit {limit} %", ejected.len());
            let snapshot = bench.service.snapshot();
            let well = snapshot.usable.iter().all(|index| !ejected.contains(&(*index as usize)));
            prop_assert!(well || snapshot.panic, "an ejected endpoint takes calls");
            prop_assert!(!snapshot.usable.is_empty());
        }
    }
}
