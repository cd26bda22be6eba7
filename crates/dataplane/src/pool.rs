//! Connections to endpoints, one pool per data thread: no lock, no sharing.
//!
//! One connection per endpoint; another only when the streams that the peer allows are used up,
//! since calls spread over more connections batch less and cost more (measured: 4 per endpoint
//! +0.6 us per call). Streams are counted here: h2 does not refuse to send, it queues, and a wait
//! that nobody counts is a hang (H2-18). No stream is opened before the peer's SETTINGS are read
//! (`initial_max_send_streams` 0 until then), so a burst never runs into a limit it has not heard.
//!
//! h2 0.4.20 is a floor: up to 0.4.15 END_STREAM of a Trailers-Only answer followed by
//! RST_STREAM(NO_ERROR) is lost, 0.4.16 to 0.4.18 close a connection after some 108 unread small
//! DATA frames.
//!
//! A lost connection is dialled again at once, so that a dead endpoint is known before a call
//! finds out. While connects fail the endpoint is reported to its service, which stops picking it;
//! retries go on with back-off, and a call that has no other endpoint brings the next one forward.
//! A connection that the peer ends before it took a call is a failed connect too, or an endpoint
//! that greets and leaves would be dialled as fast as it can greet.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection as H2Connection, ResponseFuture, SendRequest};
use h2::SendStream;
use http::Request;
use tokio::sync::Notify;
use tokio::time::{sleep, Instant, Sleep};

use crate::config::{ConnectionConfig, Limits, ServiceLimits, Timeouts};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::frames::{Alarm, Peer, Watched};
use crate::io::{Counted, Socket, Traffic};
use crate::keepalive::{Business, Keeper, RoundTrips};
use crate::leaving::Stay;
use crate::runtime::Thread;
use crate::service::{Service, Settings};
use crate::stats::Limit;
use crate::waiting::{Connections, Reserved};

/// A connection that ends earlier and unused counts as a failed connect.
const SETTLED: Duration = Duration::from_secs(1);

/// How much less than configured an endpoint that objects to pings is asked at least.
const PING_FACTOR_MAX: u32 = 64;

/// Header lists that are read whatever the limit, 1 MiB.
const HEADER_LIST_BYTES_READ_MIN: u32 = 1 << 20;

/// The connections of one data thread.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    entries: RefCell<HashMap<u64, Rc<Entry>>>,
}

/// What one data thread has towards one endpoint.
#[derive(Debug)]
struct Entry {
    endpoint: Arc<Endpoint>,
    service: Weak<Service>,
    connections: RefCell<Vec<Rc<Connection>>>,
    /// A task of this endpoint dials or waits to dial again.
    dialler: Cell<bool>,
    /// That task is dialling now.
    dialling: Cell<bool>,
    /// When the last dial began.
    dialled_at: Cell<Option<Instant>>,
    /// What the next dial waits for; zero unless the last one failed.
    backoff: Cell<Duration>,
    /// Dials that failed, ever, and why the last one did.
    failures: Cell<u64>,
    last_failure: RefCell<String>,
    /// A call waits: dial now instead of after the back-off.
    urgent: Notify,
    /// A dial ended, a connection ended, or a stream became free.
    changed: Notify,
    pending: Cell<usize>,
    /// How many times longer than configured the endpoint wants to be left alone by pings.
    ping_factor: Cell<u32>,
    round_trips: RoundTrips,
    /// The endpoint left its set: no new streams, no new dials.
    removed: Cell<bool>,
}

/// One HTTP/2 connection.
#[derive(Debug)]
struct Connection {
    /// `None` once it must take no new stream; h2 closes it when the last one ended. Streams are
    /// opened by clones of it: a handle remembers the stream that it opened last until h2 has sent
    /// its headers, and `poll_ready` would put its waker in the place of that stream's own, whose
    /// upload then never goes on.
    send: RefCell<Option<SendRequest<Bytes>>>,
    streams: Cell<usize>,
    /// Streams that have ended.
    ended: Cell<u64>,
    /// It is as old as it may become: it leaves once there is another one.
    aged: Cell<bool>,
    /// It ended because the endpoint did not answer a PING.
    silent: Cell<bool>,
    /// It ended because calls stayed for too long after it took no more.
    overstayed: Cell<bool>,
    /// It takes no more calls from now on.
    left: Notify,
    /// What the peer allows now.
    limit: Cell<usize>,
    since: Instant,
    /// It took a call.
    used: Cell<bool>,
    traffic: Rc<Traffic>,
    _place: Reserved,
}

