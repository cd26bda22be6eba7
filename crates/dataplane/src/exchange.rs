//! A call under way: the state machine that moves its frames in both directions.
//!
//! Back-pressure is end to end: a frame is taken from one side only when the other side's window
//! has room, and its receive window is given back only when it was handed on. Nothing is collected
//! before it is sent, and no message is looked into.
//!
//! A future of its own instead of an `async fn`: it is the memory of a stream, so its size counts.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{ready, Context, Poll, Waker};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use tokio::time::{Instant, Sleep};

use crate::attempt::{Attempt, Sample};
use crate::call_record::{CallRecord, EndedCall};
use crate::endpoint::Outcome;
use crate::fault::Fault;
use crate::framing::Framing;
use crate::grpc::{self, Code};
use crate::inbound::Place;
use crate::orca::{Claims, LOAD_METRICS, PUSH_BACK};
use crate::pool::Lease;
use crate::reader::Reader;
use crate::replay::{Again, Replay};
use crate::runtime::Thread;
use crate::server::Slot;
use crate::service::{Service, ServiceStats};
use crate::stats::Limit;
use crate::streaming::Method;
use crate::upload::Rest;

/// Counts a call in, and out exactly once with its final status.
#[derive(Debug)]
pub(crate) struct CallGuard {
    pub(crate) thread: Rc<Thread>,
    /// `None` for calls that no service takes.
    pub(crate) service: Option<Arc<Service>>,
    /// When the request headers were there.
    pub(crate) received_ns: u64,
    /// Where the call goes into the access log.
    pub(crate) record: Option<Box<CallRecord>>,
    /// In front of a server: its place there.
    pub(crate) place: Option<Place>,
    code: Code,
    _slot: Slot,
}

/// Both directions of a call. Resolves when the client has its whole answer, or has left, or when
/// the endpoint did not process the call, which can then be sent again.
pub(crate) struct Exchange {
    /// Client to endpoint; `None` once the request is complete or the endpoint wants no more.
    up: Option<Pump>,
    answer: ResponseFuture,
    down: Down,
    /// The answer is gRPC: it must end with a status.
    grpc: bool,
    /// Status if the answer ends without trailers and is not gRPC.
    code: Code,
    /// Messages of the request and of the answer.
    asked: Framing,
    framing: Framing,
    method: Method,
    /// The method is known to be streaming.
    streaming: bool,
    /// The first message of the answer has come.
    answered: bool,
    /// Only where there is a deadline.
    timer: Option<Pin<Box<Sleep>>>,
    attempt: Option<Attempt>,
    /// Taken from the trailers, read after they were passed on.
    claims: Option<Box<Claims>>,
    /// Whether the client takes what there is of the answer.
    reader: Reader,
    /// Why the answer breaks off, while what there is of it leaves.
    broken: Option<Box<Fault>>,
    /// What another try needs, as long as there can be one.
    replay: Option<Box<Replay>>,
    /// What was read of the request before and goes first, where it could have been tried again.
    rest: Option<Box<Rest>>,
    /// The request was longer than what is kept.
    outgrew_replay: bool,
    guard: CallGuard,
    lease: Lease,
}

/// Endpoint to client.
enum Down {
    /// The answer's head has not come.
    Head(SendResponse<Bytes>),
    /// Its body is passed on.
    Body(Pump),
}

/// How the exchange with the endpoint ended.
enum End {
    /// The whole answer was handed to the client.
    Complete(Code),
    /// The client reset the call, or its connection is gone.
    ClientGone,
    /// Something of ours or of the endpoint's.
    Failed(Fault),
}

impl CallGuard {
    pub(crate) fn new(
        thread: &Rc<Thread>,
        service: Option<Arc<Service>>,
        received_ns: u64,
        slot: Slot,
        record: Option<Box<CallRecord>>,
    ) -> Self {
        let thread = Rc::clone(thread);
        thread.activity.touch();
        let guard = Self {
            thread,
            service,
            received_ns,
            record,
            place: None,
            code: Code::Unavailable,
            _slot: slot,
        };
        guard.stats().in_flight.fetch_add(1, Relaxed);
        guard
    }

