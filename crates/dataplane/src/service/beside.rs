//! Large sets: what follows from one endpoint's change is worked out on a thread of its own.
//!
//! A snapshot of 10,000 endpoints takes half a millisecond to build, 5 with `maglev` and 65 with
//! `ring_hash`; a data thread that finds a hundred of them dead would stand still for that long a
//! hundred times. Beside it that costs no call anything: until the next snapshot is in force, a call
//! that is placed at a dead endpoint goes on to another one. Small sets are done at once, where a
//! thread would cost more.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use super::Service;

/// Endpoints above which a set is large: a snapshot of as many takes no longer than to start a
/// thread, and 2 ms with `ring_hash`.
const LARGE: usize = 250;

/// What a service needs to work beside its callers.
#[derive(Debug, Default)]
pub(super) struct Beside {
    this: OnceLock<Weak<Service>>,
    /// A thread will build the next snapshot and has not looked at the endpoints yet.
    asked: AtomicBool,
}

impl Service {
    /// A service that several threads share.
    #[must_use]
    pub fn shared(self) -> Arc<Self> {
        let this = Arc::new(self);
        let _ = this.beside.this.set(Arc::downgrade(&this));
        this
    }

    /// Has the next snapshot built, because something about an endpoint has changed.
    pub(super) fn refresh(&self) {
        let Some(this) = self.if_large() else {
            return self.rebuild();
        };
        if !self.beside.asked.swap(true, SeqCst) && !run(move || this.rebuild()) {
            self.rebuild();
        }
    }

    fn rebuild(&self) {
        let mut writer = self.writer.lock();
        // Before anything is read: what changes from here on asks again.
        self.beside.asked.store(false, SeqCst);
        let current = self.snapshot.load();
        self.republish(&mut writer, &current);
    }

    /// Itself, if its set is large and it is shared.
    pub(super) fn if_large(&self) -> Option<Arc<Self>> {
        let this = self.beside.this.get()?;
        let is_large = self.snapshot.load().members.len() > LARGE;
        if is_large {
            this.upgrade()
        } else {
            None
        }
    }
}

/// Runs `work` on a thread of its own. False if there is none to be had.
pub(super) fn run(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name("snapshot".to_owned());
    thread.spawn(work).is_ok()
}
