//! Who is inside a server, who waits for a place, and how busy that makes it.
//!
//! One lock, held for some ten nanoseconds, because the count of places, the queue and the integral
//! of busy time must agree. Nothing here knows sockets or what a call is.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::config::InboundConfig;
use crate::grpc::Code;

const SECOND_NS: u64 = 1_000_000_000;

/// Rates and utilization are those of the last window.
const WINDOW_NS: u64 = SECOND_NS;

/// Share of a sample in the service time that waits are foretold by.
const SERVICE_SHARE: f64 = 0.1;

/// Share of a sample in the latency at a number of calls.
const LATENCY_SHARE: f64 = 0.2;

/// An older latency is no recent one.
const LATENCY_AGE_MAX_NS: u64 = 10 * SECOND_NS;

/// Latencies are kept for so many numbers of calls inside, each its own up to 31, then by powers
/// of two.
const LATENCIES: usize = 48;

/// Bounds of the wait that a refused call is told, and what it is before any call has ended.
const WAIT_MIN_MS: f64 = 1.0;
const WAIT_MAX_MS: f64 = 30_000.0;
const WAIT_UNKNOWN_MS: f64 = 100.0;

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Shed {
    /// `queue.max_length` calls wait already.
    QueueLength,
    /// It waited for `queue.timeout`.
    QueueTimeout,
    /// Its deadline would pass before its turn.
    Deadline,
}

impl Shed {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::QueueLength, Self::QueueTimeout, Self::Deadline];

    /// Its metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueLength => "queue_length",
            Self::QueueTimeout => "queue_timeout",
            Self::Deadline => "deadline",
        }
    }
}

/// What becomes of a call that comes in.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It goes on at once.
    Begun(Place),
    /// It waits.
    Waits(Waiting),
    /// It is refused.
    Shed(Shed),
}

/// What a server does, as it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Calls that were let in or wait, without the carrying one and without streams that were
    /// answered.
    pub inflight: u32,
    /// Of them, those that wait.
    pub queued: u32,
    /// Places, where they are limited.
    pub concurrency: Option<u32>,
    /// Share of the places that were taken, over the last window; where they are limited.
    pub utilization: Option<f64>,
    /// Time of the carrying call in the server, in nanoseconds.
    pub service_ns: Option<u64>,
    /// Calls that ended, per second.
    pub qps: f64,
    /// Of them, failures.
    pub eps: f64,
    /// Recent latency, waiting included, of calls that came when about so many were inside; in
    /// nanoseconds.
    pub latency_ns: Option<f64>,
}

/// A call's place in the server. It must be given back with [`Gate::leave`].
#[derive(Debug)]
pub(crate) struct Place {
    came_ns: u64,
    began_ns: u64,
    /// Calls that were inside or waited when it came.
    inflight: u32,
    /// Its time in the server, once it was given back.
    service_ns: Option<u64>,
}

/// A call that waits. If it is dropped, its place goes to the next.
#[derive(Debug)]
pub(crate) struct Waiting {
    gate: Arc<Gate>,
    turn: oneshot::Receiver<()>,
    number: u64,
    came_ns: u64,
    inflight: u32,
    begun: bool,
}

#[derive(Debug)]
pub(super) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    limit: Option<u32>,
    queue_max: u32,
    /// Places that are taken.
    running: u32,
    queue: VecDeque<(u64, oneshot::Sender<()>)>,
    /// Number of the next call that waits.
    next: u64,
    /// Mean time of calls in the server; `None` before the first.
    service_ns: Option<f64>,
    latencies: [Latency; LATENCIES],
    meter: Meter,
}

#[derive(Debug, Clone, Copy, Default)]
struct Latency {
    mean_ns: f64,
    /// 0: never.
    at_ns: u64,
}

/// Sums since the window began, and what the last whole one gave.
#[derive(Debug, Default)]
struct Meter {
    began_ns: Option<u64>,
    changed_ns: u64,
    busy_ns: u64,
    ended: u32,
    failed: u32,
    last: Option<Rates>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    /// Places taken, on average.
    busy: f64,
    qps: f64,
    eps: f64,
}

impl Gate {
    pub(super) fn new(config: &InboundConfig) -> Self {
        Self(Mutex::new(State {
            limit: config.max_concurrency,
            queue_max: config.queue.max_length,
            running: 0,
            queue: VecDeque::new(),
            next: 0,
            service_ns: None,
            latencies: [Latency::default(); LATENCIES],
            meter: Meter::default(),
        }))
    }

