//! The forward path: route, pick, send, relay, observe. Read this file first.
//!
//! Everything up to the endpoint's open stream happens here, at once and without a wait, while the
//! client's connection hands over the call: nearly every call finds a connection that has room.
//! From then on an [`Exchange`] moves frames in both directions until the answer is complete.
//! Bytes pass through: messages are never decoded, buffered whole or joined.

use std::cell::RefCell;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Uri};
use tokio::time::{sleep_until, Instant, Sleep};

use crate::access_log::{CallRecord, Picks};
use crate::attempt::{Attempt, RequestInfo, Sample};
use crate::config::RouteConfig;
use crate::deadline;
use crate::decisions::Sight;
use crate::exchange::{CallGuard, Exchange, Parts as ExchangeParts};
use crate::fault::Fault;
use crate::grpc::{self, Code};
use crate::listener::Listener;
use crate::pool::{Lease, LeaseError, Pool};
use crate::route::check_authority;
use crate::runtime::{Routing, Thread};
use crate::sampling::Sampled;
use crate::server::Slot;
use crate::service::{Refusal, Service, Settings};
use crate::stats::{Limit, Stats};
use crate::streaming::Method;

/// Endpoints that a call may try while nothing of it was sent.
const CONNECT_TRIES: usize = 3;

/// Takes over one accepted call: answers it, or leaves it to a task that will.
pub(crate) fn serve(
    thread: &Rc<Thread>,
    listener: &Listener,
    slot: Slot,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let received_ns = thread.clock.now_ns();
    let (mut head, body) = request.into_parts();
    let Ok(authority) = authority_of(&mut head, listener) else {
        // A malformed request gets no answer, and only its stream ends (H2-38).
        thread.shared.stats.malformed_requests.fetch_add(1, Relaxed);
        respond.send_reset(h2::Reason::PROTOCOL_ERROR);
        return;
    };
    let (admitted, sampled) = {
        let routing = thread.shared.routing.load();
        let sampled = routing.sampling.draw(&mut thread.lots.borrow_mut());
        let stats = &thread.shared.stats;
        let admitted = admit(stats, &routing, listener, &head, authority.as_ref());
        (admitted, sampled)
    };
    let record = sampled.access_log.then(|| {
        Box::new(CallRecord::new(
            &head.uri,
            authority.as_ref(),
            &head.headers,
        ))
    });
    let service = match admitted {
        Ok(service) => service,
        Err(fault) => {
            return CallGuard::new(thread, None, received_ns, slot, record).refuse(respond, &fault);
        }
    };
    let taken = Some(Arc::clone(&service));
    let guard = CallGuard::new(thread, taken, received_ns, slot, record);
    match Call::prepare(thread, service, &mut head, received_ns, sampled) {
        Ok(call) => call.start(guard, head, body, respond),
        Err(fault) => guard.refuse(respond, &fault),
    }
}

/// What is known of a call before its endpoint has a stream for it.
struct Call {
    thread: Rc<Thread>,
    service: Arc<Service>,
    settings: Arc<Settings>,
    /// What a pick may know.
    request: RequestInfo,
    method: Method,
    received_ns: u64,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
    /// Where its picks are recorded: what it calls.
    recorded: Option<Box<Uri>>,
    /// Where it is logged: whom it was given to.
    picks: Option<RefCell<Picks>>,
}

