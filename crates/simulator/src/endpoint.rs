//! The model of an endpoint: workers, a queue, a speed, and what it tells of itself.
//!
//! Work is measured in nanoseconds on a worker of speed 1; the rate at which it shrinks is the
//! product of all that makes an endpoint fast or slow at the moment. Nothing here knows calls: a
//! call is a number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use attnroute_dataplane::attempt::Probe;
use attnroute_dataplane::orca::LoadReport;

use crate::scenario::{Discipline, FailMode, Reports};

/// Utilization and rate are those of the last complete window of at least this length.
const WINDOW_NS: u64 = 1_000_000_000;

/// Answers that are remembered of calls that met about as many, for the latency of a probe.
const RECENT: usize = 16;

/// Numbers of calls met that are told apart; all above share the last place.
const LEVELS: usize = 256;

/// Unix time of the start of a run.
const EPOCH_S: f64 = 1.75e9;

/// What is true of an endpoint at the moment.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) group: usize,
    /// Place in its group, in the order of joining.
    pub(crate) position: u32,
    pub(crate) zone: usize,
    /// Column of the affinity table before any shift.
    pub(crate) column: usize,
    pub(crate) workers: u32,
    pub(crate) speed: f64,
    pub(crate) joined_ns: u64,
    pub(crate) in_set: bool,
    pub(crate) down: bool,
    /// Events that stop all work.
    pub(crate) hangs: u32,
    /// Events under which answers carry no report.
    pub(crate) mutes: u32,
    /// Event and factor of each slow-down in force.
    pub(crate) slows: Vec<(u32, f64)>,
    pub(crate) noise: f64,
    /// Factor while it is cold, and the start that it belongs to.
    pub(crate) cold: f64,
    pub(crate) starts: u32,
    /// Event, mode and share of each failure in force.
    pub(crate) faults: Vec<(u32, FailMode, f64)>,
    /// Calls picked for it and not done, those on their way included, and their expected work.
    pub(crate) assigned: u32,
    pub(crate) assigned_ns: f64,
    pub(crate) measured: u64,
    pub(crate) queue: Queue,
    rate: f64,
    started_ns: u64,
    window: Window,
    recent: Recent,
}

/// Latencies of recent answers by the calls that they met.
#[derive(Debug, Default)]
struct Recent(Vec<VecDeque<u64>>);

/// Calls in an endpoint.
#[derive(Debug)]
pub(crate) enum Queue {
    Fifo(Fifo),
    Sharing(Sharing),
}

/// First come, first served.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    pub(crate) running: Vec<Running>,
    pub(crate) waiting: VecDeque<u32>,
    /// Waiting ones whose client has given up: nobody works on them.
    pub(crate) dropped: u32,
}

/// A call on a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) call: u32,
    left_ns: f64,
    updated_ns: u64,
}

/// Processor sharing, in the work that a call which came at 0 would have got so far.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    virtual_ns: f64,
    updated_ns: u64,
    /// By the bits of the virtual time at which a call is done: for positive numbers bits order as
    /// values do.
    jobs: BinaryHeap<Reverse<(u64, u32)>>,
    pub(crate) version: u32,
}

/// Busy time and answers since the last window.
#[derive(Debug, Default)]
struct Window {
    since_ns: u64,
    updated_ns: u64,
    busy_ns: f64,
    /// Busy time of all workers ever.
    total_ns: f64,
    answers: u32,
    failures: u32,
    /// Utilization, answers and failures per second of the last window.
    last: Option<(f64, f64, f64)>,
}

/// A call that ends at a time unless something changes before.
pub(crate) type Due = (u64, u32);

