//! How long calls may stay on a connection that takes no more of them (H2-17): its endpoint drains,
//! has left the set, or the connection is as old as it may become. A call without an end, a watch,
//! would otherwise hold it for ever, and with it an endpoint that waits to be gone.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{sleep, Sleep};

/// Watches one connection.
#[derive(Debug)]
pub(crate) struct Stay {
    /// From when on it leaves; `None`: as long as they like.
    longest: Option<Duration>,
    /// Once it leaves.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stay {
    pub(crate) fn new(longest: Option<Duration>) -> Self {
        Self {
            longest,
            timer: None,
        }
    }

    /// Whether there is anything to watch.
    pub(crate) fn is_limited(&self) -> bool {
        self.longest.is_some()
    }

    /// True once calls have stayed for too long. To be polled whenever `leaves` may have changed.
    pub(crate) fn poll_over(&mut self, leaves: bool, cx: &mut Context<'_>) -> bool {
        let Some(longest) = self.longest.filter(|_| leaves) else {
            return false;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(longest)));
        matches!(timer.as_mut().poll(cx), Poll::Ready(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::Stay;

    #[test]
    fn the_time_runs_from_when_the_connection_leaves() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut stay = Stay::new(Some(Duration::from_millis(1)));
            assert!(!stay.poll_over(false, &mut Context::from_waker(Waker::noop())));
            assert!(stay.timer.is_none(), "it does not leave yet");
            poll_fn(|cx| {
                if stay.poll_over(true, cx) {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
            let mut free = Stay::new(None);
            assert!(!free.poll_over(true, &mut Context::from_waker(Waker::noop())));
            assert!(free.timer.is_none() && !free.is_limited());
        });
    }
}
