//! Balancers: which of the usable endpoints takes the next call.
//!
//! Sans-IO and deterministic: a pick is a function of the view, of what was learned so far, of the
//! time and of the draws it is handed, so that the simulator drives the very code that production
//! runs. A balancer is built anew with each snapshot, off the path of calls; what must outlive a
//! snapshot stands in the endpoint ([`State`]) if it is about one, else it is taken over from the
//! predecessor (the position of a schedule, a pool of probes).
//!
//! Picks read atomics and allocate nothing; whatever is learned from ended calls may take a lock of
//! one endpoint. docs/balancers.md has the rules, their sources and their defaults.

mod c3;
mod hashing;
mod latency_observation;
pub mod learned;
mod least;
mod least_request;
mod maglev;
mod peak_ewma;
mod prequal;
mod probe_pool;
mod random;
mod ring_hash;
mod round_robin;
mod stride;
mod weighted_round_robin;

pub use c3::C3;
pub(crate) use hashing::Bound;
pub use latency_observation::LatencyObservation;
pub use learned::{ClassScores, InForce, Learned, Learning};
pub use least_request::LeastRequest;
pub use maglev::Maglev;
pub use peak_ewma::PeakEwma;
pub use prequal::Prequal;
pub use random::Random;
pub use ring_hash::RingHash;
pub use round_robin::RoundRobin;
pub use weighted_round_robin::WeightedRoundRobin;

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::{Attempt, Probe, RequestInfo, Sample};
use crate::config::BalancerConfig;
use crate::endpoint::{Endpoint, Member};
use crate::ledger::Expected;
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::slow_start::{self, SlowStart};

/// Turns that endpoints under slow start pass on before one must take the call.
const RAMP_TRIES: u32 = 64;

/// What a pick may look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Every endpoint of the snapshot.
    pub members: &'a [Member],
    /// Indices of those that may take calls, ascending, never empty; static weights are > 0.
    pub usable: &'a [u32],
    /// Whether and how new endpoints get fewer calls.
    pub slow_start: Option<SlowStart>,
    /// Sidecars that call the service, this one included.
    pub sidecars: u32,
    /// What `learned` goes by.
    pub learning: Option<&'a Arc<Learning>>,
}

/// What balancers know of one endpoint, in the endpoint: it survives snapshots, and an endpoint
/// that is new, or has restarted, begins afresh.
#[derive(Debug, Default)]
pub struct State {
    weighted_round_robin: weighted_round_robin::Cell,
    peak_ewma: peak_ewma::Cell,
    c3: c3::Cell,
    prequal: prequal::Cell,
    latency_observation: latency_observation::Cell,
}

/// The balancer of a service, as its policy names it.
#[derive(Debug)]
pub enum Balancer {
    /// In turn, in proportion to static weights.
    RoundRobin(RoundRobin),
    /// The least loaded of a few drawn endpoints, or of all.
    LeastRequest(LeastRequest),
    /// At random, in proportion to static weights.
    Random(Random),
    /// In turn, in proportion to reported weights.
    WeightedRoundRobin(WeightedRoundRobin),
    /// The lesser latency times load of two.
    PeakEwma(PeakEwma),
    /// The least expected queue.
    C3(C3),
    /// The fastest of the less loaded in a pool of probes.
    Prequal(Prequal),
    /// The least latency predicted for the load of now.
    LatencyObservation(LatencyObservation),
    /// By the hash of a key, on a ring.
    RingHash(RingHash),
    /// By the hash of a key, in a table.
    Maglev(Maglev),
    /// The least expected cost, by what was learned.
    Learned(Learned),
}

impl<'a> View<'a> {
    /// A view without slow start and without other sidecars.
    #[must_use]
    pub const fn new(members: &'a [Member], usable: &'a [u32]) -> Self {
        Self {
            members,
            usable,
            slow_start: None,
            sidecars: 1,
            learning: None,
        }
    }

