//! The forward path: route, pick, send, relay, observe. Read this file first.
//!
//! A call is one task. Its request goes out as soon as the headers are there; from then on one
//! state machine, [`Exchange`], moves frames in both directions until the answer is complete, and
//! whatever else can end a call (the client leaves, the deadline passes, the endpoint fails) is an
//! [`End`] of it. Bytes pass through: messages are never decoded, buffered whole or joined.
//!
//! Back-pressure is end to end: a frame is taken from one side only when the other side's window
//! has room, and its receive window is given back only when it was handed on.

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Response, Uri};
use tokio::time::{sleep_until, Instant, Sleep};

use crate::deadline;
use crate::endpoint::Outcome;
use crate::fault::Fault;
use crate::grpc::{self, Code};
use crate::listener::Listener;
use crate::pool::{Lease, LeaseError, Pool};
use crate::route::check_authority;
use crate::runtime::{Routing, Thread};
use crate::service::{Attempt, Refusal, Service, ServiceStats, Settings};
use crate::stats::{Limit, Stats};

/// Endpoints that a call may try while nothing of it was sent.
const CONNECT_TRIES: usize = 3;

/// Serves one accepted call from its headers to its final status.
pub(crate) async fn serve(
    thread: Rc<Thread>,
    listener: Arc<Listener>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let received_ns = thread.clock.now_ns();
    let (mut head, body) = request.into_parts();
    let routing = thread.shared.routing.load();
    let Ok(authority) = authority_of(&mut head, &listener) else {
        // A malformed request gets no answer, and only its stream ends (H2-38).
        thread.shared.stats.malformed_requests.fetch_add(1, Relaxed);
        respond.send_reset(h2::Reason::PROTOCOL_ERROR);
        return;
    };
    let admitted = admit(
        &thread.shared.stats,
        &routing,
        &listener,
        &head,
        authority.as_ref(),
    );
    let service = match admitted {
        Ok(service) => service,
        Err(fault) => {
            let call = CallGuard::new(&thread, None, received_ns);
            return call.refuse(respond, &fault);
        }
    };
    drop(routing);
    let call = CallGuard::new(&thread, Some(&service), received_ns);
    match Call::prepare(&thread, &service, &mut head, received_ns) {
        Ok(prepared) => prepared.run(call, head, body, respond).await,
        Err(fault) => call.refuse(respond, &fault),
    }
}

/// What a call knows before an endpoint is picked.
struct Call<'a> {
    thread: &'a Rc<Thread>,
    service: &'a Arc<Service>,
    settings: Arc<Settings>,
    received_ns: u64,
    deadline: Option<Instant>,
}

impl<'a> Call<'a> {
    fn prepare(
        thread: &'a Rc<Thread>,
        service: &'a Arc<Service>,
        head: &mut Parts,
        received_ns: u64,
    ) -> Result<Self, Fault> {
        let settings = Arc::clone(&service.snapshot().settings);
        let limit = settings.limits.max_inflight;
        // The call itself is counted already.
        if service.stats.in_flight.load(Relaxed) > limit {
            thread.shared.stats.hit(Limit::MaxInflight);
            let refusal = Refusal::MaxInflight(limit);
            return Err(Fault::Refused {
                service: service.name.clone(),
                refusal,
            });
        }
        let asked = deadline::parse(&head.headers).map_err(Fault::Timeout)?;
        let configured = settings
            .routes
            .find(head.uri.path())
            .and_then(|route| route.timeout());
        let timeout = match (asked, configured) {
            (Some(asked), Some(configured)) => Some(asked.min(configured)),
            (asked, configured) => asked.or(configured),
        };
        if timeout == Some(Duration::ZERO) {
            return Err(Fault::Deadline);
        }
        // The largest timeouts of the wire overflow no clock: beyond it there is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        grpc::prepare_request_headers(&mut head.headers);
        Ok(Self {
            thread,
            service,
            settings,
            received_ns,
            deadline,
        })
    }

