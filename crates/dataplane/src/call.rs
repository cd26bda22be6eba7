//! One call on its way to an endpoint: pick, wait if need be, send, and send again what was
//! provably not processed.
//!
//! Without a word of the policy only that is repeated (RS-18): what an endpoint refused
//! (REFUSED_STREAM), what stands above the last stream of its GOAWAY, what never left this process,
//! and what could not be connected to. The first such repetition comes at once, further ones after
//! a growing pause; they end after a few, since an endpoint that refuses everything would otherwise
//! be asked for ever (RS-16). Endpoints that the call tried are left out while there is another.

mod entrance;

use std::cell::{Cell, RefCell};
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{ready, Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::RecvStream;
use http::request::Parts;
use http::{HeaderMap, Request, Uri};
use tokio::time::{sleep_until, Instant, Sleep};

use crate::attempt::{Attempt, RequestInfo, Sample, Tried};
use crate::call_record::Picks;
use crate::class::Traits;
use crate::config::{RouteConfig, WhenFull};
use crate::deadline;
use crate::decisions::{Decisions, Sight};
use crate::exchange::{CallGuard, Exchange, Parts as ExchangeParts};
use crate::fault::Fault;
use crate::grpc::{self, Code};
use crate::hedge::Kind;
use crate::pool::{Lease, LeaseError, Pool};
use crate::probe;
use crate::repeat::Repeat;
use crate::repetition::Repetition;
use crate::replay::{Again, Replay};
use crate::runtime::Thread;
use crate::sampling::Sampled;
use crate::service::{Refusal, Service, Settings};
use crate::stats::Limit;
use crate::streaming::Method;
use crate::upload::Upload;

/// Endpoints that a call may try while nothing of it was sent.
const CONNECT_TRIES: usize = 3;

/// Times that a call is sent again because it was not processed.
const REPETITIONS_MAX: u32 = 3;

/// Pause before the second repetition; it doubles, with 20 % jitter.
const PAUSE: Duration = Duration::from_millis(25);

/// What is known of a call, whichever endpoint has it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) thread: Rc<Thread>,
    pub(crate) service: Arc<Service>,
    pub(crate) settings: Arc<Settings>,
    /// What a pick may know.
    request: RequestInfo,
    pub(crate) method: Method,
    /// Rule by which its route tries it again; 0: none.
    repetition: u32,
    pub(crate) received_ns: u64,
    deadline: Option<Instant>,
    timeout: Option<Duration>,
    /// Whether it waits while no endpoint can take it.
    for_ready: bool,
    /// Until when, once it waits.
    waits_until: Cell<Option<Instant>>,
    /// Whom it was given to before.
    tried: Cell<Tried>,
    /// How often it was sent again.
    repetitions: u32,
    /// Where its picks are recorded: what it calls.
    recorded: Option<Box<Uri>>,
    /// Where it is logged: whom it was given to.
    picks: Option<RefCell<Picks>>,
}

/// A call that an endpoint has: moves its frames, and sees to it that what was not processed is
/// sent again.
struct Running(Option<Exchange>);

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(exchange) = self.0.as_mut() else {
            return Poll::Ready(());
        };
        let unprocessed = ready!(Pin::new(exchange).poll(cx));
        let again = self.0.take().zip(unprocessed);
        if let Some(again) = again.and_then(|(exchange, fault)| exchange.into_again(fault)) {
            tokio::task::spawn_local(resume(again));
        }
        Poll::Ready(())
    }
}

/// The body of a request.
struct Body {
    /// Taken from it already: the first DATA, if somebody looked at it.
    first: Bytes,
    rest: RecvStream,
}

impl Body {
    fn new(rest: RecvStream) -> Self {
        Self {
            first: Bytes::new(),
            rest,
        }
    }

    /// Length of the first message, if its prefix is here. Waits for nothing.
    fn message_bytes(&mut self) -> Option<u64> {
        if self.first.is_empty() {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(Some(Ok(first))) = self.rest.poll_data(&mut cx) {
                self.first = first;
            }
        }
        let [_, length @ ..] = *self.first.first_chunk::<5>()?;
        Some(u32::from_be_bytes(length).into())
    }

    /// Whether nothing of it is left.
    fn is_over(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }
}