impl Endpoint {
    pub(crate) fn new(
        (group, position): (usize, u32),
        (zone, column): (usize, usize),
        (workers, speed): (u32, f64),
        discipline: Discipline,
        now_ns: u64,
    ) -> Self {
        Self {
            group,
            position,
            zone,
            column,
            workers,
            speed,
            joined_ns: now_ns,
            in_set: true,
            down: false,
            hangs: 0,
            mutes: 0,
            slows: Vec::new(),
            noise: 1.0,
            cold: 1.0,
            starts: 0,
            faults: Vec::new(),
            assigned: 0,
            assigned_ns: 0.0,
            measured: 0,
            queue: match discipline {
                Discipline::Fifo => Queue::Fifo(Fifo::default()),
                Discipline::ProcessorSharing => Queue::Sharing(Sharing {
                    updated_ns: now_ns,
                    ..Sharing::default()
                }),
            },
            rate: speed,
            started_ns: now_ns,
            window: Window {
                since_ns: now_ns,
                updated_ns: now_ns,
                ..Window::default()
            },
            recent: Recent::default(),
        }
    }

    /// Work done per nanosecond by a worker.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// The rate after a change of what it depends on.
    pub(crate) fn rate_now(&self) -> f64 {
        if self.hangs > 0 {
            return 0.0;
        }
        let slow: f64 = self.slows.iter().map(|(_, factor)| factor).product();
        self.speed * slow * self.noise * self.cold
    }

    /// Calls in it.
    pub(crate) fn inside(&self) -> u32 {
        match &self.queue {
            Queue::Fifo(fifo) => (fifo.running.len() + fifo.waiting.len()) as u32 - fifo.dropped,
            Queue::Sharing(sharing) => sharing.jobs.len() as u32,
        }
    }

    fn busy(&self) -> u32 {
        match &self.queue {
            Queue::Fifo(fifo) => fifo.running.len() as u32,
            Queue::Sharing(sharing) => (sharing.jobs.len() as u32).min(self.workers),
        }
    }

    fn waiting(&self) -> u32 {
        self.inside() - self.busy()
    }

    /// Takes a call in; the calls whose end is known now.
    pub(crate) fn enter(&mut self, call: u32, work_ns: f64, now_ns: u64) -> Option<Due> {
        self.account(now_ns);
        let (rate, workers) = (self.rate, self.workers as usize);
        match &mut self.queue {
            Queue::Fifo(fifo) if fifo.running.len() < workers => {
                Some(fifo.start(call, work_ns, rate, now_ns)).flatten()
            }
            Queue::Fifo(fifo) => {
                fifo.waiting.push_back(call);
                None
            }
            Queue::Sharing(sharing) => {
                sharing.advance(rate, workers, now_ns);
                let done_ns = sharing.virtual_ns + work_ns;
                sharing.jobs.push(Reverse((done_ns.to_bits(), call)));
                sharing.next(rate, workers, now_ns)
            }
        }
    }

    /// A worker takes the next call of a FIFO queue.
    pub(crate) fn start(&mut self, call: u32, work_ns: f64, now_ns: u64) -> Option<Due> {
        self.account(now_ns);
        let rate = self.rate;
        match &mut self.queue {
            Queue::Fifo(fifo) => fifo.start(call, work_ns, rate, now_ns),
            Queue::Sharing(_) => None,
        }
    }

    /// Takes a call out of a FIFO queue's workers.
    pub(crate) fn finish(&mut self, call: u32, now_ns: u64) {
        self.account(now_ns);
        if let Queue::Fifo(fifo) = &mut self.queue {
            if let Some(place) = fifo.running.iter().position(|running| running.call == call) {
                fifo.running.swap_remove(place);
            }
        }
    }

    /// Takes out the call of a sharing queue that is done, and tells when the next one will be.
    pub(crate) fn finish_shared(&mut self, now_ns: u64) -> (Option<u32>, Option<Due>) {
        self.account(now_ns);
        let (rate, workers) = (self.rate, self.workers as usize);
        match &mut self.queue {
            Queue::Sharing(sharing) => {
                sharing.advance(rate, workers, now_ns);
                let done = sharing.jobs.pop().map(|Reverse((_, call))| call);
                (done, sharing.next(rate, workers, now_ns))
            }
            Queue::Fifo(_) => (None, None),
        }
    }

