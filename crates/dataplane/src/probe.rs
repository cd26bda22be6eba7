//! Probes: how loaded an endpoint is, asked between calls (`proto/attnroute/probe/v1/probe.proto`).
//!
//! For a balancer that wants to ask (`prequal` with `probe_source: endpoints`). After each pick the
//! endpoints that it names are asked over the pool's connections, each by one probe at a time, and
//! no call waits for any. An endpoint that knows no probes is left alone for a while, and what is
//! known of it here stands in.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::{timeout_at, Instant};

use crate::attempt::Probe;
use crate::endpoint::Endpoint;
use crate::grpc::{self, Code};
use crate::own_call::{ask, framed, unframed};
use crate::pool::Pool;
use crate::rng::Rng;
use crate::runtime::Thread;
use crate::service::{Service, Settings, Snapshot};

/// The method.
pub(crate) const PATH: &str = "/attnroute.probe.v1.Probe/Get";

/// How long an endpoint that knows no probes is not asked again, with 20 % jitter.
const LEFT_ALONE_NS: f64 = 600e9;

/// Longest latency that is believed.
const LATENCY_MAX_S: f64 = 86_400.0;

/// `attnroute.probe.v1.GetResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Answer {
    /// Calls in the endpoint.
    #[prost(uint32, tag = "1")]
    pub(crate) inflight: u32,
    /// Recent latency at about that many calls, in seconds; 0 where it has none.
    #[prost(double, tag = "2")]
    pub(crate) latency_s: f64,
}

/// How a probe ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finding {
    /// It was answered.
    Answered(Probe),
    /// The endpoint knows no probes.
    Unimplemented,
    /// No answer came in time, or none that can be read.
    Failed,
}

impl Finding {
    /// Names of all kinds, the values of the label `result`.
    pub const KINDS: [&'static str; 3] = ["answered", "unimplemented", "failed"];

    const fn kind(&self) -> usize {
        match self {
            Self::Answered(_) => 0,
            Self::Unimplemented => 1,
            Self::Failed => 2,
        }
    }
}

/// What is going on between this process and one endpoint, in the endpoint.
#[derive(Debug, Default)]
pub(crate) struct Probing {
    /// A probe is on its way.
    asked: AtomicBool,
    /// Until when it is left alone.
    until_ns: AtomicU64,
}

/// A probe on its way, in the endpoint's record while it is.
struct Asked(Arc<Endpoint>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.probing.asked.store(false, Relaxed);
    }
}

/// Asks the endpoints that the balancer wants to hear of after a pick. Cheap for a balancer that
/// asks nobody.
pub(crate) fn after_pick(
    thread: &Rc<Thread>,
    service: &Arc<Service>,
    snapshot: &Snapshot,
    rng: &mut Rng,
) {
    let Some(timeout) = snapshot.balancer.probe_timeout() else {
        return;
    };
    let now_ns = thread.clock.now_ns();
    let mut due = thread.due_probes.borrow_mut();
    service.probes_due(snapshot, now_ns, rng, &mut due);
    for &index in due.iter() {
        let endpoint = &snapshot.members[index as usize].endpoint;
        if now_ns < endpoint.probing.until_ns.load(Relaxed) {
            service.probe_unanswered(endpoint, now_ns);
        } else if !endpoint.probing.asked.swap(true, Relaxed) {
            let (thread, service) = (Rc::clone(thread), Arc::clone(service));
            let asked = Asked(Arc::clone(endpoint));
            let settings = Arc::clone(&snapshot.settings);
            tokio::task::spawn_local(probe(thread, service, asked, settings, timeout));
        }
    }
}