    pub(super) fn apply_config(&self, config: &InboundConfig) {
        let mut state = self.0.lock();
        state.limit = config.max_concurrency;
        state.queue_max = config.queue.max_length;
        state.admit_waiting();
    }

    pub(super) fn enter(self: &Arc<Self>, now_ns: u64, left_ns: Option<u64>) -> Entry {
        let mut state = self.0.lock();
        let inflight = state.inflight();
        let has_room = state.limit.is_none_or(|limit| state.running < limit);
        if has_room && state.queue.is_empty() {
            let running = state.running;
            state.meter.advance(now_ns, running);
            state.running += 1;
            return Entry::Begun(Place {
                came_ns: now_ns,
                began_ns: now_ns,
                inflight,
                service_ns: None,
            });
        }
        if state.queue.len() >= state.queue_max as usize {
            return Entry::Shed(Shed::QueueLength);
        }
        let wait_ns = state.wait_ns();
        if left_ns.is_some_and(|left_ns| wait_ns.is_some_and(|wait_ns| wait_ns >= left_ns as f64)) {
            return Entry::Shed(Shed::Deadline);
        }
        let (sender, turn) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.queue.push_back((number, sender));
        Entry::Waits(Waiting {
            gate: Arc::clone(self),
            turn,
            number,
            came_ns: now_ns,
            inflight,
            begun: false,
        })
    }

    /// Takes a place back, once; what was learned from the call counts.
    pub(super) fn leave(&self, place: &mut Place, now_ns: u64, code: Code) {
        if place.service_ns.is_some() {
            return;
        }
        let service_ns = now_ns.saturating_sub(place.began_ns);
        place.service_ns = Some(service_ns);
        let mut state = self.0.lock();
        state.release(now_ns);
        state.meter.ended = state.meter.ended.saturating_add(1);
        if code.is_failure() {
            state.meter.failed = state.meter.failed.saturating_add(1);
        }
        // A call that the client cancelled took as long as the client wanted.
        if code != Code::Cancelled {
            let service_ns = service_ns as f64;
            let mean_ns = state.service_ns;
            state.service_ns = Some(mean_ns.map_or(service_ns, |mean| {
                mean + SERVICE_SHARE * (service_ns - mean)
            }));
            let latency_ns = now_ns.saturating_sub(place.came_ns) as f64;
            state.latencies[bucket(place.inflight)].learn(now_ns, latency_ns);
        }
    }

    /// What the server does now; of the call that holds `place` it is told to that call.
    pub(super) fn load(&self, now_ns: u64, place: Option<&Place>) -> Load {
        let mut state = self.0.lock();
        let running = state.running;
        state.meter.advance(now_ns, running);
        let rates = state.meter.rates(now_ns);
        let inside = place.is_some_and(|place| place.service_ns.is_none());
        let inflight = state.inflight().saturating_sub(inside.into());
        let service_ns = place.map(|place| {
            let running_ns = now_ns.saturating_sub(place.began_ns);
            place.service_ns.unwrap_or(running_ns)
        });
        Load {
            inflight,
            queued: state.queue.len() as u32,
            concurrency: state.limit,
            utilization: state.limit.map(|limit| rates.busy / f64::from(limit)),
            service_ns: service_ns.filter(|_| state.limit.is_some()),
            qps: rates.qps,
            eps: rates.eps,
            latency_ns: state.latency_ns(now_ns, inflight),
        }
    }

    /// How long one more call would wait, in milliseconds; some time where nothing is known.
    pub(super) fn wait_ms(&self) -> f64 {
        let wait_ms = self.0.lock().wait_ns().map(|wait_ns| wait_ns / 1e6);
        wait_ms.map_or(WAIT_UNKNOWN_MS, |wait_ms| {
            wait_ms.clamp(WAIT_MIN_MS, WAIT_MAX_MS)
        })
    }
}

impl State {
    fn inflight(&self) -> u32 {
        self.running + self.queue.len() as u32
    }

    /// How long one more call would wait, as far as anything is known.
    fn wait_ns(&self) -> Option<f64> {
        let places = f64::from(self.limit?);
        Some((self.queue.len() as f64 + 1.0) * self.service_ns? / places)
    }

