//! When an endpoint is checked, and what is said on the wire.
//!
//! On one data thread, over its connections: a check then sees what a call would see, and costs no
//! connection of its own. Gaps between the checks of an endpoint are drawn, so that sidecars that
//! were started together do not ask together.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use prost::Message;
use tokio::time::{timeout_at, Instant};

use super::Verdict;
use crate::config::GrpcHealthConfig;
use crate::endpoint::Endpoint;
use crate::grpc::{self, Code};
use crate::own_call::{ask, framed, unframed};
use crate::pool::Pool;
use crate::runtime::Thread;
use crate::service::{Service, Settings};
use crate::stats::Limit;

const PATH: &str = "/grpc.health.v1.Health/Check";

/// The longest wait for the first check of a new endpoint. Its checks are spread over less than an
/// interval, because until then nobody knows of it whether it serves.
const FIRST_WITHIN_NS: u64 = 500_000_000;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The checks of every service.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    rounds: HashMap<String, Round>,
}

/// The checks of one service.
#[derive(Debug)]
struct Round {
    service: Arc<Service>,
    config: GrpcHealthConfig,
    epoch: u64,
    endpoints: HashMap<u64, Arc<Endpoint>>,
    /// When each of them is due, and its id; of one that left, until its time comes.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    running: Rc<Running>,
}

/// What the tasks of checks share with their round.
#[derive(Debug, Default)]
struct Running {
    /// Ids of endpoints that are asked now.
    asked: RefCell<HashSet<u64>>,
    /// Somebody was told that an endpoint has no health service.
    told: Cell<bool>,
}

impl Checks {
    /// Begins every check that is due. Cheap while none is; to be called a few times a second.
    pub(crate) fn step(&mut self, thread: &Rc<Thread>, services: &HashMap<String, Arc<Service>>) {
        self.rounds.retain(|name, round| {
            let current = services.get(name);
            current.is_some_and(|service| Arc::ptr_eq(service, &round.service))
        });
        for (name, service) in services {
            let snapshot = service.snapshot();
            let Some(config) = &snapshot.settings.health else {
                self.rounds.remove(name);
                continue;
            };
            let round = self
                .rounds
                .entry(name.clone())
                .or_insert_with(|| Round::new(service, config));
            round.follow(thread, config);
            round.begin_due(thread, &snapshot.settings);
        }
    }
}

impl Round {
    fn new(service: &Arc<Service>, config: &GrpcHealthConfig) -> Self {
        Self {
            service: Arc::clone(service),
            config: config.clone(),
            // No set has it, so that the first one is taken in whatever its epoch.
            epoch: u64::MAX,
            endpoints: HashMap::new(),
            due: BinaryHeap::new(),
            running: Rc::default(),
        }
    }

    /// Takes in a changed endpoint set or a changed setting.
    fn follow(&mut self, thread: &Thread, config: &GrpcHealthConfig) {
        let service = Arc::clone(&self.service);
        let snapshot = service.snapshot();
        let changed = self.config != *config;
        if self.epoch == snapshot.epoch && !changed {
            return;
        }
        if changed {
            self.config = config.clone();
            self.endpoints.clear();
            self.due.clear();
        }
        self.epoch = snapshot.epoch;
        let members = snapshot.members.iter().map(|member| &member.endpoint);
        let mut before = std::mem::take(&mut self.endpoints);
        let within_ns = (config.interval_ms * 1_000_000).min(FIRST_WITHIN_NS);
        for endpoint in members {
            if before.remove(&endpoint.id).is_none() {
                let wait_ns = within_ns as f64 * thread.rng.borrow_mut().unit_f64();
                let at_ns = thread.clock.now_ns() + wait_ns as u64;
                self.due.push(Reverse((at_ns, endpoint.id)));
            }
            self.endpoints.insert(endpoint.id, Arc::clone(endpoint));
        }
    }

    fn begin_due(&mut self, thread: &Rc<Thread>, settings: &Arc<Settings>) {
        let now_ns = thread.clock.now_ns();
        while let Some(Reverse((at_ns, id))) = self.due.peek().copied() {
            if at_ns > now_ns {
                return;
            }
            let Some(endpoint) = self.endpoints.get(&id) else {
                self.due.pop();
                continue;
            };
            if self.running.asked.borrow().len() >= self.config.max_checks {
                // It stays due, and is looked at again in the next step.
                thread.shared.stats.hit(Limit::HealthChecks);
                return;
            }
            self.due.pop();
            self.due
                .push(Reverse((now_ns + self.gap_ns(thread), endpoint.id)));
            // One that takes longer than the interval is not asked a second time.
            if self.running.asked.borrow_mut().insert(id) {
                let check = check(
                    Rc::clone(thread),
                    Arc::clone(&self.service),
                    Arc::clone(endpoint),
                    Arc::clone(settings),
                    Rc::clone(&self.running),
                );
                tokio::task::spawn_local(check);
            }
        }
    }

    /// The interval with 10 % jitter.
    fn gap_ns(&self, thread: &Thread) -> u64 {
        let drawn = 0.9 + 0.2 * thread.rng.borrow_mut().unit_f64();
        (self.config.interval_ms as f64 * 1e6 * drawn) as u64
    }
}

