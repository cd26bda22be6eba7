//! `learned`: the least expected cost, by what is known of the class of the call on each endpoint
//! and of how busy the endpoint is now (`algorithms.md` 3.4, docs/model.md).
//!
//! The scores say how long a class takes on an endpoint; they are published by the control side and
//! carried from snapshot to snapshot. Everything that moves between two of them is read here: own
//! calls, reports, how latencies compare with what was expected, errors. Up to a hundred endpoints
//! are all compared, beyond that a few that are drawn by the routing probabilities. The arithmetic
//! is in [`cost`], on values that were read before, so that others can do it again.

pub mod cost;
mod reading;
mod selection;
mod shown;
mod tail;
pub mod trace;

pub use shown::{ClassScores, InForce};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use self::cost::{costs, each, Costs, Factors, Read, LANES};
use super::{Balancer, Rule, View};
use crate::attempt::{Attempt, Probe, RequestClass, RequestInfo, Sample};
use crate::class::ClassSet;
use crate::config::{LearnedConfig, Selection, CANDIDATES_MAX};
use crate::endpoint::Endpoint;
use crate::ledger::{Expected, REPORT_AGE_MAX_NS};
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::score_table::{Row, ScoreTable};

/// By how much a cost is raised at random at most, so that equals take turns.
pub const JITTER: f32 = 1e-3;

/// Candidates of the overload split, and when it happens: n above so many times c, and waiting so
/// many times the service.
const SPLIT_CANDIDATES: usize = 8;
const SPLIT_CALLS: f32 = 3.0;
const SPLIT_LATENCY: f32 = 2.5;

/// Picks of the fallback that may be refused.
const FALLBACK_TRIES: usize = 8;

/// Draws for each candidate before one is taken at random: rows may name endpoints that are not
/// usable any more.
const DRAWS: usize = 4;

/// What the picks of a snapshot go by, beside the snapshot.
#[derive(Debug)]
pub struct Learning {
    /// Scores in force.
    pub table: Arc<ScoreTable>,
    /// Classes that its rows are in the order of.
    pub classes: Arc<ClassSet>,
    /// When any endpoint reported its calls in flight last; 0: never.
    pub reported_ns: Arc<AtomicU64>,
}

impl Default for Learning {
    /// Of a service without classes and endpoints.
    fn default() -> Self {
        let classes = ClassSet::none();
        Self {
            table: Arc::new(ScoreTable::unknown(Arc::clone(&classes), Arc::new([]), 0)),
            classes,
            reported_ns: Arc::default(),
        }
    }
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct Learned {
    learning: Arc<Learning>,
    fallback: Box<Balancer>,
    factors: Factors,
    /// Bit i: member i is usable.
    usable: Box<[u64]>,
    /// By member.
    static_weights: Box<[f32]>,
    selection: Selection,
    full_scan_up_to: usize,
    candidates: usize,
    overload_split: bool,
    holdout: f64,
    reported_load: bool,
    stale_ns: u64,
    expired_ns: u64,
}

/// How old the scores are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Fresh,
    /// The model's are left for the table's.
    Stale,
    /// Nobody goes by them.
    Expired,
}

/// A call that looks for an endpoint.
#[derive(Clone, Copy)]
struct Ask<'a> {
    view: View<'a>,
    now_ns: u64,
    row: Option<&'a Row>,
    kind: u32,
    age: Age,
}

/// The least so far.
#[derive(Clone, Copy)]
struct Best {
    index: u32,
    total_s: f32,
    /// Waits so long that others might be better, whatever they cost.
    overloaded: bool,
}

/// What was read of an endpoint, and what follows.
#[derive(Debug, Clone, Copy)]
pub struct Examined {
    /// Index of the endpoint.
    pub index: u32,
    /// Values read.
    pub read: Read<1>,
    /// Its cost.
    pub costs: Costs<1>,
}

