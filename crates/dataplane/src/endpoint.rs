//! One endpoint and what is known about it right now.
//!
//! An `Endpoint` is made once per address and lives through every snapshot that contains it, so
//! that a change of the set keeps its counters and connections. What a set can change (weight,
//! zone, labels) stands in [`Member`] instead, which belongs to one snapshot.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::Arc;

use crate::address::Address;
use crate::balancer::State;
use crate::config::{Override, ServiceLimits};
use crate::grpc::Code;
use crate::hash::hash;
use crate::health;
use crate::ledger::Ledger;
use crate::orca::Incarnation;
use crate::outlier::Record;
use crate::probe::Probing;
use crate::slow_start::FirstReady;
use crate::waiting::Crowd;

/// Identity and live state.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique in the process, never reused: an address that comes back is a new endpoint.
    pub id: u64,
    /// Where it is dialled.
    pub address: Address,
    /// The value of the `endpoint` label.
    pub name: Arc<str>,
    /// Hash of the name, the same in every process.
    pub name_hash: u64,
    /// Counters that every data thread shares.
    pub live: Live,
    /// What balancers learned.
    pub state: State,
    /// What its calls say of it, where somebody learns from them.
    pub ledger: Ledger,
    /// When it could be picked first, for slow start.
    pub first_ready: FirstReady,
    /// Whether its calls show that it is ill.
    pub outlier: Record,
    /// What health checks show of it.
    pub health: health::Record,
    /// When it was started, as it reports.
    pub incarnation: Incarnation,
    /// Whether it is probed.
    pub(crate) probing: Probing,
    left: AtomicBool,
}

/// Shared counters; all relaxed, because each is read for itself.
#[derive(Debug, Default)]
pub struct Live {
    /// Attempts that were picked and have not ended.
    pub in_flight: AtomicU32,
    /// Of them, streaming calls whose first answer message has come.
    streams: AtomicU32,
    /// Bytes that its calls may hold because one side does not take them.
    held_bytes: AtomicU64,
    /// What all endpoints of the service share.
    crowd: Arc<Crowd>,
    /// Attempts ever picked.
    pub picks: AtomicU64,
    /// Attempts that ended in a success (every status that is no failure).
    pub successes: AtomicU64,
    /// Attempts that ended in a failure (`Code::is_failure`).
    pub failures: AtomicU64,
    /// Sum of latencies of successes.
    pub latency_ns: AtomicU64,
    /// Ended attempts by gRPC status code, those that the client cancelled included.
    pub ended: [AtomicU64; Code::COUNT],
    /// Open connections over all data threads.
    pub connections: AtomicU32,
    /// Shortest round trip of pings of late; 0: none came back.
    pub rtt_ns: AtomicU64,
    /// Connects that failed.
    pub connect_failures: AtomicU64,
    /// Connections that were given up because nobody answered a PING.
    pub silences: AtomicU64,
    /// The last connect failed, and none succeeded since.
    pub failing: AtomicBool,
}

/// Attempts that may be in flight at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub(crate) of_service: u32,
    pub(crate) of_endpoint: u32,
}

/// Which of them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Service,
    Endpoint,
}

/// How an attempt ended, as far as statistics are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint answered, or failed to.
    Answered(Code),
    /// The client cancelled, or the sidecar gave up before anything reached the endpoint: the
    /// outcome says nothing about the endpoint.
    Censored(Code),
}

/// An endpoint as one snapshot has it.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its identity and live state.
    pub endpoint: Arc<Endpoint>,
    /// Static weight, finite and >= 0; 0 takes no new calls.
    pub static_weight: f32,
    /// Zone, empty where unknown.
    pub zone: String,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Calls go to the lowest number of which enough endpoints are well; the others stand by.
    pub priority: u32,
    /// What an operator decided about it.
    pub operator_override: Option<Override>,
}

impl Member {
    /// Whether it may take calls at all, however it fares.
    #[must_use]
    pub fn takes_calls(&self) -> bool {
        self.static_weight > 0.0 && self.operator_override != Some(Override::Drain)
    }

    /// Whether neither its calls nor its health checks speak against it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        !self.endpoint.outlier.is_ejected() && !self.endpoint.health.is_unhealthy()
    }

    /// Whether an operator wants calls here and at other pinned ones only.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.operator_override == Some(Override::Pin)
    }
}

impl Endpoint {
    /// A new endpoint without history.
    #[must_use]
    pub fn new(id: u64, address: Address) -> Self {
        Self::of_service(id, address, Arc::default())
    }