    /// The endpoint of an index.
    #[must_use]
    pub fn endpoint(self, index: u32) -> &'a Endpoint {
        &self.members[index as usize].endpoint
    }

    fn static_weight(self, index: u32) -> f32 {
        self.members[index as usize].static_weight
    }

    /// Static weight, less what slow start still holds back.
    fn weight(self, index: u32, now_ns: u64) -> f64 {
        let weight = f64::from(self.static_weight(index));
        match self.slow_start {
            None => weight,
            Some(slow_start) => weight * slow_start.ramp(&self.endpoint(index).first_ready, now_ns),
        }
    }

    /// What `draw` gives. Under slow start a draw counts with the probability of the endpoint's
    /// ramp, else it is repeated, which scales every share by its ramp without a new schedule.
    fn ramped(self, now_ns: u64, rng: &mut Rng, mut draw: impl FnMut(&mut Rng) -> u32) -> u32 {
        let mut index = draw(rng);
        if let Some(slow_start) = self.slow_start {
            for _ in 0..RAMP_TRIES {
                let ramp = slow_start.ramp(&self.endpoint(index).first_ready, now_ns);
                if ramp >= 1.0 || rng.unit_f64() < ramp {
                    break;
                }
                index = draw(rng);
            }
        }
        index
    }

    /// Under slow start, now and then an endpoint that is still rising, whatever it costs: each with
    /// a tenth of a fair share. Rules that take the best would else send it nothing while a warm
    /// one is idle.
    fn rising(self, now_ns: u64, rng: &mut Rng) -> Option<u32> {
        let slow_start = self.slow_start?;
        let index = self.usable[rng.below(self.usable.len() as u32) as usize];
        let ramp = slow_start.ramp(&self.endpoint(index).first_ready, now_ns);
        (ramp < 1.0 && rng.unit_f64() < slow_start::FLOOR).then_some(index)
    }

    /// Mixes what [`View::rising`] takes into the probabilities of a rule.
    fn mix_rising(self, now_ns: u64, out: &mut [f32]) {
        let Some(slow_start) = self.slow_start else {
            return;
        };
        let share = (slow_start::FLOOR / self.usable.len() as f64) as f32;
        let is_rising =
            |index: &&u32| slow_start.ramp(&self.endpoint(**index).first_ready, now_ns) < 1.0;
        let rising: Vec<_> = self.usable.iter().filter(is_rising).collect();
        let rest = 1.0 - share * rising.len() as f32;
        out.iter_mut().for_each(|weight| *weight *= rest);
        for index in rising {
            out[*index as usize] += share;
        }
    }

    /// Who may take calls with which weight: two views of the same identity need one schedule.
    fn identity(self) -> Vec<(u64, f32)> {
        self.usable
            .iter()
            .map(|&index| (self.endpoint(index).id, self.static_weight(index)))
            .collect()
    }
}

impl State {
    /// Forgets all that was learned of an endpoint, because it is a new incarnation.
    pub fn restarted(&self) {
        self.weighted_round_robin.clear();
        self.peak_ewma.clear();
        self.c3.clear();
        self.prequal.clear();
        self.latency_observation.clear();
    }

    /// An endpoint was connected to anew: what it reports is not trusted at once (gRFC A58).
    pub fn reconnected(&self) {
        self.weighted_round_robin.black_out();
    }
}

/// What a rule can learn from, beside its picks; a rule implements what concerns it.
trait Rule {
    /// An attempt has ended and is no longer counted as in flight. `view` is that of the snapshot
    /// in force, which the endpoint may have left.
    fn ended(&self, _view: View<'_>, _attempt: &Attempt, _now_ns: u64, _sample: &Sample<'_>) {}

    /// A load report came.
    fn reported(&self, _: View<'_>, _: &Endpoint, _now_ns: u64, _report: &LoadReport) {}

    /// Adds the indices of the endpoints to probe after a pick.
    fn probes_due(&self, _: View<'_>, _now_ns: u64, _: &mut Rng, _out: &mut Vec<u32>) {}

    /// A probe was answered, or `None`: nobody there answers probes.
    fn probed(&self, _: View<'_>, _: &Endpoint, _now_ns: u64, _probe: Option<Probe>) {}

    /// Writes the probability of each usable endpoint.
    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]);
}

macro_rules! rules_that_only_pick {
    ($($rule:ty),+) => {$(
        impl Rule for $rule {
            fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
                <$rule>::weights(self, view, now_ns, out);
            }
        }
    )+};
}

rules_that_only_pick!(RoundRobin, LeastRequest, Random, RingHash, Maglev);

