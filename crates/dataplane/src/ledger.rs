//! What is known of the calls at one endpoint, for whoever learns from them.
//!
//! Two halves. *Signals* are what a learned pick reads (`algorithms.md` 3.4): atomics in one cache
//! line, and a ratio per kind of call. *Books* are what the window of the control side is made of
//! (3.1), and what it takes to renew the signals; whoever begins or ends a call holds their lock
//! for some tens of nanoseconds, and endpoints have one each.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::cells::{Cells, EndpointState, EndpointSums};
use crate::class::OTHER;
use crate::endpoint::Outcome;
use crate::ewma::{decay, AtomicF32};
use crate::orca::LoadReport;

/// Age from which on a load report is none.
pub const REPORT_AGE_MAX_NS: u64 = 180_000_000_000;

/// Share of the old value in the share of errors at most.
const ERRORS_KEPT_MAX: f64 = 0.95;

/// Share of the old value in the mean of the calls of others at most.
const OTHERS_KEPT_MAX: f64 = 0.97;

/// A latency counts as at most so many times what was expected.
const SURPRISE_MAX: f64 = 20.0;

/// The shortest time on the way stands for between this and twice as long.
const RTT_SPAN_NS: u64 = 30_000_000_000;

/// Kinds per allocation.
const CHUNK: usize = 16;

/// Chunks: 256 kinds in all, as many as there can be classes.
const CHUNKS: usize = 16;

/// Time constants of what fades, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Measured against expected latency.
    pub ratio_ns: f64,
    /// Share of errors.
    pub errors_ns: f64,
    /// Calls of other sidecars.
    pub others_ns: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ratio_ns: 4e9,
            errors_ns: 2e9,
            others_ns: 3e9,
        }
    }
}

/// What a pick expected of the endpoint that it chose.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Expected {
    /// n: calls in flight there from everybody, the one being picked excluded.
    pub calls: f32,
    /// p, in seconds; 0 where nobody expected anything.
    pub latency_s: f32,
}

/// The signals of an endpoint. Times are those of the clock of the picks, 0: never.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Signals {
    /// Of the last report of calls in flight.
    pub(crate) reported_ns: AtomicU64,
    /// Of the last report of utilization.
    pub(crate) utilized_ns: AtomicU64,
    /// Of the last answer.
    pub(crate) answered_ns: AtomicU64,
    /// Reported calls less own ones, n_rep - o_rep.
    pub(crate) surplus: AtomicF32,
    /// Own calls when the report came, o_rep.
    pub(crate) own_reported: AtomicF32,
    /// Slow mean of the calls of others, mo.
    pub(crate) others: AtomicF32,
    /// Reported utilization.
    pub(crate) utilization: AtomicF32,
    /// Share of errors, as of the last answer.
    pub(crate) errors: AtomicF32,
    /// Time on the way, in seconds; 0 unknown.
    pub(crate) rtt_s: AtomicF32,
    /// Measured against expected latency, over all kinds.
    pub(crate) ratio: Ratio,
}

/// Two sums that fade, as of the time of the last sample.
#[derive(Debug, Default)]
pub(crate) struct Ratio {
    pub(crate) sampled_ns: AtomicU64,
    /// A, in seconds.
    pub(crate) measured: AtomicF32,
    /// B, in seconds.
    pub(crate) expected: AtomicF32,
}

impl Ratio {
    fn enter(&self, now_ns: u64, measured: f64, expected: f64, tau_ns: f64) {
        let kept = decay(now_ns.saturating_sub(self.sampled_ns.load(Relaxed)), tau_ns);
        let renew = |sum: &AtomicF32, sample: f64| {
            sum.store((f64::from(sum.load()) * kept + sample) as f32);
        };
        renew(&self.measured, measured);
        renew(&self.expected, expected);
        self.sampled_ns.fetch_max(now_ns, Relaxed);
    }

    fn clear(&self) {
        self.measured.store(0.0);
        self.expected.store(0.0);
        self.sampled_ns.store(0, Relaxed);
    }
}

