//! Balancers: which of the usable endpoints takes the next call.
//!
//! Sans-IO and deterministic: a pick is a function of the view, the live counters, the time and
//! the draws it is handed, so that the simulator drives the very code that production runs. A
//! balancer is built anew with each snapshot, off the path of calls; what must outlive a snapshot
//! (the position of a schedule) it takes over from its predecessor.

mod least_request;
mod round_robin;

pub use least_request::LeastRequest;
pub use round_robin::RoundRobin;

use crate::attempt::{Attempt, Probe, RequestInfo, Sample};
use crate::config::BalancerConfig;
use crate::endpoint::{Endpoint, Member};
use crate::orca::LoadReport;
use crate::rng::Rng;

/// What a pick may look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Every endpoint of the snapshot.
    pub members: &'a [Member],
    /// Indices of those that may take calls, ascending, never empty; static weights are > 0.
    pub usable: &'a [u32],
}

/// The balancer of a service, as its policy names it.
#[derive(Debug)]
pub enum Balancer {
    /// In turn, in proportion to static weights.
    RoundRobin(RoundRobin),
    /// The least loaded of a few drawn endpoints, or of all.
    LeastRequest(LeastRequest),
}

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
        match config {
            BalancerConfig::RoundRobin {} => {
                let previous = match previous {
                    Some(Self::RoundRobin(previous)) => Some(previous),
                    _ => None,
                };
                Self::RoundRobin(RoundRobin::new(view, previous, rng))
            }
            BalancerConfig::LeastRequest {
                choice_count,
                with_replacement,
            } => Self::LeastRequest(LeastRequest::new(*choice_count, *with_replacement, view)),
        }
    }

    /// Its name in policies, metrics and admin.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin(_) => "round_robin",
            Self::LeastRequest(_) => "least_request",
        }
    }

    /// Index into the members of the endpoint that takes the next call.
    ///
    /// `now_ns` is monotonic time, for rules that let what they know decay; it never allocates.
    #[must_use]
    pub fn pick(&self, view: View<'_>, now_ns: u64, request: RequestInfo, rng: &mut Rng) -> u32 {
        // The rules of this enum so far know neither; those that follow do.
        let _ = (now_ns, request);
        debug_assert!(
            !view.usable.is_empty(),
            "the caller answers when no endpoint is usable"
        );
        match self {
            Self::RoundRobin(balancer) => balancer.pick(view),
            Self::LeastRequest(balancer) => balancer.pick(view, rng),
        }
    }

    /// Learns from an attempt that has ended and is no longer counted as in flight. `view` is that
    /// of the snapshot in force, which the endpoint may have left.
    pub fn ended(&self, view: View<'_>, attempt: &Attempt, now_ns: u64, sample: &Sample<'_>) {
        let _ = (view, attempt, now_ns, sample);
    }

    /// Learns from a load report.
    pub fn reported(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        let _ = (view, endpoint, now_ns, report);
    }

    /// Adds the indices of the endpoints to probe after a pick.
    pub fn probes_due(&self, view: View<'_>, now_ns: u64, rng: &mut Rng, out: &mut Vec<u32>) {
        let _ = (view, now_ns, rng, out);
    }

    /// Learns from the answer of a probe.
    pub fn probed(&self, view: View<'_>, endpoint: &Endpoint, now_ns: u64, probe: Probe) {
        let _ = (view, endpoint, now_ns, probe);
    }

    /// The probability that the rule gives each member now: `out` has one place per member, 0 for
    /// what is not usable; the rest sums to 1. Not for the path of calls: it allocates.
    pub fn weights(&self, view: View<'_>, out: &mut [f32]) {
        debug_assert_eq!(out.len(), view.members.len());
        out.fill(0.0);
        match self {
            Self::RoundRobin(balancer) => balancer.weights(view, out),
            Self::LeastRequest(balancer) => balancer.weights(view, out),
        }
    }
}

/// Whether every usable endpoint has the same static weight, which spares a pick the arithmetic.
fn equally_weighted(view: View<'_>) -> bool {
    let mut weights = view.usable.iter().map(|&index| static_weight(view, index));
    match weights.next() {
        Some(first) => weights.all(|weight| weight == first),
        None => true,
    }
}

