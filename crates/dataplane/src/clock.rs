//! The monotonic clock of a data plane: nanoseconds since it was made.
//!
//! Balancers and statistics take such a number as an argument and never ask for the time
//! themselves, so that the simulator can hand them its own.

use std::time::Instant;

/// Monotonic nanoseconds since an origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts at 0 now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Nanoseconds since the start; 584 years fit.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
