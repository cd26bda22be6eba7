//! Whether an endpoint still answers, and how long the way there takes: HTTP/2 PING.
//!
//! While calls run, a connection from which nothing has come for `keepalive.interval` is asked, and
//! is dead if nothing comes within `keepalive.timeout` (RS-05): TCP alone would take many minutes to
//! say so. Idle connections are left alone, and cost no timer.
//!
//! Servers count pings and close connections that send too many: by gRPC's defaults the third one
//! in five minutes between which they sent no headers or data (H2-30). So after two pings without
//! the end of a call between them the next one comes [`PATIENCE`] later. Who still objects, with a
//! GOAWAY of ENHANCE_YOUR_CALM, is asked half as often from then on.
//!
//! One ping per [`SAMPLING`] measures the round trip, right after a call has ended, which makes it
//! free. Of the last minute the least counts: what is more was queueing.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{sleep_until, Instant, Sleep};

use crate::config::KeepaliveConfig;

/// Between pings that a server may hold against us.
const PATIENCE: Duration = Duration::from_secs(300);

/// Pings without an ended call between them that no server holds against us: gRPC's allow two more
/// than the first, one of these is left to spare.
const FREE_PINGS: u32 = 2;

/// Between two measurements of the round trip.
const SAMPLING: Duration = Duration::from_secs(10);

/// The longest part of a minute whose least round trip is kept by itself.
const PART_NS: u64 = 10_000_000_000;

/// What is known of the calls of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Business {
    /// Streams open now.
    pub(crate) streams: usize,
    /// Streams that have ended.
    pub(crate) ended: u64,
    /// Bytes that came from the endpoint.
    pub(crate) read: u64,
}

/// Watches one connection.
pub(crate) struct Keeper {
    watch: Watch,
    /// `None` where it is switched off.
    pings: Option<PingPong>,
    /// Only while there is something to look at.
    timer: Option<Pin<Box<Sleep>>>,
}

/// When to ask, and what silence means; knows no connection.
#[derive(Debug)]
struct Watch {
    interval: Duration,
    patience: Duration,
    timeout: Duration,
    outstanding: Option<Outstanding>,
    /// Bytes read when somebody looked last, and since when they are no more.
    seen: u64,
    quiet_since: Instant,
    last_ping: Option<Instant>,
    /// Calls that had ended at the last ping, and pings since another one did.
    ended: u64,
    unpaid: u32,
}

/// A ping that was not answered yet.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    sent: Instant,
    read: u64,
    until: Instant,
}

/// What a look finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing to look at.
    Idle,
    /// Look again then.
    Wait(Instant),
    /// Ask.
    Ping,
    /// It was asked, and said nothing.
    Dead,
}

impl Watch {
    fn new(config: KeepaliveConfig, factor: u32, now: Instant) -> Self {
        Self {
            interval: Duration::from_millis(config.interval_ms) * factor,
            patience: PATIENCE * factor,
            timeout: Duration::from_millis(config.timeout_ms),
            outstanding: None,
            seen: 0,
            quiet_since: now,
            last_ping: None,
            ended: 0,
            unpaid: 0,
        }
    }

    fn look(&mut self, business: Business, now: Instant) -> Look {
        if business.read != self.seen {
            (self.seen, self.quiet_since) = (business.read, now);
        }
        if let Some(asked) = &mut self.outstanding {
            if business.read != asked.read {
                // It speaks, and the answer is behind what it had to say.
                (asked.read, asked.until) = (business.read, now + self.timeout);
            }
            return if now >= asked.until {
                Look::Dead
            } else {
                Look::Wait(asked.until)
            };
        }
        if business.streams == 0 {
            return Look::Idle;
        }
        let is_paid = business.ended != self.ended;
        let since_ping = self.last_ping.map(|last| now.duration_since(last));
        let may = is_paid
            || self.unpaid < FREE_PINGS
            || since_ping.is_none_or(|since| since >= self.patience);
        let is_quiet = now.duration_since(self.quiet_since) >= self.interval;
        let measures = is_paid && since_ping.is_none_or(|since| since >= SAMPLING);
        if measures || (is_quiet && may) {
            return Look::Ping;
        }
        // In between, so that the silence is not found to begin much later than it does.
        Look::Wait(now + self.interval / 4)
    }