    async fn run(
        self,
        guard: CallGuard<'_>,
        head: Parts,
        body: RecvStream,
        mut respond: SendResponse<Bytes>,
    ) {
        let mut timer = pin!(self.deadline.map(sleep_until));
        let leased = match self.pick() {
            Ok(attempt) => match self
                .thread
                .pool
                .try_lease(attempt.endpoint(), &self.settings)
            {
                Some(lease) => Ok((attempt, lease)),
                None => {
                    let waiting = pin!(self.lease_waiting(attempt));
                    match wait(waiting, &mut respond, timer.as_mut()).await {
                        Some(leased) => leased,
                        None => return guard.end(Code::Cancelled),
                    }
                }
            },
            Err(fault) => Err(fault),
        };
        let (attempt, lease) = match leased {
            Ok(leased) => leased,
            Err(fault) => return guard.refuse(respond, &fault),
        };
        let endpoint = Arc::clone(attempt.endpoint());
        let end_of_stream = body.is_end_stream();
        let opened = lease.open(self.outgoing(head), end_of_stream);
        let (answer, upward) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let fault = Fault::of_endpoint(&endpoint.name, &error);
                attempt.end(fault_outcome(&fault), self.thread.clock.now_ns());
                return guard.refuse(respond, &fault);
            }
        };
        let mut exchange = Exchange {
            up: (!end_of_stream).then(|| Pump::new(body, upward, true)),
            answer,
            down: Down::Head(respond),
            grpc: true,
            code: Code::Unknown,
            stats: &self.service.stats,
            endpoint: &endpoint.name,
        };
        let end = poll_fn(|cx| {
            let end = exchange.poll(cx);
            if end.is_pending() && poll_timer(timer.as_mut(), cx) {
                return Poll::Ready(End::Failed(Fault::Deadline));
            }
            end
        })
        .await;
        self.conclude(guard, attempt, exchange, end);
    }

    fn pick(&self) -> Result<Attempt, Fault> {
        let snapshot = self.service.snapshot();
        let mut rng = self.thread.rng.borrow_mut();
        self.service
            .begin_attempt(&snapshot, self.received_ns, &mut rng)
            .map_err(|refusal| Fault::Refused {
                service: self.service.name.clone(),
                refusal,
            })
    }

    /// Waits for a connection. Nothing was sent yet, so an endpoint that cannot be reached costs
    /// the call nothing while there is another one.
    async fn lease_waiting(&self, mut attempt: Attempt) -> Result<(Attempt, Lease), Fault> {
        let mut tries = 1;
        loop {
            let endpoint = Arc::clone(attempt.endpoint());
            let leased = Pool::lease(self.thread, self.service, &endpoint, &self.settings).await;
            let error = match leased {
                Ok(lease) => return Ok((attempt, lease)),
                Err(error) => error,
            };
            let again = match error {
                LeaseError::Connect(_) => tries < CONNECT_TRIES && !self.service.snapshot().panic,
                LeaseError::Removed => tries < CONNECT_TRIES,
                LeaseError::StreamLimit => {
                    self.thread.shared.stats.hit(Limit::ConnectionsPerEndpoint);
                    false
                }
                LeaseError::PendingLimit(_) => {
                    self.thread.shared.stats.hit(Limit::Pending);
                    false
                }
            };
            let fault = error.fault(self.service, &endpoint);
            attempt.end(fault_outcome(&fault), self.thread.clock.now_ns());
            if !again {
                return Err(fault);
            }
            tries += 1;
            self.service.stats.connect_retries.fetch_add(1, Relaxed);
            attempt = self.pick()?;
        }
    }

    /// The request as the endpoint gets it.
    fn outgoing(&self, mut head: Parts) -> Request<()> {
        if let Some(deadline) = self.deadline {
            let remaining = deadline.saturating_duration_since(Instant::now());
            head.headers
                .insert("grpc-timeout", deadline::encode(remaining));
        }
        let mut request = Request::new(());
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = head.headers;
        request
    }

    fn conclude(&self, guard: CallGuard<'_>, attempt: Attempt, exchange: Exchange<'_>, end: End) {
        let now_ns = self.thread.clock.now_ns();
        match end {
            End::Complete(code) => {
                attempt.end(Outcome::Answered(code), now_ns);
                guard.end(code);
            }
            // Dropping the exchange resets the endpoint's stream with CANCEL.
            End::ClientGone => {
                attempt.end(Outcome::Censored(Code::Cancelled), now_ns);
                guard.end(Code::Cancelled);
            }
            End::Failed(fault) => {
                let forced = self.thread.force.is_cancelled();
                let fault = if forced { Fault::ShuttingDown } else { fault };
                attempt.end(fault_outcome(&fault), now_ns);
                let status = fault.status();
                match exchange.down {
                    Down::Head(respond) => return guard.refuse(respond, &fault),
                    Down::Body(mut pump) => {
                        // Fails only if the client has left meanwhile.
                        let _ = pump.to.send_trailers(grpc::trailers(&status));
                    }
                }
                guard.end(status.code);
            }
        }
    }
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

