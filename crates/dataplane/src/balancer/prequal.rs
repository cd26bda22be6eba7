//! `prequal`: the fastest of the less loaded endpoints in a pool of recent probes (Wydrowski et al.,
//! "Load is not what you should balance: Introducing Prequal", NSDI 2024).
//!
//! Each pick sends probes to a few random endpoints; an answer says how many calls are in the
//! endpoint (RIF) and how long they take lately. The pool keeps the last answers. An endpoint is hot
//! if its RIF is at or above a quantile of those seen lately; among cold ones the least latency
//! takes the call, and only if all are hot the least RIF (of equals the one with the least latency,
//! for with few calls in flight all RIFs are alike). A dispatch of ours adds 1 to the pooled
//! RIF. With fewer than 2 answers in the pool the pick is random, and says so.
//!
//! Answers leave the pool by age, when used up (the reuse limit, which grows as the pool covers
//! more of the service), when a newer one of the same endpoint comes, and, after each pick, the
//! oldest and the worst in turn, so that the pool does not fill up with what nobody wants.
//!
//! Where endpoints answer no probes, the last report of a probed endpoint stands in, with what we
//! sent since on top, and where there is no fresh report our own calls in flight; its latency is then the average seen here, which
//! fades while nobody calls. A failure enters that average as a latency of at least 1 s; where
//! probes are answered, it is added to the answer's latency until successes have averaged it out.
//!
//! The pool is one per service and is changed by every pick, hence a lock: it is held for some
//! hundred nanoseconds, and data threads with pools of their own would each see less.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::least::{least_shares, Least};
use super::probe_pool::{owed, Entry, Pool, POOL_MAX};
use super::{Random, Rule, View};
use crate::attempt::{Attempt, Probe, Sample};
use crate::config::{PrequalConfig, ProbeSource};
use crate::endpoint::{Endpoint, Outcome};
use crate::ewma::{decay, Average};
use crate::orca::LoadReport;
use crate::reason::Reason;
use crate::rng::Rng;

/// Answers below which a pick is random.
const POOL_MIN: usize = 2;
/// Uses of an answer at most.
const USES_MAX: f64 = 8.0;
/// Share of a sample in the latency seen here.
const LATENCY_SHARE: f64 = 0.2;
/// Share of a sample in the penalty of failures.
const PENALTY_SHARE: f64 = 0.5;
/// Time in which both fade to 1/e.
const TAU_NS: f64 = 10e9;

/// What stands in for probes of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// Latency seen here in nanoseconds, failures included.
    latency: Average,
    /// What failures alone cost lately, in nanoseconds.
    penalty: Average,
    /// Calls that the last report counted, less our own at that moment: everybody else's.
    others: AtomicU32,
    /// 0: never.
    reported_ns: AtomicU64,
}

impl Cell {
    pub(super) fn clear(&self) {
        self.latency.clear();
        self.penalty.clear();
        self.reported_ns.store(0, Relaxed);
    }
}

/// The rule of one snapshot.
#[derive(Debug)]
pub struct Prequal {
    hot_quantile: f64,
    probes_per_pick: f64,
    removals_per_pick: f64,
    age_limit_ns: u64,
    probe_source: ProbeSource,
    pool_size: usize,
    uses: f64,
    /// By index: whether it may take calls.
    usable: Vec<bool>,
    /// Index of every endpoint by its id, ascending.
    by_id: Vec<(u64, u32)>,
    pool: Arc<Mutex<Pool>>,
    fallback: Random,
}

impl Prequal {
    /// The rule; the pool of `previous` goes on, less the endpoints that left.
    #[must_use]
    pub fn new(config: &PrequalConfig, view: View<'_>, previous: Option<&Self>) -> Self {
        let count = view.usable.len();
        let pool_size = (config.pool_size as usize).min((count / 2).max(POOL_MIN));
        let mut usable = vec![false; view.members.len()];
        for &index in view.usable {
            usable[index as usize] = true;
        }
        let mut by_id: Vec<_> = (0_u32..)
            .zip(view.members)
            .map(|(index, member)| (member.endpoint.id, index))
            .collect();
        by_id.sort_unstable();
        let pool = previous.map_or_else(
            || Arc::new(Mutex::new(Pool::new())),
            |previous| Arc::clone(&previous.pool),
        );
        let rule = Self {
            hot_quantile: config.hot_quantile,
            probes_per_pick: config.probes_per_pick,
            removals_per_pick: config.removals_per_pick,
            age_limit_ns: config.age_limit_ms * 1_000_000,
            probe_source: config.probe_source,
            pool_size,
            uses: reuse_limit(config, pool_size, count),
            usable,
            by_id,
            pool,
            fallback: Random::new(view),
        };
        rule.pool.lock().entries.retain_mut(|entry| {
            let index = rule.index_of(entry.id);
            entry.index = index.unwrap_or(entry.index);
            index.is_some_and(|index| rule.usable[index as usize])
        });
        rule
    }