type Driver = H2Connection<Watched<Counted>, Bytes>;

/// A connection that has the peer's SETTINGS.
struct Established {
    send: SendRequest<Bytes>,
    driver: Driver,
    traffic: Rc<Traffic>,
    alarm: Alarm,
}

/// What watches a connection.
struct Watchers {
    keeper: Keeper,
    age: Option<Pin<Box<Sleep>>>,
    stay: Stay,
}

/// A stream's place on a connection, given back on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    connection: Rc<Connection>,
    entry: Rc<Entry>,
    /// What had been written to the connection before the stream was opened.
    written: u64,
}

/// Why there is no stream.
#[derive(Debug)]
pub(crate) enum LeaseError {
    /// The dial failed; nothing was sent, so another endpoint may be tried.
    Connect(String),
    /// The endpoint left the set meanwhile; pick again.
    Removed,
    /// A limit was reached.
    StreamLimit,
    /// `limits.max_pending` was reached.
    PendingLimit(usize),
    /// `limits.max_open_connections` was reached.
    ConnectionLimit(u32),
    /// The drain limit is over.
    ShuttingDown,
}

impl Pool {
    /// A stream on an open connection, if there is room: the path that nearly every call takes.
    pub(crate) fn try_lease(&self, endpoint: &Endpoint, settings: &Settings) -> Option<Lease> {
        let entries = self.entries.borrow();
        entries
            .get(&endpoint.id)?
            .try_lease(settings.connection.max_streams)
    }

    /// A stream, waiting for a connection if need be. The caller enforces the deadline.
    pub(crate) async fn lease(
        thread: &Rc<Thread>,
        service: &Arc<Service>,
        endpoint: &Arc<Endpoint>,
        settings: &Arc<Settings>,
    ) -> Result<Lease, LeaseError> {
        let entry = thread.pool.entry(service, endpoint);
        let entry = entry.ok_or(LeaseError::Removed)?;
        let limits = &settings.limits;
        let _pending = Pending::enter(&entry, limits.max_pending)?;
        loop {
            let mut changed = pin!(entry.changed.notified());
            changed.as_mut().enable();
            if thread.force.is_cancelled() {
                return Err(LeaseError::ShuttingDown);
            }
            if entry.removed.get() {
                return Err(LeaseError::Removed);
            }
            if let Some(lease) = entry.try_lease(settings.connection.max_streams) {
                return Ok(lease);
            }
            if !entry.dialling.get() {
                if entry.open_connections() >= limits.max_connections_per_endpoint {
                    return Err(LeaseError::StreamLimit);
                }
                if let Some(limit) = service.connections.is_full(limits) {
                    return Err(LeaseError::ConnectionLimit(limit));
                }
                entry.demand(thread, settings)?;
            }
            let failures = entry.failures.get();
            changed.await;
            if entry.failures.get() != failures {
                return Err(LeaseError::Connect(entry.last_failure.borrow().clone()));
            }
        }
    }

    /// Forgets endpoints that left their sets: streams in flight finish, then connections close.
    pub(crate) fn remove(&self, ids: &[u64]) {
        for id in ids {
            if let Some(entry) = self.entries.borrow_mut().remove(id) {
                entry.removed.set(true);
                for connection in entry.connections.borrow().iter() {
                    connection.retire();
                }
                entry.urgent.notify_one();
                entry.changed.notify_waiters();
            }
        }
    }

