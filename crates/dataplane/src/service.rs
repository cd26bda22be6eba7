//! A service: its endpoints, its settings, and the snapshot that pickers read.
//!
//! Whatever a pick needs agrees by construction, because it stands in one immutable [`Snapshot`]
//! behind one atomic load. Writers (policy, discovery, the pool that finds an endpoint dead) build
//! the next snapshot under a mutex, off the path of calls, and swap it in; those on a data thread do
//! it beside that thread where the set is large.

mod beside;
mod learning;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use http::header::{HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::address::Address;
pub use crate::attempt::{Attempt, Probe, RequestClass, RequestInfo, Sample, Tried};
use crate::balancer::{Balancer, Learning, View};
use crate::class::{Interner, Newcomers};
use crate::config::{
    BudgetConfig, ConnectionConfig, EndpointSetConfig, GrpcHealthConfig, InboundConfig,
    RouteConfig, RulesConfig, ServiceConfig, ServiceLimits, WaitingConfig,
};
use crate::constraints::{pick_among, Candidates, Ground, Ruled, Voids};
use crate::decisions::Decisions;
use crate::endpoint::{Endpoint, Member, Outcome};
use crate::grpc::Code;
use crate::hash::{fnv1a, hash};
use crate::health::Verdict;
use crate::histogram::Histogram;
use crate::inbound::Inbound;
use crate::orca::{Claims, LoadReport, Malformed, MetricNames};
use crate::outlier::{Cause, Outlier};
use crate::probe::Finding;
pub use crate::reason::Reason;
use crate::repetition::{Repetition, RepetitionStats};
use crate::retry::Budget;
use crate::rng::Rng;
use crate::route::Routes;
use crate::score_table::ScoreTable;
use crate::slow_start::SlowStart;
use crate::stats::RetryReason;
use crate::streaming::StreamingMethods;
use crate::waiting::{Connections, Crowd};
pub use learning::Tracking;

/// Ids are unique over all services, because pools know endpoints by nothing else. An identity, no
/// state: nothing reads it back, and no pick depends on it.
static NEXT_ENDPOINT_ID: AtomicU64 = AtomicU64::new(1);

/// Everything a pick reads. Immutable.
#[derive(Debug)]
pub struct Snapshot {
    /// Version of the endpoint set; 0 before the first.
    pub epoch: u64,
    /// Every endpoint, in index order.
    pub members: Arc<[Member]>,
    /// Indices of members that may take calls, ascending.
    pub usable: Box<[u32]>,
    /// Indices that are well and get no calls, because another priority takes them, ascending.
    pub standby: Box<[u32]>,
    /// Endpoints that are not well are in `usable` all the same, because too few are.
    pub panic: bool,
    /// An operator's pins say whom `usable` holds.
    pub pinned: bool,
    /// Connects to some endpoint work. Else `usable` holds all of them, so that calls find out at
    /// once when one comes back.
    pub reachable: bool,
    /// The rule, prepared for `usable`.
    pub balancer: Balancer,
    /// What the rules of routes leave of it, by `RequestInfo::rule`; empty where there are none.
    rules: Box<[Ruled]>,
    /// Request classes, as indices, and the scores that are in their order.
    pub learning: Arc<Learning>,
    /// Settings of the service that calls need.
    pub settings: Arc<Settings>,
    /// Sidecars that call the service, this one included.
    pub sidecars: u32,
    /// Whether slow start has yet to note who of the usable endpoints is new.
    unstamped: AtomicBool,
    /// Usable for the first time: what the first pick has to stamp, however many there are besides.
    fresh: Box<[u32]>,
}

/// Settings as calls use them; replaced as a whole by a reload.
#[derive(Debug)]
pub struct Settings {
    /// Limits.
    pub limits: ServiceLimits,
    /// How endpoints are dialled.
    pub connection: ConnectionConfig,
    /// Whether and how long calls wait for a place.
    pub waiting: WaitingConfig,
    /// Per-path settings.
    pub routes: Routes,
    /// The rules of each `RequestInfo::rule`; empty where there are none.
    rules: Box<[RulesConfig]>,
    sticky_headers: Box<[Option<HeaderName>]>,
    /// What each `RouteConfig::repetition` says, from 1.
    repetitions: Box<[Arc<Repetition>]>,
    /// Whether and how new endpoints get fewer calls.
    pub slow_start: Option<SlowStart>,
    /// Whether and when calls that go wrong eject an endpoint.
    pub outlier: Option<Outlier>,
    /// Whether and how endpoints are asked for their health.
    pub health: Option<GrpcHealthConfig>,
    /// Share of the endpoints that must be well.
    pub panic_threshold: f64,
    /// Where the values of load reports stand.
    pub metric_names: MetricNames,
    /// Whether load reports are kept from clients.
    pub strip_load_reports: bool,
    /// Request header that calls are placed by.
    hash_header: Option<HeaderName>,
    /// How calls are told apart, where somebody learns from them.
    pub tracking: Option<Tracking>,
}

/// Why no endpoint was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The set is empty, or discovery has not delivered one yet.
    NoEndpoints,
    /// Every endpoint has static weight 0.
    AllWeightZero,
    /// An operator drained every endpoint whose static weight is not 0.
    AllDrained,
    /// That many endpoints take calls, and none of them is well; the panic threshold is 0.
    NoneWell(u32),
    /// `limits.max_inflight` is reached.
    MaxInflight(u32),
    /// `limits.max_inflight_per_endpoint` is reached at every endpoint that may take the call.
    MaxInflightPerEndpoint(u32),
    /// `limits.max_held_bytes` is reached.
    MaxHeldBytes(u64),
    /// `limits.max_held_bytes_per_endpoint` is reached at every endpoint that may take the call.
    MaxHeldBytesPerEndpoint(u64),
}

