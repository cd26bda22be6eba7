//! Writes down what happens to calls, and makes an [`Outcome`] of it.

use crate::endpoint::Endpoint;
use crate::outcome::{cdf_shares, CdfPoint, Counts, Detection, EndpointShare, Outcome, Second};
use crate::scenario::Scenario;

const SECOND_NS: u64 = 1_000_000_000;
const SLOT_NS: u64 = SECOND_NS / 10;
/// Slots before an event that its share of picks is compared with.
const BEFORE: usize = 100;
/// Slots in which picks must avoid an endpoint for it to count as detected.
const SLIDING: usize = 10;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    Failed,
    DeadlineExceeded,
    Refused,
}

/// Counters of a run.
#[derive(Debug)]
pub(crate) struct Recorder {
    all: Counts,
    second: Counts,
    second_errors: u64,
    second_calls: u64,
    timeline: Vec<Second>,
    errors: u64,
    deadline_exceeded: u64,
    refused: u64,
    measured: u64,
    fingerprint: u64,
    slot: u64,
    /// Picks of each endpoint in each of the last slots, by slot modulo their number.
    recent: Vec<Vec<u32>>,
    watches: Vec<Watch>,
}

#[derive(Debug)]
struct Watch {
    event: &'static str,
    at_ns: u64,
    /// Whether it still lasts.
    open: bool,
    concerned: Vec<bool>,
    share_before: Option<f64>,
    /// Picks, and those of concerned endpoints, in each slot since.
    slots: Vec<(u32, u32)>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            all: Counts::new(),
            second: Counts::new(),
            second_errors: 0,
            second_calls: 0,
            timeline: Vec::new(),
            errors: 0,
            deadline_exceeded: 0,
            refused: 0,
            measured: 0,
            fingerprint: 0xcbf2_9ce4_8422_2325,
            slot: 0,
            recent: vec![Vec::new(); BEFORE],
            watches: Vec::new(),
        }
    }

    /// An endpoint was picked.
    pub(crate) fn picked(&mut self, now_ns: u64, number: u32) {
        // FNV-1a over whole words.
        self.fingerprint =
            (self.fingerprint ^ u64::from(number)).wrapping_mul(0x0000_0100_0000_01b3);
        let slot = now_ns / SLOT_NS;
        while self.slot < slot {
            self.slot += 1;
            self.recent[self.slot as usize % BEFORE].fill(0);
        }
        let counts = &mut self.recent[slot as usize % BEFORE];
        if counts.len() <= number as usize {
            counts.resize(number as usize + 1, 0);
        }
        counts[number as usize] += 1;
        for watch in self.watches.iter_mut().filter(|watch| watch.open) {
            let place = ((now_ns - watch.at_ns) / SLOT_NS) as usize;
            if watch.slots.len() <= place {
                watch.slots.resize(place + 1, (0, 0));
            }
            watch.slots[place].0 += 1;
            let concerned = watch.concerned.get(number as usize) == Some(&true);
            watch.slots[place].1 += u32::from(concerned);
        }
    }

    /// A call ended; `latency_ns` since it arrived.
    pub(crate) fn ended(&mut self, now_ns: u64, latency_ns: u64, end: End, measured: bool) {
        while (self.timeline.len() as u64 + 1) * SECOND_NS <= now_ns {
            self.close_second();
        }
        let counted = matches!(end, End::Answered | End::DeadlineExceeded);
        let failed = end != End::Answered;
        self.second_calls += 1;
        self.second_errors += u64::from(failed);
        if counted {
            self.second.add(latency_ns);
        }
        if measured {
            self.measured += 1;
            self.errors += u64::from(failed);
            self.deadline_exceeded += u64::from(end == End::DeadlineExceeded);
            self.refused += u64::from(end == End::Refused);
            if counted {
                self.all.add(latency_ns);
            }
        }
    }

    /// Something begins that picks should avoid.
    pub(crate) fn watch(&mut self, event: &'static str, now_ns: u64, numbers: &[u32]) {
        let mut concerned = Vec::new();
        for &number in numbers {
            let number = number as usize;
            concerned.resize(concerned.len().max(number + 1), false);
            concerned[number] = true;
        }
        let (mut all, mut theirs) = (0_u64, 0_u64);
        for (number, count) in self.recent.iter().flat_map(|slot| slot.iter().enumerate()) {
            all += u64::from(*count);
            if concerned.get(number) == Some(&true) {
                theirs += u64::from(*count);
            }
        }
        self.watches.push(Watch {
            event,
            at_ns: now_ns,
            open: true,
            concerned,
            share_before: (theirs > 0).then(|| theirs as f64 / all as f64),
            slots: Vec::new(),
        });
    }

    /// It is over.
    pub(crate) fn unwatch(&mut self, event: &'static str, at_ns: u64) {
        for watch in &mut self.watches {
            if watch.event == event && watch.at_ns == at_ns {
                watch.open = false;
            }
        }
    }

    fn close_second(&mut self) {
        self.timeline.push(Second {
            at_s: self.timeline.len() as u64,
            calls: self.second_calls,
            errors: self.second_errors,
            mean_ms: self.second.mean_ms(),
            p50_ms: self.second.quantile_ms(0.5),
            p99_ms: self.second.quantile_ms(0.99),
        });
        self.second.clear();
        (self.second_calls, self.second_errors) = (0, 0);
    }

    /// Ends the timeline with the last whole second of the run. Of the calls that end in a part of
    /// a second there are too few for a p99, and of those that end after the last arrival only the
    /// slow ones are left: either would draw a spike.
    fn close_last_second(&mut self, scenario: &Scenario) {
        let end_s = (scenario.warmup_ms + scenario.duration_ms) / 1_000;
        if (self.timeline.len() as u64) < end_s {
            self.close_second();
        }
        self.timeline.truncate(end_s as usize);
    }

    /// The result; `unfinished`: measured calls without an end.
    pub(crate) fn outcome(
        mut self,
        scenario: &Scenario,
        (balancer, seed): (String, u64),
        endpoints: &[Endpoint],
        unfinished: u64,
    ) -> Outcome {
        self.close_last_second(scenario);
        let quantile = |share| self.all.quantile_ms(share);
        let picked: u64 = endpoints.iter().map(|endpoint| endpoint.measured).sum();
        Outcome {
            scenario: scenario.name.clone(),
            balancer,
            seed,
            capacity_rps: scenario.capacity_rps(),
            offered_rps: scenario.offered_rps(),
            overload: scenario.offered_rps() >= scenario.capacity_rps(),
            calls: self.measured + unfinished,
            errors: self.errors + unfinished,
            deadline_exceeded: self.deadline_exceeded,
            refused: self.refused,
            unfinished,
            mean_ms: self.all.mean_ms(),
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            cdf: cdf_shares()
                .filter_map(|share| {
                    quantile(share).map(|latency_ms| CdfPoint { share, latency_ms })
                })
                .collect(),
            endpoints: endpoints
                .iter()
                .map(|endpoint| {
                    let group = &scenario.endpoints[endpoint.group];
                    EndpointShare {
                        group: group.name.clone(),
                        zone: zone_of(&group.zones, endpoint.position),
                        joined_s: endpoint.joined_ns as f64 / SECOND_NS as f64,
                        calls: endpoint.measured,
                        share: endpoint.measured as f64 / picked.max(1) as f64,
                    }
                })
                .collect(),
            events: self.watches.iter().map(Watch::detection).collect(),
            timeline: self.timeline,
            picks: format!("{:016x}", self.fingerprint),
        }
    }
}

impl Watch {
    fn detection(&self) -> Detection {
        let limit = self.share_before.map(|share| share / 2.0);
        let detected = limit.and_then(|limit| {
            self.slots
                .windows(SLIDING)
                .position(|window| {
                    let (all, theirs) = window
                        .iter()
                        .fold((0, 0), |sum, slot| (sum.0 + slot.0, sum.1 + slot.1));
                    all > 0 && f64::from(theirs) <= limit * f64::from(all)
                })
                // Known at the end of the window; its beginning is when avoidance began.
                .map(|first| first as f64 * SLOT_NS as f64 / SECOND_NS as f64)
        });
        Detection {
            event: self.event,
            at_s: self.at_ns as f64 / SECOND_NS as f64,
            endpoints: self.concerned.iter().filter(|&&is| is).count() as u32,
            share_before: self.share_before,
            detected_s: detected,
        }
    }
}

/// The zone of the `position`-th of those that stand in `zones` in turn.
pub(crate) fn zone_of(zones: &[String], position: u32) -> String {
    match zones.len() {
        0 => String::new(),
        count => zones[position as usize % count].clone(),
    }
}
