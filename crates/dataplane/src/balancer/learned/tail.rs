//! How long a call is expected to take at most, with a given probability: when hedges go out
//! (docs/resilience.md).
//!
//! The spread sigma that a model publishes is that of a lognormal latency whose mean is the expected
//! one, as it was trained (`algorithms.md` 3.3). Its quantile is mean * e^(sigma z - sigma^2/2), z
//! that of the standard normal. The mean is what a pick would expect now: way, service and live
//! wait, each with the ratio that measures it.

use super::cost::{costs, Read};
use super::{Age, Learned};
use crate::attempt::RequestClass;
use crate::balancer::View;
use crate::class::OTHER;

impl Learned {
    /// The time within which a call of this class, which is in flight at that endpoint, answers
    /// with that probability. `None` where no model has told the spread of exactly this class:
    /// `other` holds what is unlike, and the table knows means alone.
    pub(crate) fn tail_s(
        &self,
        view: View<'_>,
        now_ns: u64,
        class: RequestClass,
        index: u32,
        quantile: f64,
    ) -> Option<f64> {
        let ask = self.ask(view, now_ns, class);
        let (class, _) = self.learning.classes.place(class);
        let told = ask.age == Age::Fresh && !self.learning.table.model.is_empty();
        let row = ask.row.filter(|_| told && class != OTHER)?;
        let spread = f64::from(*row.spread.get(index as usize)?);
        if spread <= 0.0 {
            return None;
        }
        let mut read = Read::<1>::default();
        self.read(&ask, &[index], &mut read);
        // The call itself waits for others, not for itself.
        read.own[0] = (read.own[0] - 1.0).max(0.0);
        let costs = costs(&read, &self.factors);
        let mean_s = f64::from(read.rtt_s[0] + costs.service_s[0] + costs.wait_s[0]);
        Some(mean_s * libm::exp(spread * normal_quantile(quantile) - spread * spread / 2.0))
    }
}

/// The quantile of the standard normal distribution, within 4.5e-4, for 0.5 <= p < 1 (Abramowitz
/// and Stegun, 26.2.23).
fn normal_quantile(p: f64) -> f64 {
    let t = libm::sqrt(-2.0 * libm::log(1.0 - p));
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn quantiles_of_the_standard_normal() {
        for (p, z) in [
            (0.5, 0.0),
            (0.9, 1.281_552),
            (0.95, 1.644_854),
            (0.99, 2.326_348),
            (0.999, 3.090_232),
        ] {
            let found: f64 = normal_quantile(p);
            assert!((found - z).abs() < 5e-4, "{p}: {found}");
        }
    }
}