impl Balancer {
    /// The balancer for a snapshot; `previous` is the one of the snapshot that it replaces.
    ///
    /// Every later call must hand in a view equal to this one. Unlike there, `usable` may be empty
    /// here.
    #[must_use]
    pub fn new(
        config: &BalancerConfig,
        view: View<'_>,
        previous: Option<&Self>,
        rng: &mut Rng,
    ) -> Self {
        macro_rules! following {
            ($rule:ident) => {
                match previous {
                    Some(Self::$rule(previous)) => Some(previous),
                    _ => None,
                }
            };
        }
        match config {
            BalancerConfig::RoundRobin {} => {
                Self::RoundRobin(RoundRobin::new(view, following!(RoundRobin), rng))
            }
            BalancerConfig::LeastRequest {
                choice_count,
                with_replacement,
            } => Self::LeastRequest(LeastRequest::new(*choice_count, *with_replacement, view)),
            BalancerConfig::Random {} => Self::Random(Random::new(view)),
            BalancerConfig::WeightedRoundRobin(config) => {
                let previous = following!(WeightedRoundRobin);
                Self::WeightedRoundRobin(WeightedRoundRobin::new(config, view, previous, rng))
            }
            BalancerConfig::PeakEwma(config) => Self::PeakEwma(PeakEwma::new(config)),
            BalancerConfig::C3(config) => Self::C3(C3::new(config)),
            BalancerConfig::Prequal(config) => {
                Self::Prequal(Prequal::new(config, view, following!(Prequal)))
            }
            BalancerConfig::LatencyObservation(config) => {
                Self::LatencyObservation(LatencyObservation::new(config))
            }
            BalancerConfig::RingHash(config) => {
                Self::RingHash(RingHash::new(config, view, following!(RingHash)))
            }
            BalancerConfig::Learned(config) => {
                Self::Learned(Learned::new(config, view, following!(Learned), rng))
            }
            BalancerConfig::Maglev(config) => {
                Self::Maglev(Maglev::new(config, view, following!(Maglev)))
            }
        }
    }

