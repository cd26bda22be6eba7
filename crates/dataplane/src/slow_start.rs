//! Slow start: a new endpoint gets its full share of calls not at once but over a window, because
//! caches are cold and code is not compiled when it begins.
//!
//! The ramp is max(10 %, (t / window)^(1 / aggression)), t from the first moment at which the
//! endpoint could have been picked: an endpoint that nobody calls has nothing to warm up with. The
//! floor makes sure that it really is called, the cap of 1 that slow start really ends. Balancers
//! that share calls out scale the weight by it, those that compare costs divide by it, and give what
//! is still rising a tenth of a fair share whatever it costs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::SlowStartConfig;

/// Least share of its weight that an endpoint starts with.
pub(crate) const FLOOR: f64 = 0.1;

/// The switched-on setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    window_ns: f64,
    exponent: f64,
}

/// When an endpoint could be picked first.
#[derive(Debug)]
pub struct FirstReady(AtomicU64);

/// Not yet.
const NEVER: u64 = u64::MAX;

impl Default for FirstReady {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl FirstReady {
    /// Tells that it can be picked now; only the first time counts.
    pub fn stamp(&self, now_ns: u64) {
        let _ = self.0.compare_exchange(NEVER, now_ns, Relaxed, Relaxed);
    }

    /// Whether that is still to come.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.load(Relaxed) == NEVER
    }

    /// Forgets it, for an endpoint that has restarted.
    pub fn clear(&self) {
        self.0.store(NEVER, Relaxed);
    }
}

impl SlowStart {
    /// The setting, if it is switched on.
    #[must_use]
    pub fn new(config: SlowStartConfig) -> Option<Self> {
        (config.window_ms > 0).then(|| Self {
            window_ns: config.window_ms as f64 * 1e6,
            exponent: 1.0 / config.aggression,
        })
    }

    /// Share of its weight that an endpoint has now, 0.1..=1.
    #[must_use]
    pub fn ramp(&self, ready: &FirstReady, now_ns: u64) -> f64 {
        let since = ready.0.load(Relaxed);
        if since == NEVER {
            return FLOOR;
        }
        let passed = now_ns.saturating_sub(since) as f64 / self.window_ns;
        if passed >= 1.0 {
            return 1.0;
        }
        let raised = if self.exponent == 1.0 {
            passed
        } else {
            libm::pow(passed, self.exponent)
        };
        raised.max(FLOOR)
    }
}

#[cfg(test)]
mod tests {
    use super::{FirstReady, SlowStart};
    use crate::config::SlowStartConfig;

    fn slow_start(aggression: f64) -> SlowStart {
        SlowStart::new(SlowStartConfig {
            window_ms: 10_000,
            aggression,
        })
        .expect("switched on")
    }

    #[test]
    fn rises_from_a_tenth_to_one() {
        let ready = FirstReady::default();
        assert_eq!(slow_start(1.0).ramp(&ready, 7_000_000_000), 0.1);
        ready.stamp(1_000_000_000);
        ready.stamp(5_000_000_000);
        let ramp =
            |aggression, now_s: u64| slow_start(aggression).ramp(&ready, now_s * 1_000_000_000);
        assert_eq!(ramp(1.0, 1), 0.1);
        assert_eq!(ramp(1.0, 6), 0.5);
        assert_eq!(ramp(1.0, 11), 1.0);
        assert_eq!(ramp(1.0, 100), 1.0);
        // (t / window)^(1 / aggression): a quarter of the window, aggression 2 and 1/2.
        let at = 3_500_000_000;
        assert!((slow_start(2.0).ramp(&ready, at) - 0.5).abs() < 1e-12);
        assert!((slow_start(0.5).ramp(&ready, at) - 0.1).abs() < 1e-12);
        assert!((slow_start(0.5).ramp(&ready, 6_000_000_000) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn no_window_is_off() {
        assert_eq!(SlowStart::new(SlowStartConfig::default()), None);
    }
}
