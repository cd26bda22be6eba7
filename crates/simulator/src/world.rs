//! The event loop: calls arrive, are picked for endpoints, travel, wait, are worked on, and return.
//!
//! What is true (speeds, queues, distances, what comes next) stands here; what is known stands in
//! [`Sidecar`]. The two meet in a few calls of its methods, and only times, statuses and reports
//! that a real sidecar would have cross over.

use std::sync::Arc;

use attnroute_dataplane::attempt::{Attempt, Probe};
use attnroute_dataplane::config::ServiceConfig;
use attnroute_dataplane::endpoint::Outcome as Answer;
use attnroute_dataplane::grpc::Code;
use attnroute_dataplane::orca::LoadReport;
use attnroute_dataplane::rng::Rng;

use crate::agenda::{Agenda, Delay};
use crate::arrivals::{Arrival, Arrivals};
use crate::endpoint::{Due, Endpoint, Queue};
use crate::oracle;
use crate::outcome::Outcome;
use crate::recorder::{zone_of, End, Recorder};
use crate::scenario::{FailMode, Scenario};
use crate::script::Script;
use crate::sidecar::{number_of, Incoming, Sidecar};

/// After the last arrival, calls may take this long; what is left then counts as unfinished.
const DRAIN_NS: u64 = 600 * 1_000_000_000;

const NS_PER_MS: f64 = 1e6;

/// Between two pings of a connection that carries calls.
const PING_NS: u64 = 10 * 1_000_000_000;

/// Streams of one seed. Arrivals have one of their own, so that no balancer changes them.
pub(crate) mod streams {
    pub(crate) const ARRIVALS: u64 = 0;
    pub(crate) const FAULTS: u64 = 1;
    pub(crate) const RECONNECTS: u64 = 2;
    pub(crate) const ORACLE: u64 = 3;
    pub(crate) const NOISE: u64 = 1 << 20;
    pub(crate) const SIDECARS: u64 = 1 << 40;
}

/// What can come next. Numbers are places in the tables of [`World`]; a version says whether what
/// was announced still holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Reach {
        call: u32,
    },
    Done {
        call: u32,
        version: u32,
    },
    DoneShared {
        endpoint: u32,
        version: u32,
    },
    Return {
        call: u32,
    },
    Deadline {
        call: u32,
        serial: u32,
    },
    ProbeReach {
        flight: u32,
    },
    ProbeReturn {
        flight: u32,
    },
    Pong {
        sidecar: u32,
        endpoint: u32,
    },
    OutOfBand {
        endpoint: u32,
    },
    Deliver {
        endpoint: u32,
    },
    Begin {
        event: u32,
    },
    End {
        event: u32,
    },
    Warm {
        endpoint: u32,
        start: u32,
    },
    Sever {
        endpoint: u32,
        start: u32,
    },
    Up {
        endpoint: u32,
        event: u32,
    },
    Reconnect {
        sidecar: u32,
        endpoint: u32,
        start: u32,
    },
    Noise {
        source: u32,
    },
    Autoscale,
    Join {
        count: u32,
    },
}

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Going,
    Waiting,
    Running,
    Returning,
}

#[derive(Debug)]
struct Call {
    class: u32,
    sidecar: u32,
    endpoint: u32,
    /// Differs between the calls that stand in one place after another.
    serial: u32,
    /// Differs between the announcements of its end.
    version: u32,
    place: Place,
    failed: bool,
    /// The client waits no more.
    given_up: bool,
    measured: bool,
    met: u32,
    arrived_ns: u64,
    entered_ns: u64,
    started_ns: u64,
    work_ns: f64,
    /// Expected work, as it was added to its endpoint.
    expected_ns: f64,
    attempt: Option<Attempt>,
    report: Option<LoadReport>,
}

/// A probe on its way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    sidecar: u32,
    endpoint: u32,
    probe: Option<Probe>,
}

/// Who picks.
#[derive(Debug)]
pub(crate) enum Pickers {
    Sidecars(Vec<Sidecar>),
    Oracle(Rng),
}

