//! An attempt: one try of a call at one endpoint, from the pick to what became of it.
//!
//! [`crate::service::Service::begin_attempt`] counts it in, and it is counted out exactly once:
//! by [`crate::service::Service::end_attempt`] with what was learned from it, or by being dropped,
//! which says nothing about the endpoint. The forward path and the simulator use the same two, so
//! that a balancer learns the same things in both.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::endpoint::{Endpoint, Full, Most, Outcome};
use crate::grpc::Code;
use crate::ledger::Expected;
use crate::orca::LoadReport;
use crate::reason::Reason;

/// A failure counts as at least this long in a balancer that goes by latency, so that an endpoint
/// which fails fast attracts nothing.
const FAILURE_PENALTY_NS: u64 = 1_000_000_000;

/// Which request class a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestClass {
    /// Its index; 0: it has none of its own.
    pub index: u32,
    /// Class epoch in which the index means it.
    pub epoch: u32,
    /// Names a class that is not admitted yet; 0: none.
    pub unknown: u64,
}

impl From<u32> for RequestClass {
    /// Whatever the index means when it is used.
    fn from(index: u32) -> Self {
        Self {
            index,
            epoch: u32::MAX,
            unknown: 0,
        }
    }
}

/// What a pick may know of the call that it places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestInfo {
    /// Its request class.
    pub class: RequestClass,
    /// Hash of the header that a sticky route, `ring_hash` or `maglev` goes by; without one the
    /// call is not sticky, and those place it at random.
    pub key: Option<u64>,
    /// Rule set of its route, from 1; 0: none of its own.
    pub rule: u32,
}

/// Whom a call was given to: ids of endpoints, the last few.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    ids: [u64; 4],
    count: usize,
}

impl Tried {
    /// Notes one.
    pub fn add(&mut self, id: u64) {
        self.ids[self.count % self.ids.len()] = id;
        self.count += 1;
    }

    /// Whether it is among them.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        // Ids begin at 1.
        self.ids.contains(&id)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// How it ended.
    pub outcome: Outcome,
    /// Request headers received to end of answer; of a streaming method, to its first message.
    pub latency_ns: u64,
    /// How long the endpoint asked not to be called again.
    pub push_back_ns: Option<u64>,
    /// The load report that came with the answer.
    pub report: Option<&'a LoadReport>,
}

impl Sample<'_> {
    /// A sample without push-back and report.
    #[must_use]
    pub const fn new(outcome: Outcome, latency_ns: u64) -> Self {
        Self {
            outcome,
            latency_ns,
            push_back_ns: None,
            report: None,
        }
    }

    /// The latency that balancers record, in nanoseconds: of a success its own, of a failure the
    /// largest of push-back, 1 s and `estimate_ns`, what the balancer believed so far. `None`
    /// where the outcome says nothing about the endpoint.
    #[must_use]
    pub fn charged_ns(&self, estimate_ns: f64) -> Option<f64> {
        match self.outcome {
            Outcome::Censored(_) => None,
            Outcome::Answered(code) if code.is_failure() => {
                let asked = self.push_back_ns.unwrap_or(0).max(FAILURE_PENALTY_NS);
                Some((asked as f64).max(estimate_ns))
            }
            Outcome::Answered(_) => Some(self.latency_ns as f64),
        }
    }
}

/// The answer of a probe: what an endpoint says of itself between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Calls in the endpoint, from everybody.
    pub inflight: u32,
    /// Recent latency at about that many calls; 0 where it has none.
    pub latency_ns: u64,
}

/// An attempt in flight.
#[derive(Debug)]
pub struct Attempt {
    endpoint: Arc<Endpoint>,
    index: u32,
    reason: Reason,
    request: RequestInfo,
    started_ns: u64,
    in_flight: u32,
    /// Where the endpoint's ledger has it as open.
    expected: Option<Expected>,
    ended: bool,
    /// Bytes that it may hold in the sidecar because one side does not take them.
    held_bytes: u32,
    /// Of a streaming call: how long its first answer message took, once it came.
    answered_ns: Option<NonZeroU64>,
}