    pub(crate) fn stats(&self) -> &ServiceStats {
        self.service
            .as_ref()
            .map_or(&self.thread.shared.stats.unrouted, |service| &service.stats)
    }

    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }

    /// Ends a call whose answer has not begun.
    pub(crate) fn refuse(mut self, mut respond: SendResponse<Bytes>, fault: &Fault) {
        let status = fault.status();
        self.code = status.code;
        let mut response = grpc::trailers_only(&status);
        self.report_in(response.headers_mut());
        if let Some(push_back_ms) = fault.push_back_ms() {
            response
                .headers_mut()
                .insert(&PUSH_BACK, push_back_ms.into());
        }
        // Fails only if the client has left meanwhile.
        let _ = respond.send_response(response, true);
    }

    /// In front of a server: adds its load report to what ends an answer.
    fn report_in(&self, trailers: &mut HeaderMap) {
        if let Some(inbound) = self.service.as_deref().and_then(Service::inbound) {
            let now_ns = self.thread.clock.now_ns();
            inbound.append_report(trailers, self.place.as_ref(), now_ns);
        }
    }

    /// What the end of an answer tells the sidecar; in front of a server the report is added.
    fn take_claims(&self, trailers: &mut HeaderMap) -> Option<Box<Claims>> {
        let service = self.service.as_deref()?;
        if service.inbound().is_some() {
            self.report_in(trailers);
            return None;
        }
        take_claims(Some(service), trailers)
    }

    /// In front of a server: gives its place back.
    fn leave(&mut self, now_ns: u64, code: Code) {
        let inbound = self.service.as_deref().and_then(Service::inbound);
        if let (Some(inbound), Some(place)) = (inbound, &mut self.place) {
            inbound.leave(place, now_ns, code);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let now_ns = self.thread.clock.now_ns();
        let duration_ns = now_ns.saturating_sub(self.received_ns);
        self.leave(now_ns, self.code);
        let stats = self.stats();
        stats.in_flight.fetch_sub(1, Relaxed);
        stats.ended[usize::from(self.code.number())].fetch_add(1, Relaxed);
        stats.duration.record(duration_ns);
        if let Some(record) = self.record.take() {
            let ended = EndedCall::new(record, self.service.clone(), duration_ns, self.code);
            self.thread.shared.note(ended);
        }
    }
}

/// What an [`Exchange`] is made of once the endpoint's stream is open.
pub(crate) struct Parts {
    pub(crate) guard: CallGuard,
    pub(crate) attempt: Attempt,
    pub(crate) lease: Lease,
    pub(crate) method: Method,
    pub(crate) timer: Option<Pin<Box<Sleep>>>,
    /// The rest of the request's body, what was taken of it already, and where it goes; `None` if
    /// all of it went.
    pub(crate) up: Option<(RecvStream, Bytes, SendStream<Bytes>)>,
    pub(crate) answer: ResponseFuture,
    pub(crate) respond: SendResponse<Bytes>,
    pub(crate) max_message_bytes: Option<u32>,
    /// `None` where nothing is kept.
    pub(crate) replay: Option<Box<Replay>>,
}

impl Exchange {
    /// Takes a call over. What is there of the request's body goes out at once, in the same write
    /// as its headers.
    pub(crate) fn begin(parts: Parts) -> Self {
        let mut exchange = Self::new(parts);
        // The task's first poll registers the waker; a client that left is found then, too.
        let _ = exchange.poll_up(&mut Context::from_waker(Waker::noop()));
        exchange
    }

    fn new(parts: Parts) -> Self {
        let service = parts.guard.service.as_ref();
        let longest = parts.max_message_bytes.unwrap_or(u32::MAX);
        Self {
            streaming: service.is_some_and(|service| service.streaming.contains(parts.method)),
            method: parts.method,
            answered: false,
            asked: Framing::with_limit(longest),
            up: parts
                .up
                .map(|(from, taken, to)| Pump::new(from, taken, to, true)),
            answer: parts.answer,
            down: Down::Head(parts.respond),
            grpc: true,
            code: Code::Unknown,
            framing: Framing::with_limit(longest),
            timer: parts.timer,
            attempt: Some(parts.attempt),
            claims: None,
            reader: Reader::default(),
            broken: None,
            replay: parts.replay,
            rest: None,
            outgrew_replay: false,
            guard: parts.guard,
            lease: parts.lease,
        }
    }