/// Both halves.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) signals: Signals,
    kinds: [OnceLock<Box<[Ratio; CHUNK]>>; CHUNKS],
    /// c: calls that it works on at a time, as far as known.
    concurrency: AtomicF32,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    sums: EndpointSums,
    cells: Cells,
    /// Calls begun and not ended, streams whose answer has begun not among them.
    open: u32,
    /// Up to when `sums.inflight_s` is counted.
    counted_ns: u64,
    rtt: Shortest,
    /// Last reported concurrency; NaN: never.
    concurrency: f32,
    /// Calls of older classes than of this epoch have no cell of their own any more.
    class_epoch: u64,
}

/// The shortest of the last 30 to 60 s.
#[derive(Debug, Clone, Copy)]
struct Shortest {
    current_s: f64,
    previous_s: f64,
    since_ns: u64,
}

impl Shortest {
    const NONE: Self = Self {
        current_s: f64::INFINITY,
        previous_s: f64::INFINITY,
        since_ns: 0,
    };

    fn enter(&mut self, now_ns: u64, sample_s: f64) {
        let age_ns = now_ns.saturating_sub(self.since_ns);
        if age_ns >= RTT_SPAN_NS {
            let previous_s = if age_ns < 2 * RTT_SPAN_NS {
                self.current_s
            } else {
                f64::INFINITY
            };
            *self = Self {
                current_s: f64::INFINITY,
                previous_s,
                since_ns: now_ns,
            };
        }
        self.current_s = self.current_s.min(sample_s);
    }

    fn get(&self) -> f64 {
        self.current_s.min(self.previous_s)
    }
}

/// How a call ended, for the books.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended<'a> {
    pub(crate) now_ns: u64,
    /// Class and kind, and the epoch in which they mean it.
    pub(crate) class: (u32, u32),
    pub(crate) class_epoch: u64,
    pub(crate) outcome: Outcome,
    pub(crate) latency_ns: u64,
    pub(crate) expected: Expected,
    pub(crate) report: Option<&'a LoadReport>,
    /// Shortest round trip of pings; 0 unknown.
    pub(crate) ping_ns: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            signals: Signals::default(),
            kinds: std::array::from_fn(|_| OnceLock::new()),
            concurrency: AtomicF32::new(1.0),
            books: Mutex::new(Books {
                sums: EndpointSums::default(),
                cells: Cells::default(),
                open: 0,
                counted_ns: 0,
                rtt: Shortest::NONE,
                concurrency: f32::NAN,
                class_epoch: 0,
            }),
        }
    }
}

impl Books {
    /// Adds what the calls in flight have taken since the last time.
    fn count(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.counted_ns);
        self.sums.inflight_s += f64::from(self.open) * (passed_ns as f64 * 1e-9);
        self.counted_ns = self.counted_ns.max(now_ns);
    }
}

impl Ledger {
    /// The ratio of a kind; `None` before its first answer.
    #[inline]
    pub(crate) fn ratio_of(&self, kind: u32) -> Option<&Ratio> {
        let kind = kind as usize;
        let chunk = self.kinds.get(kind / CHUNK)?.get()?;
        Some(&chunk[kind % CHUNK])
    }

    /// c as learning goes by it.
    pub(crate) fn concurrency(&self) -> f32 {
        self.concurrency.load()
    }

    /// Tells c; >= 1.
    pub(crate) fn set_concurrency(&self, concurrency: f32) {
        self.concurrency.store(concurrency);
    }

    /// Calls in flight from everybody, `own` of them ours (n of 3.4). `share`: of our own growth
    /// since the report that each other sidecar is taken to share; `fade_ns`: time in which a
    /// report gives way to the mean.
    pub(crate) fn calls(&self, now_ns: u64, own: u32, peers: f64, fade_ns: f64) -> f32 {
        let signals = &self.signals;
        let (own, at_ns) = (f64::from(own), signals.reported_ns.load(Relaxed));
        let age_ns = now_ns.saturating_sub(at_ns);
        if at_ns == 0 || age_ns > REPORT_AGE_MAX_NS {
            return (own * (1.0 + peers)) as f32;
        }
        let fresh = decay(age_ns, fade_ns);
        let surplus = f64::from(signals.surplus.load());
        let others = fresh * surplus + (1.0 - fresh) * f64::from(signals.others.load());
        let grown = (own - f64::from(signals.own_reported.load())).max(0.0);
        (own + others.max(0.0) + peers * grown) as f32
    }