    /// `None` once the endpoint left its set: this thread may have forgotten it already, and an
    /// entry made now would be forgotten never, and dialled for ever.
    fn entry(&self, service: &Arc<Service>, endpoint: &Arc<Endpoint>) -> Option<Rc<Entry>> {
        if endpoint.has_left() {
            return None;
        }
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(endpoint.id).or_insert_with(|| {
            Rc::new(Entry {
                endpoint: Arc::clone(endpoint),
                service: Arc::downgrade(service),
                connections: RefCell::default(),
                dialler: Cell::new(false),
                dialling: Cell::new(false),
                dialled_at: Cell::new(None),
                backoff: Cell::default(),
                failures: Cell::new(0),
                last_failure: RefCell::default(),
                urgent: Notify::new(),
                changed: Notify::new(),
                pending: Cell::new(0),
                ping_factor: Cell::new(1),
                round_trips: RoundTrips::default(),
                removed: Cell::new(false),
            })
        });
        Some(Rc::clone(entry))
    }
}

impl Entry {
    fn try_lease(self: &Rc<Self>, max_streams: usize) -> Option<Lease> {
        let connections = self.connections.borrow();
        let connection = connections
            .iter()
            .find(|connection| connection.admits(max_streams))?;
        connection.streams.set(connection.streams.get() + 1);
        if !connection.used.replace(true) {
            self.backoff.set(Duration::ZERO);
        }
        Some(Lease {
            connection: Rc::clone(connection),
            entry: Rc::clone(self),
            written: connection.traffic.written.get(),
        })
    }

    /// Connections that may take new streams, now or when one ends. Those that leave do not count:
    /// where a long stream keeps each of them open, the endpoint could take no call any more.
    fn open_connections(&self) -> usize {
        let connections = self.connections.borrow();
        connections
            .iter()
            .filter(|connection| connection.send.borrow().is_some())
            .count()
    }

    /// Makes sure that a dial is under way, unless the last one failed just now.
    fn demand(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        settings: &Arc<Settings>,
    ) -> Result<(), LeaseError> {
        if !self.dialler.get() {
            self.spawn_dialler(thread);
            return Ok(());
        }
        let base = Duration::from_millis(settings.connection.backoff_base_ms);
        if self.dialled_at.get().is_some_and(|at| at.elapsed() < base) {
            return Err(LeaseError::Connect(self.last_failure.borrow().clone()));
        }
        // Set here, not in the task: a second call of the same turn must not ask again.
        self.dialling.set(true);
        self.urgent.notify_one();
        Ok(())
    }

    fn spawn_dialler(self: &Rc<Self>, thread: &Rc<Thread>) {
        self.dialler.set(true);
        // Here for the same reason, unless the task waits first.
        self.dialling.set(self.backoff.get().is_zero());
        let (entry, thread) = (Rc::clone(self), Rc::clone(thread));
        tokio::task::spawn_local(async move {
            entry.dial_until_connected(&thread).await;
            entry.dialling.set(false);
            entry.dialler.set(false);
            entry.changed.notify_waiters();
        });
    }

    async fn dial_until_connected(self: &Rc<Self>, thread: &Rc<Thread>) {
        while !self.removed.get() && !thread.force.is_cancelled() {
            if !self.backoff.get().is_zero() {
                self.dialling.set(false);
                self.changed.notify_waiters();
                tokio::select! {
                    () = tokio::time::sleep(jittered(self.backoff.get(), thread)) => {}
                    () = self.urgent.notified() => {}
                    () = thread.force.cancelled() => return,
                }
            }
            // Read anew each time: a reload must reach endpoints that are dialled for hours.
            let Some(settings) = self.settings() else {
                return;
            };
            let Some(place) = self.reserve(&settings.limits) else {
                if !self.endpoint.live.failing.load(Relaxed) {
                    return;
                }
                // Nobody picks it, so nobody else would ever try.
                self.backoff
                    .set(grown(self.backoff.get(), &settings.connection));
                continue;
            };
            self.dialling.set(true);
            self.dialled_at.set(Some(Instant::now()));
            let (limits, timeouts) = {
                let routing = thread.shared.routing.load();
                (routing.limits.clone(), routing.timeouts.clone())
            };
            let timeout = settings.connection.connect_timeout();
            let dial = establish(&self.endpoint, &limits, &timeouts);
            let result = tokio::select! {
                result = tokio::time::timeout(timeout, dial) => result,
                () = thread.force.cancelled() => return,
            };
            let failure = match result {
                Ok(Ok(connected)) => {
                    self.adopt(thread, connected, place);
                    return;
                }
                Ok(Err(failure)) => failure,
                Err(_) => format!(
                    "no HTTP/2 SETTINGS that allow a stream within {} ms",
                    timeout.as_millis()
                ),
            };
            self.fail(failure, &settings.connection);
        }
    }