/// Counters of a service; relaxed, each read for itself.
#[derive(Debug, Default)]
pub struct ServiceStats {
    /// Calls accepted and not ended.
    pub in_flight: AtomicU32,
    /// Ended calls by final gRPC status code.
    pub ended: [AtomicU64; Code::COUNT],
    /// Duration of ended calls.
    pub duration: Histogram,
    /// Picks by reason.
    pub picks: [AtomicU64; Reason::ALL.len()],
    /// DATA bytes from clients.
    pub request_bytes: AtomicU64,
    /// DATA bytes to clients.
    pub response_bytes: AtomicU64,
    /// Calls whose first connect failed and that went to another endpoint instead.
    pub connect_retries: AtomicU64,
    /// Calls sent again, by reason.
    pub retries: [AtomicU64; RetryReason::ALL.len()],
    /// Rules that could not be kept for a call.
    pub voids: Voids,
    /// Ejections by cause.
    pub ejections: [AtomicU64; Cause::ALL.len()],
    /// Ejections that `outlier_detection.max_ejected` forbade.
    pub ejections_refused: AtomicU64,
    /// Health checks by kind of verdict.
    pub health_checks: [AtomicU64; Verdict::KINDS.len()],
    /// Load reports that could not be read.
    pub malformed_reports: AtomicU64,
    /// Probes by [`Finding`].
    pub probes: [AtomicU64; Finding::KINDS.len()],
    /// Calls that were tried again.
    pub repetition: RepetitionStats,
}

/// One service. Lives while any policy or call names it.
#[derive(Debug)]
pub struct Service {
    /// Value of the `service` label.
    pub name: String,
    /// Counters.
    pub stats: ServiceStats,
    /// Methods whose calls are streams.
    pub streaming: StreamingMethods,
    /// Calls whose request class is not admitted yet.
    newcomers: Newcomers,
    /// Repetitions of what was not processed, beyond the first of a call, on routes without `retry`.
    pub unprocessed_budget: Budget,
    inbound: Option<Box<Inbound>>,
    /// Picks that were recorded.
    pub decisions: Decisions,
    /// What its endpoints share.
    pub crowd: Arc<Crowd>,
    /// Connections to them.
    pub connections: Arc<Connections>,
    snapshot: ArcSwap<Snapshot>,
    /// When [`Service::maintain`] has something to do next.
    due_ns: AtomicU64,
    beside: beside::Beside,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    config: ServiceConfig,
    rng: Rng,
    /// Sidecars that call the service, as far as somebody told.
    sidecars: Option<u32>,
    /// When the current interval of outlier detection ends.
    judged_ns: Option<u64>,
    interner: Interner,
    /// Scores in force.
    table: Arc<ScoreTable>,
    /// When the last window was taken.
    window_ns: u64,
    /// Endpoints that left the set while something still held them.
    leaving: Vec<Weak<Endpoint>>,
}

