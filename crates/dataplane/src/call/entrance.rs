//! How a call comes into a server that a listener stands in front of: at once, after a wait for a
//! place, or not at all.

use std::pin::pin;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::request::Parts;
use tokio::time::Instant;

use super::{wait, Call};
use crate::exchange::CallGuard;
use crate::fault::Fault;
use crate::inbound::{Entry, Inbound, Place, Shed, Waiting};
use crate::stats::Limit;

impl Call {
    /// Sends the call; in front of a server it needs a place there first, and where there is none, a
    /// task waits for it.
    pub(crate) fn enter(
        self,
        mut guard: CallGuard,
        head: Parts,
        body: RecvStream,
        mut respond: SendResponse<Bytes>,
    ) {
        let inbound = self.service.inbound();
        let Some(inbound) = inbound.filter(|_| Inbound::is_gated(head.uri.path())) else {
            return self.start(guard, head, body, respond);
        };
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let waiting = match inbound.enter(self.received_ns, left_ns) {
            Entry::Begun(place) => {
                guard.place = Some(place);
                return self.start(guard, head, body, respond);
            }
            Entry::Shed(shed) => {
                let fault = self.shed(inbound, shed);
                return self.give_up(Some(fault), guard, respond);
            }
            Entry::Waits(waiting) => waiting,
        };
        tokio::task::spawn_local(async move {
            let waited = {
                let mut timer = self.timer();
                let turn = pin!(self.wait_for_place(waiting));
                wait(turn, &mut respond, timer.as_mut()).await
            };
            match waited {
                Some(Ok(place)) => {
                    guard.place = Some(place);
                    self.start(guard, head, body, respond);
                }
                ended => self.give_up(ended.and_then(Result::err), guard, respond),
            }
        });
    }

    async fn wait_for_place(&self, mut waiting: Waiting) -> Result<Place, Fault> {
        let Some(inbound) = self.service.inbound() else {
            return Err(Fault::ShuttingDown);
        };
        let turn = tokio::time::timeout(inbound.queue_timeout(), waiting.turn());
        let turn = tokio::select! {
            turn = turn => turn,
            () = self.thread.force.cancelled() => return Err(Fault::ShuttingDown),
        };
        if turn.is_err() {
            return Err(self.shed(inbound, Shed::QueueTimeout));
        }
        let (place, waited_ns) = waiting.begin(self.thread.clock.now_ns());
        inbound.waited(waited_ns);
        Ok(place)
    }

    /// Counts a call that its server has no place for.
    fn shed(&self, inbound: &Inbound, shed: Shed) -> Fault {
        let stats = &self.thread.shared.stats;
        match shed {
            Shed::QueueLength => stats.hit(Limit::QueueLength),
            Shed::QueueTimeout => stats.hit(Limit::QueueTimeout),
            Shed::Deadline => {}
        }
        let lot = self.thread.lots.borrow_mut().unit_f64();
        Fault::Shed {
            listener: self.service.name.clone(),
            shed,
            push_back_ms: inbound.shed(shed, lot),
        }
    }
}