    /// A place among the connections of the service; `None` if there is none, or no service.
    fn reserve(&self, limits: &ServiceLimits) -> Option<Reserved> {
        Connections::reserve(&self.service.upgrade()?.connections, limits)
    }

    /// Those in force; `None` once the service is gone.
    fn settings(&self) -> Option<Arc<Settings>> {
        let service = self.service.upgrade()?;
        let settings = Arc::clone(&service.snapshot().settings);
        Some(settings)
    }

    fn fail(&self, failure: String, config: &ConnectionConfig) {
        self.backoff.set(grown(self.backoff.get(), config));
        self.endpoint.live.connect_failures.fetch_add(1, Relaxed);
        self.failures.set(self.failures.get() + 1);
        if *self.last_failure.borrow() != failure {
            tracing::warn!(endpoint = %self.endpoint.name, cause = %failure, "cannot connect");
            *self.last_failure.borrow_mut() = failure;
        }
        if let Some(service) = self.service.upgrade() {
            service.set_failing(&self.endpoint, true);
        }
    }

    fn adopt(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        Established {
            send,
            driver,
            traffic,
            alarm,
        }: Established,
        place: Reserved,
    ) {
        let connection = Rc::new(Connection {
            limit: Cell::new(driver.max_concurrent_send_streams()),
            send: RefCell::new(Some(send)),
            streams: Cell::new(0),
            ended: Cell::new(0),
            aged: Cell::new(false),
            silent: Cell::new(false),
            overstayed: Cell::new(false),
            left: Notify::new(),
            since: Instant::now(),
            used: Cell::new(false),
            traffic,
            _place: place,
        });
        if self.removed.get() {
            return;
        }
        self.replace_aged();
        self.connections.borrow_mut().push(Rc::clone(&connection));
        self.endpoint.live.connections.fetch_add(1, Relaxed);
        if let Some(service) = self.service.upgrade() {
            service.set_failing(&self.endpoint, false);
        }
        let (entry, thread) = (Rc::clone(self), Rc::clone(thread));
        tokio::task::spawn_local(async move {
            let over = drive(&thread, &entry, driver, &connection, &alarm).await;
            if let Some(limit) = over {
                thread.shared.stats.hit(limit);
                let (endpoint, limit) = (&*entry.endpoint.name, limit.name());
                tracing::warn!(endpoint, limit, "connection to an endpoint cut off");
            }
            entry.ended(&thread, &connection);
        });
    }

    /// What watches a new connection: that the endpoint answers, how old it becomes, and how long
    /// calls stay on it.
    fn watch(&self, thread: &Thread, driver: &mut Driver) -> Watchers {
        let settings = self.settings();
        let config = settings.as_ref().map(|settings| &settings.connection);
        let keepalive = config.map(|config| config.keepalive).unwrap_or_default();
        let keeper = Keeper::new(keepalive, self.ping_factor.get(), driver.ping_pong());
        let draw = thread.rng.borrow_mut().unit_f64();
        let age = config.and_then(|config| config.age(draw));
        Watchers {
            keeper,
            age: age.map(|age| Box::pin(sleep(age))),
            stay: Stay::new(config.and_then(ConnectionConfig::max_leaving)),
        }
    }

    /// Sees to a connection in place of one that is as old as it may become.
    fn renew(self: &Rc<Self>, thread: &Rc<Thread>) {
        let wanted = !self.removed.get() && !thread.going_away.is_cancelled();
        if wanted && !self.dialler.get() {
            self.spawn_dialler(thread);
        }
    }

