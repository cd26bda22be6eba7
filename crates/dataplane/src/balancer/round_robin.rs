//! `round_robin`: in turn, in proportion to static weights.
//!
//! Equal weights need only a shared counter, others a static-stride schedule. Under slow start a
//! turn of an endpoint that is still rising is passed on as often as its ramp says.

use std::sync::Arc;

use super::stride::{Schedule, Sequence};
use super::{static_shares, View};
use crate::rng::Rng;

/// The schedule of one snapshot.
#[derive(Debug)]
pub struct RoundRobin {
    sequence: Arc<Sequence>,
    /// Identity and weight of every usable endpoint, to see whether a new set is the old one.
    scheduled: Vec<(u64, f32)>,
    schedule: Schedule,
}

impl RoundRobin {
    /// A schedule that goes on where `previous` is, if the usable endpoints and their weights are
    /// the same; else it starts anywhere.
    #[must_use]
    pub fn new(view: View<'_>, previous: Option<&Self>, rng: &mut Rng) -> Self {
        let scheduled = view.identity();
        let weights: Vec<_> = view
            .usable
            .iter()
            .map(|&index| (index, f64::from(view.static_weight(index))))
            .collect();
        let schedule = Schedule::new(&weights);
        let sequence = match previous {
            Some(previous) if previous.scheduled == scheduled => Arc::clone(&previous.sequence),
            _ => Arc::new(Sequence::anywhere(&schedule, rng)),
        };
        Self {
            sequence,
            scheduled,
            schedule,
        }
    }

    pub(super) fn pick(&self, view: View<'_>, now_ns: u64, rng: &mut Rng) -> u32 {
        view.ramped(now_ns, rng, |_| self.schedule.turn(&self.sequence))
    }