impl Learned {
    /// The rule for the usable endpoints of a view.
    #[must_use]
    pub fn new(
        config: &LearnedConfig,
        view: View<'_>,
        previous: Option<&Self>,
        rng: &mut Rng,
    ) -> Self {
        let mut usable = vec![0_u64; view.members.len().div_ceil(64)];
        for index in view.usable {
            usable[*index as usize / 64] |= 1 << (index % 64);
        }
        let previous = previous.map(|previous| &*previous.fallback);
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        let others = f64::from(view.sidecars.saturating_sub(1));
        let per_second = |ms: u64| (1e3 / ms as f64) as f32;
        Self {
            learning: view.learning.map_or_else(Arc::default, Arc::clone),
            fallback: Box::new(Balancer::new(&config.fallback, view, previous, rng)),
            factors: Factors {
                peers: (config.peer_share * others) as f32,
                report_fade: per_second(config.report_fade_ms),
                ratio_fade: per_second(config.ratio_decay_ms),
                error_fade: per_second(config.error_fade_ms),
                error_threshold: config.error_threshold as f32,
                error_penalty_s: (config.error_penalty_ms as f64 * 1e-3) as f32,
                utilization: config.utilization_factor as f32,
                queue: config.queue_factor as f32,
                class_queue: config.class_queue_factor as f32,
                no_ratio: !config.endpoint_ratio,
                no_kind_ratio: !config.kind_ratio,
            },
            usable: usable.into(),
            static_weights: view.members.iter().map(|one| one.static_weight).collect(),
            selection: config.selection,
            full_scan_up_to: config.full_scan_up_to as usize,
            candidates: (config.candidates as usize).min(CANDIDATES_MAX),
            overload_split: config.overload_split,
            holdout: config.holdout,
            reported_load: config.reported_load,
            stale_ns: ns(config.scores_stale_after_ms),
            expired_ns: ns(config.fallback_after_ms),
        }
    }

    /// Usable endpoints up to which nobody draws by the routing probabilities.
    pub(crate) fn scan_max(config: &LearnedConfig) -> usize {
        if config.overload_split || config.selection == Selection::Sampling {
            0
        } else {
            config.full_scan_up_to as usize
        }
    }

    /// Numbers of a pick that are the same for every endpoint.
    #[must_use]
    pub fn factors(&self) -> &Factors {
        &self.factors
    }

    /// The scores in force.
    #[must_use]
    pub fn table(&self) -> &ScoreTable {
        &self.learning.table
    }

    pub(super) fn refresh_fallback(&self, view: View<'_>, now_ns: u64) {
        self.fallback.refresh(view, now_ns);
    }

    fn age(&self, now_ns: u64) -> Age {
        let table = &self.learning.table;
        let age_ns = now_ns.saturating_sub(table.published_ns);
        if table.epoch == 0 || age_ns <= self.stale_ns {
            Age::Fresh
        } else if age_ns <= self.expired_ns {
            Age::Stale
        } else {
            Age::Expired
        }
    }

    fn ask<'a>(&'a self, view: View<'a>, now_ns: u64, class: RequestClass) -> Ask<'a> {
        let (class, kind) = self.learning.classes.place(class);
        Ask {
            view,
            now_ns,
            row: self.learning.table.row(class),
            kind,
            age: self.age(now_ns),
        }
    }

    pub(super) fn pick(
        &self,
        view: View<'_>,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
    ) -> (u32, Reason) {
        let placed = self.place(view, now_ns, request, rng, |_| true);
        placed.unwrap_or((view.usable[0], Reason::Table))
    }