impl Attempt {
    pub(crate) fn begin(
        endpoint: Arc<Endpoint>,
        chosen: (u32, Reason),
        request: RequestInfo,
        started_ns: u64,
        expected: Option<Expected>,
    ) -> Self {
        let in_flight = endpoint.live.begin();
        Self::begun((endpoint, in_flight), chosen, request, started_ns, expected)
    }

    /// The same within limits; counts nothing if one of them is reached.
    pub(crate) fn try_begin(
        endpoint: &Arc<Endpoint>,
        chosen: (u32, Reason),
        request: RequestInfo,
        started_ns: u64,
        (expected, most): (Option<Expected>, Most),
    ) -> Result<Self, Full> {
        let in_flight = endpoint.live.try_begin(most)?;
        let counted = (Arc::clone(endpoint), in_flight);
        Ok(Self::begun(counted, chosen, request, started_ns, expected))
    }

    fn begun(
        (endpoint, in_flight): (Arc<Endpoint>, u32),
        (index, reason): (u32, Reason),
        request: RequestInfo,
        started_ns: u64,
        expected: Option<Expected>,
    ) -> Self {
        if expected.is_some() {
            endpoint.ledger.begin(started_ns);
        }
        Self {
            endpoint,
            index,
            reason,
            request,
            started_ns,
            in_flight,
            expected,
            ended: false,
            held_bytes: 0,
            answered_ns: None,
        }
    }

    /// Whom it was picked for.
    #[must_use]
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Index of the endpoint in the snapshot of the pick.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Why it was picked.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// What the pick knew of the call.
    #[must_use]
    pub fn request(&self) -> RequestInfo {
        self.request
    }

    /// When it was picked, on the clock of whoever asked.
    #[must_use]
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// Attempts of ours that the endpoint had in flight at the pick, without this one and without
    /// streams whose answer had begun.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// What was expected of it, once: whoever takes it enters its end in the endpoint's ledger.
    pub(crate) fn take_expected(&mut self) -> Option<Expected> {
        self.expected.take()
    }

    /// Latency up to the first answer message, of a streaming call that has one.
    pub(crate) fn answered_ns(&self) -> Option<u64> {
        self.answered_ns.map(NonZeroU64::get)
    }

    /// Notes that it is a streaming call whose first answer message has come.
    pub(crate) fn answered(&mut self, latency_ns: u64) {
        if !self.ended && self.answered_ns.is_none() {
            self.answered_ns = NonZeroU64::new(latency_ns.max(1));
            self.endpoint.live.begin_stream();
        }
    }

    /// Data waits in that many of its directions, because the other side does not take it. Each
    /// counts with its whole window: the sender may fill that without a further word, and nobody is
    /// told when it does. A call that flows holds nothing and touches no shared counter.
    pub(crate) fn hold(&mut self, directions: usize, window_bytes: u32) {
        let held = (directions as u32).saturating_mul(window_bytes);
        if held != self.held_bytes {
            self.endpoint.live.hold(self.held_bytes.into(), held.into());
            self.held_bytes = held;
        }
    }