    /// A call was picked for it.
    pub(crate) fn begin(&self, now_ns: u64) {
        let mut books = self.books.lock();
        books.count(now_ns);
        books.open += 1;
    }

    /// A call left it and says nothing of it; without a time, some moment ago.
    pub(crate) fn leave(&self, now_ns: Option<u64>) {
        let mut books = self.books.lock();
        if let Some(now_ns) = now_ns {
            books.count(now_ns);
        }
        books.open = books.open.saturating_sub(1);
    }

    /// A call left it with an answer, or lack of one, that counts.
    pub(crate) fn ended(&self, ended: &Ended<'_>, pace: &Pace) {
        let mut books = self.books.lock();
        books.count(ended.now_ns);
        books.open = books.open.saturating_sub(1);
        let Outcome::Answered(code) = ended.outcome else {
            return;
        };
        let outdated = ended.class_epoch < books.class_epoch;
        let (class, kind) = if outdated {
            (OTHER, OTHER)
        } else {
            ended.class
        };
        books.sums.calls += 1;
        books.sums.inflight_estimate += f64::from(ended.expected.calls);
        self.note_errors(ended.now_ns, code.is_failure(), pace);
        if code.is_failure() {
            books.cells.of(class).errors += 1;
            return;
        }
        let latency_s = ended.latency_ns as f64 * 1e-9;
        let service_s = ended.report.and_then(|report| report.service_time_s);
        if let Some(rest_s) = service_s.map(|service_s| latency_s - service_s) {
            if rest_s >= 0.0 {
                books.rtt.enter(ended.now_ns, rest_s);
            }
        }
        let rtt_s = self.renew_rtt(&books.rtt, ended.ping_ns);
        let reported = ended.report.and_then(|report| report.inflight);
        let calls = reported.unwrap_or(ended.expected.calls.into());
        let turns = (calls + 1.0) / f64::from(self.concurrency());
        let estimated_s = (latency_s - rtt_s) / turns.max(1.0);
        let cell = books.cells.of(class);
        cell.success(ended.latency_ns, estimated_s, service_s);
        let expected_s = f64::from(ended.expected.latency_s);
        if expected_s > 0.0 {
            let measured_s = (latency_s - rtt_s).min(SURPRISE_MAX * expected_s).max(0.0);
            let ratios = [Some(&self.signals.ratio), self.ratio_to_renew(kind)];
            for ratio in ratios.into_iter().flatten() {
                ratio.enter(ended.now_ns, measured_s, expected_s, pace.ratio_ns);
            }
        }
    }