    /// Takes over the attempt that a call which could have been tried again stays with: the head of
    /// its answer is there. `rest`: what it has still to send before it reads on from the client.
    /// `None` if the client is gone.
    pub(crate) fn resume(
        parts: Parts,
        rest: Option<Rest>,
        asked: Framing,
        response: Response<RecvStream>,
    ) -> Option<Self> {
        let mut exchange = Self::new(parts);
        exchange.asked = asked;
        exchange.rest = rest.map(Box::new);
        match exchange.pass_head(response) {
            None => Some(exchange),
            Some(end) => {
                exchange.conclude(end);
                None
            }
        }
    }

    fn poll_moving(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let polled = self.poll_end(cx);
        self.follow_messages();
        self.follow_held();
        polled
    }

    /// Counts what waits here for a side that does not take it (`limits.max_held_bytes`).
    fn follow_held(&mut self) {
        let is_held = |pump: &Pump| !pump.chunk.is_empty();
        let up = self.up.as_ref().is_some_and(is_held);
        let down = matches!(&self.down, Down::Body(pump) if is_held(pump));
        if let Some(attempt) = &mut self.attempt {
            let window_bytes = match up || down {
                true => {
                    self.guard
                        .thread
                        .shared
                        .routing
                        .load()
                        .limits
                        .stream_window_bytes
                }
                false => 0,
            };
            attempt.hold(usize::from(up) + usize::from(down), window_bytes);
        }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.poll_up(cx) || self.poll_client_gone(cx) {
            return Poll::Ready(End::ClientGone);
        }
        if self.asked.too_long().is_some() {
            return Poll::Ready(End::Failed(self.fault_of_message()));
        }
        let answered = match self.down {
            Down::Head(_) => self.poll_head(cx),
            Down::Body(_) => Poll::Ready(None),
        };
        let end = match answered {
            Poll::Ready(Some(end)) => return Poll::Ready(end),
            Poll::Ready(None) => self.poll_body(cx),
            Poll::Pending => Poll::Pending,
        };
        if end.is_pending()
            && self
                .timer
                .as_mut()
                .is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
        {
            return Poll::Ready(End::Failed(Fault::Deadline));
        }
        end
    }

