//! Which calls are looked at closely.
//!
//! One lot per call decides everything, so that what is rarer is a part of what is more frequent: a
//! call whose pick is recorded is in the access log too, if that is sampled more often. Without any
//! sampling nothing is drawn. The lots come from a stream of their own: looking must not change
//! what is picked.

use crate::config::Config;
use crate::rng::Rng;

/// Lots are drawn from `0..LOTS`; so many a double tells apart.
const LOTS: u64 = 1 << 53;

/// How many of `LOTS` win.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    picks: u64,
    access_log: u64,
    tracing: u64,
}

/// What one call won.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Its picks are recorded.
    pub picks: bool,
    /// It goes into the access log.
    pub access_log: bool,
    /// It gets a span, unless its caller says that the trace is not recorded.
    pub tracing: bool,
}

impl Sampled {
    /// Whether anything is noted of the call while it runs.
    #[must_use]
    pub const fn is_noted(self) -> bool {
        self.access_log || self.tracing
    }
}

impl Sampling {
    /// As the configuration says.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let lots = |share: f64| (share * LOTS as f64) as u64;
        let log = config.access_log.as_ref();
        Self {
            picks: lots(config.picks.sample),
            access_log: log.map_or(0, |log| lots(log.sample)),
            tracing: lots(config.tracing.sample),
        }
    }

    /// What the next call wins.
    #[must_use]
    pub fn draw(self, rng: &mut Rng) -> Sampled {
        if self.picks | self.access_log | self.tracing == 0 {
            return Sampled::default();
        }
        let lot = rng.next_u64() >> 11;
        Sampled {
            picks: lot < self.picks,
            access_log: lot < self.access_log,
            tracing: lot < self.tracing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sampled, Sampling, LOTS};
    use crate::rng::Rng;

    fn sampling(picks: u64, access_log: u64) -> Sampling {
        Sampling {
            picks,
            access_log,
            tracing: 0,
        }
    }

    #[test]
    fn without_sampling_nothing_is_drawn() {
        let mut rng = Rng::new(1);
        assert_eq!(sampling(0, 0).draw(&mut rng), Sampled::default());
        assert_eq!(rng.counter(), 0);
    }

    #[test]
    fn shares_hold_and_the_rarer_is_part_of_the_other() {
        let (mut rng, mut picks, mut log) = (Rng::new(2), 0, 0);
        for _ in 0..10_000 {
            let sampled = sampling(LOTS / 100, LOTS / 10).draw(&mut rng);
            assert!(sampled.access_log || !sampled.picks);
            picks += u32::from(sampled.picks);
            log += u32::from(sampled.access_log);
        }
        // 100 and 1,000 expected, with deviations of 10 and 30.
        assert!((50..150).contains(&picks), "{picks}");
        assert!((850..1_150).contains(&log), "{log}");
    }

    #[test]
    fn all_is_all() {
        let mut rng = Rng::new(3);
        assert!((0..1_000).all(|_| sampling(0, LOTS).draw(&mut rng).access_log));
        let spans = Sampling {
            tracing: LOTS,
            ..sampling(0, 0)
        };
        let sampled = spans.draw(&mut rng);
        assert!(sampled.tracing && sampled.is_noted() && !sampled.access_log);
    }
}
