//! What the data plane is told: the compiled policy and the endpoint sets, as JSON.
//!
//! Python validates the operator's YAML and compiles it to this form; the data plane checks it
//! again, because it must not trust its caller with memory or sockets. Every key has a unit in its
//! name, every limit is here, and `Config::parse` is the only way to a `Config`: whoever holds one
//! holds a valid one.

mod balancer;
mod health;
mod inbound;
mod learned;
mod outward;
mod request_class;
mod resilience;
mod rules;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Deserialize;

pub use balancer::*;
pub use health::*;
pub use inbound::*;
pub use learned::*;
pub use outward::*;
pub use request_class::*;
pub use resilience::*;
pub use rules::*;

use crate::address::Address;
use crate::error::ConfigError;
use crate::orca::{MetricNames, OWN_NAMES};

/// Version of the JSON form. A data plane accepts exactly its own: both sides ship in one package.
pub const CONFIG_VERSION: u32 = 1;

/// The whole compiled policy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Must be [`CONFIG_VERSION`].
    pub version: u32,
    /// Number of data threads, 1..=64. Fixed while the process lives.
    #[serde(default = "one")]
    pub threads: usize,
    /// Keep polling for this long after the last call instead of sleeping; 0 switches it off.
    /// Costs up to this much CPU per call at low rates, saves two wake-ups of latency.
    #[serde(default)]
    pub busy_poll_us: u64,
    /// Where clients come in. At least one.
    pub listeners: Vec<ListenerConfig>,
    /// What clients may ask for. Names are unique.
    pub services: Vec<ServiceConfig>,
    /// Limits that concern clients.
    #[serde(default)]
    pub limits: Limits,
    /// Timeouts of connections.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Which picks are recorded.
    #[serde(default)]
    pub picks: PicksConfig,
    /// Which calls are logged; none if it is missing.
    #[serde(default)]
    pub access_log: Option<AccessLogConfig>,
    /// Which calls get a span.
    #[serde(default)]
    pub tracing: TracingConfig,
}

/// Spans of calls.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// Share of the calls, 0..=1.
    pub sample: f64,
}

/// Recorded picks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PicksConfig {
    /// Share of the calls, 0..=1.
    pub sample: f64,
    /// Records per service.
    pub keep: usize,
}

impl Default for PicksConfig {
    fn default() -> Self {
        Self {
            sample: 0.01,
            keep: 1_000,
        }
    }
}

/// The access log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// Share of the calls, 0..=1.
    pub sample: f64,
    /// `stdout`, `stderr` or the path of a file.
    pub output: String,
}

fn one() -> usize {
    1
}

/// Measured: a guess ten times too low costs nothing that can be measured (`algorithms.md` 3.4).
fn assumed_sidecars() -> u32 {
    4
}

/// Envoy's default: with fewer than half of the endpoints well, all of them are used.
fn half() -> f64 {
    0.5
}

/// How a listener finds the service of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerMode {
    /// By `:authority`.
    Explicit,
    /// Always the same service.
    Service,
    /// In front of a server.
    Inbound,
    /// By the target of an HTTP CONNECT request.
    Connect,
}

/// One bound address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// Unique; the key in ports files and metric labels.
    pub name: String,
    /// How the service is found.
    pub mode: ListenerMode,
    /// `ip:port` (port 0: the system picks one) or `unix:/path`.
    pub address: Address,
    /// The service of a `service` listener, or the default of an `explicit` one for calls
    /// without any authority.
    #[serde(default)]
    pub service: Option<String>,
    /// The server of an `inbound` listener.
    #[serde(default)]
    pub inbound: Option<InboundConfig>,
    /// Where the operator wrote it (`file:line:column`), for messages.
    #[serde(default)]
    pub source: String,
}