    /// Takes over the rate that holds from now on; every end of a call changes.
    pub(crate) fn change_rate(&mut self, now_ns: u64) -> Vec<Due> {
        let (old, new, workers) = (self.rate, self.rate_now(), self.workers as usize);
        self.rate = new;
        match &mut self.queue {
            Queue::Fifo(fifo) => fifo
                .running
                .iter_mut()
                .map(|running| {
                    running.left_ns =
                        (running.left_ns - old * (now_ns - running.updated_ns) as f64).max(0.0);
                    running.updated_ns = now_ns;
                    (end_ns(now_ns, running.left_ns, new), running.call)
                })
                .collect(),
            Queue::Sharing(sharing) => {
                sharing.advance(old, workers, now_ns);
                sharing.next(new, workers, now_ns).into_iter().collect()
            }
        }
    }

    /// Stops with everything in it; the calls that it had.
    pub(crate) fn crash(&mut self, now_ns: u64) -> Vec<u32> {
        self.account(now_ns);
        match &mut self.queue {
            Queue::Fifo(fifo) => {
                fifo.dropped = 0;
                let running = fifo.running.drain(..).map(|running| running.call);
                running.chain(fifo.waiting.drain(..)).collect()
            }
            Queue::Sharing(sharing) => {
                sharing.version += 1;
                let mut calls: Vec<_> = sharing.jobs.drain().collect();
                calls.sort_unstable();
                calls.into_iter().map(|Reverse((_, call))| call).collect()
            }
        }
    }

    /// Begins again without a memory.
    pub(crate) fn restarted(&mut self, now_ns: u64) {
        self.account(now_ns);
        self.down = false;
        self.started_ns = now_ns;
        self.recent = Recent::default();
        self.window = Window {
            since_ns: now_ns,
            updated_ns: now_ns,
            total_ns: self.window.total_ns,
            ..Window::default()
        };
    }

    /// Notes an answer, for what it tells of itself.
    pub(crate) fn answered(&mut self, in_flight: u32, latency_ns: u64, failed: bool) {
        self.window.answers += 1;
        self.window.failures += u32::from(failed);
        self.recent.push(in_flight, latency_ns);
    }

    /// What it reports, with an answer or without one.
    pub(crate) fn report(
        &mut self,
        now_ns: u64,
        reports: &Reports,
        service_ns: Option<u64>,
    ) -> Option<LoadReport> {
        if !reports.enabled || self.mutes > 0 {
            return None;
        }
        self.account(now_ns);
        let last = self.window.last;
        Some(LoadReport {
            application_utilization: last.filter(|_| reports.utilization).map(|last| last.0),
            qps: last.map(|last| last.1),
            eps: last.map(|last| last.2),
            inflight: Some(f64::from(self.inside())),
            queue: reports.utilization.then(|| f64::from(self.waiting())),
            concurrency: reports.concurrency.then(|| f64::from(self.workers)),
            service_time_s: service_ns
                .filter(|_| reports.service_time)
                .map(|service_ns| service_ns as f64 / 1e9),
            started_s: Some(EPOCH_S + self.started_ns as f64 / 1e9),
            ..LoadReport::default()
        })
    }

    /// What it answers a probe: the calls in it, and the median latency of the recent answers that
    /// met about as many.
    pub(crate) fn probe(&self) -> Probe {
        let inflight = self.inside();
        Probe {
            inflight,
            latency_ns: self.recent.median(inflight),
        }
    }

    /// Busy time of all workers so far.
    pub(crate) fn busy_total_ns(&mut self, now_ns: u64) -> f64 {
        self.account(now_ns);
        self.window.total_ns
    }

    /// Adds up busy time; called before each change of the number of busy workers.
    fn account(&mut self, now_ns: u64) {
        let busy = f64::from(self.busy());
        let window = &mut self.window;
        let busy_ns = busy * (now_ns - window.updated_ns) as f64;
        window.updated_ns = now_ns;
        window.busy_ns += busy_ns;
        window.total_ns += busy_ns;
        let length_ns = now_ns - window.since_ns;
        if length_ns >= WINDOW_NS {
            let per_s = 1e9 / length_ns as f64;
            window.last = Some((
                window.busy_ns / (f64::from(self.workers) * length_ns as f64),
                f64::from(window.answers) * per_s,
                f64::from(window.failures) * per_s,
            ));
            (window.busy_ns, window.answers, window.failures) = (0.0, 0, 0);
            window.since_ns = now_ns;
        }
    }
}

