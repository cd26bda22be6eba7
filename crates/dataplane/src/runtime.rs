//! Data threads, and the handle by which the control side starts, changes, drains and stops them.
//!
//! Each data thread is an independent current-thread runtime with its own pool, so that nothing on
//! the path of a call is shared but atomic counters and immutable snapshots (a work-stealing
//! runtime costs 0.7 to 1.6 us per call more). The control side never waits for a data thread
//! while it holds a lock that a call needs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::access_log::AccessLog;
use crate::call_record::EndedCall;
use crate::clock::Clock;
use crate::config::{Config, EndpointSetConfig, Limits, Timeouts};
use crate::decisions::Recording;
use crate::error::{ConfigError, Error};
use crate::health::Checks;
use crate::hedge::Tails;
use crate::listener::{self, Listener};
use crate::pool::Pool;
use crate::rng::Rng;
use crate::route::Authorities;
use crate::sampling::Sampling;
use crate::service::Service;
use crate::spans::Spans;
use crate::stats::Stats;

/// The first of the streams that decide what is sampled; those of picks begin at 0.
const LOTS_STREAM: u64 = 1 << 32;

/// Which service takes which call, and the limits of clients. Replaced as a whole by a reload.
#[derive(Debug)]
pub struct Routing {
    /// By `:authority`.
    pub authorities: Authorities<Arc<Service>>,
    /// By name.
    pub services: HashMap<String, Arc<Service>>,
    /// Limits that concern clients.
    pub limits: Limits,
    /// Timeouts of connections.
    pub timeouts: Timeouts,
    /// Every authority there is, for error texts. Made once: with thousands of services it takes
    /// longer than many calls, and whoever calls a wrong name does so again and again.
    pub known_authorities: Arc<str>,
    /// Which calls are looked at closely.
    pub sampling: Sampling,
}

/// What all threads share.
#[derive(Debug)]
pub struct Shared {
    /// Counters of the process.
    pub stats: Stats,
    /// The routing in force.
    pub routing: ArcSwap<Routing>,
    /// How picks are recorded.
    pub recording: Recording,
    /// Calls that were logged.
    pub access_log: AccessLog,
    /// Calls that get a span.
    pub spans: Spans,
    seed: u64,
}

impl Shared {
    /// Hands a call that is looked at to whoever does; never waits.
    pub(crate) fn note(&self, ended: EndedCall) {
        match (ended.is_traced(), ended.is_logged()) {
            (true, true) => {
                self.spans.push(ended.clone());
                self.access_log.push(ended);
            }
            (true, false) => self.spans.push(ended),
            (false, true) => self.access_log.push(ended),
            (false, false) => {}
        }
    }
}

/// One data thread, as its tasks see it.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    pub(crate) rng: RefCell<Rng>,
    /// Draws what is sampled.
    pub(crate) lots: RefCell<Rng>,
    /// What was measured for routes that hedge.
    pub(crate) tails: RefCell<Tails>,
    /// Indices of endpoints to probe, while they are gone through.
    pub(crate) due_probes: RefCell<Vec<u32>>,
    pub(crate) activity: Activity,
    /// Stop accepting, send GOAWAY, finish.
    pub(crate) going_away: CancellationToken,
    /// The same of what stands in front of servers.
    inbound_going_away: CancellationToken,
    /// The drain limit is over: end everything now.
    pub(crate) force: CancellationToken,
}

/// Busy polling after the last call, when it is switched on.
#[derive(Debug)]
pub(crate) struct Activity {
    linger: Duration,
    last: Cell<Option<Instant>>,
    woken: Notify,
}

/// The control side's handle. Thread-safe.
#[derive(Debug)]
pub struct DataPlane {
    shared: Arc<Shared>,
    clock: Clock,
    pub(crate) control: Mutex<Control>,
}

#[derive(Debug)]
pub(crate) struct Control {
    config: Config,
    policy_epoch: u64,
    listeners: HashMap<String, Listening>,
    threads: Vec<ThreadHandle>,
    state: State,
    /// What reloads removed, as long as it still has connections or calls.
    leaving: Leaving,
}

#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub(crate) listeners: Vec<Weak<Listener>>,
    pub(crate) services: Vec<Weak<Service>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Running,
    Stopped,
}