impl Service {
    /// A service without endpoints.
    #[must_use]
    pub fn new(config: ServiceConfig, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, fnv1a(config.name.as_bytes()));
        let interner = Interner::new();
        let table = Arc::new(ScoreTable::unknown(
            Arc::clone(interner.set()),
            Arc::new([]),
            0,
        ));
        let snapshot = Snapshot {
            epoch: 0,
            balancer: Balancer::new(&config.balancer, View::new(&[], &[]), None, &mut rng),
            members: Arc::new([]),
            usable: Box::new([]),
            standby: Box::new([]),
            rules: Box::new([]),
            panic: false,
            pinned: false,
            reachable: true,
            learning: Arc::new(Learning {
                table: Arc::clone(&table),
                classes: Arc::clone(interner.set()),
                reported_ns: Arc::default(),
            }),
            settings: Arc::new(Settings::new(&config, &[])),
            sidecars: config.sidecars,
            unstamped: AtomicBool::new(false),
            fresh: Box::default(),
        };
        Self {
            name: config.name.clone(),
            stats: ServiceStats::default(),
            streaming: StreamingMethods::default(),
            newcomers: Newcomers::default(),
            unprocessed_budget: Budget::new(&BudgetConfig::default()),
            inbound: None,
            decisions: Decisions::default(),
            crowd: Arc::default(),
            connections: Arc::default(),
            snapshot: ArcSwap::from_pointee(snapshot),
            due_ns: AtomicU64::new(0),
            beside: beside::Beside::default(),
            writer: Mutex::new(Writer {
                config,
                rng,
                sidecars: None,
                judged_ns: None,
                interner,
                table,
                window_ns: 0,
                leaving: Vec::new(),
            }),
        }
    }

    /// The server that a listener stands in front of, as a service without endpoints.
    #[must_use]
    pub fn in_front_of(name: &str, config: &InboundConfig, seed: u64) -> Self {
        Self {
            inbound: Some(Box::new(Inbound::new(config.clone()))),
            ..Self::new(ServiceConfig::plain(name), seed)
        }
    }

    /// What is measured in front of a server; `None` of what clients ask for by name.
    #[must_use]
    pub fn inbound(&self) -> Option<&Inbound> {
        self.inbound.as_deref()
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Replaces the settings; endpoints, their counters and connections stay.
    pub fn apply_config(&self, config: ServiceConfig) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let settings = Settings::new(&config, &current.settings.repetitions);
        let settings = Arc::new(settings);
        writer.config = config;
        if settings.health.is_none() {
            for member in current.members.iter() {
                member.endpoint.health.clear();
            }
        }
        self.due_ns.store(0, Relaxed);
        self.publish(
            &mut writer,
            current.epoch,
            Arc::clone(&current.members),
            settings,
        );
    }

    /// Replaces the endpoint set. Endpoints whose address stays keep identity and counters.
    /// Returns the epoch, which rises only if the set changed, and the ids of the endpoints that
    /// left it, for the pools to forget.
    pub fn apply_endpoints(&self, set: EndpointSetConfig) -> (u64, Vec<u64>) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        if current.epoch > 0 && same_set(&current.members, &set) {
            return (current.epoch, Vec::new());
        }
        let (members, left) = Self::next_members(&mut writer, &self.crowd, &current.members, set);
        let epoch = current.epoch + 1;
        self.publish(&mut writer, epoch, members, Arc::clone(&current.settings));
        for endpoint in &left {
            endpoint.leave();
        }
        (epoch, left.iter().map(|endpoint| endpoint.id).collect())
    }

    /// Takes every endpoint from a service that no policy names any more: calls that still wait
    /// for one find none. Returns the ids of the endpoints.
    pub fn retire(&self) -> Vec<u64> {
        let nobody = EndpointSetConfig {
            endpoints: Vec::new(),
        };
        self.apply_endpoints(nobody).1
    }

    fn next_members(
        writer: &mut Writer,
        crowd: &Arc<Crowd>,
        current: &[Member],
        set: EndpointSetConfig,
    ) -> (Arc<[Member]>, Vec<Arc<Endpoint>>) {
        let mut known: HashMap<_, _> = current
            .iter()
            .map(|member| (&member.endpoint.address, &member.endpoint))
            .collect();
        let members = set
            .endpoints
            .into_iter()
            .map(|config| {
                let endpoint = known.remove(&config.address).map_or_else(
                    || {
                        let id = NEXT_ENDPOINT_ID.fetch_add(1, Relaxed);
                        let crowd = Arc::clone(crowd);
                        Arc::new(Endpoint::of_service(id, config.address.clone(), crowd))
                    },
                    Arc::clone,
                );
                Member {
                    endpoint,
                    static_weight: config.static_weight,
                    zone: config.zone,
                    labels: config.labels,
                    priority: config.priority,
                    operator_override: config.operator_override,
                }
            })
            .collect();
        let left: Vec<_> = known.into_values().map(Arc::clone).collect();
        writer
            .leaving
            .retain(|endpoint| endpoint.strong_count() > 0);
        writer.leaving.extend(left.iter().map(Arc::downgrade));
        (members, left)
    }

    /// Tells how many sidecars call the service, this one included.
    pub fn set_sidecars(&self, sidecars: u32) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let sidecars = Some(sidecars.max(1));
        if std::mem::replace(&mut writer.sidecars, sidecars) != sidecars {
            self.republish(&mut writer, &current);
        }
    }

    /// Tells that connects to an endpoint fail, or that one succeeded.
    pub fn set_failing(&self, endpoint: &Endpoint, failing: bool) {
        // The first connection of an endpoint that had none.
        if !failing && endpoint.live.connections.load(Relaxed) <= 1 {
            endpoint.state.reconnected();
        }
        self.mark_failing(endpoint, failing);
    }

    /// The same of an endpoint that was not connected anew: what is known of it stays.
    pub(crate) fn mark_failing(&self, endpoint: &Endpoint, failing: bool) {
        if endpoint.live.failing.swap(failing, Relaxed) == failing {
            return;
        }
        if failing {
            endpoint.outlier.connect_failed();
        } else if let Some(inbound) = &self.inbound {
            inbound.server_started();
        }
        self.refresh();
    }

    /// Has whoever may take calls decided anew, if `change` says that an endpoint has changed.
    pub(crate) fn reconsider(&self, change: impl FnOnce(&Settings) -> bool) {
        let writer = self.writer.lock();
        let changed = change(&self.snapshot.load().settings);
        drop(writer);
        if changed {
            self.refresh();
        }
    }

    fn publish(
        &self,
        writer: &mut Writer,
        epoch: u64,
        members: Arc<[Member]>,
        settings: Arc<Settings>,
    ) {
        self.hold_to_limit(&members, settings.outlier.as_ref());
        let Candidates {
            usable,
            standby,
            panic,
            reachable,
        } = Candidates::of(&members, settings.panic_threshold);
        let (usable, pinned) = restrict_to_pinned(&members, usable, &standby);
        let previous = self.snapshot.load();
        let learning = self.next_learning(writer, settings.tracking.as_ref(), &members, &previous);
        let sidecars = writer.sidecars.unwrap_or(writer.config.sidecars);
        let Writer { config, rng, .. } = writer;
        let view = View {
            members: &members,
            usable: &usable,
            slow_start: settings.slow_start,
            sidecars,
            learning: Some(&learning),
        };
        let balancer = Balancer::new(&config.balancer, view, Some(&previous.balancer), rng);
        let rules = settings.rules_for(config, view, &previous.rules, rng);
        let fresh = match settings.slow_start {
            Some(_) => fresh(&members, &usable),
            None => Box::default(),
        };
        self.snapshot.store(Arc::new(Snapshot {
            epoch,
            members,
            usable,
            standby,
            panic,
            pinned,
            reachable,
            balancer,
            rules,
            learning,
            sidecars,
            unstamped: AtomicBool::new(!fresh.is_empty()),
            fresh,
            settings,
        }));
        self.crowd.waiting.changed();
    }

    /// Ends ejections whose time is over, judges the interval that has ended, and admits request
    /// classes. Cheap while none of it is due; to be called a few times a second.
    pub fn maintain(&self, now_ns: u64) {
        self.admit();
        if now_ns < self.due_ns.load(Relaxed) {
            return;
        }
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let Some(outlier) = &current.settings.outlier else {
            writer.judged_ns = None;
            self.due_ns.store(u64::MAX, Relaxed);
            return;
        };
        let mut changed = false;
        for member in current.members.iter() {
            let record = &member.endpoint.outlier;
            if record.is_ejected() && record.until_ns() <= now_ns {
                self.restore(&member.endpoint);
                changed = true;
            }
        }
        if let Some(interval_ns) = outlier.interval_ns() {
            let due_ns = *writer.judged_ns.get_or_insert(now_ns) + interval_ns;
            if due_ns <= now_ns {
                writer.judged_ns = Some(now_ns);
                for (index, cause) in outlier.judge(&current.members) {
                    let endpoint = &current.members[index as usize].endpoint;
                    changed |= self.try_eject(&current, endpoint, now_ns, cause);
                }
            }
        }
        self.set_due(&current, writer.judged_ns);
        drop(writer);
        if changed {
            self.refresh();
        }
    }

    /// Ejects for failures in a row. Where that finds no thread, as many failures more ask again.
    fn eject(&self, endpoint: &Arc<Endpoint>, now_ns: u64) {
        let Some(this) = self.if_large() else {
            return self.eject_now(endpoint, now_ns);
        };
        let endpoint = Arc::clone(endpoint);
        beside::run(move || this.eject_now(&endpoint, now_ns));
    }

    fn eject_now(&self, endpoint: &Arc<Endpoint>, now_ns: u64) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let mut members = current.members.iter();
        if members.any(|member| Arc::ptr_eq(&member.endpoint, endpoint))
            && self.try_eject(&current, endpoint, now_ns, Cause::ConsecutiveErrors)
        {
            self.set_due(&current, writer.judged_ns);
            self.republish(&mut writer, &current);
        }
    }

    /// Ejects within the limit, under the writer's lock. True if it did.
    fn try_eject(
        &self,
        current: &Snapshot,
        endpoint: &Endpoint,
        now_ns: u64,
        cause: Cause,
    ) -> bool {
        let Some(outlier) = &current.settings.outlier else {
            return false;
        };
        if endpoint.outlier.is_ejected() {
            return false;
        }
        let ejected = current.members.iter();
        let ejected = ejected.filter(|member| member.endpoint.outlier.is_ejected());
        if ejected.count() >= outlier.limit(&current.members) {
            self.stats.ejections_refused.fetch_add(1, Relaxed);
            return false;
        }
        let length_ns = outlier.eject(endpoint, now_ns);
        self.stats.ejections[cause as usize].fetch_add(1, Relaxed);
        let (cause, for_ms) = (cause.name(), length_ns / 1_000_000);
        tracing::warn!(service = %self.name, endpoint = %endpoint.name, cause, for_ms, "endpoint ejected");
        true
    }

    fn restore(&self, endpoint: &Endpoint) {
        endpoint.outlier.restore();
        endpoint.first_ready.clear();
        tracing::info!(service = %self.name, endpoint = %endpoint.name, "endpoint is back");
    }

    /// Takes back what is more than the limit of a set that has shrunk, or of a new policy.
    fn hold_to_limit(&self, members: &[Member], outlier: Option<&Outlier>) {
        let limit = outlier.map_or(0, |outlier| outlier.limit(members));
        let mut ejected: Vec<_> = members
            .iter()
            .map(|member| &member.endpoint)
            .filter(|endpoint| endpoint.outlier.is_ejected())
            .collect();
        let over = ejected.len().saturating_sub(limit);
        ejected.sort_by_key(|endpoint| endpoint.outlier.until_ns());
        ejected[..over]
            .iter()
            .for_each(|endpoint| self.restore(endpoint));
    }

    fn set_due(&self, current: &Snapshot, judged_ns: Option<u64>) {
        let outlier = current.settings.outlier.as_ref();
        let interval_ns = outlier.and_then(Outlier::interval_ns);
        let judgement = judged_ns.zip(interval_ns).map(|(at, length)| at + length);
        let ends = current
            .members
            .iter()
            .map(|member| &member.endpoint.outlier);
        let ends = ends.filter(|record| record.is_ejected());
        let due = ends.map(|record| record.until_ns()).chain(judgement).min();
        self.due_ns.store(due.unwrap_or(u64::MAX), Relaxed);
    }

    /// A snapshot of the same endpoints and settings, because something about one has changed.
    fn republish(&self, writer: &mut Writer, current: &Snapshot) {
        let (members, settings) = (Arc::clone(&current.members), Arc::clone(&current.settings));
        self.publish(writer, current.epoch, members, settings);
    }

    /// Chooses the endpoint of the next attempt: its index and the reason. `now_ns` is when the
    /// request headers were received, on the caller's monotonic clock.
    ///
    /// # Errors
    /// A [`Refusal`] if no endpoint can take the call.
    pub fn choose(
        &self,
        snapshot: &Snapshot,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
    ) -> Result<(u32, Reason), Refusal> {
        let chosen = self.choose_among(snapshot, now_ns, request, rng, &|_| true)?;
        self.count_pick(chosen.1);
        Ok(chosen)
    }

    /// The same without counting it, and without those that `takes` denies while the rules of the
    /// route leave another one.
    pub(crate) fn choose_among(
        &self,
        snapshot: &Snapshot,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
        takes: &dyn Fn(u32) -> bool,
    ) -> Result<(u32, Reason), Refusal> {
        if snapshot.unstamped.load(Relaxed) {
            snapshot.stamp(now_ns);
        }
        let (index, reason) = match *snapshot.usable {
            [] if snapshot.members.is_empty() => return Err(Refusal::NoEndpoints),
            [] => return Err(snapshot.refusal()),
            [only] => (only, Reason::Single),
            _ => snapshot.place(now_ns, request, &self.stats.voids, rng, takes),
        };
        let reason = if snapshot.panic {
            Reason::Panic
        } else if snapshot.pinned {
            Reason::Pinned
        } else {
            reason
        };
        Ok((index, reason))
    }

    pub(crate) fn count_pick(&self, reason: Reason) {
        self.stats.picks[reason as usize].fetch_add(1, Relaxed);
    }

    /// Whether the rules of a call's route leave an endpoint that has room and that it was not given
    /// to yet.
    #[must_use]
    pub fn has_another(&self, snapshot: &Snapshot, request: RequestInfo, tried: &Tried) -> bool {
        let ruled = snapshot.rules.get(request.rule as usize);
        let among = ruled.map_or(&*snapshot.usable, Ruled::usable);
        let limits = &snapshot.settings.limits;
        among.iter().any(|&index| {
            let endpoint = snapshot.view().endpoint(index);
            endpoint.live.has_room(limits) && !tried.contains(endpoint.id)
        })
    }

    /// Chooses, and counts the attempt in, whatever the limits are.
    ///
    /// # Errors
    /// As [`Service::choose`].
    pub fn begin_attempt(
        &self,
        snapshot: &Snapshot,
        now_ns: u64,
        request: RequestInfo,
        rng: &mut Rng,
    ) -> Result<Attempt, Refusal> {
        let chosen = self.choose(snapshot, now_ns, request, rng)?;
        let endpoint = Arc::clone(&snapshot.members[chosen.0 as usize].endpoint);
        let expected = snapshot.expected(now_ns, request, chosen.0);
        Ok(Attempt::begin(endpoint, chosen, request, now_ns, expected))
    }

    /// Counts an attempt out and tells the balancer in force what became of it. One that is
    /// dropped instead is counted out as censored.
    pub fn end_attempt(&self, mut attempt: Attempt, now_ns: u64, sample: &Sample<'_>) {
        let answered_ns = attempt.answered_ns();
        let sample = &Sample {
            latency_ns: answered_ns.unwrap_or(sample.latency_ns),
            ..*sample
        };
        attempt.close(sample.outcome, sample.latency_ns);
        let snapshot = self.snapshot();
        if let Some(outlier) = &snapshot.settings.outlier {
            if outlier.ended(attempt.endpoint(), sample.outcome) {
                self.eject(attempt.endpoint(), now_ns);
            }
        }
        if answered_ns.is_none() {
            self.enter(&snapshot, &mut attempt, now_ns, sample);
            let view = snapshot.view();
            snapshot.balancer.ended(view, &attempt, now_ns, sample);
        }
        for ruled in &snapshot.rules {
            ruled.refresh(snapshot.view(), now_ns);
        }
        if let Some(report) = sample.report {
            self.reported(attempt.endpoint(), now_ns, report);
        }
    }

    /// Ends the sample of a streaming call at its first answer message, while the call goes on.
    /// `measured`: false if that message came before the call was known to be streaming, so that
    /// nobody noted when.
    pub fn answered(&self, attempt: &mut Attempt, now_ns: u64, measured: bool) {
        let latency_ns = now_ns.saturating_sub(attempt.started_ns());
        attempt.answered(latency_ns);
        let outcome = if measured {
            Outcome::Answered(Code::Ok)
        } else {
            Outcome::Censored(Code::Ok)
        };
        let (snapshot, sample) = (self.snapshot(), Sample::new(outcome, latency_ns));
        self.enter(&snapshot, attempt, now_ns, &sample);
        let view = snapshot.view();
        snapshot.balancer.ended(view, attempt, now_ns, &sample);
    }

    /// The load report of an answer, if it has one; what cannot be read is counted.
    #[must_use]
    pub fn read_report(&self, claims: &Claims) -> Option<LoadReport> {
        let report = claims.report(&self.snapshot().settings.metric_names)?;
        if report.is_err() {
            self.stats.malformed_reports.fetch_add(1, Relaxed);
        }
        report.ok()
    }

    /// Takes in a load report that came out of band, as it is on the wire. False if no endpoint of
    /// the set has that address. What cannot be read is counted.
    #[must_use]
    pub fn reported_out_of_band(&self, address: &Address, now_ns: u64, message: &[u8]) -> bool {
        let snapshot = self.snapshot();
        let of_address = |member: &&Member| member.endpoint.address == *address;
        let Some(member) = snapshot.members.iter().find(of_address) else {
            return false;
        };
        match LoadReport::decode(message, &snapshot.settings.metric_names) {
            Ok(report) => self.reported(&member.endpoint, now_ns, &report),
            Err(Malformed) => {
                self.stats.malformed_reports.fetch_add(1, Relaxed);
            }
        }
        true
    }

    /// Takes in a load report, of an answer or out of band.
    pub fn reported(&self, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        if endpoint.incarnation.is_new(report) {
            endpoint.state.restarted();
            endpoint.ledger.restarted();
            endpoint.first_ready.clear();
            endpoint.first_ready.stamp(now_ns);
        }
        let snapshot = self.snapshot();
        self.enter_report(&snapshot, endpoint, now_ns, report);
        snapshot
            .balancer
            .reported(snapshot.view(), endpoint, now_ns, report);
    }

    /// Replaces the content of `out` by the indices of the endpoints that should be probed after a
    /// pick, for whoever can probe; empty for a balancer that needs none.
    pub fn probes_due(&self, snapshot: &Snapshot, now_ns: u64, rng: &mut Rng, out: &mut Vec<u32>) {
        out.clear();
        if !snapshot.usable.is_empty() {
            snapshot
                .balancer
                .probes_due(snapshot.view(), now_ns, rng, out);
        }
    }

    /// Takes in the answer of a probe.
    pub fn probed(&self, endpoint: &Endpoint, now_ns: u64, probe: Probe) {
        let snapshot = self.snapshot();
        let view = snapshot.view();
        snapshot
            .balancer
            .probed(view, endpoint, now_ns, Some(probe));
    }

    /// Takes in that an endpoint which was probed answers no probes: what is known of it here
    /// stands in.
    pub fn probe_unanswered(&self, endpoint: &Endpoint, now_ns: u64) {
        let snapshot = self.snapshot();
        let view = snapshot.view();
        snapshot.balancer.probed(view, endpoint, now_ns, None);
    }

    /// Calls `visit` with every endpoint that still has calls or connections, those that left the
    /// set included: their series stay until their last call ends.
    pub fn visit_endpoints(&self, mut visit: impl FnMut(&Endpoint)) {
        let leaving: Vec<_> = {
            let mut writer = self.writer.lock();
            writer
                .leaving
                .retain(|endpoint| endpoint.strong_count() > 0);
            writer.leaving.iter().filter_map(Weak::upgrade).collect()
        };
        let snapshot = self.snapshot();
        for member in snapshot.members.iter() {
            visit(&member.endpoint);
        }
        if leaving.is_empty() {
            return;
        }
        let members = snapshot.members.iter();
        let mut seen: HashSet<&str> = members
            .map(|member| member.endpoint.name.as_ref())
            .collect();
        // The newest first: an address that came back, and maybe left again, has one series.
        for endpoint in leaving.iter().rev() {
            if seen.insert(endpoint.name.as_ref()) {
                visit(endpoint);
            }
        }
    }
}

