//! Averages that forget: what balancers know of latencies.
//!
//! Read by picks without a lock, written by whoever ends a call. A reader may meet the value of one
//! update with the time of another; both were true a moment ago, and a pick needs no more. Writers
//! exclude each other, so that no sample is lost.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// An f64 that threads share.
#[derive(Debug, Default)]
pub struct AtomicF64(AtomicU64);

impl AtomicF64 {
    /// The value now.
    #[must_use]
    pub fn load(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    /// Replaces it.
    pub fn store(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// An f32 that threads share.
#[derive(Debug, Default)]
pub struct AtomicF32(AtomicU32);

impl AtomicF32 {
    /// With a value to begin with.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self(AtomicU32::new(value.to_bits()))
    }

    /// The value now.
    #[inline]
    #[must_use]
    pub fn load(&self) -> f32 {
        f32::from_bits(self.0.load(Relaxed))
    }

    /// Replaces it.
    pub fn store(&self, value: f32) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// What is left of a value after `age_ns`: the factor e^(-age/tau).
#[must_use]
pub fn decay(age_ns: u64, tau_ns: f64) -> f64 {
    if age_ns == 0 {
        return 1.0;
    }
    libm::exp(-(age_ns as f64) / tau_ns)
}

/// An average and the time of its last sample. 0 and "no sample yet" are the same: what it averages
/// is positive.
#[derive(Debug, Default)]
pub struct Average {
    value: AtomicF64,
    sampled_ns: AtomicU64,
    writer: Mutex<()>,
}

impl Average {
    /// The average as of its last sample; `None` before the first.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        let value = self.value.load();
        (value > 0.0).then_some(value)
    }

    /// The average faded since its last sample with time constant `tau_ns`, so that a bad spell is
    /// not held against an endpoint for ever; `None` before the first sample.
    #[must_use]
    pub fn faded(&self, now_ns: u64, tau_ns: f64) -> Option<f64> {
        let value = self.last()?;
        Some(value * decay(self.age_ns(now_ns), tau_ns))
    }

    /// Time since the last sample.
    #[must_use]
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.sampled_ns.load(Relaxed))
    }

    /// Replaces the average by what `next` makes of the old one and the time since its last sample.
    pub fn update(&self, now_ns: u64, next: impl FnOnce(Option<f64>, u64) -> f64) {
        let _alone = self.writer.lock();
        let value = next(self.last(), self.age_ns(now_ns));
        if value.is_finite() {
            self.value.store(value);
            // Samples of several threads may come out of order; time does not run backwards.
            self.sampled_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let _alone = self.writer.lock();
        self.value.store(0.0);
        self.sampled_ns.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{decay, Average};

    #[test]
    fn fades_to_an_eth_in_one_time_constant() {
        let average = Average::default();
        assert_eq!(average.faded(5, 10.0), None);
        average.update(100, |old, _| old.unwrap_or(8.0));
        assert_eq!(average.faded(100, 10.0), Some(8.0));
        let faded = average.faded(110, 10.0).expect("a sample");
        assert!((faded - 8.0 / std::f64::consts::E).abs() < 1e-12);
        assert_eq!(average.last(), Some(8.0));
        average.clear();
        assert_eq!(average.last(), None);
    }

    #[test]
    fn hands_the_old_value_and_its_age_to_the_rule() {
        let average = Average::default();
        average.update(100, |old, _| old.map_or(4.0, |_| f64::NAN));
        average.update(130, |old, age_ns| old.unwrap_or(0.0) + age_ns as f64);
        assert_eq!(average.last(), Some(34.0));
    }

    #[test]
    fn a_value_that_is_no_number_changes_nothing() {
        let average = Average::default();
        average.update(1, |_, _| 4.0);
        average.update(2, |_, _| f64::NAN);
        average.update(3, |_, _| f64::INFINITY);
        assert_eq!(average.last(), Some(4.0));
        assert_eq!(average.age_ns(5), 4);
    }

    #[test]
    fn time_that_seems_to_run_backwards_decays_nothing() {
        let average = Average::default();
        average.update(100, |_, _| 4.0);
        average.update(90, |_, _| 5.0);
        assert_eq!(average.age_ns(100), 0);
        assert_eq!(average.faded(50, 10.0), Some(5.0));
        assert_eq!(decay(0, 10.0), 1.0);
        assert_eq!(decay(u64::MAX, 1.0), 0.0);
    }
}