/// A run in progress.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) seed: u64,
    pub(crate) now_ns: u64,
    pub(crate) end_ns: u64,
    warmup_ns: u64,
    pub(crate) agenda: Agenda<Event>,
    arrivals: Arrivals,
    /// The next call.
    pending: Option<Arrival>,
    pub(crate) pickers: Pickers,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) zones: Vec<String>,
    sidecar_zones: Vec<usize>,
    /// One way, by zone of the sidecar and of the endpoint.
    delays: Vec<Vec<Delay>>,
    deadline: Option<Delay>,
    pub(crate) affinity: Vec<Vec<f64>>,
    pub(crate) shift: usize,
    sizes: u32,
    calls: Vec<Call>,
    free: Vec<u32>,
    open: u64,
    open_measured: u64,
    flights: Vec<Flight>,
    free_flights: Vec<u32>,
    /// When the next ping is due, by sidecar and endpoint; empty where nobody learns.
    pings: Vec<Vec<u64>>,
    /// Path and message bytes of each class.
    classes: Vec<(String, u64)>,
    faults: Rng,
    pub(crate) script: Script,
    pub(crate) recorder: Recorder,
}

impl World {
    /// `config` is the service of every sidecar; None: the oracle picks.
    pub(crate) fn new(scenario: Arc<Scenario>, config: Option<&ServiceConfig>, seed: u64) -> Self {
        let zones = zones_of(&scenario);
        let mut agenda = Agenda::new();
        let delays = delays_of(&scenario, &zones, &mut agenda);
        let deadline_ns = (scenario.deadline_ms * NS_PER_MS) as u64;
        let deadline = (deadline_ns > 0).then(|| agenda.delay(deadline_ns));
        let count = scenario.sidecars.count;
        let pickers = match config {
            Some(config) => Pickers::Sidecars(
                (0..count)
                    .map(|index| {
                        let mut own = Rng::stream(seed, streams::SIDECARS + u64::from(index));
                        Sidecar::new(config, own.next_u64())
                    })
                    .collect(),
            ),
            None => Pickers::Oracle(Rng::stream(seed, streams::ORACLE)),
        };
        let pings = match &pickers {
            Pickers::Sidecars(sidecars) if sidecars.iter().all(Sidecar::learns) => {
                vec![Vec::new(); sidecars.len()]
            }
            _ => Vec::new(),
        };
        let mut arrivals = Arrivals::new(&scenario, Rng::stream(seed, streams::ARRIVALS));
        let mut world = Self {
            seed,
            now_ns: 0,
            end_ns: (scenario.warmup_ms + scenario.duration_ms) * 1_000_000,
            warmup_ns: scenario.warmup_ms * 1_000_000,
            agenda,
            pending: arrivals.next(),
            arrivals,
            pickers,
            endpoints: Vec::new(),
            sidecar_zones: (0..count)
                .map(|index| place_of(&zones, &zone_of(&scenario.sidecars.zones, index)))
                .collect(),
            zones,
            delays,
            deadline,
            affinity: scenario.affinity(),
            shift: 0,
            sizes: scenario.request_classes.message_sizes.len() as u32,
            calls: Vec::new(),
            free: Vec::new(),
            open: 0,
            open_measured: 0,
            flights: Vec::new(),
            free_flights: Vec::new(),
            pings,
            classes: shown(&scenario),
            faults: Rng::stream(seed, streams::FAULTS),
            script: Script::new(&scenario, seed),
            recorder: Recorder::new(),
            scenario,
        };
        world.begin_script();
        world
    }

    /// What came of it.
    pub(crate) fn outcome(self, balancer: String) -> Outcome {
        self.recorder.outcome(
            &self.scenario,
            (balancer, self.seed),
            &self.endpoints,
            self.open_measured,
        )
    }