impl Snapshot {
    /// Why a set with endpoints has no usable one.
    fn place(
        &self,
        now_ns: u64,
        request: RequestInfo,
        voids: &Voids,
        rng: &mut Rng,
        takes: &dyn Fn(u32) -> bool,
    ) -> (u32, Reason) {
        let (view, balancer) = (self.view(), &self.balancer);
        match self.rules.get(request.rule as usize) {
            None => pick_among(view, balancer, (now_ns, request), rng, takes),
            Some(ruled) => ruled.pick(view, balancer, (now_ns, request), voids, rng, takes),
        }
    }

    fn refusal(&self) -> Refusal {
        let has_weight = |member: &Member| member.static_weight > 0.0;
        let takers = self.members.iter().filter(|member| member.takes_calls());
        match u32::try_from(takers.count()).unwrap_or(u32::MAX) {
            0 if self.members.iter().any(has_weight) => Refusal::AllDrained,
            0 => Refusal::AllWeightZero,
            count => Refusal::NoneWell(count),
        }
    }

    /// What balancers look at.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            members: &self.members,
            usable: &self.usable,
            slow_start: self.settings.slow_start,
            sidecars: self.sidecars,
            learning: Some(&self.learning),
        }
    }

    fn stamp(&self, now_ns: u64) {
        for &index in &self.fresh {
            self.members[index as usize]
                .endpoint
                .first_ready
                .stamp(now_ns);
        }
        self.unstamped.store(false, Relaxed);
    }

    /// Probability that the balancer gives each member now; 0 for members that take no calls.
    /// `now_ns` is on the clock of the picks.
    #[must_use]
    pub fn weights(&self, now_ns: u64) -> Vec<f32> {
        self.weights_for(0, now_ns)
    }

    /// The same for calls of a route with rules of its own; `rule`: `RequestInfo::rule`.
    #[must_use]
    pub fn weights_for(&self, rule: u32, now_ns: u64) -> Vec<f32> {
        let mut weights = vec![0.0; self.members.len()];
        match self.rules.get(rule as usize) {
            _ if self.usable.is_empty() => {}
            Some(ruled) if ruled.has_sides() => ruled.weights(self.view(), now_ns, &mut weights),
            _ => self.balancer.weights(self.view(), now_ns, &mut weights),
        }
        weights
    }
}

