//! Whether the client of a call takes what there is of its answer.
//!
//! Back-pressure holds the endpoint while the client does not read, and both hold memory for as long
//! as that lasts (SE-07). A client that takes nothing at all for `timeouts.stalled_stream` loses the
//! call. How long a stream may say nothing is another matter, and not limited.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{sleep, Instant, Sleep};

use crate::runtime::Thread;

/// The reading side of a call.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Made when the client first lets an answer wait, and never set anew for progress: when it
    /// fires and something was taken meanwhile, it runs once more. That costs a fast stream nothing,
    /// and at most doubles the time for a stalled one.
    timer: Option<Pin<Box<Sleep>>>,
    has_taken: bool,
}

impl Reader {
    /// Something was handed on.
    pub(crate) fn took(&mut self) {
        self.has_taken = true;
    }

    /// To be asked while something waits for the client. True once it has taken nothing for too
    /// long.
    pub(crate) fn is_stalled(&mut self, cx: &mut Context<'_>, thread: &Thread) -> bool {
        let timeout_ms = thread.shared.routing.load().timeouts.stalled_stream_ms;
        if timeout_ms == 0 {
            return false;
        }
        let timeout = Duration::from_millis(timeout_ms);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        while let Poll::Ready(()) = timer.as_mut().poll(cx) {
            if !std::mem::take(&mut self.has_taken) {
                return true;
            }
            timer.as_mut().reset(Instant::now() + timeout);
        }
        false
    }
}