    /// Its name in policies, metrics and admin.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.reason().name()
    }

    const fn reason(&self) -> Reason {
        match self {
            Self::RoundRobin(_) => Reason::RoundRobin,
            Self::LeastRequest(_) => Reason::LeastRequest,
            Self::Random(_) => Reason::Random,
            Self::WeightedRoundRobin(_) => Reason::WeightedRoundRobin,
            Self::PeakEwma(_) => Reason::PeakEwma,
            Self::C3(_) => Reason::C3,
            Self::Prequal(_) => Reason::Prequal,
            Self::LatencyObservation(_) => Reason::LatencyObservation,
            Self::RingHash(_) => Reason::RingHash,
            Self::Maglev(_) => Reason::Maglev,
            Self::Learned(_) => Reason::Learned,
        }
    }

    /// Whether it takes the least loaded of all, so that there is a next best.
    #[must_use]
    pub(crate) const fn compares_all_loads(&self) -> bool {
        matches!(self, Self::LeastRequest(rule) if rule.scans_all())
    }

    /// Whether it takes the best, instead of giving each a share.
    const fn compares_costs(&self) -> bool {
        matches!(
            self,
            Self::LeastRequest(_)
                | Self::PeakEwma(_)
                | Self::C3(_)
                | Self::Prequal(_)
                | Self::LatencyObservation(_)
                | Self::Learned(_)
        )
    }

    /// Index into the members of the endpoint that takes the next call, and the rule that chose it:
    /// the balancer's own, or that of its fallback.
    ///
    /// `now_ns` is monotonic time, for rules that let what they know fade; it never allocates.
    #[must_use]
    pub fn pick(
        &self,
        view: View<'_>,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
    ) -> (u32, Reason) {
        debug_assert!(
            !view.usable.is_empty(),
            "the caller answers when no endpoint is usable"
        );
        if self.compares_costs() && !matches!(self, Self::Learned(_)) {
            if let Some(index) = view.rising(now_ns, rng) {
                return (index, self.reason());
            }
        }
        match self {
            Self::RoundRobin(rule) => (rule.pick(view, now_ns, rng), Reason::RoundRobin),
            Self::LeastRequest(rule) => (rule.pick(view, now_ns, rng), Reason::LeastRequest),
            Self::Random(rule) => (rule.pick(view, now_ns, rng), Reason::Random),
            Self::WeightedRoundRobin(rule) => rule.pick(view, now_ns, rng),
            Self::PeakEwma(rule) => (rule.pick(view, now_ns, rng), Reason::PeakEwma),
            Self::C3(rule) => (rule.pick(view, now_ns, rng), Reason::C3),
            Self::Prequal(rule) => rule.pick(view, now_ns, rng),
            Self::LatencyObservation(rule) => {
                (rule.pick(view, now_ns, rng), Reason::LatencyObservation)
            }
            Self::RingHash(rule) => (rule.pick(view, now_ns, request, rng), Reason::RingHash),
            Self::Maglev(rule) => (rule.pick(view, now_ns, request, rng), Reason::Maglev),
            Self::Learned(rule) => rule.pick(view, now_ns, request, rng),
        }
    }

    /// The scores that picks go by, for a rule that has some.
    #[must_use]
    pub fn in_force(&self, view: View<'_>, now_ns: u64) -> Option<InForce> {
        match self {
            Self::Learned(rule) => Some(rule.in_force(view, now_ns)),
            _ => None,
        }
    }

    /// What the rule expects of an endpoint that it chose; `None` of a rule that expects nothing.
    pub(crate) fn expected(
        &self,
        view: View<'_>,
        now_ns: u64,
        request: RequestInfo,
        index: u32,
    ) -> Option<Expected> {
        match self {
            Self::Learned(rule) => Some(rule.expected(view, now_ns, request.class, index)),
            _ => None,
        }
    }

    fn rule(&self) -> &dyn Rule {
        match self {
            Self::RoundRobin(rule) => rule,
            Self::LeastRequest(rule) => rule,
            Self::Random(rule) => rule,
            Self::WeightedRoundRobin(rule) => rule,
            Self::PeakEwma(rule) => rule,
            Self::C3(rule) => rule,
            Self::Prequal(rule) => rule,
            Self::LatencyObservation(rule) => rule,
            Self::RingHash(rule) => rule,
            Self::Maglev(rule) => rule,
            Self::Learned(rule) => rule,
        }
    }

    /// Learns from an attempt that has ended and is no longer counted as in flight. `view` is that
    /// of the snapshot in force, which the endpoint may have left.
    pub fn ended(&self, view: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        self.rule().ended(view, attempt, now_ns, sample);
    }

    /// Learns from a load report.
    pub fn reported(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        self.rule().reported(view, endpoint, now_ns, report);
    }

    /// How long the answer of a probe may take, of a balancer that has endpoints probed.
    #[must_use]
    pub fn probe_timeout(&self) -> Option<Duration> {
        match self {
            Self::Prequal(rule) => rule.probe_timeout(),
            _ => None,
        }
    }

    /// Adds the indices of the endpoints to probe after a pick.
    pub fn probes_due(&self, view: View<'_>, now_ns: u64, rng: &mut Rng, out: &mut Vec<u32>) {
        self.rule().probes_due(view, now_ns, rng, out);
    }

    /// Renews a schedule that follows reports, if it is due: for a balancer that is told of no
    /// ended calls, because another one of the service is.
    pub(crate) fn refresh(&self, view: View<'_>, now_ns: u64) {
        match self {
            Self::WeightedRoundRobin(rule) => rule.rebuild_when_due(view, now_ns),
            Self::Learned(rule) => rule.refresh_fallback(view, now_ns),
            _ => {}
        }
    }

    /// Learns from the answer of a probe, or, from `None`, that nobody there answers probes.
    pub fn probed(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, probe: Option<Probe>) {
        self.rule().probed(view, endpoint, now_ns, probe);
    }

    /// The probability that the rule gives each member now: `out` has one place per member, 0 for
    /// what is not usable; the rest sums to 1. Not for the path of calls: it allocates.
    ///
    /// Of a rule that takes the best, that is 1 for the best one, shared equally by ties; of one
    /// that goes by a key, the share of all keys that it places there now.
    pub fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        debug_assert_eq!(out.len(), view.members.len());
        out.fill(0.0);
        if !view.usable.is_empty() {
            self.rule().weights(view, now_ns, out);
            if self.compares_costs() {
                view.mix_rising(now_ns, out);
            }
        }
    }
}

/// Whether every usable endpoint has the same static weight, which spares a pick the arithmetic.
fn equally_weighted(view: View<'_>) -> bool {
    let mut weights = view.usable.iter().map(|&index| view.static_weight(index));
    match weights.next() {
        Some(first) => weights.all(|weight| weight == first),
        None => true,
    }
}

/// Two different usable endpoints, every ordered pair as likely; there must be two.
fn two_distinct(view: View<'_>, rng: &mut Rng) -> (u32, u32) {
    let count = view.usable.len() as u32;
    let first = rng.below(count);
    let mut second = rng.below(count - 1);
    second += u32::from(second >= first);
    (view.usable[first as usize], view.usable[second as usize])
}

/// Shares in proportion to static weights and ramps.
fn static_shares(view: View<'_>, now_ns: u64, out: &mut [f32]) {
    let total: f64 = view.usable.iter().map(|&i| view.weight(i, now_ns)).sum();
    for &index in view.usable {
        out[index as usize] = (view.weight(index, now_ns) / total) as f32;
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
