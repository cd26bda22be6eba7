//! In front of a server: what an `inbound` listener adds to the calls that it forwards.
//!
//! Who calls knows a server's queue best from the in-flight that came with its last answer, and few
//! applications report it. Here it is measured for them: each answer's trailers get a load report
//! (`report.rs`), `OpenRcaService` and `attnroute.probe.v1.Probe` are answered between calls
//! (`answers.rs`), and where the server's concurrency is known, calls wait here for a place instead
//! of unseen inside (`gate.rs`).
//!
//! The server is a service of one endpoint under the listener's name; what forwards to it is the
//! forward path as it is.

pub(crate) mod answers;
mod gate;
mod report;
mod theirs;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use http::HeaderMap;

use crate::config::InboundConfig;
use crate::grpc::Code;
use crate::histogram::Histogram;

pub(crate) use gate::{Entry, Place, Waiting};
pub use gate::{Load, Shed};
pub use theirs::ServerReport;

use gate::Gate;

/// Health checks pass by the gate: one that is shed because the server is busy would take a server
/// that works from everybody.
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";

/// The server behind a listener, as it is measured here.
#[derive(Debug)]
pub struct Inbound {
    config: ArcSwap<InboundConfig>,
    gate: Arc<Gate>,
    /// Unix time of the server's start in seconds, bits of an `f64`.
    started_s: AtomicU64,
    /// What the server says of itself between calls.
    theirs: theirs::Theirs,
    /// Counters.
    pub stats: InboundStats,
}

/// Counters of an inbound listener.
#[derive(Debug, Default)]
pub struct InboundStats {
    /// Calls that were refused, by [`Shed`].
    pub shed: [AtomicU64; Shed::ALL.len()],
    /// How long calls waited that had to.
    pub waited: Histogram,
    /// Probes answered.
    pub probes: AtomicU64,
    /// Streams of reports out of band that are open.
    pub report_streams: AtomicU64,
}

impl Inbound {
    /// A server that was not called yet.
    #[must_use]
    pub fn new(config: InboundConfig) -> Self {
        let gate = Arc::new(Gate::new(&config));
        let inbound = Self {
            config: ArcSwap::from_pointee(config),
            gate,
            started_s: AtomicU64::new(0),
            theirs: theirs::Theirs::default(),
            stats: InboundStats::default(),
        };
        inbound.server_started();
        inbound
    }

    /// Replaces the settings; calls that are inside or wait stay so.
    pub(crate) fn apply_config(&self, config: &InboundConfig) {
        if **self.config.load() != *config {
            self.gate.apply_config(config);
            self.config.store(Arc::new(config.clone()));
        }
    }

    /// Notes that the server is another one than before: it was gone, and is there again. A lost
    /// connection alone is none: servers end connections for many reasons.
    pub(crate) fn server_started(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let started_s = since.map_or(0.0, |since| since.as_secs_f64());
        self.started_s.store(started_s.to_bits(), Relaxed);
    }

    /// Whether a call needs a place.
    pub(crate) fn is_gated(path: &str) -> bool {
        !path.starts_with(HEALTH_PREFIX)
    }

    /// Lets a call in, or has it wait, or refuses it. `left_ns`: what is left until its deadline.
    pub(crate) fn enter(&self, now_ns: u64, left_ns: Option<u64>) -> Entry {
        self.gate.enter(now_ns, left_ns)
    }

    /// How long a call may wait.
    pub(crate) fn queue_timeout(&self) -> Duration {
        Duration::from_millis(self.config.load().queue.timeout_ms)
    }

    /// Counts a call that is refused. Returns after how many milliseconds it may come back: when
    /// its turn would be, and up to as long again by `lot`, 0..1, so that not all come back at once.
    pub(crate) fn shed(&self, shed: Shed, lot: f64) -> u64 {
        self.stats.shed[shed as usize].fetch_add(1, Relaxed);
        (self.gate.wait_ms() * (1.0 + lot)) as u64
    }

    /// Notes how long a call waited that then was let in.
    pub(crate) fn waited(&self, waited_ns: u64) {
        self.stats.waited.record(waited_ns);
    }

    /// Takes the place of a call back; a second time changes nothing.
    pub(crate) fn leave(&self, place: &mut Place, now_ns: u64, code: Code) {
        self.gate.leave(place, now_ns, code);
    }

    /// What the server does now.
    pub fn load(&self, now_ns: u64) -> Load {
        self.gate.load(now_ns, None)
    }

    /// Adds the report of a call to the trailers of its answer.
    pub(crate) fn append_report(
        &self,
        trailers: &mut HeaderMap,
        place: Option<&Place>,
        now_ns: u64,
    ) {
        let load = self.gate.load(now_ns, place);
        report::append(trailers, &load, self.started_s());
    }

    /// How often the server was asked for reports, by [`ServerReport`].
    pub fn server_reports(&self) -> &[AtomicU64] {
        &self.theirs.counts
    }

    fn started_s(&self) -> f64 {
        f64::from_bits(self.started_s.load(Relaxed))
    }
}
