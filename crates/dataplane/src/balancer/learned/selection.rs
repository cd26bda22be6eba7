//! Picks by the routing probabilities alone: for study, and for services that are never busy. Live
//! load matters more than anything learned: sampling took the mean from 24 to 814 ms in the
//! simulation study.

use super::{Age, Ask, Learned, FALLBACK_TRIES};
use crate::attempt::RequestClass;
use crate::balancer::View;
use crate::config::Selection;
use crate::rng::Rng;

impl Learned {
    /// Who takes the call by the routing probabilities alone; `None` where the class has none yet or
    /// nobody was found who `takes`: then costs decide. The one that was chosen is read and costed
    /// like any other, so that records of picks say the same and compute again.
    pub(super) fn select(
        &self,
        ask: &Ask<'_>,
        rng: &mut Rng,
        takes: &impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let row = ask.row?;
        let index = if self.selection == Selection::Greedy {
            let probable = |index: u32| row.probability[index as usize];
            let usable = ask
                .view
                .usable
                .iter()
                .copied()
                .filter(|index| takes(*index));
            usable.reduce(|best, index| {
                if probable(index) > probable(best) {
                    index
                } else {
                    best
                }
            })?
        } else {
            let mut drawn = || self.draw(ask, 1, rng).0[0];
            (0..FALLBACK_TRIES)
                .map(|_| drawn())
                .find(|index| takes(*index))?
        };
        self.least(ask, &[index], rng, takes).map(|best| best.index)
    }

    /// Whether the routing probabilities decide now, not the costs.
    pub(crate) fn is_by_probability(
        &self,
        view: View<'_>,
        now_ns: u64,
        class: RequestClass,
    ) -> bool {
        let ask = self.ask(view, now_ns, class);
        self.selection != Selection::Live && ask.age == Age::Fresh && ask.row.is_some()
    }
}
