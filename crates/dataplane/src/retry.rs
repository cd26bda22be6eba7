//! Whether and when a call that failed is tried again: budget, back-off, push-back, number of
//! attempts. Sans-IO: the time and the draws are arguments.
//!
//! After gRFC A6, with two differences. The budget is a share of the calls of a time window, those
//! that still run included, instead of tokens that each failure takes: so it does not shrink just
//! when many calls fail at once (RS-08). And the sidecar sets each attempt a time of its own.
//!
//! What an endpoint provably did not process is repeated without a rule of the route: once at once,
//! then with back-off and within the budget (RS-16).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::header::{HeaderMap, HeaderName};

use crate::config::{BudgetConfig, RetryConfig};
use crate::grpc::Code;
use crate::rng::Rng;

static PUSH_BACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Slots of a window, and the one that is being filled.
const SLOTS: usize = 11;

/// Attempts of one call that reached no application, beyond which it ends.
const UNPROCESSED_MAX: u32 = 5;

/// What an endpoint asks of whoever would try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushBack {
    /// Nothing.
    Unsaid,
    /// To wait so long.
    Wait(Duration),
    /// Not to.
    Stop,
}

impl PushBack {
    /// Reads `grpc-retry-pushback-ms`: a signed 32-bit number of milliseconds, where a negative one
    /// and whatever is none mean "do not try again" (gRFC A6).
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(&PUSH_BACK) else {
            return Self::Unsaid;
        };
        let text = value.to_str().unwrap_or_default();
        let number = text.parse::<i32>().ok();
        // Written as numbers are: no sign in front, no leading zeros.
        let number = number.filter(|number| number.to_string() == text);
        match number.map(u64::try_from) {
            Some(Ok(wait_ms)) => Self::Wait(Duration::from_millis(wait_ms)),
            _ => Self::Stop,
        }
    }
}

/// Retries of a time window, held to a share of its calls. Shared by all data threads, without a
/// lock; threads that ask at the same moment are each counted before they are answered.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    floor: u32,
    slot_ns: u64,
    running: AtomicU32,
    ended: Window,
    retries: Window,
}

impl Budget {
    /// A budget of which nothing is used.
    #[must_use]
    pub fn new(config: &BudgetConfig) -> Self {
        Self {
            share: config.share,
            floor: config.floor,
            slot_ns: config.window_ms * 1_000_000 / (SLOTS as u64 - 1),
            running: AtomicU32::new(0),
            ended: Window::default(),
            retries: Window::default(),
        }
    }

    /// A call began.
    pub fn begin(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    /// It ended.
    pub fn end(&self, now_ns: u64) {
        self.running.fetch_sub(1, Relaxed);
        self.ended.add(now_ns / self.slot_ns);
    }

    /// Takes a retry, if there is one left.
    pub fn take(&self, now_ns: u64) -> bool {
        let slot = now_ns / self.slot_ns;
        self.retries.add(slot);
        let calls = self.ended.sum(slot) + u64::from(self.running.load(Relaxed));
        let allowed = (self.share * calls as f64).max(f64::from(self.floor));
        let holds = self.retries.sum(slot) as f64 <= allowed;
        if !holds {
            self.retries.take_back(slot);
        }
        holds
    }
}

/// Counts by slot of time; a slot that is entered anew begins at 0. In each the number of the slot
/// and its count, 32 bits each.
#[derive(Debug, Default)]
struct Window([AtomicU64; SLOTS]);

impl Window {
    fn add(&self, slot: u64) {
        let fresh = slot << 32 | 1;
        let _ = self.at(slot).fetch_update(Relaxed, Relaxed, |cell| {
            let is_current = cell >> 32 == slot & 0xffff_ffff;
            Some(if is_current { cell + 1 } else { fresh })
        });
    }

    fn take_back(&self, slot: u64) {
        let _ = self.at(slot).fetch_update(Relaxed, Relaxed, |cell| {
            let is_current = cell >> 32 == slot & 0xffff_ffff;
            (is_current && cell & 0xffff_ffff > 0).then(|| cell - 1)
        });
    }

    /// Over the window that ends with this slot.
    fn sum(&self, slot: u64) -> u64 {
        let first = slot.saturating_sub(SLOTS as u64 - 1);
        let counts = (first..=slot).map(|slot| {
            let cell = self.at(slot).load(Relaxed);
            let is_current = cell >> 32 == slot & 0xffff_ffff;
            if is_current {
                cell & 0xffff_ffff
            } else {
                0
            }
        });
        counts.sum()
    }