    /// Another connection is there: those that are as old as they may become take no more calls.
    fn replace_aged(&self) {
        for connection in self.connections.borrow().iter() {
            if connection.aged.get() {
                connection.retire();
            }
        }
    }

    /// The endpoint wants fewer pings.
    fn objects(&self) {
        let factor = self
            .ping_factor
            .get()
            .saturating_mul(2)
            .min(PING_FACTOR_MAX);
        self.ping_factor.set(factor);
        let endpoint = &self.endpoint.name;
        tracing::warn!(%endpoint, factor, "endpoint objects to pings; it gets fewer");
    }

    fn ended(self: &Rc<Self>, thread: &Rc<Thread>, connection: &Rc<Connection>) {
        self.connections
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, connection));
        self.endpoint.live.connections.fetch_sub(1, Relaxed);
        let wanted = !self.removed.get() && !thread.going_away.is_cancelled();
        if !connection.used.get() && connection.since.elapsed() < SETTLED {
            if let (Some(settings), true) = (self.settings(), wanted) {
                let failure = "the endpoint ended the connection right after its SETTINGS";
                self.fail(failure.to_owned(), &settings.connection);
            }
        } else {
            self.backoff.set(Duration::ZERO);
            self.last_failure.borrow_mut().clear();
        }
        self.changed.notify_waiters();
        let alone = self.connections.borrow().is_empty();
        if alone && wanted && !self.dialler.get() {
            self.spawn_dialler(thread);
        }
    }
}

impl Connection {
    fn admits(&self, max_streams: usize) -> bool {
        let mut send = self.send.borrow_mut();
        let Some(ready) = send.as_mut() else {
            return false;
        };
        match ready.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => self.streams.get() < self.limit.get().min(max_streams),
            Poll::Pending => false,
            // GOAWAY, or the socket is gone: streams in flight finish, new ones go elsewhere.
            Poll::Ready(Err(_)) => {
                *send = None;
                false
            }
        }
    }

    fn business(&self) -> Business {
        Business {
            streams: self.streams.get(),
            ended: self.ended.get(),
            read: self.traffic.read.get(),
        }
    }

    fn retire(&self) {
        *self.send.borrow_mut() = None;
        self.left.notify_one();
    }

    /// Whether it takes no more calls; a GOAWAY that no call has met yet is noticed.
    fn leaves(&self) -> bool {
        let mut send = self.send.borrow_mut();
        let mut cx = Context::from_waker(Waker::noop());
        let refuses =
            |ready: &mut SendRequest<_>| matches!(ready.poll_ready(&mut cx), Poll::Ready(Err(_)));
        if send.as_mut().is_some_and(refuses) {
            *send = None;
        }
        send.is_none()
    }
}

impl Lease {
    /// Opens the stream. Must follow the lease without a wait between.
    pub(crate) fn open(
        &self,
        request: Request<()>,
        end_of_stream: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        match self.connection.send.borrow().as_ref() {
            Some(send) => send.clone().send_request(request, end_of_stream),
            None => Err(h2::Reason::REFUSED_STREAM.into()),
        }
    }

    /// An error of the stream. What came of a connection that was given up is told as it was.
    pub(crate) fn fault(&self, error: &h2::Error) -> Fault {
        let endpoint = &self.entry.endpoint.name;
        match Fault::of_endpoint(endpoint, error, self.wrote()) {
            Fault::Lost { endpoint, .. } if self.connection.silent.get() => Fault::Lost {
                endpoint,
                cause: "it did not answer a PING within `connection.keepalive.timeout`".into(),
            },
            Fault::Lost { endpoint, .. } if self.connection.overstayed.get() => {
                Fault::Overstayed { endpoint }
            }
            fault => fault,
        }
    }