#[derive(Debug, Clone)]
struct Listening {
    listener: Arc<Listener>,
    stop: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct ThreadHandle {
    commands: UnboundedSender<Command>,
    pub(crate) going_away: CancellationToken,
    inbound_going_away: CancellationToken,
    pub(crate) force: CancellationToken,
    join: JoinHandle<()>,
}

#[derive(Debug)]
enum Command {
    Accept(Arc<Listener>, CancellationToken),
    Forget(Arc<[u64]>),
}

impl Thread {
    /// What tells that the connections of a listener should leave.
    pub(crate) fn going_away(&self, listener: &Listener) -> &CancellationToken {
        if listener.is_inbound() {
            &self.inbound_going_away
        } else {
            &self.going_away
        }
    }
}

impl Activity {
    fn new(linger: Duration) -> Self {
        Self {
            linger,
            last: Cell::new(None),
            woken: Notify::new(),
        }
    }

    /// A call came in.
    pub(crate) fn touch(&self) {
        if !self.linger.is_zero() {
            self.last.set(Some(Instant::now()));
            self.woken.notify_one();
        }
    }

    /// Yields, which polls the driver without sleeping, until `linger` after the last call.
    async fn poll_busily(&self) {
        loop {
            self.woken.notified().await;
            while self
                .last
                .get()
                .is_some_and(|last| last.elapsed() < self.linger)
            {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl DataPlane {
    /// A data plane that has bound nothing and started no thread.
    ///
    /// # Errors
    /// The configuration is refused.
    pub fn new(config: &[u8], seed: u64) -> Result<Self, Error> {
        let config = Config::parse(config)?;
        let (routing, _) = next_routing(&config, &HashMap::new(), seed);
        let shared = Shared {
            stats: Stats::default(),
            routing: ArcSwap::from_pointee(routing),
            recording: Recording::new(config.picks.keep),
            access_log: AccessLog::default(),
            spans: Spans::default(),
            seed,
        };
        let control = Control {
            config,
            policy_epoch: 1,
            listeners: HashMap::new(),
            threads: Vec::new(),
            state: State::New,
            leaving: Leaving::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            clock: Clock::start(),
            control: Mutex::new(control),
        })
    }

    /// Binds every listener and starts the data threads.
    ///
    /// # Errors
    /// A listener cannot be bound (then nothing was started), or it runs already.
    pub fn start(&self) -> Result<HashMap<String, String>, Error> {
        let mut control = self.control.lock();
        if control.state != State::New {
            return Err(Error::NotRunning);
        }
        let listeners = bind(&control.config, &HashMap::new())?;
        for index in 0..control.config.threads {
            let handle = self.spawn(index, &control.config).map_err(Error::Thread)?;
            control.threads.push(handle);
        }
        for listening in listeners.values() {
            control.accept(listening);
        }
        self.shared
            .access_log
            .configure(control.config.access_log.as_ref());
        control.listeners = listeners;
        control.state = State::Running;
        Ok(control.bound())
    }

    /// Listener name to bound address.
    pub fn bound(&self) -> HashMap<String, String> {
        self.control.lock().bound()
    }

    /// Replaces the policy, all or nothing. Services and listeners that stay keep everything.
    /// Returns the policy epoch.
    ///
    /// # Errors
    /// The configuration is refused, or a new listener cannot be bound; the old policy stays.
    pub fn apply_policy(&self, config: &[u8]) -> Result<u64, Error> {
        let config = Config::parse(config)?;
        let mut control = self.control.lock();
        if control.state == State::Stopped {
            return Err(Error::NotRunning);
        }
        control.refuse_fixed(&config)?;
        let mut listeners = HashMap::new();
        if control.state == State::Running {
            listeners = bind(&config, &control.listeners)?;
        }
        // From here on nothing can fail.
        let current = self.shared.routing.load_full();
        let (next, left) = next_routing(&config, &current.services, self.shared.seed);
        let next = Arc::new(next);
        self.shared.recording.configure(config.picks.keep);
        self.shared.routing.store(Arc::clone(&next));
        control.forget(left);
        for (name, service) in &current.services {
            let stays = |next: &Arc<Service>| Arc::ptr_eq(next, service);
            if !next.services.get(name).is_some_and(stays) {
                control.forget(service.retire());
                control.leaving.services.push(Arc::downgrade(service));
            }
        }
        if control.state == State::Running {
            self.shared.access_log.configure(config.access_log.as_ref());
            control.switch_listeners(&config, listeners);
        }
        control.config = config;
        control.policy_epoch += 1;
        Ok(control.policy_epoch)
    }

    /// Replaces the endpoint set of a service. Returns its epoch.
    ///
    /// # Errors
    /// The set is refused, or there is no such service; the old set stays.
    pub fn apply_endpoints(&self, service: &str, endpoints: &[u8]) -> Result<u64, Error> {
        let limits = self.service(service)?.snapshot().settings.limits.clone();
        let set = EndpointSetConfig::parse(endpoints, &limits)?;
        let control = self.control.lock();
        // Looked up under the lock: a reload may have removed it meanwhile, and nobody would
        // forget the endpoints of a service that is gone.
        let service = self.service(service)?;
        let (epoch, left) = service.apply_endpoints(set);
        control.forget(left);
        Ok(epoch)
    }

    /// The service of that name.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn service(&self, name: &str) -> Result<Arc<Service>, Error> {
        let routing = self.shared.routing.load();
        routing.services.get(name).cloned().ok_or_else(|| {
            let mut names: Vec<_> = routing.services.keys().map(String::as_str).collect();
            names.sort_unstable();
            let message = format!("no service `{name}`; configured are {}", names.join(", "));
            ConfigError {
                path: "service".into(),
                message,
            }
            .into()
        })
    }

    /// Takes in a load report of an endpoint that came out of band, a serialised `OrcaLoadReport`.
    /// False if the service has no such endpoint.
    ///
    /// # Errors
    /// There is no such service.
    pub fn reported(&self, service: &str, endpoint: &str, report: &[u8]) -> Result<bool, Error> {
        let service = self.service(service)?;
        let now_ns = self.now_ns();
        let known = |address| service.reported_out_of_band(&address, now_ns, report);
        Ok(endpoint.parse().is_ok_and(known))
    }

    /// Now, on the clock that picks and balancers go by.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Counters and routing, for metrics.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Every listener that is bound.
    pub fn listeners(&self) -> Vec<Arc<Listener>> {
        let control = self.control.lock();
        control
            .listeners
            .values()
            .map(|listening| Arc::clone(&listening.listener))
            .collect()
    }

    /// What readiness still waits for; empty when ready.
    pub fn pending(&self) -> Vec<String> {
        let mut pending = Vec::new();
        if self.control.lock().state != State::Running {
            pending.push("listeners".to_owned());
        }
        for (name, service) in &self.shared.routing.load().services {
            if service.snapshot().epoch == 0 {
                pending.push(format!("endpoints of {name}"));
            }
        }
        pending.sort_unstable();
        pending
    }

    /// Ends everything and joins the threads. Idempotent.
    pub fn stop(&self) {
        let threads = {
            let mut control = self.control.lock();
            control.state = State::Stopped;
            control.leave(|thread| &thread.going_away);
            control.leave(|thread| &thread.force);
            control.listeners.clear();
            std::mem::take(&mut control.threads)
        };
        for thread in threads {
            drop(thread.commands);
            if thread.join.join().is_err() {
                tracing::error!("a data thread had panicked");
            }
        }
        self.shared.access_log.close();
    }

    fn spawn(&self, index: usize, config: &Config) -> std::io::Result<ThreadHandle> {
        let (commands, received) = unbounded_channel();
        let (going_away, force) = (CancellationToken::new(), CancellationToken::new());
        let inbound_going_away = going_away.child_token();
        let shared = Arc::clone(&self.shared);
        let stream = u64::try_from(index).unwrap_or_default();
        let (clock, linger) = (self.clock, Duration::from_micros(config.busy_poll_us));
        let (away, forced) = (going_away.clone(), force.clone());
        let inbound_away = inbound_going_away.clone();
        // Made here, so that a refusal of the system is an error of `start`.
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_io().enable_time();
        let join = std::thread::Builder::new()
            .name(format!("data-{index}"))
            .spawn(move || {
                let runtime = match builder.build_local(tokio::runtime::LocalOptions::default()) {
                    Ok(runtime) => runtime,
                    Err(error) => return tracing::error!(%error, "cannot start a data thread"),
                };
                let thread = Rc::new(Thread {
                    rng: RefCell::new(Rng::stream(shared.seed, stream)),
                    lots: RefCell::new(Rng::stream(shared.seed, LOTS_STREAM + stream)),
                    shared,
                    clock,
                    pool: Pool::default(),
                    tails: RefCell::default(),
                    due_probes: RefCell::default(),
                    activity: Activity::new(linger),
                    going_away: away,
                    inbound_going_away: inbound_away,
                    force: forced,
                });
                runtime.block_on(async {
                    if index == 0 {
                        tokio::task::spawn_local(maintain(Rc::clone(&thread)));
                    }
                    run(thread, received).await;
                });
            })?;
        Ok(ThreadHandle {
            commands,
            going_away,
            inbound_going_away,
            force,
            join,
        })
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How often endpoints are looked at besides the calls: ejections that end, intervals to judge.
const MAINTENANCE: Duration = Duration::from_millis(100);

/// Looks after every service; on one thread, because services are shared.
async fn maintain(thread: Rc<Thread>) {
    let mut checks = Checks::default();
    let mut ticks = tokio::time::interval(MAINTENANCE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let routing = thread.shared.routing.load();
        for service in routing.services.values() {
            service.maintain(thread.clock.now_ns());
        }
        checks.step(&thread, &routing.services);
    }
}

/// Carries commands out until the control side lets go.
async fn run(thread: Rc<Thread>, mut commands: UnboundedReceiver<Command>) {
    if !thread.activity.linger.is_zero() {
        let thread = Rc::clone(&thread);
        tokio::task::spawn_local(async move { thread.activity.poll_busily().await });
    }
    while let Some(command) = commands.recv().await {
        match command {
            Command::Accept(listener, stop) => {
                let stop_all = thread.going_away.clone();
                let accepting = listener::accept(Rc::clone(&thread), listener, stop);
                tokio::task::spawn_local(async move {
                    tokio::select! {
                        () = accepting => {}
                        () = stop_all.cancelled() => {}
                    }
                });
            }
            Command::Forget(ids) => thread.pool.remove(&ids),
        }
    }
}

impl ThreadHandle {
    fn is_leaving(&self, inbound: bool) -> bool {
        let token = if inbound {
            &self.inbound_going_away
        } else {
            &self.going_away
        };
        token.is_cancelled()
    }
}

impl Listening {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.listener, &other.listener)
    }

    fn end(&self) {
        self.stop.cancel();
        self.listener.close();
    }
}

impl Control {
    /// Takes no more connections, and cancels one token of every thread.
    pub(crate) fn leave(&self, which: impl Fn(&ThreadHandle) -> &CancellationToken) {
        for listening in self.listeners.values() {
            listening.end();
        }
        for thread in &self.threads {
            which(thread).cancel();
        }
    }

    /// The same of what stands in front of servers, and of nothing else. True if that is all there
    /// is.
    pub(crate) fn leave_inbound(&self) -> bool {
        let mut is_all = true;
        for listening in self.listeners.values() {
            if listening.listener.is_inbound() {
                listening.end();
            } else {
                is_all = false;
            }
        }
        for thread in &self.threads {
            thread.inbound_going_away.cancel();
        }
        is_all
    }

    fn bound(&self) -> HashMap<String, String> {
        let listeners = self.listeners.iter();
        listeners
            .map(|(name, one)| (name.clone(), one.listener.bound.to_string()))
            .collect()
    }

    fn accept(&self, listening: &Listening) {
        for thread in &self.threads {
            let (listener, stop) = (Arc::clone(&listening.listener), listening.stop.clone());
            let _ = thread.commands.send(Command::Accept(listener, stop));
        }
    }

    fn forget(&self, ids: Vec<u64>) {
        if ids.is_empty() {
            return;
        }
        let ids: Arc<[u64]> = ids.into();
        for thread in &self.threads {
            let _ = thread.commands.send(Command::Forget(Arc::clone(&ids)));
        }
    }

    /// What cannot change while threads run.
    fn refuse_fixed(&self, next: &Config) -> Result<(), ConfigError> {
        let fixed = [
            ("threads", self.config.threads == next.threads),
            (
                "busy_poll_us",
                self.config.busy_poll_us == next.busy_poll_us,
            ),
        ];
        match fixed.into_iter().find(|(_, same)| !same) {
            Some((key, _)) if self.state == State::Running => Err(ConfigError {
                path: key.into(),
                message: "cannot change while the sidecar runs; restart it".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Puts `next` in force: the listeners that it leaves out stop, new ones begin, and those that
    /// stay take calls as `config` says now.
    fn switch_listeners(&mut self, config: &Config, next: HashMap<String, Listening>) {
        let current = std::mem::take(&mut self.listeners);
        for listening in current.values() {
            if !next.values().any(|other| other.is(listening)) {
                listening.end();
                let listener = Arc::downgrade(&listening.listener);
                self.leaving.listeners.push(listener);
            }
        }
        for wanted in &config.listeners {
            if let Some(listening) = next.get(&wanted.name) {
                listening.listener.config.store(Arc::new(wanted.clone()));
                if !current.values().any(|other| other.is(listening)) {
                    self.accept(listening);
                }
                // A drain has begun: nobody accepts any more, so clients must be refused.
                let is_inbound = listening.listener.is_inbound();
                if self.threads.iter().any(|one| one.is_leaving(is_inbound)) {
                    listening.end();
                }
            }
        }
        self.listeners = next;
    }

    /// What reloads removed and is not gone yet.
    pub(crate) fn leaving(&mut self) -> &Leaving {
        let leaving = &mut self.leaving;
        leaving.listeners.retain(|one| one.strong_count() > 0);
        leaving.services.retain(|one| one.strong_count() > 0);
        leaving
    }
}

/// The listener of each name in `config`: one that is bound to its address already, or a new one.
/// An address can only be bound once, so what else changes must not change the socket.
fn bind(
    config: &Config,
    bound: &HashMap<String, Listening>,
) -> Result<HashMap<String, Listening>, Error> {
    let mut listeners = HashMap::new();
    for wanted in &config.listeners {
        let serves =
            |listening: &&Listening| listening.listener.config.load().address == wanted.address;
        // The name alone tells listeners apart whose ports the system picks.
        let any_port = wanted.address.port() == Some(0);
        let same_name = bound.get(&wanted.name).filter(serves);
        let current = same_name.or_else(|| bound.values().find(serves).filter(|_| !any_port));
        let listening = match current {
            Some(listening) => listening.clone(),
            None => Listening {
                listener: Arc::new(Listener::bind(wanted.clone())?),
                stop: CancellationToken::new(),
            },
        };
        listeners.insert(wanted.name.clone(), listening);
    }
    Ok(listeners)
}

/// Services that stay are the same objects, with their settings replaced; servers behind listeners
/// stand among them. With the ids of endpoints that left: former targets of listeners.
fn next_routing(
    config: &Config,
    current: &HashMap<String, Arc<Service>>,
    seed: u64,
) -> (Routing, Vec<u64>) {
    let mut services = HashMap::new();
    let mut authorities = Vec::new();
    for wanted in &config.services {
        let known = current.get(&wanted.name);
        let service = match known.filter(|service| service.inbound().is_none()) {
            Some(service) => {
                service.apply_config(wanted.clone());
                Arc::clone(service)
            }
            None => Service::new(wanted.clone(), seed).shared(),
        };
        for authority in &wanted.authorities {
            authorities.push((authority.clone(), Arc::clone(&service)));
        }
        services.insert(wanted.name.clone(), service);
    }
    let mut left = Vec::new();
    for listener in &config.listeners {
        let (Some(wanted), name) = (&listener.inbound, &listener.name) else {
            continue;
        };
        let known = current.get(name);
        let known = known.and_then(|service| Some((service, service.inbound()?)));
        let service = match known {
            Some((service, inbound)) => {
                inbound.apply_config(wanted);
                Arc::clone(service)
            }
            None => Service::in_front_of(name, wanted, seed).shared(),
        };
        left.extend(service.apply_endpoints(wanted.endpoints()).1);
        services.insert(name.clone(), service);
    }
    let known_authorities = listed(authorities.iter().map(|(name, _)| name.as_str()));
    let routing = Routing {
        known_authorities: known_authorities.into(),
        authorities: Authorities::new(authorities),
        services,
        limits: config.limits.clone(),
        timeouts: config.timeouts.clone(),
        sampling: Sampling::of(config),
    };
    (routing, left)
}

/// Names for an error text; cut, because a service mesh can have thousands.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let shown: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