/// Limits that concern clients; every hit is counted in `attnroute_limit_hits_total{limit}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open client connections per listener.
    pub max_connections: usize,
    /// Open streams per client connection, announced to the client.
    pub max_streams_per_connection: u32,
    /// Size of a header list as RFC 9113 6.5.2 counts it, in both directions.
    pub max_header_list_bytes: u32,
    /// Receive window of a stream, in both directions. The window of a connection is this times
    /// its streams, so that stalled streams cannot starve their neighbours.
    pub stream_window_bytes: u32,
    /// Bytes h2 may hold per stream for a peer that does not read.
    pub max_send_buffer_bytes: usize,
    /// Streams that a client may have reset before they were even accepted, per connection.
    pub max_pending_resets: usize,
    /// Bytes of an HTTP CONNECT request.
    pub max_connect_head_bytes: usize,
    /// Resets that a client makes or provokes, per connection.
    pub resets: ResetLimit,
    /// Frames that neither carry a call nor answer one, per connection, in both directions.
    pub control_frames: RateLimit,
}

/// How often something may happen: a burst that time refills.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimit {
    /// What time gives back.
    pub per_second: u32,
    /// What may happen at once; 0: no limit.
    pub burst: u32,
}

/// How many calls of a client may be reset.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResetLimit {
    /// Of new calls, 0..=1.
    pub share: f64,
    /// On top of it, what time gives back.
    pub per_second: u32,
    /// What may happen at once; 0: no limit.
    pub burst: u32,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            per_second: 1_000,
            burst: 10_000,
        }
    }
}

impl Default for ResetLimit {
    fn default() -> Self {
        Self {
            share: 0.75,
            per_second: 1_000,
            burst: 1_000,
        }
    }
}

impl ResetLimit {
    /// No limit.
    #[must_use]
    pub fn off() -> Self {
        Self {
            share: 0.0,
            per_second: 0,
            burst: 0,
        }
    }

    /// Without the share.
    #[must_use]
    pub fn rate(&self) -> RateLimit {
        RateLimit {
            per_second: self.per_second,
            burst: self.burst,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_streams_per_connection: 1_000,
            max_header_list_bytes: 96 * 1024,
            stream_window_bytes: 256 * 1024,
            max_send_buffer_bytes: 256 * 1024,
            max_pending_resets: 1_000,
            max_connect_head_bytes: 8 * 1024,
            resets: ResetLimit::default(),
            control_frames: RateLimit::default(),
        }
    }
}

/// Timeouts of client connections.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// From accept to the end of the client's HTTP/2 preface.
    pub handshake_ms: u64,
    /// From the first byte of a header block to its last, in both directions; 0: no limit.
    pub header_block_ms: u64,
    /// While a client takes nothing of an answer that waits for it; up to twice as long may pass.
    /// 0: no limit.
    pub stalled_stream_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake_ms: 10_000,
            header_block_ms: 10_000,
            stalled_stream_ms: 300_000,
        }
    }
}

/// One service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Unique, the value of the `service` label.
    pub name: String,
    /// Values of `:authority` that mean this service, in lower case: `host`, `host:port`,
    /// `host:*` (any port) or `*` (anything no other service has).
    pub authorities: Vec<String>,
    /// Which balancer picks.
    #[serde(default)]
    pub balancer: BalancerConfig,
    /// How new endpoints get their first calls.
    #[serde(default)]
    pub slow_start: SlowStartConfig,
    /// Whether and when calls that go wrong eject an endpoint.
    #[serde(default)]
    pub outlier_detection: Option<OutlierConfig>,
    /// Whether and how endpoints are asked for their health.
    #[serde(default)]
    pub grpc_health: Option<GrpcHealthConfig>,
    /// Share of the endpoints, 0..=1, below which those that are not well are used all the same;
    /// 0: never.
    #[serde(default = "half")]
    pub panic_threshold: f64,
    /// Whether endpoints of the own zone are preferred.
    #[serde(default)]
    pub locality: Option<LocalityConfig>,
    /// Sidecars that call the service, this one included, while nobody tells; 1..=1000000.
    #[serde(default = "assumed_sidecars")]
    pub sidecars: u32,
    /// How its calls are told apart, and that they are counted by class and endpoint; without it,
    /// only for a balancer that goes by it.
    #[serde(default)]
    pub request_class: Option<RequestClassConfig>,
    /// Calls that each endpoint works on at a time, where the operator knows, 1..=1000000.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// How load reports are read.
    #[serde(default)]
    pub load_reports: LoadReportsConfig,
    /// Whether they are kept from clients.
    #[serde(default)]
    pub strip_load_reports: bool,
    /// Limits of this service.
    #[serde(default)]
    pub limits: ServiceLimits,
    /// How connections to endpoints are made and watched.
    #[serde(default)]
    pub connection: ConnectionConfig,
    /// Whether and how long calls wait for a place.
    #[serde(default)]
    pub waiting: WaitingConfig,
    /// Per-path settings; the first exact path wins, then the longest prefix.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
}