    /// A later answer would be too old.
    pub(super) fn probe_timeout(&self) -> Option<Duration> {
        let asks = self.probe_source == ProbeSource::Endpoints;
        asks.then(|| Duration::from_nanos(self.age_limit_ns))
    }

    fn index_of(&self, id: u64) -> Option<u32> {
        let place = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.by_id[place].1)
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> (u32, Reason) {
        let mut pool = self.pool.lock();
        if self.probe_source == ProbeSource::Reports {
            let mut drawn = [0; POOL_MAX];
            let count = self.draw(&mut pool, view, rng, &mut drawn);
            for &index in &drawn[..count] {
                let answer = self.stand_in(view.endpoint(index), now_ns);
                self.insert(&mut pool, view, index, now_ns, answer);
            }
            pool.find_hot(self.hot_quantile);
        }
        pool.expire(now_ns, self.age_limit_ns);
        let Some(place) = self.best(&pool, view, now_ns, rng) else {
            return (self.fallback.pick(view, now_ns, rng), Reason::Random);
        };
        let entry = &mut pool.entries[place];
        let index = entry.index;
        entry.rif = entry.rif.saturating_add(1);
        entry.uses -= 1;
        if entry.uses == 0 {
            pool.entries.remove(place);
        }
        pool.remove_some(self.removals_per_pick);
        (index, Reason::Prequal)
    }

    /// Place in the pool of the answer that takes the call.
    fn best(&self, pool: &Pool, view: View<'_>, now_ns: u64, rng: &mut Rng) -> Option<usize> {
        let mut least = Least::new(0);
        let mut count = 0;
        self.offer_all(pool, view, now_ns, |place, _, cost| {
            count += 1;
            least.offer(place, cost, rng);
        });
        (count >= POOL_MIN && least.is_some()).then_some(least.index() as usize)
    }

    /// Calls `offer` with place, index and cost of every answer that can be used. The least cost
    /// wins: cold ones cost their latency, hot ones their RIF on top of what no latency reaches,
    /// and between those of one RIF the latency decides.
    fn offer_all(
        &self,
        pool: &Pool,
        view: View<'_>,
        now_ns: u64,
        mut offer: impl FnMut(u32, u32, f64),
    ) {
        /// Above any latency in nanoseconds that occurs, and still small enough for an f64 to tell
        /// latencies apart beside it.
        const HOT: f64 = 1e15;
        for (place, entry) in (0_u32..).zip(&pool.entries) {
            let here = view.members.get(entry.index as usize);
            // A thread may still pick from the snapshot before.
            let same = here.is_some_and(|member| member.endpoint.id == entry.id);
            if !same || !self.usable[entry.index as usize] {
                continue;
            }
            let weight = view.weight(entry.index, now_ns);
            let latency_ns = entry.latency_ns.min(HOT);
            let hotness = if entry.rif >= pool.hot {
                HOT * (f64::from(entry.rif) + 1.0)
            } else {
                0.0
            };
            let cost = (hotness + latency_ns) / weight;
            offer(place, entry.index, cost);
        }
    }

    /// Draws the endpoints to probe, without repetition; returns how many.
    fn draw(
        &self,
        pool: &mut Pool,
        view: View<'_>,
        rng: &mut Rng,
        drawn: &mut [u32; POOL_MAX],
    ) -> usize {
        let count = view.usable.len() as u32;
        let wanted = owed(&mut pool.probes_owed, self.probes_per_pick);
        let wanted = wanted.min(count).min(POOL_MAX as u32);
        // Floyd's sampling, as in `least_request`.
        let mut positions = [0_u32; POOL_MAX];
        for (taken, last) in (count - wanted..count).enumerate() {
            let mut position = rng.below(last + 1);
            if positions[..taken].contains(&position) {
                position = last;
            }
            positions[taken] = position;
            drawn[taken] = view.usable[position as usize];
        }
        // The set is uniform, its order is not, and of a small service the last ones drawn are what
        // stays in the pool.
        for last in (1..wanted).rev() {
            drawn.swap(last as usize, rng.below(last + 1) as usize);
        }
        wanted as usize
    }

