//! Random numbers by counter: draw `i` of a stream is a pure function of its key and `i`.
//!
//! The function is the finaliser of SplitMix64 over `key + (i + 1) * golden ratio` (Steele, Lea and
//! Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), so that `new(seed)` gives
//! that generator's own sequence. A counter instead of hidden state costs nothing and buys replay:
//! whoever recorded a pick's key and counter draws the very same numbers again with [`Rng::at`].
//! Good for choosing endpoints; not for secrets.

/// 2^64 divided by the golden ratio, odd: its multiples visit every 64-bit value.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of draws; one per data thread, so that nothing is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    key: u64,
    counter: u64,
}

impl Rng {
    /// The stream of a key, from its beginning.
    #[must_use]
    pub const fn new(key: u64) -> Self {
        Self::at(key, 0)
    }

    /// The stream of a key from its `counter`-th draw on, to replay what was recorded.
    #[must_use]
    pub const fn at(key: u64, counter: u64) -> Self {
        Self { key, counter }
    }

    /// The `index`-th of the streams that one seed gives.
    ///
    /// Its key is mixed twice: keys a multiple of the golden ratio apart would be one sequence,
    /// shifted.
    #[must_use]
    pub const fn stream(seed: u64, index: u64) -> Self {
        Self::new(draw(mix(seed), index))
    }

    /// Names the stream in a record.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Draws taken so far, which is the number of the next.
    #[must_use]
    pub const fn counter(&self) -> u64 {
        self.counter
    }

    /// Uniform over every 64-bit value.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let drawn = draw(self.key, self.counter);
        self.counter = self.counter.wrapping_add(1);
        drawn
    }

    /// Uniform over `0..n`; 0 for `n` 0.
    ///
    /// Multiply-shift with rejection (Lemire, "Fast random integer generation in an interval",
    /// 2019): no bias, and the division happens with a probability of n / 2^32 only.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        let mut product = self.half() * u64::from(n);
        if low(product) < n {
            let threshold = n.wrapping_neg() % n;
            while low(product) < threshold {
                product = self.half() * u64::from(n);
            }
        }
        (product >> 32) as u32
    }

    /// Uniform over the multiples of 2^-24 in `[0, 1)`.
    #[inline]
    pub fn unit_f32(&mut self) -> f32 {
        const STEP: f32 = 1.0 / (1 << 24) as f32;
        (self.next_u64() >> 40) as f32 * STEP
    }

    /// Two of [`Rng::unit_f32`] out of one draw, by its upper and its middle bits.
    #[inline]
    pub fn unit_f32_pair(&mut self) -> (f32, f32) {
        const STEP: f32 = 1.0 / (1 << 24) as f32;
        let drawn = self.next_u64();
        // Signed: one instruction instead of three.
        let unit = |bits: u64| (bits & 0xff_ffff) as i32 as f32 * STEP;
        (unit(drawn >> 40), unit(drawn >> 16))
    }

    /// Uniform over the multiples of 2^-53 in `[0, 1)`.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * STEP
    }

    /// The better half of a draw, as a 64-bit factor.
    fn half(&mut self) -> u64 {
        self.next_u64() >> 32
    }
}

const fn low(product: u64) -> u32 {
    product as u32
}

const fn draw(key: u64, counter: u64) -> u64 {
    mix(key.wrapping_add(GOLDEN.wrapping_mul(counter.wrapping_add(1))))
}

const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Rng;

    #[test]
    fn gives_the_known_answers_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([(); 5].map(|()| rng.next_u64()), expected);
        assert_eq!(rng.counter(), 5);
    }

    #[test]
    fn streams_of_one_seed_share_no_draw() {
        let mut seen = std::collections::HashSet::new();
        for index in 0..64 {
            let mut rng = Rng::stream(7, index);
            assert!(
                (0..256).all(|_| seen.insert(rng.next_u64())),
                "stream {index}"
            );
        }
        assert_ne!(Rng::stream(7, 0), Rng::stream(8, 0));
    }

    #[test]
    fn below_is_uniform_where_plain_scaling_is_not() {
        // 2^32 values on 3 * 2^30 places: without rejection every third place is hit twice as often.
        let n = 3 << 30;
        let mut rng = Rng::new(1);
        let thirds = (0..30_000)
            .filter(|_| rng.below(n).is_multiple_of(3))
            .count();
        // 10,000 expected with a deviation of 82.
        assert!((9_600..=10_400).contains(&thirds), "{thirds}");
    }

    #[test]
    fn below_hits_every_place_as_often() {
        let mut rng = Rng::new(2);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // 10,000 expected with a deviation of 93.
        assert!(
            counts.iter().all(|count| (9_500..=10_500).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn unit_draws_have_the_mean_of_the_interval() {
        let mut rng = Rng::new(3);
        let sums = (0..10_000).fold((0.0, 0.0), |(single, double), _| {
            (single + f64::from(rng.unit_f32()), double + rng.unit_f64())
        });
        // The deviation of the mean is 0.0029.
        assert!((sums.0 / 1e4 - 0.5).abs() < 0.015 && (sums.1 / 1e4 - 0.5).abs() < 0.015);
    }

    #[test]
    fn both_of_a_pair_are_uniform_and_know_nothing_of_each_other() {
        let mut rng = Rng::new(4);
        let (mut sums, mut product) = ([0.0; 2], 0.0);
        for _ in 0..10_000 {
            let (one, other) = rng.unit_f32_pair();
            assert!((0.0..1.0).contains(&one) && (0.0..1.0).contains(&other));
            sums = [sums[0] + f64::from(one), sums[1] + f64::from(other)];
            product += (f64::from(one) - 0.5) * (f64::from(other) - 0.5);
        }
        assert_eq!(rng.counter(), 10_000);
        // The deviations of the means are 0.0029 and 0.00083.
        assert!(sums.iter().all(|sum| (sum / 1e4 - 0.5).abs() < 0.015));
        assert!((product / 1e4).abs() < 0.004, "{product}");
    }

    proptest! {
        #[test]
        fn replays_from_any_counter(key: u64, skipped in 0_u64..50) {
            let mut rng = Rng::new(key);
            for _ in 0..skipped {
                rng.next_u64();
            }
            let mut replayed = Rng::at(rng.key(), rng.counter());
            prop_assert_eq!(rng.next_u64(), replayed.next_u64());
        }

        #[test]
        fn stays_in_range(key: u64, n: u32) {
            let mut rng = Rng::new(key);
            prop_assert!(rng.below(n) < n.max(1));
            prop_assert!((0.0..1.0).contains(&rng.unit_f32()));
            prop_assert!((0.0..1.0).contains(&rng.unit_f64()));
        }
    }
}