    /// Moves the request. True if the client is gone.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(pump) = self.up.as_mut() else {
            return false;
        };
        if pump.is_refused {
            return false;
        }
        let (bytes, asked) = (&self.guard.stats().request_bytes, &mut self.asked);
        let logged = self.guard.record.as_ref().map(|one| &one.request_bytes);
        let (replay, outgrew) = (&mut self.replay, &mut self.outgrew_replay);
        let moved = pump.poll(cx, &mut self.rest, |part| {
            if !asked.admit(part) {
                return false;
            }
            count(bytes, logged, part);
            if replay.as_mut().is_some_and(|replay| !replay.keep(part)) {
                *replay = None;
                *outgrew = true;
            }
            true
        });
        let Poll::Ready(result) = moved else {
            return false;
        };
        let trailers = match result {
            Ok(Source::Ended) => None,
            Ok(Source::Trailers(trailers)) => {
                let kept = self.replay.is_some().then(|| trailers.clone());
                let _ = pump.to.send_trailers(trailers);
                kept
            }
            Ok(Source::NoTrailers) => {
                let _ = pump.to.send_data(Bytes::new(), true);
                None
            }
            Err(PumpError::Source(_)) => return true,
            Err(PumpError::Denied) => {
                pump.is_refused = true;
                return false;
            }
            // The endpoint takes no more of the request, and may still be answering (H2-08): its
            // answer, or the lack of one, decides. Unless the call is sent again, what the client
            // sends on is not read.
            Err(PumpError::Sink) if self.replay.is_some() => {
                pump.is_refused = true;
                return false;
            }
            Err(PumpError::Sink) => {
                self.up = None;
                return false;
            }
        };
        if let Some(replay) = &mut self.replay {
            replay.complete(trailers);
        }
        // No stream is reset by this: the answer's half still holds both.
        self.up = None;
        false
    }

    fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.down {
            Down::Head(respond) => respond.poll_reset(cx).is_ready(),
            Down::Body(pump) => pump.to.poll_reset(cx).is_ready(),
        }
    }

    /// Passes the head on. `Some` if that was the whole answer, or there is none.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        let response = match ready!(Pin::new(&mut self.answer).poll(cx)) {
            Ok(response) => response,
            Err(error) => return Poll::Ready(Some(End::Failed(self.fault_of(&error)))),
        };
        Poll::Ready(self.pass_head(response))
    }

    fn pass_head(&mut self, response: Response<RecvStream>) -> Option<End> {
        let (mut head, body) = response.into_parts();
        self.commit();
        let end_of_stream = body.is_end_stream();
        if let Some(fault) = self.check_size(&mut head.headers, end_of_stream) {
            return Some(End::Failed(fault));
        }
        self.grpc = grpc::is_grpc(&head.headers);
        self.code = code_of_head(&head, end_of_stream);
        if end_of_stream {
            self.claims = self.guard.take_claims(&mut head.headers);
        }
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        let Down::Head(respond) = &mut self.down else {
            return None;
        };
        let Ok(to) = respond.send_response(response, end_of_stream) else {
            return Some(End::ClientGone);
        };
        if end_of_stream {
            return Some(End::Complete(self.code));
        }
        self.down = Down::Body(Pump::new(body, Bytes::new(), to, !self.grpc));
        None
    }

    /// The answer is there: from here on there is no other try.
    fn commit(&mut self) {
        self.replay = None;
        self.outgrew_replay = false;
        if self.up.as_ref().is_some_and(|pump| pump.is_refused) {
            self.up = None;
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let Down::Body(pump) = &mut self.down else {
            return Poll::Pending;
        };
        let (bytes, framing) = (&self.guard.stats().response_bytes, &mut self.framing);
        let logged = self.guard.record.as_ref().map(|one| &one.response_bytes);
        let reader = &mut self.reader;
        let moved = pump.poll(cx, &mut None, |part| {
            let admitted = framing.admit(part);
            if admitted {
                count(bytes, logged, part);
                reader.took();
            }
            admitted
        });
        let Poll::Ready(moved) = moved else {
            // What it waits for is either more of the answer, or the client.
            if pump.chunk.is_empty() || !self.reader.is_stalled(cx, &self.guard.thread) {
                return Poll::Pending;
            }
            self.guard.thread.shared.stats.hit(Limit::StalledStream);
            return Poll::Ready(End::Failed(Fault::Stalled));
        };
        Poll::Ready(match moved {
            Ok(Source::Ended) => End::Complete(self.code),
            Ok(Source::Trailers(mut trailers)) => {
                if let Some(fault) = self.check_size(&mut trailers, true) {
                    return Poll::Ready(End::Failed(fault));
                }
                let Down::Body(pump) = &mut self.down else {
                    return Poll::Pending;
                };
                let code = grpc::status_code(&trailers);
                let code = code.unwrap_or(if self.grpc { Code::Unknown } else { self.code });
                self.claims = self.guard.take_claims(&mut trailers);
                match pump.to.send_trailers(trailers) {
                    Ok(()) => End::Complete(code),
                    Err(_) => End::ClientGone,
                }
            }
            Ok(Source::NoTrailers) if self.grpc => End::Failed(Fault::Truncated {
                endpoint: self.endpoint(),
            }),
            Ok(Source::NoTrailers) => match pump.to.send_data(Bytes::new(), true) {
                Ok(()) => End::Complete(self.code),
                Err(_) => End::ClientGone,
            },
            Err(PumpError::Source(error)) => End::Failed(self.fault_of(&error)),
            Err(PumpError::Sink) => End::ClientGone,
            Err(PumpError::Denied) => End::Failed(self.fault_of_message()),
        })
    }

    fn check_size(&self, headers: &mut HeaderMap, is_last: bool) -> Option<Fault> {
        check_size(&self.guard.thread, headers, is_last, || self.endpoint())
    }

    /// Clients wait for the rest of a message that trailers cut short (H2-13).
    fn ends_by_reset(&self) -> bool {
        matches!(self.down, Down::Body(_)) && self.framing.is_within_message()
    }

    /// Ends the sample of a streaming call with the first message of its answer, and finds out that
    /// a method is streaming: more than one message went in one direction. Only a method that was
    /// answered with a message is learned, so that no client fills the list with paths of its own.
    fn follow_messages(&mut self) {
        let messages = self.framing.messages();
        if messages == 0 || !self.grpc {
            return;
        }
        let is_first = !std::mem::replace(&mut self.answered, true);
        let proven = messages > 1 || self.asked.messages() > 1;
        let news = if self.streaming { is_first } else { proven };
        let (true, Some(service), Some(attempt)) = (news, &self.guard.service, &mut self.attempt)
        else {
            return;
        };
        if !self.streaming {
            self.streaming = true;
            service.streaming.add(self.method);
        }
        let now_ns = self.guard.thread.clock.now_ns();
        service.answered(attempt, now_ns, is_first);
        // An open stream burdens nobody any more.
        self.guard.leave(now_ns, Code::Ok);
    }

    fn endpoint(&self) -> String {
        self.attempt
            .as_ref()
            .map(|attempt| attempt.endpoint().name.to_string())
            .unwrap_or_default()
    }

    fn fault_of(&self, error: &h2::Error) -> Fault {
        if self.guard.thread.force.is_cancelled() {
            return Fault::ShuttingDown;
        }
        self.lease.fault(error)
    }

    fn fault_of_message(&self) -> Fault {
        self.guard.thread.shared.stats.hit(Limit::MessageBytes);
        let found = self.asked.too_long().or_else(|| self.framing.too_long());
        let (bytes, limit) = found.unwrap_or_default();
        Fault::MessageBytes { bytes, limit }
    }

    /// Nothing came of the answer, and at most a tenth of the call's time is left.
    fn was_silent_to_the_deadline(&self) -> bool {
        let (Down::Head(_), Some(timer)) = (&self.down, &self.timer) else {
            return false;
        };
        let now_ns = self.guard.thread.clock.now_ns();
        is_nearly_over(
            timer.deadline(),
            now_ns.saturating_sub(self.guard.received_ns),
        )
    }

    /// Whether the call was not processed, and can be sent again. Ends the attempt if so.
    fn ends_unprocessed(&mut self, end: End) -> Result<Fault, End> {
        let fault = match end {
            End::Failed(fault) if fault.repeats().is_some() => fault,
            end => return Err(end),
        };
        if self.replay.is_none() {
            if self.outgrew_replay {
                self.guard.thread.shared.stats.hit(Limit::ReplayBytes);
            }
            return Err(End::Failed(fault));
        }
        self.end_attempt(fault.outcome());
        Ok(fault)
    }

    /// What another try needs of an exchange that resolved to a fault.
    pub(crate) fn into_again(self, fault: Fault) -> Option<Box<Again>> {
        let (Down::Head(respond), Some(replay)) = (self.down, self.replay) else {
            return None;
        };
        Some(Box::new(Again {
            guard: self.guard,
            respond,
            rest: self.up.map(|pump| (pump.from, pump.chunk)),
            replay,
            fault,
        }))
    }

    /// Tells the client what it does not know yet, and the statistics what became of the attempt.
    /// What is left open of the endpoint's stream is reset with CANCEL when the exchange drops.
    fn conclude(&mut self, end: End) {
        let (outcome, code) = match end {
            End::Complete(code) => (Outcome::Answered(code), code),
            // A client that leaves as its deadline passes, with nothing heard from the endpoint, has
            // given it all the time there was: its clock began before ours, so it gives up first.
            End::ClientGone if self.was_silent_to_the_deadline() => {
                (Outcome::Answered(Code::DeadlineExceeded), Code::Cancelled)
            }
            End::ClientGone => (Outcome::Censored(Code::Cancelled), Code::Cancelled),
            End::Failed(fault) => {
                let deadline = self.timer.as_ref().map(|timer| timer.deadline());
                let fault = fault.or_deadline(deadline);
                let status = fault.status();
                let resets = self.ends_by_reset();
                // Both fail only if the client has left meanwhile.
                let _ = match &mut self.down {
                    Down::Head(respond) => {
                        let mut response = grpc::trailers_only(&status);
                        self.guard.report_in(response.headers_mut());
                        respond.send_response(response, true).map(drop)
                    }
                    Down::Body(pump) if resets => {
                        pump.to.send_reset(grpc::reset_of(status.code).into());
                        Ok(())
                    }
                    Down::Body(pump) => {
                        let mut trailers = grpc::trailers(&status);
                        self.guard.report_in(&mut trailers);
                        pump.to.send_trailers(trailers)
                    }
                };
                (fault.outcome(), status.code)
            }
        };
        self.end_attempt(outcome);
        self.guard.code = code;
    }

    fn end_attempt(&mut self, outcome: Outcome) {
        if let (Some(attempt), Some(service)) = (self.attempt.take(), &self.guard.service) {
            let now_ns = self.guard.thread.clock.now_ns();
            let latency_ns = now_ns.saturating_sub(attempt.started_ns());
            let mut sample = Sample::new(outcome, latency_ns);
            let report = self.claims.take().and_then(|claims| {
                sample.push_back_ns = claims.push_back_ns();
                service.read_report(&claims)
            });
            sample.report = report.as_ref();
            service.end_attempt(attempt, now_ns, &sample);
        }
    }
}

