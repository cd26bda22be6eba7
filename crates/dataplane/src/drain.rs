//! The end of a data plane that the application does not notice.
//!
//! A sidecar carries its application's outbound calls, and on SIGTERM both are told at the same
//! time: the application may still have last calls to make. So a drain first goes on serving, and
//! refuses only when nobody is left or its time is over (K8-02, K8-04). h2's own graceful shutdown
//! waits for peers to answer; the limit here does not (H2-51).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::runtime::DataPlane;

/// How often a drain looks whether it is over.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How long no client connection must have been open for a drain to go on.
const DRAIN_QUIET: Duration = Duration::from_secs(1);

/// What is left of a drain for calls that were answered UNAVAILABLE at its limit.
const DRAIN_LAST: Duration = Duration::from_secs(1);

impl DataPlane {
    /// Drains: what stands in front of a server stops accepting and sends GOAWAY at once. The rest
    /// goes on accepting until no client connection has been open for a second or `linger` is over
    /// (the application may still have last calls to make, to answer those it has too), then stops
    /// accepting, sends GOAWAY and finishes until `limit` in all, then answers UNAVAILABLE. Blocks.
    /// True if every call finished by itself.
    pub fn drain(&self, linger: Duration, limit: Duration) -> bool {
        let started = Instant::now();
        let linger = linger.min(limit);
        let only_inbound = self.control.lock().leave_inbound();
        let mut quiet_since = None;
        while !only_inbound && started.elapsed() < linger {
            if self.open_connections() > 0 {
                quiet_since = None;
            } else if quiet_since.get_or_insert_with(Instant::now).elapsed() >= DRAIN_QUIET {
                break;
            }
            std::thread::park_timeout(DRAIN_LOOK);
        }
        self.control.lock().leave(|thread| &thread.going_away);
        let rest = limit.saturating_sub(started.elapsed());
        if self.wait_until_idle(rest) {
            return true;
        }
        let clean = self.calls_in_flight() == 0;
        self.control.lock().leave(|thread| &thread.force);
        self.wait_until_idle(DRAIN_LAST);
        clean
    }

    fn wait_until_idle(&self, limit: Duration) -> bool {
        let started = Instant::now();
        while self.open_connections() > 0 || self.calls_in_flight() > 0 {
            if started.elapsed() >= limit {
                return false;
            }
            std::thread::park_timeout(DRAIN_LOOK);
        }
        true
    }

    /// Of every listener, those that a reload removed included.
    fn open_connections(&self) -> usize {
        let mut listeners = self.listeners();
        let mut control = self.control.lock();
        let leaving = control.leaving().listeners.iter();
        listeners.extend(leaving.filter_map(Weak::upgrade));
        let open = listeners.iter().map(|one| one.stats.open.load(Relaxed));
        open.sum()
    }

    /// Of every service, those that a reload removed included.
    fn calls_in_flight(&self) -> u32 {
        let routing = self.shared().routing.load();
        let mut services: Vec<_> = routing.services.values().map(Arc::clone).collect();
        let mut control = self.control.lock();
        let leaving = control.leaving().services.iter();
        services.extend(leaving.filter_map(Weak::upgrade));
        let calls = services.iter().map(|one| one.stats.in_flight.load(Relaxed));
        calls.sum()
    }
}