impl Call {
    /// Checks a call and fixes its deadline.
    pub(crate) fn prepare(
        thread: &Rc<Thread>,
        service: Arc<Service>,
        head: &mut Parts,
        received_ns: u64,
        sampled: Sampled,
    ) -> Result<Self, Fault> {
        let settings = Arc::clone(&service.snapshot().settings);
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
            repetition: route.map_or(0, |route| route.repetition),
            for_ready: route
                .and_then(|route| route.wait_for_ready)
                .unwrap_or(settings.waiting.for_ready),
            service,
            settings,
            method: Method::of_path(head.uri.path()),
            received_ns,
            deadline,
            timeout,
            waits_until: Cell::default(),
            tried: Cell::default(),
            repetitions: 0,
            recorded: sampled.picks.then(|| Box::new(head.uri.clone())),
            picks: sampled.is_noted().then(RefCell::default),
        })
    }

    /// Sends the call if an endpoint with an open connection has room; else a task waits for one.
    pub(crate) fn start(
        mut self,
        guard: CallGuard,
        head: Parts,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) {
        let mut body = Body::new(body);
        self.classify(&head, &mut body);
        if self.repetition > 0 {
            let upload = Upload::new(&self.service, body.rest, body.first);
            let repeat = Repeat::begin(self, guard, head, upload, respond);
            tokio::task::spawn_local(repeat);
            return;
        }
        let picked = match self.pick_or_wait(self.received_ns) {
            Ok(picked) => picked,
            Err(fault) => return self.give_up(Some(fault), guard, respond),
        };
        if let Some(attempt) = picked {
            let pool = &self.thread.pool;
            match pool.try_lease(attempt.endpoint(), &self.settings) {
                Some(lease) => self.send((guard, attempt, lease), head, body, respond),
                None => self.start_waiting(Some(attempt), guard, (head, body), respond),
            }
        } else {
            self.start_waiting(None, guard, (head, body), respond);
        }
    }

    /// Leaves the call to a task that waits for an endpoint, or for a connection to the picked one.
    fn start_waiting(
        self,
        picked: Option<Attempt>,
        guard: CallGuard,
        (head, body): (Parts, Body),
        mut respond: SendResponse<Bytes>,
    ) {
        tokio::task::spawn_local(async move {
            let placed = {
                let mut timer = self.timer();
                let placing = pin!(self.place(picked));
                wait(placing, &mut respond, timer.as_mut()).await
            };
            match placed {
                Some(Ok((attempt, lease))) => {
                    self.send((guard, attempt, lease), head, body, respond);
                }
                ended => self.give_up(ended.and_then(Result::err), guard, respond),
            }
        });
    }

    /// Opens the endpoint's stream. Must follow the lease without a wait between.
    fn send(
        self,
        parties: (CallGuard, Attempt, Lease),
        mut head: Parts,
        body: Body,
        respond: SendResponse<Bytes>,
    ) {
        let ends = body.is_over();
        let rest = (!ends).then_some((body.rest, body.first));
        // Copied only if it may be needed again.
        let headers = if self.keeps() {
            head.headers.clone()
        } else {
            std::mem::take(&mut head.headers)
        };
        let request = self.outgoing(&head, headers);
        let mut replay = Box::new(Replay::new(self, head));
        if ends {
            replay.complete(None);
        }
        replay.open(parties, request, rest, respond);
    }

    /// Whether it is kept for another try.
    fn keeps(&self) -> bool {
        self.settings.limits.max_replay_bytes > 0
    }

    /// Finds the request class, where somebody learns by it.
    fn classify(&mut self, head: &Parts, body: &mut Body) {
        let Some(tracking) = &self.settings.tracking else {
            return;
        };
        let sizes = tracking.classifier.reads_sizes();
        let traits = Traits {
            path: head.uri.path(),
            message_bytes: if sizes { body.message_bytes() } else { None },
            headers: &head.headers,
            timeout: self.timeout,
        };
        let (class, folded) = self.service.classify(&self.service.snapshot(), &traits);
        self.request.class = class;
        if folded {
            self.thread.shared.stats.hit(Limit::RequestClasses);
        }
    }

    /// Tells the log, if the call is in it, whom it was given to.
    pub(crate) fn note_in(&self, guard: &mut CallGuard) {
        if let (Some(record), Some(picks)) = (&mut guard.record, &self.picks) {
            record.deadline = self.timeout;
            record.picks = picks.take();
        }
    }

    /// Takes back what [`Call::note_in`] told.
    fn take_back(&self, guard: &mut CallGuard) {
        if let (Some(record), Some(picks)) = (&mut guard.record, &self.picks) {
            picks.replace(std::mem::take(&mut record.picks));
        }
    }

    /// Ends the call without an answer of an endpoint. `None`: the client has left.
    fn give_up(&self, fault: Option<Fault>, mut guard: CallGuard, respond: SendResponse<Bytes>) {
        self.note_in(&mut guard);
        match fault {
            None => guard.end(Code::Cancelled),
            Some(fault) => guard.refuse(respond, &fault),
        }
    }

    pub(crate) fn timer(&self) -> Option<Pin<Box<Sleep>>> {
        self.deadline
            .map(|deadline| Box::pin(sleep_until(deadline)))
    }

    /// Whether calls that came before wait, and this one must not overtake them.
    fn stands_in_line(&self) -> bool {
        self.settings.waiting.when_full == WhenFull::Queue && self.service.crowd.waiting.calls() > 0
    }

    fn waits_for(&self, refusal: Refusal) -> bool {
        match refusal {
            Refusal::MaxInflight(_)
            | Refusal::MaxInflightPerEndpoint(_)
            | Refusal::MaxHeldBytes(_)
            | Refusal::MaxHeldBytesPerEndpoint(_) => {
                self.settings.waiting.when_full == WhenFull::Queue
            }
            Refusal::NoEndpoints
            | Refusal::AllWeightZero
            | Refusal::AllDrained
            | Refusal::NoneWell(_) => self.for_ready,
        }
    }

    fn refused(&self, refusal: Refusal) -> Fault {
        self.count(refusal);
        Fault::Refused {
            service: self.service.name.clone(),
            refusal,
        }
    }

    fn count(&self, refusal: Refusal) {
        let stats = &self.thread.shared.stats;
        match refusal {
            Refusal::MaxInflight(_) => stats.hit(Limit::MaxInflight),
            Refusal::MaxInflightPerEndpoint(_) => stats.hit(Limit::InflightPerEndpoint),
            Refusal::MaxHeldBytes(_) => stats.hit(Limit::HeldBytes),
            Refusal::MaxHeldBytesPerEndpoint(_) => stats.hit(Limit::HeldBytesPerEndpoint),
            _ => {}
        }
    }

    /// An endpoint that has not got the call, if there is one.
    pub(crate) fn pick(&self, now_ns: u64) -> Result<Attempt, Fault> {
        self.pick_now(now_ns)
            .map_err(|refusal| self.refused(refusal))
    }

    /// The same; `None` if the call has to wait for one ([`Call::place`]).
    pub(crate) fn pick_or_wait(&self, now_ns: u64) -> Result<Option<Attempt>, Fault> {
        if self.stands_in_line() {
            return Ok(None);
        }
        match self.pick_now(now_ns) {
            Ok(attempt) => Ok(Some(attempt)),
            Err(refusal) if self.waits_for(refusal) => {
                self.count(refusal);
                Ok(None)
            }
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    fn pick_now(&self, now_ns: u64) -> Result<Attempt, Refusal> {
        let snapshot = self.service.snapshot();
        let mut rng = self.thread.rng.borrow_mut();
        let mut tried = self.tried.get();
        let sight = self.recorded.as_deref().map(|uri| {
            let sight = Sight::take(&snapshot, now_ns, self.request, &tried, &rng);
            (uri, sight)
        });
        let attempt =
            self.service
                .begin_within_limits(&snapshot, now_ns, self.request, &tried, &mut rng)?;
        probe::after_pick(&self.thread, &self.service, &snapshot, &mut rng);
        tried.add(attempt.endpoint().id);
        self.tried.set(tried);
        if let Some((uri, sight)) = sight {
            let recording = &self.thread.shared.recording;
            Decisions::record(recording, &self.service, uri, &attempt, sight);
        }
        if let Some(picks) = &self.picks {
            picks.borrow_mut().note(&attempt);
        }
        Ok(attempt)
    }

    /// Whether there is an endpoint that has not got the call.
    pub(crate) fn has_another(&self) -> bool {
        let snapshot = self.service.snapshot();
        let tried = self.tried.get();
        self.service.has_another(&snapshot, self.request, &tried)
    }

    /// Which calls are like it.
    pub(crate) fn kind(&self) -> Kind {
        Kind {
            method: self.method,
            class: self.request.class.index,
        }
    }

    /// Now, for picks.
    pub(crate) fn now_ns(&self) -> u64 {
        self.thread.clock.now_ns()
    }

    /// The client gets the answer of this attempt.
    pub(crate) fn settle(&self, attempt: &Attempt) {
        if let Some(picks) = &self.picks {
            picks.borrow_mut().settle(attempt);
        }
    }

    /// What is left of its time; `None` without a deadline.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// By which rule it may be tried again.
    pub(crate) fn repetition(&self) -> Option<&Arc<Repetition>> {
        self.settings.repetition(self.repetition)
    }

    /// Waits for a place: an endpoint, unless one is `picked`, and a connection to it. Nothing was
    /// sent yet, so an endpoint that cannot be reached costs the call nothing while there is another
    /// one.
    pub(crate) async fn place(
        &self,
        mut picked: Option<Attempt>,
    ) -> Result<(Attempt, Lease), Fault> {
        let mut tries = 1;
        let mut unreachable = None;
        loop {
            let attempt = match picked.take() {
                Some(attempt) => attempt,
                None => self.pick_waiting(unreachable.take()).await?,
            };
            let endpoint = Arc::clone(attempt.endpoint());
            let leased = Pool::lease(&self.thread, &self.service, &endpoint, &self.settings).await;
            let error = match leased {
                Ok(lease) => return Ok((attempt, lease)),
                // No try, and no failure: the set in force is another one, however often it changes.
                Err(LeaseError::Removed) => continue,
                Err(error) => error,
            };
            if let Some(limit) = error.limit() {
                self.thread.shared.stats.hit(limit);
            }
            let may_differ = error.may_differ_elsewhere();
            let connects = matches!(error, LeaseError::Connect(_));
            let fault = error.fault(&self.service, &endpoint);
            self.end(attempt, &fault);
            tries += 1;
            if may_differ && tries <= CONNECT_TRIES && self.service.snapshot().reachable {
                self.service.stats.connect_retries.fetch_add(1, Relaxed);
            } else if connects && self.for_ready {
                unreachable = Some(fault);
                tries = 1;
            } else {
                return Err(fault);
            }
        }
    }

    /// Picks, waiting where the policy says so. `unreachable`: why the call found nobody who can be
    /// connected to, so that somebody must be before it looks again.
    async fn pick_waiting(&self, unreachable: Option<Fault>) -> Result<Attempt, Fault> {
        if unreachable.is_none() {
            if let Some(attempt) = self.pick_or_wait(self.now_ns())? {
                return Ok(attempt);
            }
        }
        let (service, settings) = (Arc::clone(&self.service), Arc::clone(&self.settings));
        let limit = settings.limits.max_waiting;
        let Some(waiter) = service.crowd.waiting.enter(limit) else {
            self.thread.shared.stats.hit(Limit::Waiting);
            return Err(Fault::WaitingLimit {
                service: service.name.clone(),
                limit,
            });
        };
        let force = self.thread.force.clone();
        let max_time = settings.waiting.max_time();
        let until = self.waits_until.get();
        let until = until.unwrap_or_else(|| Instant::now() + max_time);
        self.waits_until.set(Some(until));
        let refused = |refusal| Fault::Refused {
            service: service.name.clone(),
            refusal,
        };
        let mut needs_reachable = unreachable.is_some();
        let mut last = unreachable;
        let look = || {
            if needs_reachable && !service.snapshot().reachable {
                return None;
            }
            needs_reachable = false;
            match self.pick_now(self.now_ns()) {
                Ok(attempt) => Some(Ok(attempt)),
                Err(refusal) if self.waits_for(refusal) => {
                    last = Some(refused(refusal));
                    None
                }
                Err(refusal) => Some(Err(refused(refusal))),
            }
        };
        let waited = tokio::select! {
            biased;
            picked = waiter.until(look) => return picked,
            () = force.cancelled() => Fault::ShuttingDown,
            () = sleep_until(until) => Fault::Deadline,
        };
        Err(match (waited, last) {
            (Fault::Deadline, Some(refused)) => Fault::Waited {
                refused: Box::new(refused),
                max_ms: settings.waiting.max_time_ms,
            },
            (waited, _) => waited,
        })
    }

    /// An endpoint for a call that was not processed.
    async fn place_again(&mut self, fault: Fault) -> Result<(Attempt, Lease), Fault> {
        let Some(reason) = fault.repeats() else {
            return Err(fault);
        };
        if self.repetitions >= REPETITIONS_MAX {
            return Err(fault);
        }
        let budget = &self.service.unprocessed_budget;
        if self.repetitions == 0 {
            // The budget is a share of the calls that come here.
            budget.begin();
            budget.end(self.now_ns());
        } else if !budget.take(self.now_ns()) {
            return Err(fault);
        } else {
            let jitter = 0.8 + 0.4 * self.thread.rng.borrow_mut().unit_f64();
            let pause = PAUSE * (1 << (self.repetitions - 1));
            tokio::time::sleep(pause.mul_f64(jitter)).await;
        }
        self.repetitions += 1;
        self.service.stats.retries[reason as usize].fetch_add(1, Relaxed);
        self.place(None).await
    }

    /// Counts out an attempt of which nothing reached the endpoint.
    fn end(&self, attempt: Attempt, fault: &Fault) {
        let now_ns = self.thread.clock.now_ns();
        let latency_ns = now_ns.saturating_sub(attempt.started_ns());
        self.service
            .end_attempt(attempt, now_ns, &Sample::new(fault.outcome(), latency_ns));
    }

    /// The request as the endpoint gets it.
    fn outgoing(&self, head: &Parts, headers: HeaderMap) -> Request<()> {
        request_of(head, headers, self.remaining())
    }
}

/// A request with these headers. `timeout`: what the attempt has of time.
pub(crate) fn request_of(
    head: &Parts,
    mut headers: HeaderMap,
    timeout: Option<Duration>,
) -> Request<()> {
    if let Some(timeout) = timeout {
        headers.insert(&deadline::GRPC_TIMEOUT, deadline::encode(timeout));
    }
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = head.uri.clone();
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = headers;
    request
}

impl Replay {
    /// Opens the endpoint's stream and hands on what is there of the call already.
    fn open(
        self: Box<Self>,
        (mut guard, attempt, lease): (CallGuard, Attempt, Lease),
        request: Request<()>,
        rest: Option<(RecvStream, Bytes)>,
        respond: SendResponse<Bytes>,
    ) {
        self.call.note_in(&mut guard);
        let ends = self.ends_with_headers();
        let opened = lease.open(request, ends).and_then(|(answer, mut upward)| {
            if !ends {
                self.send(&mut upward)?;
            }
            Ok((answer, upward))
        });
        match opened {
            Ok((answer, upward)) => {
                let exchange = Exchange::begin(ExchangeParts {
                    guard,
                    attempt,
                    lease,
                    method: self.call.method,
                    timer: self.call.timer(),
                    up: rest.map(|(from, taken)| (from, taken, upward)),
                    answer,
                    respond,
                    max_message_bytes: self.call.settings.limits.max_message_bytes,
                    replay: self.call.keeps().then_some(self),
                });
                tokio::task::spawn_local(Running(Some(exchange)));
            }
            Err(error) => {
                let fault = Fault::of_endpoint(&attempt.endpoint().name, &error, false);
                self.call.end(attempt, &fault);
                if !self.call.keeps() {
                    return guard.refuse(respond, &fault);
                }
                tokio::task::spawn_local(resume(Box::new(Again {
                    guard,
                    respond,
                    rest,
                    replay: self,
                    fault,
                })));
            }
        }
    }
}

/// Sends a call again that was not processed, or ends it.
async fn resume(again: Box<Again>) {
    let Again {
        mut guard,
        mut respond,
        rest,
        mut replay,
        fault,
    } = *again;
    replay.call.take_back(&mut guard);
    let placed = {
        let mut timer = replay.call.timer();
        let placing = pin!(replay.call.place_again(fault));
        wait(placing, &mut respond, timer.as_mut()).await
    };
    match placed {
        Some(Ok((attempt, lease))) => {
            let head = &replay.head;
            let request = replay.call.outgoing(head, head.headers.clone());
            replay.open((guard, attempt, lease), request, rest, respond);
        }
        ended => replay
            .call
            .give_up(ended.and_then(Result::err), guard, respond),
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