impl Snapshot {
    /// Whom of `usable` the pins of a route leave.
    #[must_use]
    pub fn left_for(&self, rule: u32) -> &[u32] {
        let ruled = self.rules.get(rule as usize);
        ruled.map_or(&self.usable, Ruled::usable)
    }

    /// Whether a pick of that route compares the loads of all that are left.
    #[must_use]
    pub fn compares_all_for(&self, rule: u32) -> bool {
        let ruled = self.rules.get(rule as usize);
        self.balancer.compares_all_loads() && !ruled.is_some_and(Ruled::has_zones)
    }
}

impl Settings {
    fn new(config: &ServiceConfig, previous: &[Arc<Repetition>]) -> Self {
        let mut routes = config.routes.clone();
        let mut repetitions = Vec::new();
        for route in &mut routes {
            if let Some(repetition) = Repetition::of(route) {
                repetitions.push(repetition.following(previous));
                route.repetition = repetitions.len() as u32;
            }
        }
        let mut rules = vec![RulesConfig::default()];
        for route in routes.iter_mut().filter(|route| !route.rules.is_empty()) {
            route.rule = rules.len() as u32;
            rules.push(route.rules.clone());
        }
        if rules.len() == 1 && config.locality.is_none() {
            rules.clear();
        }
        Self {
            sticky_headers: rules.iter().map(sticky_header).collect(),
            repetitions: repetitions.into(),
            rules: rules.into(),
            limits: config.limits.clone(),
            connection: config.connection.clone(),
            waiting: config.waiting,
            routes: Routes::new(&routes),
            slow_start: SlowStart::new(config.slow_start),
            outlier: config.outlier_detection.map(Outlier::new),
            health: config.grpc_health.clone(),
            panic_threshold: config.panic_threshold,
            metric_names: MetricNames::new(
                config.balancer.metric_names(),
                &config.load_reports.names,
            ),
            strip_load_reports: config.strip_load_reports,
            hash_header: config.balancer.hash_header(),
            tracking: Tracking::new(config),
        }
    }