    fn sent(&mut self, business: Business, now: Instant) {
        self.unpaid = if business.ended == self.ended {
            self.unpaid + 1
        } else {
            1
        };
        self.ended = business.ended;
        self.last_ping = Some(now);
        self.outstanding = Some(Outstanding {
            sent: now,
            read: business.read,
            until: now + self.timeout,
        });
    }

    fn answered(&mut self, now: Instant) -> Option<Duration> {
        let asked = self.outstanding.take()?;
        self.quiet_since = now;
        Some(now.duration_since(asked.sent))
    }
}

impl Keeper {
    /// `factor`: how many times longer than configured the endpoint wants to be left alone.
    pub(crate) fn new(config: KeepaliveConfig, factor: u32, pings: Option<PingPong>) -> Self {
        Self {
            watch: Watch::new(config, factor, Instant::now()),
            pings: pings.filter(|_| config.interval_ms > 0),
            timer: None,
        }
    }

    /// To be polled before the connection, which then writes what is asked. True if the endpoint is
    /// dead.
    pub(crate) fn poll_dead(&mut self, business: Business, cx: &mut Context<'_>) -> bool {
        let Some(pings) = &mut self.pings else {
            return false;
        };
        loop {
            let waits = match &mut self.timer {
                Some(timer) => timer.as_mut().poll(cx).is_pending(),
                None => business.streams == 0,
            };
            if waits {
                return false;
            }
            let now = Instant::now();
            match self.watch.look(business, now) {
                Look::Idle => {
                    self.timer = None;
                    return false;
                }
                Look::Wait(until) => match &mut self.timer {
                    Some(timer) => timer.as_mut().reset(until),
                    None => self.timer = Some(Box::pin(sleep_until(until))),
                },
                Look::Ping => {
                    // Fails only if the connection is gone, which it says itself.
                    if pings.send_ping(Ping::opaque()).is_err() {
                        return false;
                    }
                    self.watch.sent(business, now);
                }
                Look::Dead => return true,
            }
        }
    }

    /// To be polled after the connection: the round trip, if an answer came.
    pub(crate) fn poll_round_trip(&mut self, cx: &mut Context<'_>) -> Option<Duration> {
        self.watch.outstanding?;
        let Poll::Ready(Ok(_)) = self.pings.as_mut()?.poll_pong(cx) else {
            return None;
        };
        // The timer was set to the end of the ping's time.
        self.timer = None;
        cx.waker().wake_by_ref();
        self.watch.answered(Instant::now())
    }
}

/// The least round trip of the last minute.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// Number of a part of time, from 1, and the least of it.
    parts: Cell<[(u64, u64); 6]>,
}

impl RoundTrips {
    /// Takes in a measurement; returns the least now.
    pub(crate) fn add(&self, now_ns: u64, round_trip: Duration) -> u64 {
        let found = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        let part = now_ns / PART_NS + 1;
        let mut parts = self.parts.get();
        let place = &mut parts[(part % 6) as usize];
        *place = match *place {
            (same, least) if same == part => (part, least.min(found)),
            _ => (part, found),
        };
        self.parts.set(parts);
        let recent = parts.iter().filter(|(one, _)| *one > 0 && one + 6 > part);
        recent.map(|(_, least)| *least).min().unwrap_or(found)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Business, Look, RoundTrips, Watch};
    use crate::config::KeepaliveConfig;