async fn check(
    thread: Rc<Thread>,
    service: Arc<Service>,
    endpoint: Arc<Endpoint>,
    settings: Arc<Settings>,
    running: Rc<Running>,
) {
    if let Some(config) = &settings.health {
        let verdict = verdict(&thread, &service, &endpoint, &settings, config).await;
        if verdict == Verdict::Unimplemented && !running.told.replace(true) {
            tracing::warn!(service = %service.name, endpoint = %endpoint.name, "endpoint has no health service; it counts as healthy");
        }
        service.checked(&endpoint, &verdict);
    }
    running.asked.borrow_mut().remove(&endpoint.id);
}

async fn verdict(
    thread: &Rc<Thread>,
    service: &Arc<Service>,
    endpoint: &Arc<Endpoint>,
    settings: &Arc<Settings>,
    config: &GrpcHealthConfig,
) -> Verdict {
    let timeout = Duration::from_millis(config.timeout_ms);
    let until = Instant::now() + timeout;
    // With the one-turn path first: `lease` counts among the calls that wait for a connection.
    let lease = match thread.pool.try_lease(endpoint, settings) {
        Some(lease) => lease,
        None => match timeout_at(until, Pool::lease(thread, service, endpoint, settings)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(_)) | Err(_) => return Verdict::NotConnected,
        },
    };
    let question = framed_question(&config.service);
    let asking = ask(&lease, endpoint, PATH, question, timeout);
    match timeout_at(until, asking).await {
        Ok(Ok(reply)) => understood(&reply.status, &reply.body),
        Ok(Err(error)) => Verdict::Failed(error.to_string()),
        Err(_) => Verdict::Failed(format!("no answer within {} ms", timeout.as_millis())),
    }
}

fn understood(headers: &HeaderMap, message: &[u8]) -> Verdict {
    match grpc::status_code(headers) {
        Some(Code::Ok) => {}
        Some(Code::Unimplemented) => return Verdict::Unimplemented,
        Some(Code::NotFound) => return Verdict::NotServing("it does not know the service"),
        Some(code) => return Verdict::Failed(format!("gRPC status {}", code.name())),
        None => return Verdict::Failed("an answer without a gRPC status".into()),
    }
    let answer = unframed(message).and_then(|message| Answer::decode(message).ok());
    match answer.map(|answer| answer.status) {
        Some(1) => Verdict::Serving,
        Some(2) => Verdict::NotServing("NOT_SERVING"),
        Some(3) => Verdict::NotServing("SERVICE_UNKNOWN"),
        Some(_) => Verdict::NotServing("UNKNOWN"),
        None => Verdict::Failed("an answer that cannot be read".into()),
    }
}

fn framed_question(service: &str) -> Bytes {
    let question = Question {
        service: service.to_owned(),
    };
    framed(&question.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderMap, HeaderValue};
    use proptest::prelude::*;

    use super::{framed_question, understood};
    use crate::grpc::GRPC_STATUS;
    use crate::health::Verdict;

    fn status(code: &'static str) -> HeaderMap {
        let value = HeaderValue::from_static(code);
        HeaderMap::from_iter([(GRPC_STATUS.clone(), value)])
    }

    #[test]
    fn reads_every_answer_of_the_protocol() {
        let read = |status_code, message: &[u8]| understood(&status(status_code), message);
        assert_eq!(read("0", &[0, 0, 0, 0, 2, 8, 1]), Verdict::Serving);
        let not_serving = Verdict::NotServing("NOT_SERVING");
        assert_eq!(read("0", &[0, 0, 0, 0, 2, 8, 2]), not_serving);
        let unknown_service = Verdict::NotServing("SERVICE_UNKNOWN");
        assert_eq!(read("0", &[0, 0, 0, 0, 2, 8, 3]), unknown_service);
        // 0 is not on the wire: proto3 leaves out what is the default.
        assert_eq!(read("0", &[0; 5]), Verdict::NotServing("UNKNOWN"));
        assert_eq!(read("12", &[]), Verdict::Unimplemented);
        let unknown = Verdict::NotServing("it does not know the service");
        assert_eq!(read("5", &[]), unknown);
        let failed = Verdict::Failed("gRPC status UNAVAILABLE".into());
        assert_eq!(read("14", &[]), failed);
    }

    #[test]
    fn what_is_no_answer_is_a_failure() {
        let broken: [&[u8]; 6] = [
            &[],
            &[0, 0, 0, 0],
            &[0, 0, 0, 0, 2, 8],
            &[0, 0, 0, 0, 2, 8, 1, 0],
            &[1, 0, 0, 0, 2, 8, 1],
            &[0, 0, 0, 0, 2, 10, 1],
        ];
        for message in broken {
            let verdict = understood(&status("0"), message);
            assert!(matches!(verdict, Verdict::Failed(_)), "{message:?}");
        }
        let verdict = understood(&HeaderMap::new(), &[0, 0, 0, 0, 2, 8, 1]);
        assert!(matches!(verdict, Verdict::Failed(_)));
    }

    #[test]
    fn asks_for_the_server_or_for_one_service() {
        assert_eq!(framed_question("").as_ref(), [0; 5]);
        assert_eq!(
            framed_question("ab").as_ref(),
            [0, 0, 0, 0, 4, 10, 2, b'a', b'b']
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(message: Vec<u8>) {
            let verdict = understood(&status("0"), &message);
            prop_assert!(verdict != Verdict::Unimplemented);
        }
    }
}
