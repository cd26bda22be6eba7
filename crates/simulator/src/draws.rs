//! Random variables: from uniform draws to times.
//!
//! Logarithms and exponentials come from a pure-Rust library, not from the system's, so that a
//! seed gives the same bits on every machine.

use attnroute_dataplane::rng::Rng;

use crate::scenario::Law;

/// Exponential with mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    // 1 - u is in (0, 1]: the logarithm is finite.
    -libm::log(1.0 - rng.unit_f64())
}

/// Draws of a law with mean 1.
#[derive(Debug)]
pub(crate) struct Sampler {
    law: Law,
    /// The second of a pair of normal draws.
    spare: Option<f64>,
}

impl Sampler {
    pub(crate) fn new(law: Law) -> Self {
        Self { law, spare: None }
    }

    pub(crate) fn draw(&mut self, rng: &mut Rng) -> f64 {
        match self.law {
            Law::Constant {} => 1.0,
            Law::Exponential {} => exponential(rng),
            Law::Lognormal { sigma } => libm::exp(sigma * self.normal(rng) - 0.5 * sigma * sigma),
            Law::Bimodal { ratio, share } => {
                let small = 1.0 / (1.0 - share + share * ratio);
                if rng.unit_f64() < share {
                    small * ratio
                } else {
                    small
                }
            }
            Law::Pareto { alpha } => {
                let minimum = (alpha - 1.0) / alpha;
                minimum * libm::exp(exponential(rng) / alpha)
            }
        }
    }

    /// Marsaglia's polar method: two independent normal draws from a point in the unit disc.
    fn normal(&mut self, rng: &mut Rng) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * rng.unit_f64() - 1.0, 2.0 * rng.unit_f64() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let scale = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use attnroute_dataplane::rng::Rng;

    use super::Sampler;
    use crate::scenario::Law;

    /// Mean and squared coefficient of variation of 400,000 draws.
    fn moments(law: Law) -> (f64, f64) {
        let (mut sampler, mut rng) = (Sampler::new(law), Rng::new(11));
        let count = 400_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..count {
            let drawn = sampler.draw(&mut rng);
            assert!(drawn > 0.0 && drawn.is_finite());
            sum += drawn;
            squares += drawn * drawn;
        }
        let mean = sum / f64::from(count);
        (mean, squares / f64::from(count) / (mean * mean) - 1.0)
    }

    #[test]
    fn laws_have_mean_1_and_their_own_spread() {
        let sigma: f64 = 0.8;
        let small = 1.0 / (0.9 + 0.1 * 20.0);
        let cases = [
            (Law::Constant {}, 0.0),
            (Law::Exponential {}, 1.0),
            (Law::Lognormal { sigma }, (sigma * sigma).exp() - 1.0),
            (
                Law::Bimodal {
                    ratio: 20.0,
                    share: 0.1,
                },
                small * small * (0.9 + 0.1 * 400.0) - 1.0,
            ),
            // alpha 5: 1 / (alpha (alpha - 2)).
            (Law::Pareto { alpha: 5.0 }, 1.0 / 15.0),
        ];
        for (law, spread) in cases {
            let (mean, found) = moments(law);
            assert!((mean - 1.0).abs() < 0.012, "{law:?}: mean {mean}");
            assert!(
                (found - spread).abs() < 0.05 * (spread + 0.1),
                "{law:?}: {found} for {spread}"
            );
        }
    }
}