    /// The best of those that `takes`; `None` where none was found.
    pub(crate) fn place(
        &self,
        view: View<'_>,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
        takes: impl Fn(u32) -> bool,
    ) -> Option<(u32, Reason)> {
        let ask = self.ask(view, now_ns, request.class);
        let held_out = self.holdout > 0.0 && rng.unit_f64() < self.holdout;
        if held_out || ask.age == Age::Expired {
            let (index, reason) = (0..FALLBACK_TRIES)
                .map(|_| self.fallback.pick(view, now_ns, request, rng))
                .find(|(index, _)| takes(*index))?;
            return Some(match ask.age {
                Age::Expired => (index, Reason::FallbackExpired),
                _ => (index, reason),
            });
        }
        if let Some(index) = view.rising(now_ns, rng).filter(|index| takes(*index)) {
            return Some((index, self.reason(&ask)));
        }
        if self.selection != Selection::Live && ask.age == Age::Fresh {
            if let Some(index) = self.select(&ask, rng, &takes) {
                return Some((index, self.reason(&ask)));
            }
        }
        let best = if view.usable.len() <= self.full_scan_up_to {
            self.least(&ask, view.usable, rng, &takes)
        } else {
            let (drawn, count) = self.draw(&ask, self.candidates, rng);
            self.least(&ask, &drawn[..count], rng, &takes)
        }?;
        if self.overload_split && best.overloaded {
            let (drawn, count) = self.draw(&ask, SPLIT_CANDIDATES, rng);
            if let Some(other) = self.least(&ask, &drawn[..count], rng, &takes) {
                return Some((other.index, Reason::OverloadSplit));
            }
        }
        Some((best.index, self.reason(&ask)))
    }

    fn reason(&self, ask: &Ask<'_>) -> Reason {
        let reported_ns = self.learning.reported_ns.load(Relaxed);
        let age_ns = ask.now_ns.saturating_sub(reported_ns);
        if reported_ns == 0 || age_ns > REPORT_AGE_MAX_NS || !self.reported_load {
            Reason::NoReports
        } else if ask.age == Age::Stale || self.learning.table.model.is_empty() {
            Reason::Table
        } else {
            Reason::Learned
        }
    }

    /// Candidates by the routing probabilities of the class; what is not usable is drawn again, and
    /// then at random.
    fn draw(&self, ask: &Ask<'_>, count: usize, rng: &mut Rng) -> ([u32; CANDIDATES_MAX], usize) {
        let usable = ask.view.usable;
        let count = count.min(usable.len());
        let mut drawn = [0; CANDIDATES_MAX];
        for place in &mut drawn[..count] {
            let mut by_row = || {
                let index = self.learning.table.draw(ask.row, rng)?;
                self.is_usable(index).then_some(index)
            };
            let found = (0..DRAWS).find_map(|_| by_row());
            *place = found.unwrap_or_else(|| usable[rng.below(usable.len() as u32) as usize]);
        }
        (drawn, count)
    }

    fn is_usable(&self, index: u32) -> bool {
        let word = self.usable.get(index as usize / 64).copied().unwrap_or(0);
        word >> (index % 64) & 1 == 1
    }

    fn least(
        &self,
        ask: &Ask<'_>,
        among: &[u32],
        rng: &mut Rng,
        takes: &impl Fn(u32) -> bool,
    ) -> Option<Best> {
        let mut best: Option<Best> = None;
        let traced = trace::is_on();
        if traced {
            trace::begin_scan(&self.factors);
        }
        let mut read = Read::<LANES>::default();
        for block in among.chunks(LANES) {
            self.read(ask, block, &mut read);
            let costs = costs(&read, &self.factors);
            let jitter = jitters::<LANES>(block.len(), rng);
            let totals_s: [f32; LANES] =
                each(|lane| trace::total_s(costs.weighted_s[lane], jitter[lane]));
            if !traced && best.is_some_and(|best| !has_less(&totals_s, best.total_s)) {
                continue;
            }
            for (lane, (index, total_s)) in block.iter().zip(totals_s).enumerate() {
                let is_less = best.is_none_or(|best| total_s < best.total_s);
                if (traced || is_less) && !takes(*index) {
                    continue;
                }
                if traced {
                    let endpoint = &ask.view.members[*index as usize].endpoint;
                    trace::note(endpoint, read.lane(lane), jitter[lane], total_s);
                }
                if is_less {
                    let waits = SPLIT_LATENCY * read.cost_s[lane];
                    best = Some(Best {
                        index: *index,
                        total_s,
                        overloaded: costs.calls[lane] > SPLIT_CALLS * read.concurrency[lane]
                            && costs.ratio[lane] * costs.latency_s[lane] > waits,
                    });
                }
            }
        }
        best
    }