    /// What the route of that `RouteConfig::repetition` says about trying calls again.
    pub(crate) fn repetition(&self, number: u32) -> Option<&Arc<Repetition>> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.repetitions.get(index)
    }

    /// What a pick may know of a call on this route with these headers.
    #[must_use]
    pub fn request_info(&self, route: Option<&RouteConfig>, headers: &HeaderMap) -> RequestInfo {
        let rule = route.map_or(0, |route| route.rule);
        let sticky = self.sticky_headers.get(rule as usize);
        let name = sticky
            .and_then(Option::as_ref)
            .or(self.hash_header.as_ref());
        let value = name.and_then(|name| headers.get(name));
        RequestInfo {
            class: RequestClass::default(),
            key: value.map(|value| hash(value.as_bytes())),
            rule,
        }
    }

    fn rules_for(
        &self,
        config: &ServiceConfig,
        view: View<'_>,
        previous: &[Ruled],
        rng: &mut Rng,
    ) -> Box<[Ruled]> {
        let ground = Ground {
            view,
            balancer: &config.balancer,
            locality: config.locality.as_ref(),
        };
        let previous = previous.iter().map(Some).chain(std::iter::repeat(None));
        let rules = self.rules.iter().zip(previous);
        rules
            .map(|(rules, previous)| Ruled::new(rules, &ground, previous, rng))
            .collect()
    }
}