/// Both directions of a call under way.
struct Exchange<'a> {
    /// Client to endpoint; `None` once the request is complete or the endpoint wants no more.
    up: Option<Pump>,
    answer: ResponseFuture,
    down: Down,
    /// The answer is gRPC: it must end with a status.
    grpc: bool,
    /// Status if the answer ends without trailers and is not gRPC.
    code: Code,
    stats: &'a ServiceStats,
    endpoint: &'a str,
}

/// Endpoint to client.
enum Down {
    /// The answer's head has not come.
    Head(SendResponse<Bytes>),
    /// Its body is passed on.
    Body(Pump),
}

impl Exchange<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.poll_up(cx) || self.poll_client_gone(cx) {
            return Poll::Ready(End::ClientGone);
        }
        if matches!(self.down, Down::Head(_)) {
            if let Some(end) = ready!(self.poll_head(cx)) {
                return Poll::Ready(end);
            }
        }
        self.poll_body(cx)
    }

    /// Moves the request. True if the client is gone.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(pump) = self.up.as_mut() else {
            return false;
        };
        let Poll::Ready(result) = pump.poll(cx, &self.stats.request_bytes) else {
            return false;
        };
        match result {
            Ok(Source::Ended) => {}
            Ok(Source::Trailers(trailers)) => {
                let _ = pump.to.send_trailers(trailers);
            }
            Ok(Source::NoTrailers) => {
                let _ = pump.to.send_data(Bytes::new(), true);
            }
            Err(PumpError::Source(_)) => return true,
            // The endpoint takes no more of the request, and may still be answering (H2-08): its
            // answer, or the lack of one, decides. What the client sends on is not read.
            Err(PumpError::Sink) => {}
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
            Err(error) => {
                return Poll::Ready(Some(End::Failed(Fault::of_endpoint(self.endpoint, &error))))
            }
        };
        let (head, body) = response.into_parts();
        let end_of_stream = body.is_end_stream();
        self.grpc = grpc::is_grpc(&head.headers);
        self.code = match head.status.as_u16() {
            200 if !self.grpc => Code::Ok,
            status => grpc::code_of_http(status),
        };
        if end_of_stream {
            // Only END_STREAM makes a header block Trailers-Only (H2-05).
            self.code = grpc::status_code(&head.headers).unwrap_or(self.code);
        }
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        let Down::Head(respond) = &mut self.down else {
            return Poll::Ready(None);
        };
        let Ok(to) = respond.send_response(response, end_of_stream) else {
            return Poll::Ready(Some(End::ClientGone));
        };
        if end_of_stream {
            return Poll::Ready(Some(End::Complete(self.code)));
        }
        self.down = Down::Body(Pump::new(body, to, !self.grpc));
        Poll::Ready(None)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let Down::Body(pump) = &mut self.down else {
            return Poll::Pending;
        };
        Poll::Ready(match ready!(pump.poll(cx, &self.stats.response_bytes)) {
            Ok(Source::Ended) => End::Complete(self.code),
            Ok(Source::Trailers(trailers)) => {
                let code = grpc::status_code(&trailers);
                let code = code.unwrap_or(if self.grpc { Code::Unknown } else { self.code });
                match pump.to.send_trailers(trailers) {
                    Ok(()) => End::Complete(code),
                    Err(_) => End::ClientGone,
                }
            }
            Ok(Source::NoTrailers) if self.grpc => End::Failed(Fault::Truncated {
                endpoint: self.endpoint.to_owned(),
            }),
            Ok(Source::NoTrailers) => match pump.to.send_data(Bytes::new(), true) {
                Ok(()) => End::Complete(self.code),
                Err(_) => End::ClientGone,
            },
            Err(PumpError::Source(error)) => End::Failed(Fault::of_endpoint(self.endpoint, &error)),
            Err(PumpError::Sink) => End::ClientGone,
        })
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
}