impl Future for Exchange {
    /// The fault of an endpoint that did not process the call: [`Exchange::into_again`].
    type Output = Option<Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Fault>> {
        let end = match self.broken.take() {
            Some(fault) => End::Failed(*fault),
            None => match ready!(self.poll_moving(cx)) {
                End::Failed(fault) if self.ends_by_reset() => {
                    // A reset takes with it what h2 has not written yet: the connection's task,
                    // awake since the last DATA, gets its turn first.
                    self.broken = Some(Box::new(fault));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                end => end,
            },
        };
        Poll::Ready(match self.ends_unprocessed(end) {
            Ok(fault) => Some(fault),
            Err(end) => {
                self.conclude(end);
                None
            }
        })
    }
}

/// Holds a block of the answer to the limit. Where it has a status that stays, and what makes the
/// block so large goes (H2-24).
pub(crate) fn check_size(
    thread: &Thread,
    headers: &mut HeaderMap,
    is_last: bool,
    endpoint: impl FnOnce() -> String,
) -> Option<Fault> {
    // A table this small holds no such list, unless single values are large.
    let bytes = grpc::header_list_bytes(headers);
    let limit = thread.shared.routing.load().limits.max_header_list_bytes;
    if bytes <= limit as usize {
        return None;
    }
    thread.shared.stats.hit(Limit::HeaderList);
    if is_last && grpc::strip_to_status(headers) {
        return None;
    }
    Some(Fault::AnswerHeaderList {
        endpoint: endpoint(),
        bytes,
        limit,
    })
}

/// Whether at most a tenth is left of the time between `passed_ns` ago and a deadline.
pub(crate) fn is_nearly_over(deadline: Instant, passed_ns: u64) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_nanos() * 9 <= u128::from(passed_ns)
}

