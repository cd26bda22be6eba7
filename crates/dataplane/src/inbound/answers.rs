//! What an `inbound` listener answers itself: how loaded its server is, to whoever asks between
//! calls. Nothing of it reaches the server, waits for a place or counts as a call.
//!
//! `attnroute.probe.v1.Probe/Get` answers one question, for `prequal`;
//! `xds.service.orca.v3.OpenRcaService/StreamCoreMetrics` (gRFC A51) tells again and again.

use std::future::{poll_fn, Future};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{HeaderValue, CONTENT_TYPE};
use prost::Message;

use super::report::{merged, Encoded};
use super::{theirs, Inbound};
use crate::grpc::{self, Code, Status};
use crate::listener::Listener;
use crate::own_call::{framed, unframed};
use crate::probe::{Answer, PATH as PROBE};
use crate::runtime::Thread;
use crate::server::Slot;
use crate::service::Service;

pub(super) const REPORTS: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Interval of reports where a client names none.
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest interval, since no clock goes on for ever.
const INTERVAL_MAX: Duration = Duration::from_secs(86_400);

/// Bytes of a request that are read at most: it holds an interval, or nothing.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// A call that is not for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// How loaded is it now?
    Probe,
    /// How loaded is it, as long as the client listens?
    Reports,
}

/// `xds.service.orca.v3.OrcaLoadReportRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReportRequest {
    #[prost(message, optional, tag = "1")]
    report_interval: Option<ProtoDuration>,
}

impl ReportRequest {
    /// Asks for a report in that interval.
    pub(super) fn every(interval: Duration) -> Self {
        Self {
            report_interval: Some(ProtoDuration {
                seconds: i64::try_from(interval.as_secs()).unwrap_or(i64::MAX),
                nanos: interval.subsec_nanos() as i32,
            }),
        }
    }
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Question {
    /// Whether a call is one.
    pub(crate) fn of(service: &Service, path: &str) -> Option<Self> {
        service.inbound()?;
        match path {
            PROBE => Some(Self::Probe),
            REPORTS => Some(Self::Reports),
            _ => None,
        }
    }

    /// Answers it, in a task of its own.
    pub(crate) fn answer(
        self,
        thread: &Rc<Thread>,
        listener: &Arc<Listener>,
        service: Arc<Service>,
        slot: Slot,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) {
        let thread = Rc::clone(thread);
        let leaving = thread.going_away(listener).clone();
        let listener = Arc::clone(listener);
        tokio::task::spawn_local(async move {
            let _slot = slot;
            let Some(inbound) = service.inbound() else {
                return;
            };
            let told = Telling {
                thread: &thread,
                inbound,
                respond,
            };
            match self {
                Self::Probe => told.probe(body).await,
                Self::Reports => {
                    let ask = |interval| theirs::ask(&thread, &listener, &service, interval);
                    told.reports(body, leaving.cancelled(), ask).await;
                }
            }
        });
    }
}

/// One answer under way.
struct Telling<'a> {
    thread: &'a Thread,
    inbound: &'a Inbound,
    respond: SendResponse<Bytes>,
}