    const CONFIG: KeepaliveConfig = KeepaliveConfig {
        interval_ms: 10_000,
        timeout_ms: 5_000,
    };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Looks whenever it is due until `end`; answers every ping after `answer` if there is one.
    /// Returns when pings were sent, in seconds, and when it was found dead.
    fn run(
        watch: &mut Watch,
        start: Instant,
        end: u64,
        answers: bool,
        business: impl Fn(u64) -> Business,
    ) -> (Vec<u64>, Option<u64>) {
        let (mut now, mut pings) = (start, Vec::new());
        while now < start + seconds(end) {
            let at = now.duration_since(start).as_secs();
            match watch.look(business(at), now) {
                Look::Idle => now += seconds(1),
                Look::Wait(until) => now = until.max(now + Duration::from_millis(1)),
                Look::Ping => {
                    pings.push(at);
                    watch.sent(business(at), now);
                    if answers {
                        watch.answered(now + Duration::from_millis(1));
                    }
                }
                Look::Dead => return (pings, Some(at)),
            }
        }
        (pings, None)
    }

    fn busy(_: u64) -> Business {
        Business {
            streams: 1,
            ..Business::default()
        }
    }

    #[test]
    fn silence_is_asked_and_found_dead_in_time() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let (pings, dead) = run(&mut watch, start, 100, false, busy);
        assert_eq!(pings, [10]);
        assert_eq!(dead, Some(15));
    }

    #[test]
    fn an_endpoint_that_answers_pings_and_nothing_else_is_not_asked_too_often() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let (pings, dead) = run(&mut watch, start, 1_000, true, busy);
        assert_eq!(dead, None);
        // The second looks whether the first was luck: an interval after its answer, at the next look.
        assert_eq!(pings[..2], [10, 22]);
        // A gRPC server allows two bad ones in a row; the first is none.
        assert!(
            pings[2..].windows(2).all(|two| two[1] - two[0] >= 300),
            "{pings:?}"
        );
        assert_eq!(pings.len(), 5, "{pings:?}");
    }

    #[test]
    fn no_call_no_ping() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let (pings, dead) = run(&mut watch, start, 1_000, false, |_| Business::default());
        assert_eq!((pings, dead), (vec![], None));
    }

    #[test]
    fn a_call_on_a_connection_that_was_silent_is_looked_after_at_once() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let late = |at| Business {
            streams: usize::from(at >= 60),
            ..Business::default()
        };
        let (pings, dead) = run(&mut watch, start, 100, false, late);
        assert_eq!(pings, [60]);
        assert_eq!(dead, Some(65));
    }

    #[test]
    fn while_calls_come_and_go_one_ping_in_ten_seconds_measures() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let flowing = |at| Business {
            streams: 3,
            ended: 1 + at * 5,
            read: at * 700,
        };
        let (pings, dead) = run(&mut watch, start, 100, true, flowing);
        assert_eq!(dead, None);
        assert!((8..=11).contains(&pings.len()), "{pings:?}");
        assert!(
            pings.windows(2).all(|two| two[1] - two[0] >= 10),
            "{pings:?}"
        );
    }

    #[test]
    fn what_comes_shows_life_even_if_the_answer_is_late() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 1, start);
        let dribbling = |at: u64| Business {
            streams: 1,
            ended: 0,
            // Silent at first, then a little now and then, and silent again from 60 s on.
            read: (at.clamp(12, 60) - 12) / 3,
        };
        let (_, dead) = run(&mut watch, start, 200, false, dribbling);
        assert!((64..=70).contains(&dead.expect("it is dead")), "{dead:?}");
    }

    #[test]
    fn an_endpoint_that_objects_is_asked_less() {
        let start = Instant::now();
        let mut watch = Watch::new(CONFIG, 4, start);
        let (pings, dead) = run(&mut watch, start, 100, false, busy);
        assert_eq!((pings, dead), (vec![40], Some(45)));
    }

    #[test]
    fn the_least_round_trip_of_a_minute_counts() {
        let trips = RoundTrips::default();
        let ms = Duration::from_millis;
        let at = |seconds: u64| seconds * 1_000_000_000;
        assert_eq!(trips.add(at(0), ms(5)), 5_000_000);
        assert_eq!(trips.add(at(1), ms(9)), 5_000_000);
        assert_eq!(trips.add(at(30), ms(7)), 5_000_000);
        assert_eq!(trips.add(at(65), ms(8)), 7_000_000);
        assert_eq!(trips.add(at(200), ms(20)), 20_000_000);
    }
}