/// The status of an answer of which only the head is known, if nothing else comes.
pub(crate) fn code_of_head(head: &http::response::Parts, end_of_stream: bool) -> Code {
    let code = match head.status.as_u16() {
        200 if !grpc::is_grpc(&head.headers) => Code::Ok,
        status => grpc::code_of_http(status),
    };
    // Only END_STREAM makes a header block Trailers-Only (H2-05).
    match end_of_stream {
        true => grpc::status_code(&head.headers).unwrap_or(code),
        false => code,
    }
}

/// What trailers tell the sidecar. It stays in them for the client, unless the policy keeps load
/// reports from it.
pub(crate) fn take_claims(
    service: Option<&Service>,
    trailers: &mut HeaderMap,
) -> Option<Box<Claims>> {
    let claims = Claims::of(trailers)?;
    let strips = |service: &Service| service.snapshot().settings.strip_load_reports;
    if claims.has_report() && service.is_some_and(strips) {
        trailers.remove(&LOAD_METRICS);
    }
    Some(claims)
}

pub(crate) fn count(bytes: &AtomicU64, logged: Option<&Cell<u64>>, part: &[u8]) {
    let length = part.len() as u64;
    bytes.fetch_add(length, Relaxed);
    if let Some(logged) = logged {
        logged.set(logged.get() + length);
    }
}