impl Telling<'_> {
    async fn probe(mut self, body: RecvStream) {
        // Whatever it says: the question has no fields.
        if message_of(body).await.is_none() {
            return self.refuse(Code::Internal, "attnroute: a probe is one message");
        }
        self.inbound.stats.probes.fetch_add(1, Relaxed);
        let load = self.inbound.load(self.thread.clock.now_ns());
        let answer = Answer {
            inflight: load.inflight,
            latency_s: load.latency_ns.unwrap_or(0.0) / 1e9,
        };
        let Some(mut stream) = self.begin() else {
            return;
        };
        if stream
            .send_data(framed(&answer.encode_to_vec()), false)
            .is_ok()
        {
            let _ = stream.send_trailers(grpc::trailers(&Status::new(Code::Ok, "")));
        }
    }

    /// Reports until the client leaves, or the listener does.
    /// `ask` sees to it that the server is asked for its own.
    async fn reports(
        mut self,
        body: RecvStream,
        leaving: impl Future<Output = ()>,
        ask: impl Fn(Duration),
    ) {
        let message = message_of(body).await;
        let Some(request) = message.and_then(|message| ReportRequest::decode(message).ok()) else {
            return self.refuse(
                Code::Internal,
                "attnroute: expected one OrcaLoadReportRequest",
            );
        };
        let asked = request
            .report_interval
            .map_or(INTERVAL, ProtoDuration::length);
        let least = Duration::from_millis(self.inbound.config.load().min_report_interval_ms);
        let Some(mut stream) = self.begin() else {
            return;
        };
        let _open = OpenStream::new(self.inbound);
        let mut leaving = pin!(leaving);
        let interval = asked.clamp(least, least.max(INTERVAL_MAX));
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let goes_on = poll_fn(|cx| {
                if stream.poll_reset(cx).is_ready() {
                    return Poll::Ready(Next::Gone);
                }
                if leaving.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Next::Leave);
                }
                ticks.poll_tick(cx).map(|_| Next::Report)
            })
            .await;
            match goes_on {
                Next::Gone => return,
                Next::Leave => {
                    let status =
                        Status::new(Code::Unavailable, "attnroute: the sidecar is leaving");
                    let _ = stream.send_trailers(grpc::trailers(&status));
                    return;
                }
                // A client that does not read gets no more than fits its window.
                Next::Report => {
                    let load = self.inbound.load(self.thread.clock.now_ns());
                    let report = Encoded::new(&load, self.inbound.started_s());
                    ask(interval);
                    let theirs = self.inbound.theirs.report().unwrap_or_default();
                    if !send(&mut stream, framed(&merged(&report, &theirs))) {
                        return;
                    }
                }
            }
        }
    }

    /// Sends the head of an answer.
    fn begin(&mut self) -> Option<SendStream<Bytes>> {
        let mut head = http::Response::new(());
        let grpc = HeaderValue::from_static("application/grpc");
        head.headers_mut().insert(CONTENT_TYPE, grpc);
        self.respond.send_response(head, false).ok()
    }

    fn refuse(&mut self, code: Code, message: &'static str) {
        let status = Status::new(code, message);
        let _ = self
            .respond
            .send_response(grpc::trailers_only(&status), true);
    }
}

enum Next {
    Report,
    Leave,
    Gone,
}

/// A stream of reports, counted while it is open.
struct OpenStream<'a>(&'a Inbound);

impl<'a> OpenStream<'a> {
    fn new(inbound: &'a Inbound) -> Self {
        inbound.stats.report_streams.fetch_add(1, Relaxed);
        Self(inbound)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.stats.report_streams.fetch_sub(1, Relaxed);
    }
}

impl ProtoDuration {
    /// 0 for one that is negative.
    fn length(self) -> Duration {
        let seconds = u64::try_from(self.seconds).unwrap_or(0);
        let nanos = u32::try_from(self.nanos).unwrap_or(0).min(999_999_999);
        Duration::new(seconds, nanos)
    }
}

/// Sends a message unless an earlier one still waits for the client to read. False if it is gone.
fn send(stream: &mut SendStream<Bytes>, message: Bytes) -> bool {
    stream.reserve_capacity(message.len());
    if stream.capacity() < message.len() {
        return true;
    }
    stream.send_data(message, false).is_ok()
}

/// The message of a request that has one, and is over; not compressed.
async fn message_of(mut body: RecvStream) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.ok()?;
        if bytes.len() + part.len() > REQUEST_BYTES_MAX {
            return None;
        }
        bytes.extend_from_slice(&part);
        let _ = body.flow_control().release_capacity(part.len());
    }
    unframed(&bytes).map(Bytes::copy_from_slice)
}