    fn at(&self, slot: u64) -> &AtomicU64 {
        &self.0[(slot % SLOTS as u64) as usize]
    }
}

/// How an attempt ended of which the client has seen nothing.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Its status.
    pub code: Code,
    /// The endpoint's application provably never saw it.
    pub unprocessed: bool,
    /// It ended because the attempt's own time was over.
    pub timed_out: bool,
    /// What the endpoint asks for.
    pub push_back: PushBack,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt after this wait.
    Again(Duration),
    /// None, and there is nothing wrong with that: the status is no one that is tried again.
    Final,
    /// None, though the status is one that is.
    Refused(Refused),
}

/// Why a call that could have been tried again was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refused {
    /// `max_attempts` is reached.
    Attempts,
    /// The budget is used up.
    Budget,
    /// The endpoint asked for it.
    PushBack,
    /// The deadline comes first.
    Deadline,
    /// What the client sent is more than the replay buffer holds.
    Buffer,
}

impl Refused {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Attempts,
        Self::Budget,
        Self::PushBack,
        Self::Deadline,
        Self::Buffer,
    ];

    /// The metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attempts => "max_attempts",
            Self::Budget => "budget",
            Self::PushBack => "push_back",
            Self::Deadline => "deadline",
            Self::Buffer => "replay_buffer",
        }
    }
}

/// What one call may still do. `None` of a rule: only what was not processed is repeated.
#[derive(Debug, Default)]
pub struct Plan {
    rule: Option<RetryConfig>,
    /// Attempts that count, the one that runs included.
    attempts: u32,
    /// Attempts that reached no application.
    unprocessed: u32,
    /// Waits since the last push-back.
    waits: u32,
}

/// What a verdict depends on besides the attempt.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// What is left of the call's time; `None` without a deadline.
    pub remaining: Option<Duration>,
    /// Whether everything that the client sent can be sent again.
    pub replayable: bool,
    /// Of the route, or of the service.
    pub budget: &'a Budget,
    /// Now.
    pub now_ns: u64,
}

impl Plan {
    /// Of a call whose first attempt begins.
    #[must_use]
    pub fn new(rule: Option<&RetryConfig>) -> Self {
        Self {
            rule: rule.cloned(),
            attempts: 1,
            ..Self::default()
        }
    }

    /// The time that an attempt has of its own.
    #[must_use]
    pub fn per_try_timeout(&self) -> Option<Duration> {
        let timeout_ms = self.rule.as_ref()?.per_try_timeout_ms;
        timeout_ms.map(Duration::from_millis)
    }

    /// Decides after an attempt, and takes what it grants from the budget.
    pub fn after(
        &mut self,
        ended: &Ended,
        circumstances: &Circumstances<'_>,
        rng: &mut Rng,
    ) -> Verdict {
        let listed = self.rule.as_ref().is_some_and(|rule| {
            rule.on.contains(ended.code) || (ended.timed_out && rule.per_try_timeout_ms.is_some())
        });
        if !listed && !ended.unprocessed {
            return Verdict::Final;
        }
        if !circumstances.replayable {
            return Verdict::Refused(Refused::Buffer);
        }
        let at_once = ended.unprocessed && self.unprocessed == 0;
        self.unprocessed += u32::from(ended.unprocessed);
        if !at_once {
            let allowed = match &self.rule {
                Some(rule) => rule.max_attempts,
                None => UNPROCESSED_MAX,
            };
            if self.attempts >= allowed {
                return Verdict::Refused(Refused::Attempts);
            }
        }
        let wait = match ended.push_back {
            PushBack::Stop => return Verdict::Refused(Refused::PushBack),
            PushBack::Wait(wait) => wait,
            PushBack::Unsaid if at_once => Duration::ZERO,
            PushBack::Unsaid => self.backoff(rng),
        };
        if circumstances.remaining.is_some_and(|left| wait >= left) {
            return Verdict::Refused(Refused::Deadline);
        }
        if !at_once {
            if !circumstances.budget.take(circumstances.now_ns) {
                return Verdict::Refused(Refused::Budget);
            }
            self.attempts += 1;
            // A wait that the endpoint named begins the series anew.
            self.waits = match ended.push_back {
                PushBack::Wait(_) => 0,
                _ => self.waits + 1,
            };
        }
        Verdict::Again(wait)
    }

    /// Evenly from 0 to a bound that doubles, so that calls which failed together part.
    fn backoff(&self, rng: &mut Rng) -> Duration {
        let fallback = RetryConfig::default();
        let rule = self.rule.as_ref().unwrap_or(&fallback);
        let bound_ms = rule.backoff_ms.saturating_mul(1 << self.waits.min(16));
        let bound = Duration::from_millis(bound_ms.min(rule.max_backoff_ms));
        bound.mul_f64(rng.unit_f64())
    }
}

#[cfg(test)]
mod tests;