    /// Plays all that comes before `until_ns`; false if nothing is left to come.
    pub(crate) fn advance(&mut self, until_ns: u64) -> bool {
        while self.pending.is_some() || self.open > 0 {
            let arrives_ns = self.pending.map(|arrival| arrival.at_ns);
            let limit_ns = arrives_ns.unwrap_or(self.end_ns + DRAIN_NS);
            if let Some((now_ns, event)) = self.agenda.next_before(limit_ns.min(until_ns)) {
                self.now_ns = now_ns;
                self.handle(event);
            } else if limit_ns >= until_ns {
                self.now_ns = self.now_ns.max(until_ns);
                return true;
            } else if let Some(arrival) = self.pending.take() {
                self.now_ns = arrival.at_ns;
                self.pending = self.arrivals.next();
                self.arrive(&arrival);
            } else {
                break;
            }
        }
        false
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Reach { call } => self.reach(call),
            Event::Done { call, version } => {
                if self.calls[call as usize].version == version {
                    self.done(call);
                }
            }
            Event::DoneShared { endpoint, version } => self.done_shared(endpoint, version),
            Event::Return { call } => self.returned(call),
            Event::Deadline { call, serial } => self.deadline(call, serial),
            Event::ProbeReach { flight } => self.probe_reaches(flight),
            Event::ProbeReturn { flight } => self.probe_returns(flight),
            Event::Pong { sidecar, endpoint } => self.pong(sidecar, endpoint),
            scripted => self.scripted(scripted),
        }
    }

    // --- the way there ---------------------------------------------------------------------------

    fn arrive(&mut self, arrival: &Arrival) {
        let measured = arrival.at_ns >= self.warmup_ns;
        let attempt = match &mut self.pickers {
            Pickers::Sidecars(sidecars) => {
                let (path, message_bytes) = &self.classes[arrival.class as usize];
                let call = Incoming {
                    path,
                    message_bytes: *message_bytes,
                    key: arrival.key,
                };
                sidecars[arrival.sidecar as usize].call(self.now_ns, call)
            }
            Pickers::Oracle(_) => None,
        };
        let picked = match &attempt {
            Some(attempt) => Some(number_of(attempt.endpoint())),
            None => self.foresee(arrival),
        };
        let Some(number) = picked else {
            self.recorder.ended(self.now_ns, 0, End::Refused, measured);
            return;
        };
        self.recorder.picked(self.now_ns, number);
        let expected_ns = self.expected_ns(arrival.class, number);
        let endpoint = &mut self.endpoints[number as usize];
        endpoint.measured += u64::from(measured);
        endpoint.assigned += 1;
        endpoint.assigned_ns += expected_ns;
        let zone = endpoint.zone;
        let call = self.place_call(Call {
            class: arrival.class,
            sidecar: arrival.sidecar,
            endpoint: number,
            serial: 0,
            version: 0,
            place: Place::Going,
            failed: false,
            given_up: false,
            measured,
            met: 0,
            arrived_ns: self.now_ns,
            entered_ns: 0,
            started_ns: 0,
            work_ns: arrival.work_ns,
            expected_ns,
            attempt,
            report: None,
        });
        self.open += 1;
        self.open_measured += u64::from(measured);
        if let Some(deadline) = self.deadline {
            let serial = self.calls[call as usize].serial;
            self.agenda
                .after(self.now_ns, deadline, Event::Deadline { call, serial });
        }
        self.probe(arrival.sidecar);
        self.ping(arrival.sidecar, number);
        let delay = self.delays[self.sidecar_zones[arrival.sidecar as usize]][zone];
        if delay.ns == 0 {
            self.reach(call);
        } else {
            self.agenda.after(self.now_ns, delay, Event::Reach { call });
        }
    }

    /// The oracle's pick.
    fn foresee(&mut self, arrival: &Arrival) -> Option<u32> {
        let Pickers::Oracle(rng) = &mut self.pickers else {
            return None;
        };
        let delays = &self.delays[self.sidecar_zones[arrival.sidecar as usize]];
        let row = &self.affinity[(arrival.class / self.sizes) as usize];
        let class_ns = self.arrivals.class_work_ns[arrival.class as usize];
        let shift = self.shift;
        let (scenario, endpoints) = (&self.scenario, &self.endpoints);
        let costs = |healthy: bool| {
            (0..).zip(endpoints).filter_map(move |(number, endpoint)| {
                let well = endpoint.faults.is_empty() && !endpoint.down && endpoint.rate() > 0.0;
                let weight = scenario.endpoints[endpoint.group].static_weight;
                let usable = endpoint.in_set && weight > 0.0 && (well || !healthy);
                usable.then(|| {
                    let work_ns = class_ns * row[(endpoint.column + shift) % row.len()];
                    let rtt_ns = 2.0 * delays[endpoint.zone].ns as f64;
                    (number, oracle::completion_ns(endpoint, work_ns, rtt_ns))
                })
            })
        };
        oracle::least(costs(true), rng).or_else(|| oracle::least(costs(false), rng))
    }

    /// Mean work of a class on an endpoint.
    fn expected_ns(&self, class: u32, number: u32) -> f64 {
        self.arrivals.class_work_ns[class as usize] * self.factor(class, number)
    }

    fn factor(&self, class: u32, number: u32) -> f64 {
        let row = &self.affinity[(class / self.sizes) as usize];
        row[(self.endpoints[number as usize].column + self.shift) % row.len()]
    }

    fn reach(&mut self, number: u32) {
        let call = &self.calls[number as usize];
        let endpoint = &mut self.endpoints[call.endpoint as usize];
        if call.given_up {
            self.leave_endpoint(number);
            self.forget(number);
            return;
        }
        let fails = endpoint.down
            || endpoint.faults.iter().any(|(_, mode, share)| {
                *mode == FailMode::TrailersOnly && self.faults.unit_f64() < *share
            });
        if fails {
            endpoint.answered(endpoint.inside(), 0, true);
            self.send_back(number, true, None);
            return;
        }
        let factor = self.factor(
            self.calls[number as usize].class,
            self.calls[number as usize].endpoint,
        );
        let call = &mut self.calls[number as usize];
        let endpoint = &mut self.endpoints[call.endpoint as usize];
        call.met = endpoint.inside();
        call.entered_ns = self.now_ns;
        call.started_ns = self.now_ns;
        call.work_ns *= factor;
        let waits = matches!(&endpoint.queue, Queue::Fifo(fifo) if fifo.running.len() >= endpoint.workers as usize);
        call.place = if waits {
            Place::Waiting
        } else {
            Place::Running
        };
        let due = endpoint.enter(number, call.work_ns, self.now_ns);
        let endpoint = call.endpoint;
        self.announce(endpoint, due);
    }

    // --- service ---------------------------------------------------------------------------------

    /// Puts the end of a call on the agenda; what was announced for it before is void.
    pub(crate) fn announce(&mut self, endpoint: u32, due: impl IntoIterator<Item = Due>) {
        let shared = matches!(self.endpoints[endpoint as usize].queue, Queue::Sharing(_));
        for (time_ns, number) in due {
            let event = if shared {
                Event::DoneShared {
                    endpoint,
                    version: number,
                }
            } else {
                let call = &mut self.calls[number as usize];
                call.version = call.version.wrapping_add(1);
                Event::Done {
                    call: number,
                    version: call.version,
                }
            };
            if time_ns < u64::MAX {
                self.agenda.at(time_ns, event);
            }
        }
    }

    fn done(&mut self, number: u32) {
        let at = self.calls[number as usize].endpoint;
        self.endpoints[at as usize].finish(number, self.now_ns);
        self.start_next(at);
        self.worked_off(number);
    }

    fn done_shared(&mut self, at: u32, version: u32) {
        let endpoint = &mut self.endpoints[at as usize];
        let valid =
            matches!(&endpoint.queue, Queue::Sharing(sharing) if sharing.version == version);
        if !valid {
            return;
        }
        let (done, due) = endpoint.finish_shared(self.now_ns);
        self.announce(at, due);
        if let Some(number) = done {
            self.worked_off(number);
        }
    }

    /// A worker of a FIFO queue is free.
    fn start_next(&mut self, at: u32) {
        loop {
            let endpoint = &mut self.endpoints[at as usize];
            let Queue::Fifo(fifo) = &mut endpoint.queue else {
                return;
            };
            let Some(next) = fifo.waiting.pop_front() else {
                return;
            };
            let call = &mut self.calls[next as usize];
            if call.given_up {
                fifo.dropped -= 1;
                self.leave_endpoint(next);
                self.forget(next);
                continue;
            }
            call.place = Place::Running;
            call.started_ns = self.now_ns;
            let due = endpoint.start(next, call.work_ns, self.now_ns);
            self.announce(at, due);
            return;
        }
    }

    fn worked_off(&mut self, number: u32) {
        let call = &self.calls[number as usize];
        let endpoint = &mut self.endpoints[call.endpoint as usize];
        let fails = endpoint.faults.iter().any(|(_, mode, share)| {
            *mode == FailMode::AfterHeaders && self.faults.unit_f64() < *share
        });
        endpoint.answered(call.met, self.now_ns - call.entered_ns, fails);
        let service_ns = self.now_ns - call.started_ns;
        let report = endpoint.report(self.now_ns, &self.scenario.reports, Some(service_ns));
        self.send_back(number, fails, report);
    }

    // --- the way back ----------------------------------------------------------------------------

    /// The endpoint is done with a call.
    pub(crate) fn send_back(&mut self, number: u32, failed: bool, report: Option<LoadReport>) {
        self.leave_endpoint(number);
        let call = &mut self.calls[number as usize];
        // Whatever end was announced is void.
        call.version = call.version.wrapping_add(1);
        if call.given_up {
            self.forget(number);
            return;
        }
        call.failed = failed;
        call.report = report;
        call.place = Place::Returning;
        let zone = self.endpoints[call.endpoint as usize].zone;
        let delay = self.delays[self.sidecar_zones[call.sidecar as usize]][zone];
        if delay.ns == 0 {
            self.returned(number);
        } else {
            self.agenda
                .after(self.now_ns, delay, Event::Return { call: number });
        }
    }

    fn leave_endpoint(&mut self, number: u32) {
        let call = &self.calls[number as usize];
        let endpoint = &mut self.endpoints[call.endpoint as usize];
        endpoint.assigned -= 1;
        endpoint.assigned_ns -= call.expected_ns;
        if endpoint.assigned == 0 {
            endpoint.assigned_ns = 0.0; // what rounding left
        }
    }

    fn returned(&mut self, number: u32) {
        if !self.calls[number as usize].given_up {
            let failed = self.calls[number as usize].failed;
            let code = if failed { Code::Unavailable } else { Code::Ok };
            self.end_call(
                number,
                code,
                if failed { End::Failed } else { End::Answered },
            );
        }
        self.forget(number);
    }

    fn deadline(&mut self, number: u32, serial: u32) {
        let call = &mut self.calls[number as usize];
        if call.serial != serial || call.place == Place::Nowhere || call.given_up {
            return;
        }
        call.given_up = true;
        if call.place == Place::Waiting {
            if let Queue::Fifo(fifo) = &mut self.endpoints[call.endpoint as usize].queue {
                fifo.dropped += 1;
            }
        }
        self.end_call(number, Code::DeadlineExceeded, End::DeadlineExceeded);
    }

    /// The client gets its answer, and the sidecar learns from it.
    fn end_call(&mut self, number: u32, code: Code, end: End) {
        let call = &mut self.calls[number as usize];
        let latency_ns = self.now_ns - call.arrived_ns;
        self.open -= 1;
        self.open_measured -= u64::from(call.measured);
        self.recorder
            .ended(self.now_ns, latency_ns, end, call.measured);
        let attempt = call.attempt.take();
        if let (Pickers::Sidecars(sidecars), Some(attempt)) = (&mut self.pickers, attempt) {
            sidecars[call.sidecar as usize].answered(
                self.now_ns,
                attempt,
                Answer::Answered(code),
                call.report.as_ref(),
            );
        }
    }

    fn place_call(&mut self, mut call: Call) -> u32 {
        match self.free.pop() {
            Some(number) => {
                let place = &mut self.calls[number as usize];
                call.serial = place.serial.wrapping_add(1);
                call.version = place.version.wrapping_add(1);
                *place = call;
                number
            }
            None => {
                self.calls.push(call);
                (self.calls.len() - 1) as u32
            }
        }
    }

    fn forget(&mut self, number: u32) {
        self.calls[number as usize].place = Place::Nowhere;
        self.free.push(number);
    }

    // --- probes ----------------------------------------------------------------------------------

    fn probe(&mut self, sidecar: u32) {
        let Pickers::Sidecars(sidecars) = &mut self.pickers else {
            return;
        };
        let zone = self.sidecar_zones[sidecar as usize];
        for &endpoint in sidecars[sidecar as usize].probes_due(self.now_ns) {
            let flight = Flight {
                sidecar,
                endpoint,
                probe: None,
            };
            let number = match self.free_flights.pop() {
                Some(number) => {
                    self.flights[number as usize] = flight;
                    number
                }
                None => {
                    self.flights.push(flight);
                    (self.flights.len() - 1) as u32
                }
            };
            let delay = self.delays[zone][self.endpoints[endpoint as usize].zone];
            self.agenda
                .after(self.now_ns, delay, Event::ProbeReach { flight: number });
        }
    }

    fn probe_reaches(&mut self, number: u32) {
        let flight = &mut self.flights[number as usize];
        let endpoint = &self.endpoints[flight.endpoint as usize];
        if endpoint.down || endpoint.hangs > 0 {
            self.free_flights.push(number); // nobody answers
            return;
        }
        flight.probe = self.scenario.probes.then(|| endpoint.probe());
        let delay = self.delays[self.sidecar_zones[flight.sidecar as usize]][endpoint.zone];
        self.agenda
            .after(self.now_ns, delay, Event::ProbeReturn { flight: number });
    }

    fn probe_returns(&mut self, number: u32) {
        let flight = self.flights[number as usize];
        self.free_flights.push(number);
        if let Pickers::Sidecars(sidecars) = &mut self.pickers {
            sidecars[flight.sidecar as usize].probed(self.now_ns, flight.endpoint, flight.probe);
        }
    }

    // --- pings -----------------------------------------------------------------------------------

    /// Measures the round trip to an endpoint, where somebody learns from it.
    fn ping(&mut self, sidecar: u32, endpoint: u32) {
        let Some(pings) = self.pings.get_mut(sidecar as usize) else {
            return;
        };
        if pings.len() <= endpoint as usize {
            pings.resize(endpoint as usize + 1, 0);
        }
        let due_ns = &mut pings[endpoint as usize];
        if self.now_ns < *due_ns {
            return;
        }
        *due_ns = self.now_ns + PING_NS;
        let zone = self.endpoints[endpoint as usize].zone;
        let rtt_ns = 2 * self.delays[self.sidecar_zones[sidecar as usize]][zone].ns;
        let event = Event::Pong { sidecar, endpoint };
        self.agenda.at(self.now_ns + rtt_ns, event);
    }

    fn pong(&mut self, sidecar: u32, endpoint: u32) {
        let state = &self.endpoints[endpoint as usize];
        if state.down || state.hangs > 0 {
            return; // nobody answers
        }
        let zone = state.zone;
        let rtt_ns = 2 * self.delays[self.sidecar_zones[sidecar as usize]][zone].ns;
        if let Pickers::Sidecars(sidecars) = &mut self.pickers {
            sidecars[sidecar as usize].pinged(endpoint, rtt_ns);
        }
    }

    /// The longest way between any sidecar and an endpoint.
    pub(crate) fn farthest_ns(&self, endpoint: u32) -> u64 {
        let zone = self.endpoints[endpoint as usize].zone;
        let ways = self
            .sidecar_zones
            .iter()
            .map(|&from| self.delays[from][zone].ns);
        ways.max().unwrap_or(0)
    }
}