    /// What a probe would have been answered, as far as it is known here.
    fn stand_in(&self, endpoint: &Endpoint, now_ns: u64) -> (u32, f64) {
        let cell = &endpoint.state.prequal;
        let own = endpoint.live.unanswered();
        let reported_ns = cell.reported_ns.load(Relaxed);
        let fresh = reported_ns > 0 && now_ns.saturating_sub(reported_ns) < self.age_limit_ns;
        let others = if fresh { cell.others.load(Relaxed) } else { 0 };
        // What we sent since the report is in `own`.
        (
            own.saturating_add(others),
            cell.latency.faded(now_ns, TAU_NS).unwrap_or(0.0),
        )
    }

    fn insert(
        &self,
        pool: &mut Pool,
        view: View<'_>,
        index: u32,
        now_ns: u64,
        (rif, latency_ns): (u32, f64),
    ) {
        pool.note(rif);
        let id = view.endpoint(index).id;
        pool.entries.retain(|entry| entry.id != id);
        if pool.entries.len() >= self.pool_size {
            pool.remove_oldest();
        }
        let uses = owed(&mut pool.uses_owed, self.uses).max(1);
        pool.entries.push(Entry {
            id,
            index,
            rif,
            latency_ns,
            answered_ns: now_ns,
            uses,
        });
    }
}

/// How often an answer may be used: max(1, (1 + slack) / ((1 - m/n) probes - removals)), so that the
/// pool neither runs dry nor stays old; where the pool fills up anyway, as often as is allowed.
fn reuse_limit(config: &PrequalConfig, pool_size: usize, count: usize) -> f64 {
    let covered = pool_size as f64 / count.max(1) as f64;
    let gained = (1.0 - covered) * config.probes_per_pick - config.removals_per_pick;
    if gained <= 0.0 {
        return USES_MAX;
    }
    ((1.0 + config.reuse_slack) / gained).clamp(1.0, USES_MAX)
}

impl Rule for Prequal {
    fn ended(&self, _: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        let cell = &attempt.endpoint().state.prequal;
        let Some(latency_ns) = sample.charged_ns(cell.latency.last().unwrap_or(0.0)) else {
            return;
        };
        let weigh = |share: f64, sample: f64| {
            move |old: Option<f64>, age_ns: u64| {
                let old = old.map(|old| old * decay(age_ns, TAU_NS));
                old.map_or(sample, |old| old + share * (sample - old))
            }
        };
        cell.latency
            .update(now_ns, weigh(LATENCY_SHARE, latency_ns));
        let failed = matches!(sample.outcome, Outcome::Answered(code) if code.is_failure());
        if failed {
            cell.penalty
                .update(now_ns, weigh(PENALTY_SHARE, latency_ns));
        } else if cell.penalty.last().is_some() {
            cell.penalty.update(now_ns, weigh(PENALTY_SHARE, 0.0));
        }
    }

    fn reported(&self, _: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        if let Some(inflight) = report.inflight {
            let cell = &endpoint.state.prequal;
            let others = (inflight as u32).saturating_sub(endpoint.live.unanswered());
            cell.others.store(others, Relaxed);
            cell.reported_ns.store(now_ns.max(1), Relaxed);
        }
    }

    fn probes_due(&self, view: View<'_>, _: u64, rng: &mut Rng, out: &mut Vec<u32>) {
        if self.probe_source == ProbeSource::Endpoints {
            let mut drawn = [0; POOL_MAX];
            let count = self.draw(&mut self.pool.lock(), view, rng, &mut drawn);
            out.extend_from_slice(&drawn[..count]);
        }
    }

    fn probed(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, probe: Option<Probe>) {
        let index = self.index_of(endpoint.id);
        let Some(index) = index.filter(|index| self.usable[*index as usize]) else {
            return;
        };
        let answer = match probe {
            Some(probe) => {
                let penalty = endpoint.state.prequal.penalty.faded(now_ns, TAU_NS);
                let latency_ns = probe.latency_ns as f64 + penalty.unwrap_or(0.0);
                (probe.inflight, latency_ns)
            }
            None => self.stand_in(endpoint, now_ns),
        };
        let mut pool = self.pool.lock();
        pool.expire(now_ns, self.age_limit_ns);
        self.insert(&mut pool, view, index, now_ns, answer);
        pool.find_hot(self.hot_quantile);
    }

    fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        let pool = self.pool.lock();
        let mut costs = Vec::new();
        self.offer_all(&pool, view, now_ns, |place, index, cost| {
            let answered_ns = pool.entries[place as usize].answered_ns;
            if now_ns.saturating_sub(answered_ns) < self.age_limit_ns {
                costs.push((index, cost));
            }
        });
        if costs.len() < POOL_MIN {
            self.fallback.weights(view, now_ns, out);
        } else {
            least_shares(&costs, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, MS, SECOND};
    use super::reuse_limit;
    use crate::attempt::Probe;
    use crate::config::{BalancerConfig, PrequalConfig, ProbeSource};
    use crate::orca::LoadReport;
    use crate::reason::Reason;

    fn probing(count: usize, hot_quantile: f64) -> Bench {
        probing_with(count, hot_quantile, 1.0)
    }

    fn probing_with(count: usize, hot_quantile: f64, reuse_slack: f64) -> Bench {
        let config = PrequalConfig {
            hot_quantile,
            probe_source: ProbeSource::Endpoints,
            removals_per_pick: 0.0,
            reuse_slack,
            ..PrequalConfig::default()
        };
        Bench::new(BalancerConfig::Prequal(config), &vec![1.0; count])
    }

    fn probe(bench: &Bench, index: u32, now_ns: u64, inflight: u32, latency_ms: u64) {
        let answer = Probe {
            inflight,
            latency_ns: latency_ms * MS,
        };
        bench.service.probed(&bench.endpoint(index), now_ns, answer);
    }

    #[test]
    fn the_reuse_limit_is_as_computed_by_hand() {
        let config = PrequalConfig::default();
        // (1 + 1) / ((1 - 16/100) * 3 - 1) = 2/1.52.
        assert!((reuse_limit(&config, 16, 100) - 2.0 / 1.52).abs() < 1e-12);
        // Half of a small service in the pool: 2 / (1.5 - 1).
        assert_eq!(reuse_limit(&config, 5, 10), 4.0);
        // Two of two: nothing is gained by probes.
        assert_eq!(reuse_limit(&config, 2, 2), 8.0);
        let plenty = PrequalConfig {
            probes_per_pick: 16.0,
            ..config
        };
        assert_eq!(reuse_limit(&plenty, 16, 1000), 1.0);
    }

    #[test]
    fn the_fastest_cold_one_is_picked() {
        let bench = probing(8, 0.84);
        assert_eq!(bench.pick(0).1, Reason::Random);
        for (index, inflight, latency_ms) in [(0, 1, 20), (1, 9, 1), (2, 2, 10), (3, 1, 30)] {
            probe(&bench, index, SECOND, inflight, latency_ms);
        }
        // RIFs 1, 1, 2, 9: the quantile is element floor(4 * 0.84) = 3, so only 9 is hot.
        assert_eq!(bench.weights(SECOND)[2], 1.0);
        assert_eq!(bench.pick(SECOND), (2, Reason::Prequal));
    }

    #[test]
    fn all_hot_means_the_least_loaded() {
        // 5 / (1.5 - 0) = 3.3 uses.
        let bench = probing_with(8, 0.0, 4.0);
        for (index, inflight, latency_ms) in [(0, 3, 90), (1, 2, 90), (2, 9, 1)] {
            probe(&bench, index, SECOND, inflight, latency_ms);
        }
        // Each dispatch of ours adds 1: 2, then 3 against 3.
        assert_eq!(bench.pick(SECOND), (1, Reason::Prequal));
        assert_eq!(bench.weights(SECOND)[..3], [0.5, 0.5, 0.0]);
    }

    #[test]
    fn answers_grow_too_old() {
        let bench = probing(8, 0.84);
        probe(&bench, 0, SECOND, 1, 5);
        probe(&bench, 1, SECOND, 1, 5);
        assert_eq!(bench.pick(SECOND * 2 - 1).1, Reason::Prequal);
        assert_eq!(bench.pick(SECOND * 2).1, Reason::Random);
    }

    #[test]
    fn answers_are_used_up_and_the_pool_is_small_in_a_small_service() {
        // Pool of 8/2 = 4; 2 / ((1 - 4/8) * 3 - 0) = 4/3 uses, by turns 1, 1, 2.
        let bench = probing(8, 0.84);
        for index in 0..6 {
            probe(&bench, index, SECOND, 1, 5 + u64::from(index));
        }
        let picked: Vec<_> = (0..8).map(|_| bench.pick(SECOND)).collect();
        let from_pool = picked
            .iter()
            .filter(|(_, reason)| *reason == Reason::Prequal)
            .count();
        assert!((3..=6).contains(&from_pool), "{picked:?}");
        assert!(
            picked[..from_pool].iter().all(|(index, _)| *index >= 2),
            "{picked:?}"
        );
    }

    #[test]
    fn a_failing_endpoint_does_not_look_fast() {
        let bench = probing(8, 0.84);
        bench.fail(0, SECOND, MS);
        for (index, latency_ms) in [(0, 1), (1, 30), (2, 40)] {
            probe(
                &bench,
                index,
                SECOND,
                if index == 2 { 9 } else { 0 },
                latency_ms,
            );
        }
        assert_eq!(bench.pick(SECOND), (1, Reason::Prequal));
    }

    #[test]
    fn reports_stand_in_for_probes() {
        let config = PrequalConfig {
            probes_per_pick: 16.0,
            ..PrequalConfig::default()
        };
        let bench = Bench::new(BalancerConfig::Prequal(config), &[1.0; 4]);
        for index in 0..4 {
            bench.answer(index, SECOND, (40 - 10 * u64::from(index)) * MS);
            let report = LoadReport {
                inflight: Some(if index == 3 { 7.0 } else { 1.0 }),
                ..LoadReport::default()
            };
            bench.report(index, SECOND, &report);
        }
        // All four are looked at, two stay in the pool; the one at 10 ms is hot.
        let (index, reason) = bench.pick(SECOND);
        assert_eq!(reason, Reason::Prequal);
        assert_ne!(index, 3);
    }

    #[test]
    fn what_was_sent_since_a_report_is_added_to_it() {
        let config = PrequalConfig {
            probes_per_pick: 2.0,
            hot_quantile: 0.0,
            ..PrequalConfig::default()
        };
        let bench = Bench::new(BalancerConfig::Prequal(config), &[1.0; 2]);
        let inflight = |count| LoadReport {
            inflight: Some(count),
            ..LoadReport::default()
        };
        // 3 in the first endpoint, 1 of them ours: 2 of others. 4 in the second, none ours.
        let mut held = vec![bench.begin_at(0, SECOND)];
        bench.report(0, SECOND, &inflight(3.0));
        bench.report(1, SECOND, &inflight(4.0));
        // 2 + 1 against 4.
        assert_eq!(bench.pick(SECOND), (0, Reason::Prequal));
        held.extend([bench.begin_at(0, SECOND), bench.begin_at(0, SECOND)]);
        // 2 + 3 against 4.
        assert_eq!(bench.pick(SECOND), (1, Reason::Prequal));
        // Too old: 3 of ours against none.
        assert_eq!(bench.pick(2 * SECOND), (1, Reason::Prequal));
        held.clear();
    }

    #[test]
    fn nobody_is_left_out_of_a_pool_that_holds_less_than_all() {
        // Three probes of three endpoints, two places: it is the order of the probes that decides.
        let bench = Bench::new(BalancerConfig::Prequal(PrequalConfig::default()), &[1.0; 3]);
        let mut counts = [0_u32; 3];
        for _ in 0..3000 {
            counts[bench.pick(SECOND).0 as usize] += 1;
        }
        // Five deviations.
        assert!(
            counts.iter().all(|count| count.abs_diff(1000) <= 130),
            "{counts:?}"
        );
    }

    #[test]
    fn probes_are_due_by_the_pick_and_never_twice_at_once() {
        let bench = probing(8, 0.84);
        let snapshot = bench.service.snapshot();
        let mut rng = crate::rng::Rng::new(1);
        let mut out = vec![99];
        for _ in 0..100 {
            bench.service.probes_due(&snapshot, 0, &mut rng, &mut out);
            assert_eq!(out.len(), 3);
            assert!(out.iter().all(|index| *index < 8));
            out.sort_unstable();
            out.dedup();
            assert_eq!(out.len(), 3);
        }
    }
}