/// How the load reports of a service are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadReportsConfig {
    /// By name of ours (`attnroute.inflight`, ...) the one under which the application reports the
    /// value: `named_metrics.<name>`, `cpu_utilization`, `mem_utilization` or
    /// `application_utilization`.
    pub names: BTreeMap<String, String>,
}

/// Settings of the calls whose path matches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// What it matches.
    #[serde(rename = "match")]
    pub matcher: PathMatch,
    /// Upper bound of a call's deadline; the client's own may be shorter.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Whether a call waits while no endpoint can take it; without one `waiting.for_ready`.
    #[serde(default)]
    pub wait_for_ready: Option<bool>,
    /// What stands above the balancer.
    #[serde(default)]
    pub rules: RulesConfig,
    /// Its calls may be processed more than once.
    #[serde(default)]
    pub idempotent: bool,
    /// Whether those that fail are tried again.
    #[serde(default)]
    pub retry: Option<RetryConfig>,
    /// Whether those that take long are tried twice at once.
    #[serde(default)]
    pub hedge: Option<HedgeConfig>,
    /// Its rule set among those of the service, from 1; 0: none of its own.
    #[serde(skip)]
    pub rule: u32,
    /// Its repetition among those of the service, from 1; 0: none.
    #[serde(skip)]
    pub repetition: u32,
}

/// A path or a prefix of it; both begin with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathMatch {
    /// The whole path.
    Path(String),
    /// Its beginning.
    PathPrefix(String),
}

/// A full set of endpoints of one service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSetConfig {
    /// Every endpoint, each address once.
    pub endpoints: Vec<EndpointConfig>,
}

/// One endpoint as discovery describes it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointConfig {
    /// `ip:port` or `unix:/path`; its identity.
    pub address: Address,
    /// Static weight, >= 0; 0 takes no new calls.
    #[serde(default = "unit_weight")]
    pub static_weight: f32,
    /// Zone, empty where unknown.
    #[serde(default)]
    pub zone: String,
    /// Free labels of the operator.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Calls go to the lowest number of which enough endpoints are well; the others stand by.
    #[serde(default)]
    pub priority: u32,
    /// What an operator decided about it, whatever discovery, health and balancer say.
    #[serde(default, rename = "override")]
    pub operator_override: Option<Override>,
}

/// An operator's decision about one endpoint. Whoever gives it takes it back: it has no end here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// No new calls; those in flight go on.
    Drain,
    /// Calls go to pinned endpoints only, as long as one of them is usable.
    Pin,
}

impl Override {
    /// As in the JSON form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Pin => "pin",
        }
    }
}

fn unit_weight() -> f32 {
    1.0
}