    /// Gives a place to who waits longest, or back.
    fn release(&mut self, now_ns: u64) {
        self.meter.advance(now_ns, self.running);
        self.running -= 1;
        self.admit_waiting();
    }

    fn admit_waiting(&mut self) {
        while self.limit.is_none_or(|limit| self.running < limit) {
            let Some((_, sender)) = self.queue.pop_front() else {
                return;
            };
            if sender.send(()).is_ok() {
                self.running += 1;
            }
        }
    }

    /// The latency at the number of calls nearest to this one that has a recent one.
    fn latency_ns(&self, now_ns: u64, inflight: u32) -> Option<f64> {
        let here = bucket(inflight);
        let recent = |place: Option<usize>| {
            let latency = self.latencies.get(place?)?;
            let age_ns = now_ns.saturating_sub(latency.at_ns);
            (latency.at_ns > 0 && age_ns < LATENCY_AGE_MAX_NS).then_some(latency.mean_ns)
        };
        (0..LATENCIES).find_map(|away| {
            recent(here.checked_sub(away)).or_else(|| recent(here.checked_add(away)))
        })
    }
}

/// Where the latency at so many calls is kept.
fn bucket(inflight: u32) -> usize {
    let own = match inflight {
        0..32 => inflight,
        _ => 32 + (inflight.ilog2() - 5),
    };
    (own as usize).min(LATENCIES - 1)
}

impl Latency {
    fn learn(&mut self, now_ns: u64, latency_ns: f64) {
        let is_old = self.at_ns == 0 || now_ns.saturating_sub(self.at_ns) >= LATENCY_AGE_MAX_NS;
        let share = if is_old { 1.0 } else { LATENCY_SHARE };
        self.mean_ns += share * (latency_ns - self.mean_ns);
        self.at_ns = now_ns.max(1);
    }
}

impl Meter {
    /// Counts the time since the last change, in which so many places were taken.
    fn advance(&mut self, now_ns: u64, running: u32) {
        let began_ns = *self.began_ns.get_or_insert(now_ns);
        let now_ns = now_ns.max(self.changed_ns).max(began_ns);
        let since_ns = now_ns - self.changed_ns.max(began_ns);
        self.busy_ns += since_ns * u64::from(running);
        self.changed_ns = now_ns;
        if now_ns - began_ns >= WINDOW_NS {
            self.last = Some(self.so_far(now_ns - began_ns));
            (self.began_ns, self.busy_ns) = (Some(now_ns), 0);
            (self.ended, self.failed) = (0, 0);
        }
    }

    /// Of the last whole window; of the one under way where there was none.
    fn rates(&self, now_ns: u64) -> Rates {
        let began_ns = self.began_ns.unwrap_or(now_ns);
        self.last
            .unwrap_or_else(|| self.so_far(now_ns.saturating_sub(began_ns)))
    }

    fn so_far(&self, length_ns: u64) -> Rates {
        if length_ns == 0 {
            return Rates {
                busy: 0.0,
                qps: 0.0,
                eps: 0.0,
            };
        }
        let length_s = length_ns as f64 / SECOND_NS as f64;
        Rates {
            busy: self.busy_ns as f64 / length_ns as f64,
            qps: f64::from(self.ended) / length_s,
            eps: f64::from(self.failed) / length_s,
        }
    }
}

impl Waiting {
    /// Waits until there is a place.
    pub(crate) async fn turn(&mut self) {
        // The gate lives as long as this does, and ends a wait only by giving a place.
        let _ = (&mut self.turn).await;
    }