    /// Whether anything of the stream may have left: something was written to its connection since.
    fn wrote(&self) -> bool {
        self.connection.traffic.written.get() != self.written
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.streams.set(connection.streams.get() - 1);
        connection.ended.set(connection.ended.get() + 1);
        if self.entry.pending.get() > 0 {
            self.entry.changed.notify_waiters();
        }
        let live = &self.entry.endpoint.live;
        if live.failing.load(Relaxed) && self.connection.send.borrow().is_some() {
            // Only another connection failed, and there is room on this one again.
            if let Some(service) = self.entry.service.upgrade() {
                service.mark_failing(&self.entry.endpoint, false);
            }
        }
    }
}

/// A call that waits for a connection, counted while it does.
struct Pending<'a>(&'a Entry);

impl<'a> Pending<'a> {
    fn enter(entry: &'a Entry, limit: usize) -> Result<Self, LeaseError> {
        if entry.pending.get() >= limit {
            return Err(LeaseError::PendingLimit(limit));
        }
        entry.pending.set(entry.pending.get() + 1);
        Ok(Self(entry))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}

impl LeaseError {
    /// The limit that was reached.
    pub(crate) fn limit(&self) -> Option<Limit> {
        match self {
            Self::StreamLimit => Some(Limit::ConnectionsPerEndpoint),
            Self::PendingLimit(_) => Some(Limit::Pending),
            Self::ConnectionLimit(_) => Some(Limit::OpenConnections),
            Self::Connect(_) | Self::Removed | Self::ShuttingDown => None,
        }
    }

    /// Whether another endpoint may have what this one has not.
    pub(crate) fn may_differ_elsewhere(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectionLimit(_))
    }

    /// What the client is told.
    pub(crate) fn fault(self, service: &Service, endpoint: &Endpoint) -> Fault {
        let (service, endpoint) = (service.name.clone(), endpoint.name.to_string());
        match self {
            Self::Connect(cause) => Fault::Connect {
                service,
                endpoint,
                cause,
            },
            Self::Removed => Fault::Connect {
                service,
                endpoint,
                cause: "it left the endpoint set".into(),
            },
            Self::StreamLimit => Fault::StreamLimit { endpoint },
            Self::ShuttingDown => Fault::ShuttingDown,
            Self::PendingLimit(limit) => Fault::PendingLimit { endpoint, limit },
            Self::ConnectionLimit(limit) => Fault::ConnectionLimit { endpoint, limit },
        }
    }
}

/// Dials and waits for the peer's SETTINGS.
async fn establish(
    endpoint: &Endpoint,
    limits: &Limits,
    timeouts: &Timeouts,
) -> Result<Established, String> {
    let mut socket = Socket::connect(&endpoint.address)
        .await
        .map_err(|error| error.to_string())?;
    socket.join_writes();
    let socket = Counted::new(socket);
    let traffic = socket.traffic();
    let socket = Watched::new(socket, Peer::Endpoint, limits, timeouts);
    let alarm = socket.alarm();
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(limits.connection_window_bytes())
        // h2 ends the connection for a block far above what it was told, with every call on it;
        // the call whose answer it is ends for the limit itself.
        .max_header_list_size(limits.header_list_bytes_read())
        .max_send_buffer_size(limits.max_send_buffer_bytes)
        // Streams of the last second that we reset: what the endpoint had sent by then is no
        // mistake of its own. Later frames are answered by a reset, which h2 would count over the
        // life of the connection, and end it: calls cancelled now and then would end it, too.
        .max_concurrent_reset_streams(limits.max_pending_resets)
        .max_local_error_reset_streams(None)
        // 0 until SETTINGS are read; without a limit in them h2 sets it to usize::MAX.
        .initial_max_send_streams(0);
    let (mut send, mut driver) = builder
        .handshake(socket)
        .await
        .map_err(|error| error.to_string())?;
    poll_fn(|cx| {
        match Pin::new(&mut driver).poll(cx) {
            Poll::Ready(Ok(())) => {
                return Poll::Ready(Err("closed before it could take a call".to_owned()))
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.to_string())),
            Poll::Pending if driver.max_concurrent_send_streams() == 0 => return Poll::Pending,
            Poll::Pending => {}
        }
        // An error here is a GOAWAY that came with the SETTINGS.
        Poll::Ready(match send.poll_ready(cx) {
            Poll::Ready(Err(error)) => Err(error.to_string()),
            _ => Ok(()),
        })
    })
    .await?;
    Ok(Established {
        send,
        driver,
        traffic,
        alarm,
    })
}