/// Path and message bytes that calls of each class show.
fn shown(scenario: &Scenario) -> Vec<(String, u64)> {
    let kinds = &scenario.request_classes;
    let path = |name: &str| match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("/simulated/{name}"),
    };
    let sizes = 0..kinds.message_sizes.len();
    let methods = kinds.methods.iter();
    methods
        .flat_map(|method| {
            sizes
                .clone()
                .map(move |size| (path(&method.name), scenario.message_bytes(size)))
        })
        .collect()
}

/// Every zone that a sidecar or endpoint stands in, each once.
fn zones_of(scenario: &Scenario) -> Vec<String> {
    let mut zones: Vec<String> = Vec::new();
    let groups = scenario.endpoints.iter().map(|group| &group.zones);
    for list in groups.chain([&scenario.sidecars.zones]) {
        let named: &[String] = if list.is_empty() {
            &[String::new()]
        } else {
            list
        };
        for zone in named {
            if !zones.contains(zone) {
                zones.push(zone.clone());
            }
        }
    }
    zones
}

pub(crate) fn place_of(zones: &[String], zone: &str) -> usize {
    zones.iter().position(|known| known == zone).unwrap_or(0)
}

fn delays_of(scenario: &Scenario, zones: &[String], agenda: &mut Agenda<Event>) -> Vec<Vec<Delay>> {
    let network = &scenario.network;
    let rtt_ms = |one: &str, other: &str| {
        let pair = network.pairs.iter().find(|pair| {
            let (first, second) = (pair.zones.0.as_str(), pair.zones.1.as_str());
            (first, second) == (one, other) || (second, first) == (one, other)
        });
        pair.map_or(network.rtt_ms, |pair| pair.rtt_ms)
    };
    zones
        .iter()
        .map(|from| {
            zones
                .iter()
                .map(|to| agenda.delay((rtt_ms(from, to) / 2.0 * NS_PER_MS) as u64))
                .collect()
        })
        .collect()
}
