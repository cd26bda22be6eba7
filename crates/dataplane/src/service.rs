//! A service: its endpoints, its settings, and the snapshot that pickers read.
//!
//! Whatever a pick needs agrees by construction, because it stands in one immutable [`Snapshot`]
//! behind one atomic load. Writers (policy, discovery, the pool that finds an endpoint dead) build
//! the next snapshot under a mutex, off the path of calls, and swap it in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use crate::attempt::{Attempt, Probe, RequestInfo, Sample};
use crate::balancer::{Balancer, View};
use crate::config::{ConnectionConfig, EndpointSetConfig, ServiceConfig, ServiceLimits};
use crate::endpoint::{Endpoint, Member};
use crate::grpc::Code;
use crate::histogram::Histogram;
use crate::orca::LoadReport;
use crate::rng::Rng;
use crate::route::Routes;

/// Everything a pick reads. Immutable.
#[derive(Debug)]
pub struct Snapshot {
    /// Version of the endpoint set; 0 before the first.
    pub epoch: u64,
    /// Every endpoint, in index order.
    pub members: Arc<[Member]>,
    /// Indices of members that may take calls, ascending.
    pub usable: Box<[u32]>,
    /// Connects to every endpoint fail: `usable` holds them all again, so that calls find out
    /// at once when one comes back.
    pub panic: bool,
    /// The rule, prepared for `usable`.
    pub balancer: Balancer,
    /// Settings of the service that calls need.
    pub settings: Arc<Settings>,
}

/// Settings as calls use them; replaced as a whole by a reload.
#[derive(Debug)]
pub struct Settings {
    /// Limits.
    pub limits: ServiceLimits,
    /// How endpoints are dialled.
    pub connection: ConnectionConfig,
    /// Per-path settings.
    pub routes: Routes,
}

/// Why an endpoint was chosen; one string in metric labels, records and admin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The `round_robin` balancer's turn.
    RoundRobin,
    /// The `least_request` balancer's choice.
    LeastRequest,
    /// Only one endpoint was usable.
    Single,
    /// No endpoint was usable: all of them were candidates.
    Panic,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 4] = [
        Self::RoundRobin,
        Self::LeastRequest,
        Self::Single,
        Self::Panic,
    ];

    fn of(balancer: &Balancer) -> Self {
        match balancer {
            Balancer::RoundRobin(_) => Self::RoundRobin,
            Balancer::LeastRequest(_) => Self::LeastRequest,
        }
    }

    /// The string that stands everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastRequest => "least_request",
            Self::Single => "single",
            Self::Panic => "panic",
        }
    }
}

/// Why no endpoint was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The set is empty, or discovery has not delivered one yet.
    NoEndpoints,
    /// Every endpoint has static weight 0.
    AllWeightZero,
    /// `limits.max_inflight` is reached.
    MaxInflight(u32),
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
}

/// One service. Lives while any policy or call names it.
#[derive(Debug)]
pub struct Service {
    /// Value of the `service` label.
    pub name: String,
    /// Counters.
    pub stats: ServiceStats,
    snapshot: ArcSwap<Snapshot>,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    config: ServiceConfig,
    next_id: u64,
    rng: Rng,
    /// Endpoints that left the set while something still held them.
    leaving: Vec<Weak<Endpoint>>,
}

impl Service {
    /// A service without endpoints.
    #[must_use]
    pub fn new(config: ServiceConfig, seed: u64) -> Self {
        let mut rng = Rng::stream(seed, hash_of(&config.name));
        let members: Arc<[Member]> = Arc::new([]);
        let view = View {
            members: &members,
            usable: &[],
        };
        let snapshot = Snapshot {
            epoch: 0,
            balancer: Balancer::new(&config.balancer, view, None, &mut rng),
            members,
            usable: Box::new([]),
            panic: false,
            settings: Arc::new(Settings::new(&config)),
        };
        Self {
            name: config.name.clone(),
            stats: ServiceStats::default(),
            snapshot: ArcSwap::from_pointee(snapshot),
            writer: Mutex::new(Writer {
                config,
                next_id: 1,
                rng,
                leaving: Vec::new(),
            }),
        }
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Replaces the settings; endpoints, their counters and connections stay.
    pub fn apply_config(&self, config: ServiceConfig) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let settings = Arc::new(Settings::new(&config));
        writer.config = config;
        self.publish(
            &mut writer,
            current.epoch,
            Arc::clone(&current.members),
            settings,
        );
    }

    /// Replaces the endpoint set. Endpoints whose address stays keep identity and counters.
    /// Returns the epoch, which rises only if the set changed, and the ids of the endpoints that
    /// left it.
    pub fn apply_endpoints(&self, set: EndpointSetConfig) -> (u64, Vec<u64>) {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        if current.epoch > 0 && same_set(&current.members, &set) {
            return (current.epoch, Vec::new());
        }
        let (members, left) = Self::next_members(&mut writer, &current.members, set);
        let epoch = current.epoch + 1;
        self.publish(&mut writer, epoch, members, Arc::clone(&current.settings));
        (epoch, left)
    }