/// Moves DATA from one stream to another as far as windows allow.
struct Pump {
    from: RecvStream,
    to: SendStream<Bytes>,
    /// Taken from `from`, not yet handed to `to`.
    chunk: Bytes,
    /// Pass END_STREAM on with the last DATA, instead of leaving the end to the caller.
    ends: bool,
    /// `to` takes no more.
    is_refused: bool,
}

/// What came after the last DATA.
enum Source {
    /// Nothing; END_STREAM has been passed on with it.
    Ended,
    /// Trailers, to be passed on.
    Trailers(HeaderMap),
    /// Nothing; the end has to be passed on.
    NoTrailers,
}

enum PumpError {
    Source(h2::Error),
    Sink,
    /// What came must not be handed on.
    Denied,
}

impl Pump {
    fn new(from: RecvStream, taken: Bytes, to: SendStream<Bytes>, ends: bool) -> Self {
        Self {
            from,
            to,
            chunk: taken,
            ends,
            is_refused: false,
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        rest: &mut Option<Box<Rest>>,
        mut moving: impl FnMut(&Bytes) -> bool,
    ) -> Poll<Result<Source, PumpError>> {
        loop {
            while !self.chunk.is_empty() {
                if ready!(self.poll_hand_on(cx, rest, &mut moving))? {
                    return Poll::Ready(Ok(Source::Ended));
                }
            }
            if let Some(left) = rest {
                if let Some(chunk) = left.next_frame() {
                    self.chunk = chunk;
                    continue;
                }
                let trailers = left.take_trailers();
                *rest = None;
                if let Some(trailers) = trailers {
                    return Poll::Ready(Ok(Source::Trailers(trailers)));
                }
            }
            match ready!(self.from.poll_data(cx)) {
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Poll::Ready(Err(PumpError::Source(error))),
                None => break,
            }
        }
        Poll::Ready(match ready!(self.from.poll_trailers(cx)) {
            Ok(Some(trailers)) => Ok(Source::Trailers(trailers)),
            Ok(None) => Ok(Source::NoTrailers),
            Err(error) => Err(PumpError::Source(error)),
        })
    }

    /// Hands on as much of the chunk as the window takes. True if END_STREAM went with it.
    fn poll_hand_on(
        &mut self,
        cx: &mut Context<'_>,
        rest: &mut Option<Box<Rest>>,
        moving: &mut impl FnMut(&Bytes) -> bool,
    ) -> Poll<Result<bool, PumpError>> {
        self.to.reserve_capacity(self.chunk.len());
        let room = self.to.capacity().min(self.chunk.len());
        if room == 0 {
            return match ready!(self.to.poll_capacity(cx)) {
                Some(Ok(_)) => Poll::Ready(Ok(false)),
                Some(Err(_)) | None => Poll::Ready(Err(PumpError::Sink)),
            };
        }
        let part = self.chunk.split_to(room);
        let (mut settled, mut is_last) = (0, true);
        if let Some(rest) = rest {
            (settled, is_last) = (rest.settle(room), rest.is_empty());
        }
        let admitted = if settled == 0 {
            moving(&part)
        } else {
            moving(&part.slice(settled..))
        };
        if !admitted {
            return Poll::Ready(Err(PumpError::Denied));
        }
        let ends = self.ends && self.chunk.is_empty() && is_last && self.from.is_end_stream();
        let sent = self.to.send_data(part, ends);
        // Given back only now: this is what holds the sender to the pace of the reader.
        let _ = self.from.flow_control().release_capacity(room - settled);
        sent.map_err(|_| PumpError::Sink)?;
        Poll::Ready(Ok(ends))
    }
}

#[cfg(test)]
mod tests {
    use super::Exchange;

    #[test]
    fn a_call_under_way_stays_small() {
        // Memory per stream, and bytes that are copied when its task is spawned.
        assert!(
            size_of::<Exchange>() <= 512,
            "{} bytes",
            size_of::<Exchange>()
        );
    }
}