impl Config {
    /// Parses and validates; the error names the JSON path.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = from_json(json)?;
        config.validate()?;
        Ok(config)
    }

    /// The service of that name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&ServiceConfig> {
        self.services.iter().find(|service| service.name == name)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check(self.version == CONFIG_VERSION, "version", || {
            format!(
                "found {}, this data plane takes {CONFIG_VERSION}",
                self.version
            )
        })?;
        check((1..=64).contains(&self.threads), "threads", || {
            "must be 1 to 64".into()
        })?;
        check(self.busy_poll_us <= 1_000, "busy_poll_us", || {
            "must be 0 to 1000".into()
        })?;
        check(!self.listeners.is_empty(), "listeners", || {
            "must hold at least one".into()
        })?;
        self.validate_limits()?;
        let samples = [
            ("picks.sample", Some(self.picks.sample)),
            ("tracing.sample", Some(self.tracing.sample)),
            (
                "access_log.sample",
                self.access_log.as_ref().map(|log| log.sample),
            ),
        ];
        for (path, sample) in samples {
            check((0.0..=1.0).contains(&sample.unwrap_or(0.0)), path, || {
                "must be 0 to 1".into()
            })?;
        }
        let mut names = HashSet::new();
        for (index, service) in self.services.iter().enumerate() {
            let at = format!("services[{index}]");
            check(names.insert(service.name.as_str()), &at, || {
                format!("service `{}` stands twice", service.name)
            })?;
            service.validate(&at)?;
        }
        self.validate_authorities()?;
        self.validate_listeners()
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let positive = limits.max_connections > 0
            && limits.max_streams_per_connection > 0
            && limits.max_send_buffer_bytes > 0
            && limits.max_pending_resets > 0
            && limits.max_connect_head_bytes > 0;
        check(positive, "limits", || {
            "every limit must be at least 1".into()
        })?;
        check(
            limits.max_header_list_bytes >= 1024,
            "limits.max_header_list_bytes",
            || "must be at least 1024".into(),
        )?;
        check(
            (0.0..=1.0).contains(&limits.resets.share),
            "limits.resets.share",
            || "must be 0 to 1".into(),
        )?;
        let window = limits.stream_window_bytes;
        check(
            (1024..=0x7fff_ffff).contains(&window),
            "limits.stream_window_bytes",
            || "must be 1024 to 2147483647".into(),
        )?;
        check(
            self.timeouts.handshake_ms > 0,
            "timeouts.handshake_ms",
            || "must be positive".into(),
        )
    }

    fn validate_authorities(&self) -> Result<(), ConfigError> {
        let mut owners = HashSet::new();
        for (index, service) in self.services.iter().enumerate() {
            for authority in &service.authorities {
                check(
                    owners.insert(authority.as_str()),
                    &format!("services[{index}]"),
                    || format!("authority `{authority}` stands twice"),
                )?;
            }
        }
        Ok(())
    }

    fn validate_listeners(&self) -> Result<(), ConfigError> {
        let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
        for (index, listener) in self.listeners.iter().enumerate() {
            let at = format!("listeners[{index}]");
            check(names.insert(listener.name.as_str()), &at, || {
                format!("listener `{}` stands twice", listener.name)
            })?;
            let fresh = listener.address.port() == Some(0) || addresses.insert(&listener.address);
            check(fresh, &at, || {
                format!("address `{}` stands twice", listener.address)
            })?;
            listener.validate(&at)?;
            if let Some(name) = &listener.service {
                check(self.service(name).is_some(), &at, || {
                    format!("service `{name}` is not defined")
                })?;
            }
            // What is in front of the server stands among the services, by that name.
            let stands_alone = listener.inbound.is_none() || self.service(&listener.name).is_none();
            check(stands_alone, &at, || {
                format!("`{}` is the name of a service too", listener.name)
            })?;
        }
        Ok(())
    }
}

impl ListenerConfig {
    fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let (mode, service) = (self.mode, self.service.is_some());
        check(mode != ListenerMode::Service || service, at, || {
            "mode `service` needs `service`".into()
        })?;
        let is_inbound = mode == ListenerMode::Inbound;
        check(is_inbound == self.inbound.is_some(), at, || {
            "mode `inbound` needs `inbound`, and no other mode takes it".into()
        })?;
        check(!(is_inbound && service), at, || {
            "mode `inbound` takes no `service`".into()
        })?;
        self.inbound
            .as_ref()
            .map_or(Ok(()), |inbound| inbound.validate(at))
    }
}