    /// What a pick for a call of this class would expect of an endpoint now.
    pub(crate) fn expected(
        &self,
        view: View<'_>,
        now_ns: u64,
        class: RequestClass,
        index: u32,
    ) -> Expected {
        let examined = self.examine_one(&self.ask(view, now_ns, class), index);
        Expected {
            calls: examined.costs.calls[0],
            latency_s: examined.costs.latency_s[0],
        }
    }

    /// What a pick for a call of this class would see of some endpoints now.
    pub(crate) fn examine(
        &self,
        view: View<'_>,
        among: &[u32],
        now_ns: u64,
        class: RequestClass,
    ) -> Vec<Examined> {
        let ask = self.ask(view, now_ns, class);
        let among = among.iter();
        among.map(|index| self.examine_one(&ask, *index)).collect()
    }

    /// The reason that a pick would have now.
    pub(crate) fn reason_now(&self, view: View<'_>, now_ns: u64, class: RequestClass) -> Reason {
        let ask = self.ask(view, now_ns, class);
        match ask.age {
            Age::Expired => Reason::FallbackExpired,
            _ => self.reason(&ask),
        }
    }

    /// Whether all of that many endpoints are compared.
    pub(crate) fn scans(&self, count: usize) -> bool {
        self.selection != Selection::Sampling && count <= self.full_scan_up_to
    }

    fn examine_one(&self, ask: &Ask<'_>, index: u32) -> Examined {
        let mut read = Read::<1>::default();
        self.read(ask, &[index], &mut read);
        Examined {
            index,
            costs: costs(&read, &self.factors),
            read,
        }
    }
}

/// Whether one of a block is less.
#[inline(always)]
fn has_less<const L: usize>(totals_s: &[f32; L], than_s: f32) -> bool {
    // No early end: all are compared at once.
    totals_s
        .iter()
        .fold(false, |has, total_s| has | (*total_s < than_s))
}

/// U for the first `count` of a block.
#[inline(always)]
fn jitters<const L: usize>(count: usize, rng: &mut Rng) -> [f32; L] {
    let mut out = [0.0; L];
    for pair in out.chunks_exact_mut(2).take(count.div_ceil(2)) {
        (pair[0], pair[1]) = rng.unit_f32_pair();
    }
    out
}

impl Rule for Learned {
    fn ended(&self, view: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        self.fallback.ended(view, attempt, now_ns, sample);
    }

    fn reported(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        self.fallback.reported(view, endpoint, now_ns, report);
    }

    fn probes_due(&self, view: View<'_>, now_ns: u64, rng: &mut Rng, out: &mut Vec<u32>) {
        if self.holdout > 0.0 || self.age(now_ns) == Age::Expired {
            self.fallback.probes_due(view, now_ns, rng, out);
        }
    }

    fn probed(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, probe: Option<Probe>) {
        self.fallback.probed(view, endpoint, now_ns, probe);
    }

    /// The routing probabilities of calls without a class of their own, over who is usable.
    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        if self.age(now_ns) == Age::Expired {
            return self.fallback.weights(view, now_ns, out);
        }
        route(view, self.learning.table.other(), out);
    }
}

/// Writes the routing probabilities of a row over who is usable.
fn route(view: View<'_>, row: Option<&Row>, out: &mut [f32]) {
    for index in view.usable {
        let place = *index as usize;
        out[place] = row.map_or(1.0, |row| row.probability[place]);
    }
    let sum: f32 = out.iter().sum();
    for index in view.usable {
        let weight = &mut out[*index as usize];
        *weight = if sum > 0.0 {
            *weight / sum
        } else {
            1.0 / view.usable.len() as f32
        };
    }
}

#[cfg(test)]
mod tests;