    fn next_members(
        writer: &mut Writer,
        current: &[Member],
        set: EndpointSetConfig,
    ) -> (Arc<[Member]>, Vec<u64>) {
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
                        let id = writer.next_id;
                        writer.next_id += 1;
                        Arc::new(Endpoint::new(id, config.address.clone()))
                    },
                    Arc::clone,
                );
                Member {
                    endpoint,
                    static_weight: config.static_weight,
                    zone: config.zone,
                    labels: config.labels,
                }
            })
            .collect();
        let left = known.values().map(|endpoint| endpoint.id).collect();
        writer
            .leaving
            .retain(|endpoint| endpoint.strong_count() > 0);
        writer
            .leaving
            .extend(known.into_values().map(Arc::downgrade));
        (members, left)
    }

    /// Tells that connects to an endpoint fail, or succeed again.
    pub fn set_failing(&self, endpoint: &Endpoint, failing: bool) {
        if endpoint.live.failing.swap(failing, Relaxed) == failing {
            return;
        }
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        let (members, settings) = (Arc::clone(&current.members), Arc::clone(&current.settings));
        self.publish(&mut writer, current.epoch, members, settings);
    }

    fn publish(
        &self,
        writer: &mut Writer,
        epoch: u64,
        members: Arc<[Member]>,
        settings: Arc<Settings>,
    ) {
        let candidates = |skip_failing: bool| -> Box<[u32]> {
            (0_u32..)
                .zip(members.iter())
                .filter(|(_, member)| {
                    let failing = member.endpoint.live.failing.load(Relaxed);
                    member.static_weight > 0.0 && !(skip_failing && failing)
                })
                .map(|(index, _)| index)
                .collect()
        };
        let healthy = candidates(true);
        let (usable, panic) = if healthy.is_empty() {
            (candidates(false), true)
        } else {
            (healthy, false)
        };
        let panic = panic && !usable.is_empty();
        let previous = self.snapshot.load();
        let Writer { config, rng, .. } = writer;
        let view = View {
            members: &members,
            usable: &usable,
        };
        let balancer = Balancer::new(&config.balancer, view, Some(&previous.balancer), rng);
        self.snapshot.store(Arc::new(Snapshot {
            epoch,
            members,
            usable,
            panic,
            balancer,
            settings,
        }));
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
        let (index, reason) = match *snapshot.usable {
            [] if snapshot.members.is_empty() => return Err(Refusal::NoEndpoints),
            [] => return Err(Refusal::AllWeightZero),
            [only] => (only, Reason::Single),
            _ => {
                let index = snapshot
                    .balancer
                    .pick(snapshot.view(), now_ns, request, rng);
                (index, Reason::of(&snapshot.balancer))
            }
        };
        let reason = if snapshot.panic {
            Reason::Panic
        } else {
            reason
        };
        self.stats.picks[reason as usize].fetch_add(1, Relaxed);
        Ok((index, reason))
    }

    /// Chooses, and counts the attempt in.
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
        Ok(Attempt::begin(endpoint, chosen, request, now_ns))
    }

    /// Counts an attempt out and tells the balancer in force what became of it. One that is
    /// dropped instead is counted out as censored.
    pub fn end_attempt(&self, mut attempt: Attempt, now_ns: u64, sample: &Sample<'_>) {
        attempt.close(sample.outcome, sample.latency_ns);
        let snapshot = self.snapshot();
        snapshot
            .balancer
            .ended(snapshot.view(), &attempt, now_ns, sample);
        if let Some(report) = sample.report {
            self.reported(attempt.endpoint(), now_ns, report);
        }
    }

    /// Takes in a load report, of an answer or out of band.
    pub fn reported(&self, endpoint: &Endpoint, now_ns: u64, report: &LoadReport) {
        let snapshot = self.snapshot();
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
        snapshot
            .balancer
            .probed(snapshot.view(), endpoint, now_ns, probe);
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
        for endpoint in &leaving {
            // An address that came back has a live successor of the same name: one series each.
            if !snapshot
                .members
                .iter()
                .any(|member| member.endpoint.name == endpoint.name)
            {
                visit(endpoint);
            }
        }
    }
}

impl Snapshot {
    /// What balancers look at.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View {
            members: &self.members,
            usable: &self.usable,
        }
    }

    /// Probability that the balancer gives each member now; 0 for members that take no calls.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.members.len()];
        if !self.usable.is_empty() {
            self.balancer.weights(self.view(), &mut weights);
        }
        weights
    }
}

impl Settings {
    fn new(config: &ServiceConfig) -> Self {
        Self {
            limits: config.limits.clone(),
            connection: config.connection.clone(),
            routes: Routes::new(&config.routes),
        }
    }
}

impl ConnectionConfig {
    /// From the first packet to the endpoint's SETTINGS.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

fn same_set(members: &[Member], set: &EndpointSetConfig) -> bool {
    members.len() == set.endpoints.len()
        && members.iter().zip(&set.endpoints).all(|(member, config)| {
            member.endpoint.address == config.address
                && member.static_weight == config.static_weight
                && member.zone == config.zone
                && member.labels == config.labels
        })
}

/// FNV-1a: a stable stream number for a name, so that one seed replays a run on any machine.
fn hash_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