    /// Counts it out.
    pub(crate) fn close(&mut self, outcome: Outcome, latency_ns: u64) {
        if !self.ended {
            self.ended = true;
            self.hold(0, 0);
            if self.answered_ns.is_some() {
                self.endpoint.live.end_stream();
            }
            let latency_ns = self.answered_ns().unwrap_or(latency_ns);
            self.endpoint.live.end(outcome, latency_ns);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Released on drop, so that a call whose task ends in any way cannot leak it (RS-14).
        self.close(Outcome::Censored(Code::Cancelled), 0);
        if self.expected.is_some() {
            self.endpoint.ledger.leave(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Attempt, RequestInfo, Sample};
    use crate::config::{EndpointSetConfig, ServiceConfig, ServiceLimits};
    use crate::endpoint::Outcome;
    use crate::grpc::Code;
    use crate::rng::Rng;
    use crate::service::Service;

    const MS: u64 = 1_000_000;

    /// A service of two endpoints, with an attempt at each.
    fn two_attempts(balancer: &str) -> (Service, [Attempt; 2]) {
        let json =
            format!(r#"{{"name":"cart","authorities":[],"balancer":{{"type":"{balancer}"}}}}"#);
        let config = ServiceConfig::parse(json.as_bytes()).expect("it is valid");
        let service = Service::new(config, 1);
        let set = br#"{"endpoints":[{"address":"10.0.0.1:1"},{"address":"10.0.0.2:1"}]}"#;
        let set = EndpointSetConfig::parse(set, &ServiceLimits::default()).expect("it is valid");
        service.apply_endpoints(set);
        let mut rng = Rng::stream(1, 1);
        let mut begin = || {
            let snapshot = service.snapshot();
            service
                .begin_attempt(&snapshot, 0, RequestInfo::default(), &mut rng)
                .expect("somebody is usable")
        };
        let mut attempts = [begin(), begin()];
        attempts.sort_by_key(Attempt::index);
        assert_eq!(attempts.each_ref().map(Attempt::index), [0, 1]);
        (service, attempts)
    }

    #[test]
    fn the_sample_of_a_stream_ends_at_its_first_answer_message() {
        // A stream answers after 10 ms and lasts for 10 s, a unary call takes 20 ms elsewhere.
        let (service, [mut stream, unary]) = two_attempts("peak_ewma");
        service.answered(&mut stream, 10 * MS, true);
        service.end_attempt(
            unary,
            20 * MS,
            &Sample::new(Outcome::Answered(Code::Ok), 20 * MS),
        );
        let endpoint = std::sync::Arc::clone(stream.endpoint());
        let live = &endpoint.live;
        assert_eq!((live.in_flight(), live.unanswered()), (1, 0));
        // Nothing else is in flight, and 10 ms are less than 20: the open stream burdens nobody.
        assert_eq!(service.snapshot().weights(20 * MS), [1.0, 0.0]);
        service.end_attempt(
            stream,
            10_000 * MS,
            &Sample::new(Outcome::Answered(Code::Ok), 10_000 * MS),
        );
        assert_eq!(service.snapshot().weights(20 * MS), [1.0, 0.0]);
        assert_eq!((live.in_flight(), live.unanswered()), (0, 0));
        let sum = live.latency_ns.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sum, 10 * MS);
    }

    #[test]
    fn an_open_stream_counts_for_least_request() {
        let (service, [mut stream, unary]) = two_attempts("least_request");
        service.answered(&mut stream, 10 * MS, true);
        drop(unary);
        assert_eq!(service.snapshot().weights(20 * MS), [0.0, 1.0]);
        drop(stream);
        assert_eq!(service.snapshot().weights(20 * MS), [0.5, 0.5]);
    }

    #[test]
    fn a_stream_found_out_late_gives_no_sample() {
        let (service, [mut stream, unary]) = two_attempts("peak_ewma");
        service.end_attempt(
            unary,
            20 * MS,
            &Sample::new(Outcome::Answered(Code::Ok), 20 * MS),
        );
        service.answered(&mut stream, 10_000 * MS, false);
        // Nothing was learned: the 30 ms that are assumed of an endpoint stay.
        assert_eq!(service.snapshot().weights(20 * MS), [0.0, 1.0]);
        let live = &stream.endpoint().live;
        assert_eq!((live.in_flight(), live.unanswered()), (1, 0));
    }

    #[test]
    fn a_failure_is_charged_what_is_longest() {
        let failed = |push_back_ns| Sample {
            push_back_ns,
            ..Sample::new(Outcome::Answered(Code::Unavailable), 1_000)
        };
        assert_eq!(failed(None).charged_ns(0.0), Some(1e9));
        assert_eq!(failed(Some(3_000_000_000)).charged_ns(0.0), Some(3e9));
        assert_eq!(failed(Some(5)).charged_ns(2e9), Some(2e9));
    }

    #[test]
    fn a_success_is_charged_its_latency_and_a_cancelled_call_nothing() {
        let sample = |outcome| Sample::new(outcome, 1_000).charged_ns(5e9);
        assert_eq!(sample(Outcome::Answered(Code::Ok)), Some(1e3));
        assert_eq!(sample(Outcome::Answered(Code::NotFound)), Some(1e3));
        assert_eq!(sample(Outcome::Censored(Code::Cancelled)), None);
    }
}