impl Recent {
    fn push(&mut self, met: u32, latency_ns: u64) {
        let level = (met as usize).min(LEVELS - 1);
        if self.0.len() <= level {
            self.0.resize_with(level + 1, VecDeque::new);
        }
        let answers = &mut self.0[level];
        if answers.len() == RECENT {
            answers.pop_front();
        }
        answers.push_back(latency_ns);
    }

    /// Of the answers that met `met` calls or one more or less; where there are none of those, of
    /// the nearest there are. Each number has a memory of its own, since an endpoint that was busy
    /// and is idle now must not tell what it was like to be busy: nobody would call it again.
    fn median(&self, met: u32) -> u64 {
        let level = (met as usize).min(LEVELS - 1);
        let known = |level: usize| self.0.get(level).filter(|answers| !answers.is_empty());
        let reach = (0..LEVELS)
            .find(|&away| {
                known(level + away).is_some()
                    || level
                        .checked_sub(away)
                        .is_some_and(|at| known(at).is_some())
            })
            .unwrap_or(0)
            .max(1);
        let mut latencies: Vec<u64> = (level.saturating_sub(reach)..=level + reach)
            .filter_map(known)
            .flatten()
            .copied()
            .collect();
        latencies.sort_unstable();
        latencies.get(latencies.len() / 2).copied().unwrap_or(0)
    }
}

impl Fifo {
    fn start(&mut self, call: u32, work_ns: f64, rate: f64, now_ns: u64) -> Option<Due> {
        self.running.push(Running {
            call,
            left_ns: work_ns,
            updated_ns: now_ns,
        });
        Some((end_ns(now_ns, work_ns, rate), call))
    }
}

impl Sharing {
    fn per_call(&self, rate: f64, workers: usize) -> f64 {
        let jobs = self.jobs.len().max(1);
        rate * (workers as f64 / jobs as f64).min(1.0)
    }

    fn advance(&mut self, rate: f64, workers: usize, now_ns: u64) {
        self.virtual_ns += self.per_call(rate, workers) * (now_ns - self.updated_ns) as f64;
        self.updated_ns = now_ns;
    }

    /// The first end, and a new version: any end that was announced before is void.
    fn next(&mut self, rate: f64, workers: usize, now_ns: u64) -> Option<Due> {
        self.version += 1;
        let Reverse((bits, _)) = *self.jobs.peek()?;
        let left_ns = (f64::from_bits(bits) - self.virtual_ns).max(0.0);
        let per_call = self.per_call(rate, workers);
        Some((end_ns(now_ns, left_ns, per_call), self.version))
    }
}

/// When some work is done; never, at rate 0.
fn end_ns(now_ns: u64, left_ns: f64, rate: f64) -> u64 {
    if rate <= 0.0 {
        return u64::MAX;
    }
    // Saturates for what is beyond all time.
    now_ns.saturating_add((left_ns / rate).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::{Recent, LEVELS, RECENT};

    #[test]
    fn a_probe_tells_the_median_of_answers_that_met_about_as_many() {
        let mut recent = Recent::default();
        assert_eq!(recent.median(3), 0);
        for (met, latency_ns) in [(0, 10), (0, 30), (1, 20), (2, 90), (7, 500)] {
            recent.push(met, latency_ns);
        }
        // 10, 20, 30; 10, 20, 30, 90; 20, 90.
        assert_eq!([0, 1, 2].map(|met| recent.median(met)), [20, 30, 90]);
        // Nearest to 4: 2. To 5: 7, two away, as is nothing else. To anything above: 7.
        assert_eq!([4, 5, 900].map(|met| recent.median(met)), [90, 500, 500]);
    }

    #[test]
    fn a_busy_spell_does_not_hide_what_idleness_was_like() {
        let mut recent = Recent::default();
        recent.push(0, 10);
        for _ in 0..1000 {
            recent.push(9, 700);
        }
        assert_eq!(recent.median(0), 10);
        // The newest count, and only some.
        (0..RECENT).for_each(|_| recent.push(9, 800));
        assert_eq!(recent.median(9), 800);
        recent.push(u32::MAX, 5);
        assert_eq!(recent.0.len(), LEVELS);
    }
}
