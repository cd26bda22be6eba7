//! What the server says of its own load between calls (gRFC A51), for those who ask here.
//!
//! Whoever follows the reports of an `inbound` listener would miss what only the application knows:
//! its CPU, its memory, metrics of its own. So as long as somebody follows them, one stream asks
//! the server; its last report is merged into ours, as those of answers are. A server that serves
//! no reports is left alone for a while; when a stream ends, what it said no longer counts.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use parking_lot::Mutex;
use prost::Message;
use tokio::time::{timeout, MissedTickBehavior};

use super::answers::{ReportRequest, REPORTS};
use super::Inbound;
use crate::grpc::{self, Code};
use crate::listener::Listener;
use crate::orca::{LoadReport, REPORT_BYTES_MAX};
use crate::own_call::{framed, request, PREFIX_BYTES};
use crate::pool::Pool;
use crate::runtime::Thread;
use crate::service::Service;

/// How long a server that serves no reports is not asked again, and one whose stream ended.
const LEFT_ALONE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(1);

/// How often it is looked whether anybody still follows.
const LOOK: Duration = Duration::from_secs(1);

/// How a look at the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerReport {
    /// A report came.
    Received,
    /// It cannot be read.
    Malformed,
    /// The server serves none.
    Unimplemented,
    /// The stream could not be opened, or ended.
    Failed,
}

impl ServerReport {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self::Received,
        Self::Malformed,
        Self::Unimplemented,
        Self::Failed,
    ];

    /// The metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Malformed => "malformed",
            Self::Unimplemented => "unimplemented",
            Self::Failed => "failed",
        }
    }
}

/// The last report of the server, and whether it is asked.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    report: Mutex<Option<Bytes>>,
    is_asked: AtomicBool,
    /// Until when it is left alone.
    until_ns: AtomicU64,
    /// By [`ServerReport`].
    pub(super) counts: [AtomicU64; ServerReport::ALL.len()],
}

impl Theirs {
    /// What the server says of itself, as long as a stream from it is open.
    pub(super) fn report(&self) -> Option<Bytes> {
        self.report.lock().clone()
    }

    fn count(&self, what: ServerReport) {
        self.counts[what as usize].fetch_add(1, Relaxed);
    }
}

/// Sees to it that the server is asked, for somebody who follows the reports of its listener.
pub(super) fn ask(
    thread: &Rc<Thread>,
    listener: &Listener,
    service: &Arc<Service>,
    interval: Duration,
) {
    let Some(inbound) = service.inbound() else {
        return;
    };
    let theirs = &inbound.theirs;
    let now_ns = thread.clock.now_ns();
    if now_ns < theirs.until_ns.load(Relaxed) || theirs.is_asked.swap(true, Relaxed) {
        return;
    }
    let leaving = thread.going_away(listener).clone();
    let (thread, service) = (Rc::clone(thread), Arc::clone(service));
    tokio::task::spawn_local(async move {
        let Some(inbound) = service.inbound() else {
            return;
        };
        // Freed however the task ends, with the runtime as well.
        let asked = Asked(&inbound.theirs);
        let ended = tokio::select! {
            ended = follow(&thread, &service, inbound, interval) => ended,
            () = leaving.cancelled() => None,
        };
        let Some(why) = ended else {
            return;
        };
        asked.0.count(why);
        let pause = match why {
            ServerReport::Unimplemented => LEFT_ALONE,
            _ => PAUSE,
        };
        let until_ns = thread.clock.now_ns() + pause.as_nanos() as u64;
        asked.0.until_ns.store(until_ns, Relaxed);
    });
}

/// The stream from a server, in its record while it is open.
struct Asked<'a>(&'a Theirs);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.0.report.lock() = None;
        self.0.is_asked.store(false, Relaxed);
    }
}

/// Takes reports in as they come. `None` once nobody follows them here.
async fn follow(
    thread: &Rc<Thread>,
    service: &Arc<Service>,
    inbound: &Inbound,
    interval: Duration,
) -> Option<ServerReport> {
    let (endpoint, settings) = {
        let snapshot = service.snapshot();
        let server = snapshot.members.first()?;
        (Arc::clone(&server.endpoint), Arc::clone(&snapshot.settings))
    };
    let opening = async {
        let lease = match thread.pool.try_lease(&endpoint, &settings) {
            Some(lease) => lease,
            None => Pool::lease(thread, service, &endpoint, &settings)
                .await
                .ok()?,
        };
        let question = framed(&ReportRequest::every(interval).encode_to_vec());
        let (answer, mut upward) = lease.open(request(&endpoint, REPORTS, None), false).ok()?;
        upward.send_data(question, true).ok()?;
        // Kept until the stream ends: it is a place on the connection.
        Some((lease, answer.await.ok()?))
    };
    let opened = timeout(settings.connection.connect_timeout(), opening).await;
    let Ok(Some((_lease, answer))) = opened else {
        return Some(ServerReport::Failed);
    };
    let (head, mut body) = answer.into_parts();
    if grpc::status_code(&head.headers) == Some(Code::Unimplemented) {
        return Some(ServerReport::Unimplemented);
    }
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unread = BytesMut::new();
    loop {
        tokio::select! {
            part = body.data() => match part {
                Some(Ok(part)) => {
                    let _ = body.flow_control().release_capacity(part.len());
                    unread.extend_from_slice(&part);
                    if !take_in(inbound, service, &mut unread) {
                        return Some(ServerReport::Malformed);
                    }
                }
                Some(Err(_)) => return Some(ServerReport::Failed),
                None => return Some(end_of(&mut body).await),
            },
            _ = ticks.tick() => {
                if inbound.stats.report_streams.load(Relaxed) == 0 {
                    return None;
                }
            }
        }
    }
}

/// Why the server ended the stream.
async fn end_of(body: &mut RecvStream) -> ServerReport {
    let trailers = body.trailers().await.ok().flatten();
    match trailers.and_then(|trailers| grpc::status_code(&trailers)) {
        Some(Code::Unimplemented) => ServerReport::Unimplemented,
        _ => ServerReport::Failed,
    }
}

/// Takes whole messages out of what came. False if they are none, or longer than a report.
fn take_in(inbound: &Inbound, service: &Service, unread: &mut BytesMut) -> bool {
    while let Some([flag, length @ ..]) = unread.first_chunk::<PREFIX_BYTES>().copied() {
        let length = u32::from_be_bytes(length) as usize;
        if flag != 0 || length > REPORT_BYTES_MAX {
            return false;
        }
        if unread.len() < PREFIX_BYTES + length {
            break;
        }
        unread.advance(PREFIX_BYTES);
        let message = unread.split_to(length).freeze();
        let names = &service.snapshot().settings.metric_names;
        if LoadReport::decode(&message, names).is_err() {
            return false;
        }
        inbound.theirs.count(ServerReport::Received);
        *inbound.theirs.report.lock() = Some(message);
    }
    true
}