    pub(super) fn weights(&self, view: View<'_>, now_ns: u64, out: &mut [f32]) {
        static_shares(view, now_ns, out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::testing::Fleet;
    use super::RoundRobin;
    use crate::rng::Rng;

    fn counts(balancer: &RoundRobin, fleet: &Fleet, picks: usize) -> Vec<u32> {
        let mut counts = vec![0; fleet.members.len()];
        for _ in 0..picks {
            counts[balancer.pick(fleet.view(), 0, &mut Rng::new(0)) as usize] += 1;
        }
        counts
    }

    fn weighted(weights: &[f32]) -> Fleet {
        Fleet::new(
            &weights
                .iter()
                .map(|weight| (*weight, 0))
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn equal_weights_go_in_turn() {
        let fleet = weighted(&[1.0, 0.0, 1.0, 1.0]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(4));
        assert!(balancer.schedule.columns.is_empty());
        let order: Vec<_> = (0..6)
            .map(|_| balancer.pick(fleet.view(), 0, &mut Rng::new(0)))
            .collect();
        assert_eq!(order[..3], order[3..]);
        let mut sorted = order[..3].to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 2, 3]);
    }

    #[test]
    fn lb_05_an_unchanged_set_keeps_its_place() {
        let fleet = weighted(&[100.0, 10.0]);
        let mut rng = Rng::new(5);
        let mut balancer = RoundRobin::new(fleet.view(), None, &mut rng);
        let mut light = 0;
        for _ in 0..10 {
            light += counts(&balancer, &fleet, 30)[1];
            let next = RoundRobin::new(fleet.view(), Some(&balancer), &mut rng);
            // One counter, not a copy: data threads may still pick from the old snapshot.
            assert!(Arc::ptr_eq(&next.sequence, &balancer.sequence));
            balancer = next;
        }
        assert!((27..=28).contains(&light), "{light} of 300, expected 27.3");
    }

    #[test]
    fn lb_05_a_changed_set_starts_anywhere() {
        let mut rng = Rng::new(55);
        let fleets = [weighted(&[100.0, 10.0]), weighted(&[200.0, 20.0])];
        let mut balancer = RoundRobin::new(fleets[0].view(), None, &mut rng);
        let mut light = 0;
        for round in 0..11_000 {
            let fleet = &fleets[round % 2];
            balancer = RoundRobin::new(fleet.view(), Some(&balancer), &mut rng);
            light += counts(&balancer, fleet, 1)[1];
        }
        // 1000 expected with a deviation of 30.
        assert!((850..=1150).contains(&light), "{light}");
    }

    #[test]
    fn what_is_no_longer_usable_is_a_change() {
        let mut fleet = weighted(&[1.0, 1.0, 1.0]);
        let mut rng = Rng::new(8);
        let before = RoundRobin::new(fleet.view(), None, &mut rng);
        fleet.usable.pop();
        let after = RoundRobin::new(fleet.view(), Some(&before), &mut rng);
        assert_ne!(before.sequence.position(), after.sequence.position());
        assert_eq!(counts(&after, &fleet, 10), [5, 5, 0]);
    }

    #[test]
    fn a_heavy_endpoint_costs_few_steps_and_does_not_come_in_bursts() {
        let mut weights = vec![1.0; 1000];
        weights[500] = 1000.0;
        let fleet = weighted(&weights);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(9));
        let begin = balancer.sequence.position();
        let order: Vec<_> = (0..20_000)
            .map(|_| balancer.pick(fleet.view(), 0, &mut Rng::new(0)))
            .collect();
        let steps = balancer.sequence.position() - begin;
        assert!(steps <= 3 * 20_000, "{steps}");
        let longest = order.chunk_by(|a, b| a == b).map(<[_]>::len).max();
        assert!(longest <= Some(8), "{longest:?}");
    }

    #[test]
    fn a_tiny_weight_is_rare_and_not_never() {
        let fleet = weighted(&[1.0, 1e-5]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(10));
        let rare = counts(&balancer, &fleet, 1_000_000)[1];
        assert!((9..=11).contains(&rare), "{rare} of 1,000,000, expected 10");
    }

    #[test]
    fn threads_share_one_schedule() {
        let fleet = weighted(&[3.0, 1.0]);
        let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(11));
        let heavy: u32 = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| counts(&balancer, &fleet, 1000)[0]));
            threads
                .map(|thread| thread.join().expect("no panic"))
                .into_iter()
                .sum()
        });
        assert!((2996..=3004).contains(&heavy), "{heavy} of 4000");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn shares_are_exact_to_a_pick_per_column(
            weights in proptest::collection::vec(0.1_f32..50.0, 1..20),
            seed: u64,
        ) {
            let fleet = weighted(&weights);
            let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(seed));
            let picks = 2000;
            let found = counts(&balancer, &fleet, picks);
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (index, count) in found.into_iter().enumerate() {
                let share = f64::from(weights[index]) / total;
                let own = balancer.schedule.columns.iter().filter(|column| column.index == index as u32);
                // Each column is off by at most one against the rounds walked, and so is each of
                // those that together tell how many rounds that were; two for the cut rounds.
                let slack =
                    own.count().max(1) as f64 + share * balancer.schedule.columns.len() as f64 + 2.0;
                let expected = share * picks as f64;
                prop_assert!((f64::from(count) - expected).abs() <= slack);
            }
        }

        #[test]
        fn columns_stay_few_and_one_is_full(
            exponents in proptest::collection::vec(-20_i32..20, 2..60),
        ) {
            let weights: Vec<_> = exponents.iter().map(|exponent| 2_f32.powi(*exponent)).collect();
            let fleet = weighted(&weights);
            let balancer = RoundRobin::new(fleet.view(), None, &mut Rng::new(0));
            prop_assert!(balancer.schedule.columns.len() <= weights.len() * 3 / 2);
            if !balancer.schedule.columns.is_empty() {
                let heaviest = balancer.schedule.columns.iter().map(|column| column.weight).max();
                prop_assert_eq!(heaviest, Some(super::super::stride::FULL));
            }
        }
    }
}