/// Moves frames until the connection ends, and follows the peer's stream limit. Returns the limit
/// that the endpoint went over, if that was the reason.
async fn drive(
    thread: &Rc<Thread>,
    entry: &Rc<Entry>,
    mut driver: Driver,
    connection: &Connection,
    alarm: &Alarm,
) -> Option<Limit> {
    let mut force = pin!(thread.force.cancelled());
    let mut left = pin!(connection.left.notified());
    let Watchers {
        mut keeper,
        mut age,
        mut stay,
    } = entry.watch(thread, &mut driver);
    let result = poll_fn(|cx| {
        if keeper.poll_dead(connection.business(), cx) {
            connection.silent.set(true);
            return Poll::Ready(Ok(()));
        }
        let ended = Pin::new(&mut driver).poll(cx);
        connection.limit.set(driver.max_concurrent_send_streams());
        if let Some(round_trip) = keeper.poll_round_trip(cx) {
            let least = entry.round_trips.add(thread.clock.now_ns(), round_trip);
            entry.endpoint.live.rtt_ns.store(least.max(1), Relaxed);
        }
        if age
            .as_mut()
            .is_some_and(|age| age.as_mut().poll(cx).is_ready())
        {
            age = None;
            connection.aged.set(true);
            entry.renew(thread);
        }
        if stay.is_limited() {
            // Only for its waker: whether it leaves is asked anew each time.
            let _ = left.as_mut().poll(cx);
            if stay.poll_over(connection.leaves(), cx) && ended.is_pending() {
                connection.overstayed.set(true);
                return Poll::Ready(Ok(()));
            }
        }
        let cut_off = alarm.must_end().is_some() || force.as_mut().poll(cx).is_ready();
        if ended.is_pending() && cut_off {
            return Poll::Ready(Ok(()));
        }
        ended
    })
    .await;
    connection.retire();
    if connection.silent.get() {
        entry.endpoint.live.silences.fetch_add(1, Relaxed);
        let endpoint = &entry.endpoint.name;
        tracing::warn!(%endpoint, "no answer to a PING; the connection is given up");
    }
    if connection.overstayed.get() {
        thread.shared.stats.hit(Limit::Leaving);
        let endpoint = &entry.endpoint.name;
        tracing::info!(%endpoint, "calls stayed on a connection that leaves; it is closed");
    }
    if let Err(error) = result {
        if error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM) {
            entry.objects();
        }
        tracing::debug!(%error, "connection to an endpoint ended");
    }
    alarm.limit()
}

impl Limits {
    /// Largest header list that is read: up to there a call ends with a status that names the
    /// limit; beyond it h2 answers a client 431, and may end the connection to an endpoint.
    pub(crate) fn header_list_bytes_read(&self) -> u32 {
        let bytes = self.max_header_list_bytes.saturating_mul(4);
        bytes.max(HEADER_LIST_BYTES_READ_MIN)
    }

    /// Room for every stream's window, so that stalled streams never use up what their neighbours
    /// need; memory stays bounded by streams times windows.
    pub(crate) fn connection_window_bytes(&self) -> u32 {
        let all = u64::from(self.stream_window_bytes) * u64::from(self.max_streams_per_connection);
        u32::try_from(all.clamp(16 << 20, 0x7fff_ffff)).unwrap_or(0x7fff_ffff)
    }
}

fn grown(backoff: Duration, config: &ConnectionConfig) -> Duration {
    backoff.mul_f64(1.6).clamp(
        Duration::from_millis(config.backoff_base_ms),
        Duration::from_millis(config.backoff_max_ms),
    )
}

fn jittered(backoff: Duration, thread: &Thread) -> Duration {
    backoff.mul_f64(0.8 + 0.4 * thread.rng.borrow_mut().unit_f64())
}
