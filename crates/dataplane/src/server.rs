//! One client connection: accept its calls, hand each over, leave politely.

use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::RecvStream;
use http::Request;
use tokio::time::{sleep, Sleep};

use crate::frames::{Alarm, Peer, Watched};
use crate::io::Rewound;
use crate::listener::Way;
use crate::proxy;
use crate::runtime::Thread;
use crate::stats::Limit;

/// What is left for answers that were made when the drain limit was over.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// HTTP/2 with a client.
type Http2 = Connection<Watched<Rewound>, Bytes>;

/// Begins HTTP/2; `None` if the client does not.
async fn shake_hands(thread: &Rc<Thread>, socket: Rewound) -> Option<(Http2, Alarm)> {
    let (timeout, alarm);
    let handshake = {
        let routing = thread.shared.routing.load();
        let limits = &routing.limits;
        timeout = Duration::from_millis(routing.timeouts.handshake_ms);
        let socket = Watched::new(socket, Peer::Client, limits, &routing.timeouts);
        alarm = socket.alarm();
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(limits.stream_window_bytes)
            .initial_connection_window_size(limits.connection_window_bytes())
            .max_concurrent_streams(limits.max_streams_per_connection)
            // Far above ours: up to there the call is answered with a gRPC status that names the
            // limit (SE-06), beyond it h2 answers 431. What has to be kept of a block that is not
            // complete is less: `Watched` limits it.
            .max_header_list_size(limits.header_list_bytes_read())
            .max_send_buffer_size(limits.max_send_buffer_bytes)
            .max_pending_accept_reset_streams(limits.max_pending_resets)
            // Frames that were on their way when we reset a stream are no mistake of the client's:
            // streams of a second are remembered, as many as there can be.
            .max_concurrent_reset_streams(limits.max_streams_per_connection as usize)
            // h2 counts over the life of a connection, which ends honest old ones; `Watched`
            // limits the rate.
            .max_local_error_reset_streams(None);
        builder.handshake::<_, Bytes>(socket)
    };
    match tokio::time::timeout(timeout, handshake).await {
        Ok(Ok(connection)) => return Some((connection, alarm)),
        Ok(Err(error)) => tracing::debug!(%error, "HTTP/2 handshake failed"),
        Err(_) => tracing::debug!("no HTTP/2 handshake within `timeouts.handshake`"),
    }
    None
}

/// How far a connection is on its way out.
#[derive(Default)]
struct Leaving {
    /// The client was told.
    politely: bool,
    /// It went over a limit: until when it may read which.
    cut_off: Option<Pin<Box<Sleep>>>,
    /// The drain limit is over, calls are being answered UNAVAILABLE: until when the answers may
    /// leave.
    forced: Option<Pin<Box<Sleep>>>,
}

impl Leaving {
    /// The next call; `None` when the connection is over.
    fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
        thread: &Thread,
        connection: &mut Http2,
        alarm: &Alarm,
    ) -> Poll<Option<Accepted>> {
        let accepted = connection.poll_accept(cx);
        let (Poll::Pending, Some(limit)) = (&accepted, alarm.must_end()) else {
            return accepted;
        };
        if self.cut_off.is_none() {
            thread.shared.stats.hit(limit);
            tracing::debug!(limit = limit.name(), "client connection cut off");
            connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
        }
        // Who floods us may not read the reason either.
        let timer = self
            .cut_off
            .get_or_insert_with(|| Box::pin(sleep(LAST_WORDS)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => connection.poll_accept(cx),
        }
    }
}

/// A call, or why there is none.
type Accepted = Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>;

/// Serves a connection until the client leaves, or until it was drained.
///
/// One `async fn`, and the beginning apart in memory of its own: this is what an idle connection
/// holds, and what is handed from one `async fn` to another is held twice.
pub(crate) async fn serve(thread: &Rc<Thread>, way: &Way, socket: Rewound) {
    let Some((mut connection, alarm)) = Box::pin(shake_hands(thread, socket)).await else {
        return;
    };
    let mut going_away = pin!(thread.going_away(&way.listener).cancelled());
    let mut force = pin!(thread.force.cancelled());
    let mut leaving = Leaving::default();
    let open = Rc::new(Cell::new(0_u32));
    loop {
        let accepted = poll_fn(|cx| {
            if !leaving.politely && going_away.as_mut().poll(cx).is_ready() {
                leaving.politely = true;
                connection.graceful_shutdown();
            }
            if leaving.forced.is_none() && force.as_mut().poll(cx).is_ready() {
                leaving.forced = Some(Box::pin(sleep(LAST_WORDS)));
            }
            let over = leaving.forced.as_mut();
            if over.is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(None);
            }
            leaving.poll_accept(cx, thread, &mut connection, &alarm)
        })
        .await;
        match accepted {
            Some(Ok((request, respond))) => {
                proxy::serve(thread, way, Slot::take(&open, thread), request, respond);
            }
            Some(Err(error)) => {
                if let Some(limit) = alarm.limit() {
                    thread.shared.stats.hit(limit);
                }
                return tracing::debug!(%error, "client connection ended");
            }
            None => return,
        }
    }
}

/// A call's place on its client connection, given back on drop.
#[derive(Debug)]
pub(crate) struct Slot(Rc<Cell<u32>>);

impl Slot {
    fn take(open: &Rc<Cell<u32>>, thread: &Thread) -> Self {
        open.set(open.get() + 1);
        // h2 refuses what a client opens beyond the limit it was told; this counts that it is full.
        if open.get()
            == thread
                .shared
                .routing
                .load()
                .limits
                .max_streams_per_connection
        {
            thread.shared.stats.hit(Limit::StreamsPerConnection);
        }
        Self(Rc::clone(open))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