fn static_weight(view: View<'_>, index: u32) -> f32 {
    view.members[index as usize].static_weight
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use proptest::prelude::*;

    use super::testing::{choose, picks, Fleet};
    use super::Balancer;
    use crate::attempt::RequestInfo;
    use crate::config::{BalancerConfig, ChoiceCount};
    use crate::rng::Rng;

    fn any_config() -> impl Strategy<Value = BalancerConfig> {
        prop_oneof![
            Just(BalancerConfig::RoundRobin {}),
            Just(choose(ChoiceCount::All)),
            (2_u32..=100, any::<bool>()).prop_map(|(draws, with_replacement)| {
                BalancerConfig::LeastRequest {
                    choice_count: ChoiceCount::Draws(draws),
                    with_replacement,
                }
            }),
        ]
    }

    fn any_weight() -> impl Strategy<Value = f32> {
        prop_oneof![
            3 => Just(1.0_f32),
            1 => Just(0.0),
            2 => 0.01_f32..100.0,
            1 => prop::sample::select(vec![f32::from_bits(1), f32::MIN_POSITIVE, 1e-6, 1e6]),
        ]
    }

    fn any_fleet() -> impl Strategy<Value = Fleet> {
        proptest::collection::vec((any_weight(), 0_u32..5), 1..40)
            .prop_filter("someone must be usable", |all| {
                all.iter().any(|(weight, _)| *weight > 0.0)
            })
            .prop_map(|all| Fleet::new(&all))
    }

    #[test]
    fn names_are_the_policys() {
        let fleet = Fleet::new(&[(1.0, 0)]);
        let name = |config: &BalancerConfig| {
            Balancer::new(config, fleet.view(), None, &mut Rng::new(0)).name()
        };
        assert_eq!(name(&BalancerConfig::RoundRobin {}), "round_robin");
        assert_eq!(name(&BalancerConfig::default()), "least_request");
    }

    #[test]
    fn is_built_before_any_endpoint_is_usable() {
        let fleet = Fleet::new(&[(0.0, 0), (0.0, 0)]);
        for config in [BalancerConfig::RoundRobin {}, BalancerConfig::default()] {
            let balancer = Balancer::new(&config, fleet.view(), None, &mut Rng::new(0));
            let mut weights = [f32::NAN; 2];
            balancer.weights(fleet.view(), &mut weights);
            assert_eq!(weights, [0.0, 0.0]);
        }
    }

    #[test]
    fn lb_06_extreme_weights_neither_overflow_nor_divide_by_zero() {
        let sharing = vec![(100.0 / 101.0, 0); 101];
        let huge = vec![(1e6, 0); 4295]; // 2^32 in total.
        let uneven = [(f32::from_bits(1), 0), (1e6, 0), (1e6, u32::MAX)];
        let only_zero_besides = [(0.0, 0), (1.0, 0)];
        for all in [&sharing[..], &huge, &uneven, &only_zero_besides] {
            let fleet = Fleet::new(all);
            for config in [BalancerConfig::RoundRobin {}, choose(ChoiceCount::All)] {
                let mut rng = Rng::new(6);
                let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
                let counts = picks(&balancer, &fleet, 10_000, &mut rng);
                let mut weights = vec![0.0; all.len()];
                balancer.weights(fleet.view(), &mut weights);
                let sum: f32 = weights.iter().sum();
                assert!((sum - 1.0).abs() < 1e-3, "{sum}");
                assert!(counts
                    .iter()
                    .zip(all)
                    .all(|(count, (weight, _))| *count == 0 || *weight > 0.0));
            }
        }
    }

    #[test]
    fn lb_03_ties_leave_nobody_with_twice_a_fair_share() {
        let fleet = Fleet::new(&[(1.0, 0); 8]);
        for config in [
            BalancerConfig::RoundRobin {},
            choose(ChoiceCount::All),
            choose(ChoiceCount::Draws(2)),
        ] {
            let mut rng = Rng::new(3);
            let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
            let idle = picks(&balancer, &fleet, 800, &mut rng);
            assert!(
                idle.iter().all(|count| (50..200).contains(count)),
                "{config:?} {idle:?}"
            );
            // Calls that stay count at once, before anything else is known.
            for _ in 0..800 {
                let picked =
                    balancer.pick(fleet.view(), 0, RequestInfo::default(), &mut rng) as usize;
                fleet.members[picked]
                    .endpoint
                    .live
                    .in_flight
                    .fetch_add(1, Relaxed);
            }
            for member in &fleet.members {
                let calls = member.endpoint.live.in_flight.swap(0, Relaxed);
                assert!((90..=110).contains(&calls), "{config:?} {calls}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn picks_only_what_is_usable(config in any_config(), fleet in any_fleet(), seed: u64) {
            let mut rng = Rng::new(seed);
            let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
            for now_ns in 0..100 {
                let picked = balancer.pick(fleet.view(), now_ns, RequestInfo::default(), &mut rng);
                prop_assert!(fleet.usable.contains(&picked));
            }
        }

        #[test]
        fn the_same_seed_picks_the_same(config in any_config(), fleet in any_fleet(), seed: u64) {
            let [first, second] = [(); 2].map(|()| {
                let mut rng = Rng::new(seed);
                let balancer = Balancer::new(&config, fleet.view(), None, &mut rng);
                [(); 50].map(|()| balancer.pick(fleet.view(), 0, RequestInfo::default(), &mut rng))
            });
            prop_assert_eq!(first, second);
        }

        #[test]
        fn weights_are_a_distribution(config in any_config(), fleet in any_fleet()) {
            let balancer = Balancer::new(&config, fleet.view(), None, &mut Rng::new(0));
            let mut weights = vec![f32::NAN; fleet.members.len()];
            balancer.weights(fleet.view(), &mut weights);
            let sum: f32 = weights.iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            for (index, weight) in weights.iter().enumerate() {
                prop_assert!((0.0..=1.0).contains(weight));
                prop_assert!(*weight == 0.0 || fleet.usable.contains(&(index as u32)));
            }
        }
    }
}