    /// Takes the place whose turn has come. Returns it, and how long that took.
    pub(crate) fn begin(mut self, now_ns: u64) -> (Place, u64) {
        self.begun = true;
        let place = Place {
            came_ns: self.came_ns,
            began_ns: now_ns,
            inflight: self.inflight,
            service_ns: None,
        };
        (place, now_ns.saturating_sub(self.came_ns))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        let mut state = self.gate.0.lock();
        let mut queue = state.queue.iter();
        match queue.position(|(number, _)| *number == self.number) {
            Some(place) => drop(state.queue.remove(place)),
            None => {
                // Its turn had come, just now, and nobody took it.
                let now_ns = state.meter.changed_ns;
                state.release(now_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{bucket, Entry, Gate, Place, Shed, Waiting, LATENCIES};
    use crate::address::Address;
    use crate::config::{InboundConfig, QueueConfig};
    use crate::grpc::Code;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    fn config(max_concurrency: Option<u32>, max_length: u32) -> InboundConfig {
        InboundConfig {
            target: "127.0.0.1:1".parse::<Address>().expect("an address"),
            max_concurrency,
            queue: QueueConfig {
                max_length,
                timeout_ms: 1_000,
            },
            min_report_interval_ms: 100,
        }
    }

    fn gate(max_concurrency: Option<u32>, max_length: u32) -> Arc<Gate> {
        Arc::new(Gate::new(&config(max_concurrency, max_length)))
    }

    fn begin(gate: &Arc<Gate>, now_ns: u64) -> Place {
        match gate.enter(now_ns, None) {
            Entry::Begun(place) => place,
            other => panic!("{other:?}"),
        }
    }

    fn wait(gate: &Arc<Gate>, now_ns: u64) -> Waiting {
        match gate.enter(now_ns, None) {
            Entry::Waits(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn shed(gate: &Arc<Gate>, now_ns: u64, left_ns: Option<u64>) -> Shed {
        match gate.enter(now_ns, left_ns) {
            Entry::Shed(shed) => shed,
            other => panic!("{other:?}"),
        }
    }

    /// Whether its turn has come.
    fn has_turn(waiting: &mut Waiting) -> bool {
        waiting.turn.try_recv().is_ok()
    }

    fn inside(gate: &Gate) -> (u32, u32) {
        let load = gate.load(0, None);
        (load.inflight, load.queued)
    }

    #[test]
    fn places_are_given_in_the_order_of_the_queue() {
        let gate = gate(Some(2), 10);
        let mut held = [begin(&gate, 0), begin(&gate, 0)];
        let mut waiting = [wait(&gate, 0), wait(&gate, 0), wait(&gate, 0)];
        assert_eq!(inside(&gate), (5, 3));
        assert!(!waiting.iter_mut().any(has_turn));
        gate.leave(&mut held[0], 10 * MS, Code::Ok);
        gate.leave(&mut held[0], 10 * MS, Code::Ok);
        assert_eq!(waiting.each_mut().map(has_turn), [true, false, false]);
        let [first, second, third] = waiting;
        let (mut place, waited_ns) = first.begin(12 * MS);
        assert_eq!(waited_ns, 12 * MS);
        // The second leaves: its place goes to the third.
        drop(second);
        gate.leave(&mut held[1], 20 * MS, Code::Ok);
        assert_eq!(inside(&gate), (2, 0));
        let (mut last, _) = third.begin(20 * MS);
        gate.leave(&mut place, 30 * MS, Code::Ok);
        gate.leave(&mut last, 30 * MS, Code::Ok);
        assert_eq!(inside(&gate), (0, 0));
    }

    #[test]
    fn a_place_whose_call_left_meanwhile_goes_to_the_next() {
        let gate = gate(Some(1), 10);
        let mut held = begin(&gate, 0);
        let (gone, mut next) = (wait(&gate, 0), wait(&gate, 0));
        gate.leave(&mut held, MS, Code::Ok);
        // It has the place, and nobody has taken it.
        assert!(!has_turn(&mut next));
        drop(gone);
        assert!(has_turn(&mut next));
        let (mut place, _) = next.begin(2 * MS);
        gate.leave(&mut place, 3 * MS, Code::Ok);
        assert_eq!(inside(&gate), (0, 0));
    }

    #[test]
    fn who_would_wait_too_long_is_refused() {
        let gate = gate(Some(2), 2);
        // 100 ms each.
        for _ in 0..3 {
            let mut place = begin(&gate, 0);
            gate.leave(&mut place, 100 * MS, Code::Ok);
        }
        let _held = [begin(&gate, 0), begin(&gate, 0)];
        // Nobody waits: one of two places is free after 50 ms.
        assert_eq!(shed(&gate, 0, Some(50 * MS)), Shed::Deadline);
        let _first = wait(&gate, 0);
        assert_eq!(shed(&gate, 0, Some(100 * MS)), Shed::Deadline);
        assert_eq!(gate.wait_ms(), 100.0);
        let Entry::Waits(_second) = gate.enter(0, Some(101 * MS)) else {
            panic!("it would be served in time");
        };
        assert_eq!(shed(&gate, 0, None), Shed::QueueLength);
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let gate = gate(None, 0);
        let held: Vec<_> = (0..100).map(|_| begin(&gate, 0)).collect();
        let load = gate.load(0, Some(&held[0]));
        assert_eq!((load.inflight, load.queued), (99, 0));
        assert_eq!((load.concurrency, load.utilization), (None, None));
        assert_eq!(load.service_ns, None);
    }

    #[test]
    fn utilization_is_the_share_of_places_taken_over_the_last_window() {
        let gate = gate(Some(4), 0);
        let mut one = begin(&gate, 0);
        let mut two = begin(&gate, SECOND / 2);
        // 500 ms of one, 500 ms of two: 1.5 of 4 on average.
        assert_eq!(gate.load(SECOND, None).utilization, Some(0.375));
        gate.leave(&mut one, SECOND + 250 * MS, Code::Ok);
        gate.leave(&mut two, SECOND + 500 * MS, Code::Unavailable);
        let load = gate.load(SECOND + 999 * MS, None);
        assert_eq!(load.utilization, Some(0.375), "the window is not over");
        let load = gate.load(2 * SECOND, None);
        // 250 ms of two, 250 ms of one: 0.75 on average.
        assert_eq!(load.utilization, Some(0.1875));
        assert_eq!((load.qps, load.eps), (2.0, 1.0));
        // Nothing was called for a minute.
        let load = gate.load(62 * SECOND, None);
        assert_eq!((load.utilization, load.qps), (Some(0.0), 0.0));
    }

    #[test]
    fn service_time_is_without_the_wait() {
        let gate = gate(Some(1), 1);
        let mut held = begin(&gate, 0);
        let waiting = wait(&gate, 0);
        gate.leave(&mut held, 30 * MS, Code::Ok);
        let (mut place, _) = waiting.begin(30 * MS);
        let load = gate.load(40 * MS, Some(&place));
        assert_eq!((load.inflight, load.service_ns), (0, Some(10 * MS)));
        // A stream that was answered then: its time stands still, and it burdens nobody.
        gate.leave(&mut place, 50 * MS, Code::Ok);
        let _next = begin(&gate, 50 * MS);
        let load = gate.load(90 * MS, Some(&place));
        assert_eq!((load.inflight, load.service_ns), (1, Some(20 * MS)));
    }

    #[test]
    fn a_probe_hears_the_latency_at_about_as_many_calls() {
        let gate = gate(None, 0);
        assert_eq!(gate.load(0, None).latency_ns, None);
        let mut alone = begin(&gate, 0);
        gate.leave(&mut alone, 10 * MS, Code::Ok);
        let mut five: Vec<_> = (0..5).map(|_| begin(&gate, SECOND)).collect();
        gate.leave(&mut five[4], SECOND + 40 * MS, Code::Ok);
        // Four inside: as that call found it. The client's own patience says nothing.
        gate.leave(&mut five[3], SECOND + 900 * MS, Code::Cancelled);
        assert_eq!(gate.load(2 * SECOND, None).latency_ns, Some(40e6));
        for place in &mut five[..3] {
            gate.leave(place, 2 * SECOND, Code::Cancelled);
        }
        assert_eq!(gate.load(2 * SECOND, None).latency_ns, Some(10e6));
        // The one at four calls is nearer in time; the other is too old.
        assert_eq!(
            gate.load(10 * SECOND + 20 * MS, None).latency_ns,
            Some(40e6)
        );
        assert_eq!(gate.load(12 * SECOND, None).latency_ns, None);
    }

    #[test]
    fn a_reload_lets_in_who_waits() {
        let gate = gate(Some(1), 10);
        let mut held = begin(&gate, 0);
        let mut waiting = [wait(&gate, 0), wait(&gate, 0)];
        gate.apply_config(&config(Some(2), 10));
        assert_eq!(waiting.each_mut().map(has_turn), [true, false]);
        gate.apply_config(&config(Some(1), 10));
        gate.leave(&mut held, MS, Code::Ok);
        assert!(!has_turn(&mut waiting[1]), "there are two for one place");
        gate.apply_config(&config(None, 10));
        assert!(has_turn(&mut waiting[1]));
    }

    #[test]
    fn every_number_of_calls_has_its_latency_somewhere() {
        assert_eq!([0, 1, 31, 32, 63, 64].map(bucket), [0, 1, 31, 32, 32, 33]);
        assert!(bucket(u32::MAX) < LATENCIES);
    }
}