    /// A new endpoint of a service, whose crowd its attempts are counted in, too.
    #[must_use]
    pub fn of_service(id: u64, address: Address, crowd: Arc<Crowd>) -> Self {
        let name: Arc<str> = address.to_string().into();
        Self {
            id,
            address,
            name_hash: hash(name.as_bytes()),
            name,
            live: Live {
                crowd,
                ..Live::default()
            },
            state: State::default(),
            ledger: Ledger::default(),
            first_ready: FirstReady::default(),
            outlier: Record::default(),
            health: health::Record::default(),
            incarnation: Incarnation::default(),
            probing: Probing::default(),
            left: AtomicBool::new(false),
        }
    }

    /// It left its set for good. Told after the set without it is in force and before pools are
    /// told to forget it, so that whoever still holds it can pick again.
    pub fn leave(&self) {
        self.left.store(true, Release);
    }

    /// Whether [`Endpoint::leave`] was called.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left.load(Acquire)
    }
}

impl Live {
    /// Counts an attempt in, and returns how many were unanswered before. Paired with exactly one
    /// [`Live::end`].
    pub fn begin(&self) -> u32 {
        self.picks.fetch_add(1, Relaxed);
        self.crowd.in_flight.fetch_add(1, Relaxed);
        let before = self.in_flight.fetch_add(1, Relaxed);
        before.saturating_sub(self.streams.load(Relaxed))
    }

    /// The same within limits; counts nothing if one of them is reached.
    pub(crate) fn try_begin(&self, most: Most) -> Result<u32, Full> {
        if self.crowd.in_flight.fetch_add(1, SeqCst) >= most.of_service {
            self.crowd.in_flight.fetch_sub(1, SeqCst);
            return Err(Full::Service);
        }
        let before = self.in_flight.fetch_add(1, SeqCst);
        if before >= most.of_endpoint {
            self.in_flight.fetch_sub(1, SeqCst);
            self.crowd.in_flight.fetch_sub(1, SeqCst);
            return Err(Full::Endpoint);
        }
        self.picks.fetch_add(1, Relaxed);
        Ok(before.saturating_sub(self.streams.load(Relaxed)))
    }

    /// Whether it may take one more by the limits of an endpoint.
    pub(crate) fn has_room(&self, limits: &ServiceLimits) -> bool {
        let places = limits.max_inflight_per_endpoint;
        let bytes = limits.max_held_bytes_per_endpoint;
        places.is_none_or(|most| self.in_flight() < most)
            && bytes.is_none_or(|most| self.held_bytes() < most)
    }

    /// An attempt that held `before` bytes holds `now`.
    pub(crate) fn hold(&self, before: u64, now: u64) {
        for held in [&self.held_bytes, &self.crowd.held_bytes] {
            // Wrapping: what is taken off was added before.
            held.fetch_add(now.wrapping_sub(before), SeqCst);
        }
        if now < before {
            self.crowd.waiting.make_room();
        }
    }

    /// Bytes that calls may hold here because one side does not take them.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    /// The same at all endpoints of the service, those that left the set included.
    #[must_use]
    pub fn held_bytes_of_all(&self) -> u64 {
        self.crowd.held_bytes.load(Relaxed)
    }

    /// An attempt in flight is a stream whose answer has begun.
    pub(crate) fn begin_stream(&self) {
        self.streams.fetch_add(1, Relaxed);
    }

    /// It is about to end.
    pub(crate) fn end_stream(&self) {
        self.streams.fetch_sub(1, Relaxed);
    }

    /// Attempts in flight now whose time is still being measured: a stream whose answer has begun
    /// says no more of how busy its endpoint is than how long somebody listens.
    #[inline]
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        self.in_flight().saturating_sub(self.streams.load(Relaxed))
    }

    /// Attempts in flight now.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Attempts in flight now at all endpoints of the service, those that left the set included.
    #[must_use]
    pub fn in_flight_of_all(&self) -> u32 {
        self.crowd.in_flight.load(Relaxed)
    }

    /// Counts an attempt out. `latency_ns`: request headers received to end of answer.
    pub fn end(&self, outcome: Outcome, latency_ns: u64) {
        self.in_flight.fetch_sub(1, SeqCst);
        self.crowd.in_flight.fetch_sub(1, SeqCst);
        self.crowd.waiting.make_room();
        let (Outcome::Answered(code) | Outcome::Censored(code)) = outcome;
        self.ended[usize::from(code.number())].fetch_add(1, Relaxed);
        match outcome {
            Outcome::Censored(_) => {}
            Outcome::Answered(code) if code.is_failure() => {
                self.failures.fetch_add(1, Relaxed);
            }
            Outcome::Answered(_) => {
                self.successes.fetch_add(1, Relaxed);
                self.latency_ns.fetch_add(latency_ns, Relaxed);
            }
        }
    }
}