impl Pump {
    fn new(from: RecvStream, to: SendStream<Bytes>, ends: bool) -> Self {
        Self {
            from,
            to,
            chunk: Bytes::new(),
            ends,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, moved: &AtomicU64) -> Poll<Result<Source, PumpError>> {
        loop {
            while !self.chunk.is_empty() {
                if ready!(self.poll_hand_on(cx, moved))? {
                    return Poll::Ready(Ok(Source::Ended));
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
        moved: &AtomicU64,
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
        let ends = self.ends && self.chunk.is_empty() && self.from.is_end_stream();
        self.to.send_data(part, ends).map_err(|_| PumpError::Sink)?;
        moved.fetch_add(room as u64, Relaxed);
        // Given back only now: this is what holds the sender to the pace of the reader.
        let _ = self.from.flow_control().release_capacity(room);
        Poll::Ready(Ok(ends))
    }
}

/// Counts a call in, and out exactly once with its final status.
struct CallGuard<'a> {
    thread: &'a Thread,
    stats: &'a ServiceStats,
    received_ns: u64,
    code: Code,
}

impl<'a> CallGuard<'a> {
    fn new(thread: &'a Thread, service: Option<&'a Arc<Service>>, received_ns: u64) -> Self {
        let stats = service.map_or(&thread.shared.stats.unrouted, |service| &service.stats);
        stats.in_flight.fetch_add(1, Relaxed);
        thread.activity.touch();
        Self {
            thread,
            stats,
            received_ns,
            code: Code::Unavailable,
        }
    }

    fn end(mut self, code: Code) {
        self.code = code;
    }

    fn refuse(self, mut respond: SendResponse<Bytes>, fault: &Fault) {
        let status = fault.status();
        // Fails only if the client has left meanwhile.
        let _ = respond.send_response(grpc::trailers_only(&status), true);
        self.end(status.code);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let duration_ns = self.thread.clock.now_ns().saturating_sub(self.received_ns);
        self.stats.in_flight.fetch_sub(1, Relaxed);
        self.stats.ended[usize::from(self.code.number())].fetch_add(1, Relaxed);
        self.stats.duration.record(duration_ns);
    }
}

/// Waits for `work` unless the client leaves (`None`) or the deadline passes.
async fn wait<T>(
    mut work: Pin<&mut impl Future<Output = Result<T, Fault>>>,
    respond: &mut SendResponse<Bytes>,
    mut timer: Pin<&mut Option<Sleep>>,
) -> Option<Result<T, Fault>> {
    poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        if poll_timer(timer.as_mut(), cx) {
            return Poll::Ready(Some(Err(Fault::Deadline)));
        }
        Poll::Pending
    })
    .await
}

fn poll_timer(timer: Pin<&mut Option<Sleep>>, cx: &mut Context<'_>) -> bool {
    timer
        .as_pin_mut()
        .is_some_and(|timer| timer.poll(cx).is_ready())
}

fn fault_outcome(fault: &Fault) -> Outcome {
    let code = fault.status().code;
    if fault.blames_endpoint() {
        Outcome::Answered(code)
    } else {
        Outcome::Censored(code)
    }
}

/// Which service takes the call, if the request itself is within limits.
fn admit(
    stats: &Stats,
    routing: &Routing,
    listener: &Listener,
    head: &Parts,
    authority: Option<&Authority>,
) -> Result<Arc<Service>, Fault> {
    let limit = routing.limits.max_header_list_bytes;
    let bytes = grpc::header_list_bytes(&head.headers);
    if bytes > limit as usize {
        stats.hit(Limit::HeaderList);
        return Err(Fault::HeaderList { bytes, limit });
    }
    let authority = authority.map(Authority::as_str);
    listener
        .service(routing, authority)
        .cloned()
        .ok_or_else(|| Fault::UnknownAuthority {
            authority: authority.unwrap_or_default().to_owned(),
            known: routing.known_authorities(),
        })
}

/// The authority of the call: `:authority`, else `host`, else none (the listener's default
/// service); written into the URI where it was missing, because the endpoint needs one.
fn authority_of(head: &mut Parts, listener: &Listener) -> Result<Option<Authority>, ()> {
    let host = head.headers.get(http::header::HOST);
    if let Some(authority) = head.uri.authority() {
        check_authority(authority.as_str()).map_err(|_| ())?;
        if host.is_some_and(|host| {
            !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes())
        }) {
            return Err(());
        }
        return Ok(Some(authority.clone()));
    }
    let authority: Option<Authority> = match host {
        Some(host) => {
            let host = host.to_str().map_err(|_| ())?;
            check_authority(host).map_err(|_| ())?;
            Some(host.parse().map_err(|_| ())?)
        }
        None => None,
    };
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(
        authority
            .clone()
            .unwrap_or_else(|| listener.default_authority()),
    );
    head.uri = Uri::from_parts(uri).map_err(|_| ())?;
    Ok(authority)
}