    fn ratio_to_renew(&self, kind: u32) -> Option<&Ratio> {
        let kind = kind as usize;
        let chunk = self.kinds.get(kind / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Ratio::default())));
        Some(&chunk[kind % CHUNK])
    }

    fn note_errors(&self, now_ns: u64, failed: bool, pace: &Pace) {
        let signals = &self.signals;
        let sample = if failed { 1.0 } else { 0.0 };
        let before_ns = signals.answered_ns.load(Relaxed);
        let kept = match before_ns {
            0 => 0.0,
            _ => decay(now_ns.saturating_sub(before_ns), pace.errors_ns).min(ERRORS_KEPT_MAX),
        };
        let errors = kept * f64::from(signals.errors.load()) + (1.0 - kept) * sample;
        signals.errors.store(errors as f32);
        signals.answered_ns.fetch_max(now_ns.max(1), Relaxed);
    }

    /// The shorter of what pings and reports say; what is known stays until they say something.
    fn renew_rtt(&self, shortest: &Shortest, ping_ns: u64) -> f64 {
        let ping_s = match ping_ns {
            0 => f64::INFINITY,
            ping_ns => ping_ns as f64 * 1e-9,
        };
        let rtt_s = shortest.get().min(ping_s);
        if rtt_s.is_finite() {
            self.signals.rtt_s.store(rtt_s as f32);
        }
        f64::from(self.signals.rtt_s.load())
    }

    /// A load report came, of an answer that has left the count or out of band; `own`: calls of
    /// ours in flight now. Whether it says how many calls are in flight there.
    pub(crate) fn reported(&self, now_ns: u64, report: &LoadReport, own: u32, pace: &Pace) -> bool {
        let (mut books, signals, now_ns) = (self.books.lock(), &self.signals, now_ns.max(1));
        books.sums.rps += report.qps.unwrap_or(0.0);
        if let Some(concurrency) = report.concurrency {
            books.concurrency = concurrency as f32;
        }
        if let Some(utilization) = report.application_utilization {
            books.sums.utilization += utilization;
            books.sums.utilization_reports += 1;
            signals.utilization.store(utilization as f32);
            signals.utilized_ns.store(now_ns, Relaxed);
        }
        let Some(inflight) = report.inflight else {
            return false;
        };
        books.sums.reports += 1;
        books.sums.reported_inflight += inflight;
        let surplus = inflight - f64::from(own);
        let before_ns = signals.reported_ns.load(Relaxed);
        let kept = match before_ns {
            0 => 0.0,
            _ => decay(now_ns.saturating_sub(before_ns), pace.others_ns).min(OTHERS_KEPT_MAX),
        };
        let others = kept * f64::from(signals.others.load()) + (1.0 - kept) * surplus.max(0.0);
        signals.others.store(others as f32);
        signals.surplus.store(surplus as f32);
        signals.own_reported.store(own as f32);
        signals.reported_ns.store(now_ns, Relaxed);
        true
    }

    /// Forgets what it learned, because it is a new incarnation. Calls in flight stay.
    pub(crate) fn restarted(&self) {
        let mut books = self.books.lock();
        let inflight_s = books.sums.inflight_s;
        books.sums = EndpointSums {
            inflight_s,
            ..EndpointSums::default()
        };
        books.cells.clear();
        books.rtt = Shortest::NONE;
        books.concurrency = f32::NAN;
        let signals = &self.signals;
        for time in [
            &signals.reported_ns,
            &signals.utilized_ns,
            &signals.answered_ns,
        ] {
            time.store(0, Relaxed);
        }
        for value in [
            &signals.surplus,
            &signals.own_reported,
            &signals.others,
            &signals.utilization,
            &signals.errors,
            &signals.rtt_s,
        ] {
            value.store(0.0);
        }
        signals.ratio.clear();
        let chunks = self.kinds.iter().filter_map(OnceLock::get);
        chunks.flat_map(|chunk| chunk.iter()).for_each(Ratio::clear);
    }

    /// Indices of classes and kinds mean something else from an epoch on.
    pub(crate) fn moved(&self, class_epoch: u64, classes: &[u32], kinds: &[u32]) {
        let mut books = self.books.lock();
        books.class_epoch = class_epoch;
        books.cells.fold(classes, OTHER);
        let ratios = kinds.iter().filter_map(|kind| self.ratio_of(*kind));
        ratios.for_each(Ratio::clear);
    }

    /// Writes the window's rows and begins the next one. `state` is completed here.
    pub(crate) fn drain(
        &self,
        now_ns: u64,
        index: u32,
        state: EndpointState,
        (endpoints, cells): (&mut Vec<u8>, &mut Vec<u8>),
        calls: &mut [u32],
    ) {
        let mut books = self.books.lock();
        books.count(now_ns);
        let rtt_s = self.signals.rtt_s.load();
        let state = EndpointState {
            concurrency: books.concurrency,
            rtt_s: if rtt_s > 0.0 { rtt_s } else { f32::NAN },
            ..state
        };
        std::mem::take(&mut books.sums).encode(state, endpoints);
        books.cells.drain(index, cells, calls);
    }
}

#[cfg(test)]
mod tests;