impl Call {
    fn prepare(
        thread: &Rc<Thread>,
        service: Arc<Service>,
        head: &mut Parts,
        received_ns: u64,
        sampled: Sampled,
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
        let route = settings.routes.find(head.uri.path());
        let configured = route.and_then(RouteConfig::timeout);
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
            thread: Rc::clone(thread),
            request: settings.request_info(route, &head.headers),
            service,
            settings,
            method: Method::of_path(head.uri.path()),
            received_ns,
            deadline,
            timeout,
            recorded: sampled.picks.then(|| Box::new(head.uri.clone())),
            picks: sampled.access_log.then(RefCell::default),
        })
    }

    /// Sends the call if an endpoint with an open connection has room; else a task waits for one.
    fn start(
        self,
        mut guard: CallGuard,
        head: Parts,
        body: RecvStream,
        mut respond: SendResponse<Bytes>,
    ) {
        let attempt = match self.pick() {
            Ok(attempt) => attempt,
            Err(fault) => {
                self.note_in(&mut guard);
                return guard.refuse(respond, &fault);
            }
        };
        if let Some(lease) = self
            .thread
            .pool
            .try_lease(attempt.endpoint(), &self.settings)
        {
            self.note_in(&mut guard);
            if let Some(exchange) = self.open(guard, attempt, lease, head, body, respond) {
                tokio::task::spawn_local(exchange);
            }
            return;
        }
        tokio::task::spawn_local(async move {
            let leased = {
                let mut timer = self.timer();
                let waiting = pin!(self.lease_waiting(attempt));
                wait(waiting, &mut respond, timer.as_mut()).await
            };
            self.note_in(&mut guard);
            match leased {
                None => guard.end(Code::Cancelled),
                Some(Err(fault)) => guard.refuse(respond, &fault),
                Some(Ok((attempt, lease))) => {
                    let opened = self.open(guard, attempt, lease, head, body, respond);
                    if let Some(exchange) = opened {
                        exchange.await;
                    }
                }
            }
        });
    }

    /// Opens the endpoint's stream. Must follow the lease without a wait between. `None` if that
    /// failed, and the call is answered.
    fn open(
        &self,
        guard: CallGuard,
        attempt: Attempt,
        lease: Lease,
        head: Parts,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> Option<Exchange> {
        let end_of_stream = body.is_end_stream();
        match lease.open(self.outgoing(head), end_of_stream) {
            Ok((answer, upward)) => Some(Exchange::begin(ExchangeParts {
                guard,
                attempt,
                lease,
                method: self.method,
                timer: self.timer(),
                up: (!end_of_stream).then_some((body, upward)),
                answer,
                respond,
            })),
            Err(error) => {
                let fault = Fault::of_endpoint(&attempt.endpoint().name, &error);
                self.end(attempt, &fault);
                guard.refuse(respond, &fault);
                None
            }
        }
    }

    /// Tells the log, if the call is in it, whom it was given to.
    fn note_in(&self, guard: &mut CallGuard) {
        if let (Some(record), Some(picks)) = (&mut guard.record, &self.picks) {
            record.deadline = self.timeout;
            record.picks = picks.take();
        }
    }

    fn timer(&self) -> Option<Pin<Box<Sleep>>> {
        self.deadline
            .map(|deadline| Box::pin(sleep_until(deadline)))
    }

    fn pick(&self) -> Result<Attempt, Fault> {
        let snapshot = self.service.snapshot();
        let mut rng = self.thread.rng.borrow_mut();
        let recorded = self.recorded.as_deref();
        let sight = recorded.map(|uri| (uri, Sight::take(&snapshot, self.received_ns, &rng)));
        let attempt = self
            .service
            .begin_attempt(&snapshot, self.received_ns, self.request, &mut rng)
            .map_err(|refusal| Fault::Refused {
                service: self.service.name.clone(),
                refusal,
            })?;
        if let Some((uri, sight)) = sight {
            let decisions = &self.thread.shared.decisions;
            decisions.record(&self.service, uri, &attempt, sight);
        }
        if let Some(picks) = &self.picks {
            picks.borrow_mut().note(&attempt);
        }
        Ok(attempt)
    }

    /// Waits for a connection. Nothing was sent yet, so an endpoint that cannot be reached costs
    /// the call nothing while there is another one.
    async fn lease_waiting(&self, mut attempt: Attempt) -> Result<(Attempt, Lease), Fault> {
        let mut tries = 1;
        loop {
            let endpoint = Arc::clone(attempt.endpoint());
            let leased = Pool::lease(&self.thread, &self.service, &endpoint, &self.settings).await;
            let error = match leased {
                Ok(lease) => return Ok((attempt, lease)),
                Err(error) => error,
            };
            let again = match error {
                LeaseError::Connect(_) => {
                    tries += 1;
                    tries <= CONNECT_TRIES && self.service.snapshot().reachable
                }
                // No try, and no failure: the set in force is another one, however often it changes.
                LeaseError::Removed => {
                    drop(attempt);
                    attempt = self.pick()?;
                    continue;
                }
                LeaseError::ShuttingDown => false,
                LeaseError::StreamLimit => {
                    self.thread.shared.stats.hit(Limit::ConnectionsPerEndpoint);
                    false
                }
                LeaseError::PendingLimit(_) => {
                    self.thread.shared.stats.hit(Limit::Pending);
                    false
                }
            };
            let fault = error.fault(&self.service, &endpoint);
            self.end(attempt, &fault);
            if !again {
                return Err(fault);
            }
            self.service.stats.connect_retries.fetch_add(1, Relaxed);
            attempt = self.pick()?;
        }
    }

    /// Counts out an attempt of which nothing reached the endpoint.
    fn end(&self, attempt: Attempt, fault: &Fault) {
        let now_ns = self.thread.clock.now_ns();
        let latency_ns = now_ns.saturating_sub(self.received_ns);
        self.service
            .end_attempt(attempt, now_ns, &Sample::new(fault.outcome(), latency_ns));
    }

    /// The request as the endpoint gets it.
    fn outgoing(&self, mut head: Parts) -> Request<()> {
        if let Some(deadline) = self.deadline {
            let remaining = deadline.saturating_duration_since(Instant::now());
            head.headers
                .insert(&deadline::GRPC_TIMEOUT, deadline::encode(remaining));
        }
        let mut request = Request::new(());
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = head.headers;
        request
    }
}

/// Waits for `work` unless the client leaves (`None`) or the deadline passes.
async fn wait<T>(
    mut work: Pin<&mut impl Future<Output = Result<T, Fault>>>,
    respond: &mut SendResponse<Bytes>,
    mut timer: Option<&mut Pin<Box<Sleep>>>,
) -> Option<Result<T, Fault>> {
    poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        if timer
            .as_mut()
            .is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
        {
            return Poll::Ready(Some(Err(Fault::Deadline)));
        }
        Poll::Pending
    })
    .await
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
            known: Arc::clone(&routing.known_authorities),
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