impl ServiceConfig {
    /// One with every default, that no authority means.
    pub(crate) fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            authorities: Vec::new(),
            balancer: BalancerConfig::default(),
            slow_start: SlowStartConfig::default(),
            outlier_detection: None,
            grpc_health: None,
            panic_threshold: half(),
            locality: None,
            sidecars: assumed_sidecars(),
            request_class: None,
            concurrency: None,
            load_reports: LoadReportsConfig::default(),
            strip_load_reports: false,
            limits: ServiceLimits::default(),
            connection: ConnectionConfig::default(),
            waiting: WaitingConfig::default(),
            routes: Vec::new(),
        }
    }

    /// Parses and validates one service alone.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = from_json(json)?;
        config.validate(".")?;
        Ok(config)
    }

    fn validate(&self, at: &str) -> Result<(), ConfigError> {
        check(!self.name.is_empty(), at, || "name is empty".into())?;
        self.limits.validate(&format!("{at}.limits"))?;
        self.connection.validate(&format!("{at}.connection"))?;
        self.waiting.validate(&format!("{at}.waiting"))?;
        check((1..=1_000_000).contains(&self.sidecars), at, || {
            "sidecars must be 1 to 1000000".into()
        })?;
        check((0.0..=1.0).contains(&self.panic_threshold), at, || {
            "panic_threshold must be 0 to 1".into()
        })?;
        if let Some(request_class) = &self.request_class {
            request_class.validate(&format!("{at}.request_class"))?;
        }
        let concurrency = self.concurrency.unwrap_or(1);
        check((1..=1_000_000).contains(&concurrency), at, || {
            "concurrency must be 1 to 1000000".into()
        })?;
        if let Some(outlier) = &self.outlier_detection {
            outlier.validate(&format!("{at}.outlier_detection"))?;
        }
        if let Some(health) = &self.grpc_health {
            health.validate(&format!("{at}.grpc_health"))?;
        }
        for (own, other) in &self.load_reports.names {
            let at = format!("{at}.load_reports.names");
            check(OWN_NAMES.contains(&own.as_str()), &at, || {
                format!("`{own}` is none of {}", OWN_NAMES.join(", "))
            })?;
            check(MetricNames::is_valid(other), &at, || {
                format!("`{other}` names no value of a load report")
            })?;
        }
        if let Some(locality) = &self.locality {
            locality.validate(&format!("{at}.locality"))?;
        }
        self.slow_start.validate(&format!("{at}.slow_start"))?;
        self.balancer.validate(&format!("{at}.balancer"))?;
        for (index, route) in self.routes.iter().enumerate() {
            let at = format!("{at}.routes[{index}]");
            let (PathMatch::Path(path) | PathMatch::PathPrefix(path)) = &route.matcher;
            check(path.starts_with('/'), &at, || {
                "a path begins with `/`".into()
            })?;
            route.rules.validate(&format!("{at}.rules"))?;
            check(route.timeout_ms != Some(0), &at, || {
                "timeout_ms must be positive".into()
            })?;
            route.validate_repetition(&at)?;
        }
        Ok(())
    }
}

impl EndpointSetConfig {
    /// Parses and validates a full set.
    pub fn parse(json: &[u8], limits: &ServiceLimits) -> Result<Self, ConfigError> {
        let set: Self = from_json(json)?;
        check(
            set.endpoints.len() <= limits.max_endpoints,
            "endpoints",
            || {
                format!(
                    "{} endpoints, the limit is {}",
                    set.endpoints.len(),
                    limits.max_endpoints
                )
            },
        )?;
        let mut seen = HashSet::with_capacity(set.endpoints.len());
        for (index, endpoint) in set.endpoints.iter().enumerate() {
            let at = format!("endpoints[{index}]");
            check(seen.insert(&endpoint.address), &at, || {
                format!("address `{}` stands twice", endpoint.address)
            })?;
            check(endpoint.address.port() != Some(0), &at, || {
                "port 0 cannot be dialled".into()
            })?;
            let weight = endpoint.static_weight;
            check(
                weight.is_finite() && (0.0..=1e6).contains(&weight),
                &at,
                || format!("static_weight {weight} is not in 0..=1000000"),
            )?;
        }
        Ok(set)
    }
}

impl RouteConfig {
    /// The timeout as a duration.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

fn from_json<T: for<'de> Deserialize<'de>>(json: &[u8]) -> Result<T, ConfigError> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        ConfigError {
            path,
            message: error.into_inner().to_string(),
        }
    })?;
    reader.end().map_err(|error| ConfigError {
        path: ".".into(),
        message: error.to_string(),
    })?;
    Ok(value)
}

fn check(holds: bool, path: &str, message: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds {
        return Ok(());
    }
    Err(ConfigError {
        path: path.into(),
        message: message(),
    })
}