/// Those that slow start does not know yet.
fn fresh(members: &[Member], usable: &[u32]) -> Box<[u32]> {
    let is_fresh = |&index: &u32| members[index as usize].endpoint.first_ready.is_unknown();
    usable.iter().copied().filter(is_fresh).collect()
}

/// The pinned ones of `usable` and of those that stand by, if there are any, and whether there are.
fn restrict_to_pinned(
    members: &[Member],
    usable: Box<[u32]>,
    standby: &[u32],
) -> (Box<[u32]>, bool) {
    let is_pinned = |index: &&u32| members[**index as usize].is_pinned();
    let both = usable.iter().chain(standby);
    let mut pinned: Box<[u32]> = both.filter(is_pinned).copied().collect();
    if pinned.is_empty() {
        (usable, false)
    } else {
        pinned.sort_unstable();
        (pinned, true)
    }
}

fn sticky_header(rules: &RulesConfig) -> Option<HeaderName> {
    let sticky = rules.sticky.as_ref()?;
    HeaderName::from_bytes(sticky.header.as_bytes()).ok()
}

fn same_set(members: &[Member], set: &EndpointSetConfig) -> bool {
    members.len() == set.endpoints.len()
        && members.iter().zip(&set.endpoints).all(|(member, config)| {
            member.endpoint.address == config.address
                && member.static_weight == config.static_weight
                && member.zone == config.zone
                && member.labels == config.labels
                && member.priority == config.priority
                && member.operator_override == config.operator_override
        })
}

#[cfg(test)]
mod tests;