async fn probe(
    thread: Rc<Thread>,
    service: Arc<Service>,
    asked: Asked,
    settings: Arc<Settings>,
    timeout: Duration,
) {
    let endpoint = &asked.0;
    let finding = find(&thread, &service, endpoint, &settings, timeout).await;
    service.stats.probes[finding.kind()].fetch_add(1, Relaxed);
    let now_ns = thread.clock.now_ns();
    match finding {
        Finding::Answered(answer) => service.probed(endpoint, now_ns, answer),
        Finding::Unimplemented => {
            let jitter = 0.8 + 0.4 * thread.rng.borrow_mut().unit_f64();
            let until_ns = now_ns + (LEFT_ALONE_NS * jitter) as u64;
            endpoint.probing.until_ns.store(until_ns, Relaxed);
            tracing::info!(service = %service.name, endpoint = %endpoint.name, "endpoint answers no probes; what is known of it here stands in");
            service.probe_unanswered(endpoint, now_ns);
        }
        Finding::Failed => {}
    }
}

async fn find(
    thread: &Rc<Thread>,
    service: &Arc<Service>,
    endpoint: &Arc<Endpoint>,
    settings: &Arc<Settings>,
    timeout: Duration,
) -> Finding {
    let until = Instant::now() + timeout;
    // An endpoint that was never picked has no connection yet, and would never be picked without an
    // answer.
    let lease = match thread.pool.try_lease(endpoint, settings) {
        Some(lease) => lease,
        None => match timeout_at(until, Pool::lease(thread, service, endpoint, settings)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(_)) | Err(_) => return Finding::Failed,
        },
    };
    let asking = ask(&lease, endpoint, PATH, framed(&[]), timeout);
    match timeout_at(until, asking).await {
        Ok(Ok(reply)) => understood(grpc::status_code(&reply.status), &reply.body),
        Ok(Err(_)) | Err(_) => Finding::Failed,
    }
}

fn understood(status: Option<Code>, body: &[u8]) -> Finding {
    let answer = match status {
        Some(Code::Ok) => unframed(body).and_then(|message| Answer::decode(message).ok()),
        Some(Code::Unimplemented) => return Finding::Unimplemented,
        _ => None,
    };
    match answer {
        Some(answer) if (0.0..=LATENCY_MAX_S).contains(&answer.latency_s) => {
            Finding::Answered(Probe {
                inflight: answer.inflight,
                latency_ns: (answer.latency_s * 1e9) as u64,
            })
        }
        _ => Finding::Failed,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{understood, Answer, Finding};
    use crate::attempt::Probe;
    use crate::grpc::Code;
    use crate::own_call::framed;

    fn answer(inflight: u32, latency_s: f64) -> Vec<u8> {
        let answer = Answer {
            inflight,
            latency_s,
        };
        framed(&answer.encode_to_vec()).to_vec()
    }

    #[test]
    fn an_answer_is_read() {
        let expected = Probe {
            inflight: 7,
            latency_ns: 20_000_000,
        };
        let found = understood(Some(Code::Ok), &answer(7, 0.02));
        assert_eq!(found, Finding::Answered(expected));
        // inflight = 7 (field 1), latency_s = 0.5 (field 2), written by hand.
        let bytes = [0, 0, 0, 0, 11, 8, 7, 0x11, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f];
        let expected = Probe {
            inflight: 7,
            latency_ns: 500_000_000,
        };
        let found = understood(Some(Code::Ok), &bytes);
        assert_eq!(found, Finding::Answered(expected));
    }

    #[test]
    fn what_cannot_be_true_is_no_answer() {
        for latency_s in [f64::NAN, f64::INFINITY, -1.0, 1e9] {
            let found = understood(Some(Code::Ok), &answer(1, latency_s));
            assert_eq!(found, Finding::Failed, "{latency_s}");
        }
        assert_eq!(understood(Some(Code::Ok), &[1, 2]), Finding::Failed);
        assert_eq!(understood(None, &answer(1, 0.1)), Finding::Failed);
        let unavailable = understood(Some(Code::Unavailable), &[]);
        assert_eq!(unavailable, Finding::Failed);
        let unknown = understood(Some(Code::Unimplemented), &[]);
        assert_eq!(unknown, Finding::Unimplemented);
    }
}
