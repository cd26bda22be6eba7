//! What the calls of a service share: room in flight, connections, and the calls that wait for a
//! place where the policy says that they wait instead of fail.
//!
//! Two things end a wait: an attempt that ends makes room for one call, which is the one that has
//! waited longest; a change of the endpoints (one that can be connected to again, a new set) is looked at
//! by all. Whoever wakes picks again, and waits on if that fails.

use std::pin::pin;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::config::ServiceLimits;

/// How often a call that waits looks without an event: the room that was made may be where the
/// rules of the one that was told of it allow nothing.
const LOOK: Duration = Duration::from_millis(50);

/// What the endpoints of a service have in common.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Attempts in flight at all of them, those that left the set included.
    pub in_flight: AtomicU32,
    /// Bytes that they may hold because one side does not take them.
    pub held_bytes: AtomicU64,
    /// Calls that wait.
    pub waiting: Waiting,
}

/// Connections to the endpoints of a service, those that are being made included.
#[derive(Debug, Default)]
pub struct Connections(AtomicU32);

/// A connection's place among them, given back on drop.
#[derive(Debug)]
pub(crate) struct Reserved(Arc<Connections>);

impl Connections {
    /// The limit, if there is one and it is reached.
    pub(crate) fn is_full(&self, limits: &ServiceLimits) -> Option<u32> {
        let limit = limits.max_open_connections?;
        (self.0.load(Relaxed) >= limit).then_some(limit)
    }

    /// A place for one more.
    pub(crate) fn reserve(this: &Arc<Self>, limits: &ServiceLimits) -> Option<Reserved> {
        let limit = limits.max_open_connections.unwrap_or(u32::MAX);
        let enter = |count: u32| (count < limit).then_some(count + 1);
        this.0.fetch_update(Relaxed, Relaxed, enter).ok()?;
        Some(Reserved(Arc::clone(this)))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Relaxed);
    }
}

/// The calls of a service that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    calls: AtomicU32,
    room: Notify,
    change: Notify,
}

/// A call that waits, counted while it does.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    waiting: &'a Waiting,
}

impl Crowd {
    /// A crowd with that many attempts in flight.
    #[must_use]
    pub fn of(in_flight: u32) -> Self {
        Self {
            in_flight: AtomicU32::new(in_flight),
            ..Self::default()
        }
    }
}

impl Waiting {
    /// Calls that wait now.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    /// An attempt ended.
    pub(crate) fn make_room(&self) {
        // Sequentially consistent on both sides: whoever has counted itself in and then finds no
        // room is seen here.
        if self.calls.load(SeqCst) > 0 {
            self.room.notify_one();
        }
    }

    /// The endpoints changed.
    pub(crate) fn changed(&self) {
        self.change.notify_waiters();
    }

    /// Counts a call in; `None` if `limit` calls wait already.
    pub(crate) fn enter(&self, limit: u32) -> Option<Waiter<'_>> {
        let enter = |count: u32| (count < limit).then_some(count + 1);
        self.calls.fetch_update(SeqCst, SeqCst, enter).ok()?;
        Some(Waiter { waiting: self })
    }
}

impl Waiter<'_> {
    /// Returns what `attempt` gives once it gives something. It is asked at once, and again with
    /// each event that may help.
    pub(crate) async fn until<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            let mut room = pin!(self.waiting.room.notified());
            let mut change = pin!(self.waiting.change.notified());
            room.as_mut().enable();
            change.as_mut().enable();
            loop {
                if let Some(found) = attempt() {
                    return found;
                }
                tokio::select! {
                    () = room.as_mut() => break,
                    () = change.as_mut() => break,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiting.calls.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::Waiting;

    #[tokio::test]
    async fn room_is_given_to_the_one_that_waits_longest() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let waiting = Rc::new(Waiting::default());
                let (room, served) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(String::new())));
                let tasks: Vec<_> = ["a", "b", "c"]
                    .into_iter()
                    .map(|name| {
                        let (waiting, room, served) =
                            (Rc::clone(&waiting), Rc::clone(&room), Rc::clone(&served));
                        tokio::task::spawn_local(async move {
                            let waiter = waiting.enter(3).expect("there is a place");
                            let take = || (room.get() > 0).then(|| room.set(room.get() - 1));
                            waiter.until(take).await;
                            served.set(served.take() + name);
                        })
                    })
                    .collect();
                tokio::task::yield_now().await;
                assert_eq!(waiting.calls(), 3);
                assert!(waiting.enter(3).is_none(), "a fourth call waits");
                for task in tasks {
                    room.set(1);
                    waiting.make_room();
                    task.await.expect("it ends");
                }
                assert_eq!(served.take(), "abc");
                assert_eq!(waiting.calls(), 0);
            })
            .await;
    }

    #[tokio::test]
    async fn a_call_that_gives_up_leaves_its_room_to_the_next() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.enter(2), waiting.enter(2));
        let (first, second) = (first.expect("a place"), second.expect("a place"));
        let room = Cell::new(false);
        let take = || room.get().then_some(());
        let mut waits = Box::pin(second.until(take));
        {
            let mut gives_up = Box::pin(first.until(take));
            tokio::select! {
                biased;
                () = &mut gives_up => panic!("there was no room"),
                () = &mut waits => panic!("there was no room"),
                () = tokio::task::yield_now() => {}
            }
            room.set(true);
            waiting.make_room();
        }
        drop(first);
        waits.await;
    }
}
