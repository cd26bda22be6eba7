//! What is simulated, as JSON: the compiled form of a scenario file.
//!
//! Python checks the shape of the operator's YAML and compiles it to this form, key for key, so
//! that the path of an error here finds its place there. What needs the whole scenario is checked
//! here alone: whether groups exist, whether a selection is empty, and whether the load is more
//! than the endpoints can do.

use std::collections::{BTreeMap, HashSet};

use attnroute_dataplane::config::OutlierConfig;
use attnroute_dataplane::error::ConfigError;
use serde::Deserialize;

/// Endpoints that a scenario may begin with.
const ENDPOINTS_MAX: u32 = 10_000;
/// Sidecars times endpoints: each pair has state of its own.
const VIEWS_MAX: u64 = 1_000_000;
/// Message sizes that a sidecar can tell apart: 15 bounds.
const SIZES_MAX: usize = 16;
/// Request classes: methods times message sizes.
const CLASSES_MAX: usize = 65_536;
/// Windows are 1 s long: nothing new comes more often.
const SCRAPE_MS_MIN: u64 = 1_000;
const SCRAPE_MS_MAX: u64 = 600_000;
/// A simulated day.
const DURATION_MS_MAX: u64 = 86_400_000;

/// A whole scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// How it is called in results.
    pub name: String,
    /// Who calls.
    pub sidecars: Sidecars,
    /// Who answers, at the beginning.
    pub endpoints: Vec<EndpointGroup>,
    /// What is asked.
    pub request_classes: RequestClasses,
    /// How long a worker is busy with a call.
    pub service_time: ServiceTime,
    /// Round trips.
    #[serde(default)]
    pub network: Network,
    /// How often it is asked.
    pub load: Load,
    /// What happens at a given time.
    #[serde(default)]
    pub events: Vec<Event>,
    /// Endpoints whose speed changes by itself.
    #[serde(default)]
    pub noise: Vec<Noise>,
    /// What endpoints tell of themselves.
    #[serde(default)]
    pub reports: Reports,
    /// Whether endpoints answer probes (a sidecar stands in front of them).
    #[serde(default = "yes")]
    pub probes: bool,
    /// Endpoints that come and go with utilization.
    #[serde(default)]
    pub autoscale: Option<Autoscale>,
    /// How sidecars leave ill endpoints alone; by default they do not.
    #[serde(default)]
    pub outlier_detection: Option<OutlierConfig>,
    /// How often the trainer reads what a model learns from.
    #[serde(default = "scrape_interval_ms")]
    pub scrape_interval_ms: u64,
    /// The client gives up after this long; 0: never.
    #[serde(default)]
    pub deadline_ms: f64,
    /// Calls that arrive before count for nothing.
    pub warmup_ms: u64,
    /// Length of what is measured, after the warm-up.
    pub duration_ms: u64,
    /// The load may exceed what the endpoints can do.
    #[serde(default)]
    pub allow_overload: bool,
}

/// Least message bytes of the `size`-th size.
fn smallest_bytes(size: usize) -> u64 {
    match size {
        0 => 0,
        _ => 1 << (8 + 2 * size.min(SIZES_MAX)),
    }
}

fn scrape_interval_ms() -> u64 {
    5_000
}

fn yes() -> bool {
    true
}

fn unit() -> f64 {
    1.0
}

/// The sidecars; each sees only its own calls.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sidecars {
    /// How many.
    pub count: u32,
    /// Zones, in turn; empty: one zone without a name.
    #[serde(default)]
    pub zones: Vec<String>,
}

/// Endpoints of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointGroup {
    /// Unique; what events select by.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Calls worked on at a time.
    pub workers: u32,
    /// Work done per second by a worker; 1 is what `service_time` is measured on.
    #[serde(default = "unit")]
    pub speed: f64,
    /// Zones, in turn; empty: one zone without a name.
    #[serde(default)]
    pub zones: Vec<String>,
    /// Labels that discovery tells.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Static weight that discovery tells.
    #[serde(default = "unit")]
    pub static_weight: f64,
    /// Who of the waiting is served.
    #[serde(default)]
    pub discipline: Discipline,
}

/// Who of the calls in an endpoint is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// First come, first served; the others wait.
    #[default]
    Fifo,
    /// All of them, sharing the workers equally.
    ProcessorSharing,
}

/// The classes of calls: every method with every message size.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestClasses {
    /// Methods.
    pub methods: Vec<Kind>,
    /// Message sizes.
    pub message_sizes: Vec<Kind>,
}

/// A method or a message size.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// How it is called in a trace.
    pub name: String,
    /// Relative frequency.
    #[serde(default = "unit")]
    pub popularity: f64,
    /// Relative service time.
    #[serde(default = "unit")]
    pub cost: f64,
}

/// How long a worker of speed 1 is busy with a call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTime {
    /// Mean over all calls and over all endpoints alike.
    pub mean_ms: f64,
    /// The spread around the mean of a class.
    pub law: Law,
    /// Which endpoints are good at what.
    #[serde(default)]
    pub affinity: Option<Affinity>,
}

/// A distribution with mean 1.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Law {
    /// Always the same.
    Constant {},
    /// Memoryless.
    Exponential {},
    /// exp of a normal variable.
    Lognormal {
        /// Deviation of the logarithm.
        sigma: f64,
    },
    /// Two values.
    Bimodal {
        /// The large one over the small one.
        ratio: f64,
        /// Share of calls that take the large one.
        share: f64,
    },
    /// P(X > x) = (minimum/x)^alpha.
    Pareto {
        /// Above 1, or there would be no mean; the variance is finite above 2.
        alpha: f64,
    },
}

/// Factors on the service time by method and affinity group of the endpoint, which is its index
/// modulo the number of groups.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Affinity {
    /// Method m is faster on group m modulo `groups`; its mean over all groups stays what it is.
    Groups {
        /// Number of groups.
        groups: u32,
        /// Other groups take this many times longer.
        factor: f64,
        /// Only every so manieth method has an affinity: 1 all, 2 every second.
        #[serde(default = "one")]
        every: u32,
    },
    /// Factors as they are: a row per method, a column per group.
    Matrix(Vec<Vec<f64>>),
}

fn one() -> u32 {
    1
}

/// Round trips between zones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Where no pair says otherwise.
    #[serde(default)]
    pub rtt_ms: f64,
    /// Pairs of zones, in either order.
    #[serde(default)]
    pub pairs: Vec<ZonePair>,
}

/// The round trip between two zones.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonePair {
    /// The zones.
    pub zones: (String, String),
    /// There and back.
    pub rtt_ms: f64,
}

/// Open loop: nobody waits for an answer before the next call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Mean rate; what a trace holds where there is one.
    pub rate: Rate,
    /// How it varies.
    #[serde(default)]
    pub pattern: Pattern,
    /// Recorded calls instead of random ones.
    #[serde(default)]
    pub trace: Option<Trace>,
}

/// A rate of calls.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// Of what all endpoints can do when calls are placed blind to their class.
    Fraction(f64),
    /// Calls per second, over all sidecars.
    Rps(f64),
}

/// How the rate varies around its mean.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pattern {
    /// Poisson arrivals.
    #[default]
    Constant,
    /// Poisson arrivals that burst: two rates, each for an exponential time.
    Mmpp {
        /// The high rate over the mean rate.
        factor: f64,
        /// Mean length of a burst.
        burst_ms: f64,
        /// Mean time between bursts.
        calm_ms: f64,
    },
    /// From one multiple of the mean rate to another.
    Ramp {
        /// At the beginning, and until `at_ms`.
        from: f64,
        /// From `at_ms + over_ms` on.
        to: f64,
        /// Where it starts to change, from the start of the run.
        at_ms: u64,
        /// How long it changes.
        over_ms: u64,
    },
}

/// Recorded calls: three columns of one length.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// From the start of the run, ascending.
    pub at_ms: Vec<f64>,
    /// Index of the class: method times number of sizes, plus size.
    pub class: Vec<u32>,
    /// Work on a worker of speed 1 without affinity; 0: drawn from the law.
    pub work_ms: Vec<f64>,
}

/// Which endpoints an event concerns: of a group or of all, every so manieth, at most so many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Name of a group.
    #[serde(default)]
    pub group: Option<String>,
    /// Take the first of each so many.
    #[serde(default)]
    pub every: Option<u32>,
    /// At most so many.
    #[serde(default)]
    pub count: Option<u32>,
}

/// Something that happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, from the start of the run.
    pub at_ms: u64,
    /// What.
    pub action: Action,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Endpoints work at a fraction of their speed.
    Slow {
        /// Which.
        endpoints: Selection,
        /// Below 1 slower.
        speed: f64,
        /// How long; 0: to the end.
        for_ms: u64,
    },
    /// Calls end UNAVAILABLE.
    Fail {
        /// Which.
        endpoints: Selection,
        /// When in the life of a call.
        mode: FailMode,
        /// Share of the calls.
        share: f64,
        /// How long; 0: to the end.
        for_ms: u64,
    },
    /// Nothing is worked on; connections stay.
    Hang {
        /// Which.
        endpoints: Selection,
        /// How long; 0: to the end.
        for_ms: u64,
    },
    /// Connections break, the calls in it fail, connects are refused; it comes back empty.
    Restart {
        /// Which.
        endpoints: Selection,
        /// How long connects are refused; 0: to the end.
        down_ms: u64,
        /// Once it is back.
        cold: Option<Cold>,
    },
    /// More endpoints of a group.
    Add {
        /// Its name.
        group: String,
        /// How many.
        count: u32,
        /// At first.
        cold: Option<Cold>,
    },
    /// Endpoints leave the set, and finish what they have.
    Remove {
        /// Which.
        endpoints: Selection,
    },
    /// Every affinity moves to the next group.
    AffinityShift {},
    /// Answers carry no load report.
    ReportLoss {
        /// Which.
        endpoints: Selection,
        /// How long; 0: to the end.
        for_ms: u64,
    },
    /// The model says something wrong. Whoever drives the learning follows it; the world does not
    /// change.
    ModelFault {
        /// What.
        fault: ModelFault,
        /// How long; 0: to the end.
        for_ms: u64,
    },
    /// The trainer is gone; followed like `ModelFault`.
    TrainerDown {
        /// How long; 0: to the end.
        for_ms: u64,
    },
}

/// What a faulty model says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFault {
    /// Anything.
    Random,
    /// What is true of other endpoints.
    Permuted,
    /// Slow for fast and fast for slow.
    Inverted,
    /// Not a number.
    Nan,
    /// Two endpoints fifty times too fast.
    Collapsing,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailMode {
    /// At once and without work, in a Trailers-Only answer.
    TrailersOnly,
    /// In the trailers, after headers came first and the work was done.
    AfterHeaders,
}

/// How an endpoint starts.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cold {
    /// Fraction of its speed.
    pub speed: f64,
    /// How long.
    pub for_ms: u64,
}

/// Speed that changes by itself: two states, each for an exponential time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Which, of those at the beginning.
    pub endpoints: Selection,
    /// Fraction of the speed in the slow state.
    pub speed: f64,
    /// Mean length of the slow state.
    pub slow_ms: f64,
    /// Mean time between two of them.
    pub normal_ms: f64,
}

/// What answers carry. In-flight and rate are always there where reports are.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reports {
    /// Whether answers carry reports.
    pub enabled: bool,
    /// Busy share of the workers, and calls that wait.
    pub utilization: bool,
    /// Service time of the carrying call.
    pub service_time: bool,
    /// Number of workers.
    pub concurrency: bool,
    /// Every so often to every sidecar, besides answers; 0: never.
    pub out_of_band_ms: u64,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            enabled: true,
            utilization: true,
            service_time: false,
            concurrency: false,
            out_of_band_ms: 0,
        }
    }
}

/// Endpoints follow utilization: ceil(count * utilization / target), at most doubled.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Autoscale {
    /// Name of the group that grows and shrinks.
    pub group: String,
    /// Utilization that is aimed at.
    pub target: f64,
    /// How often it is looked at.
    pub every_ms: u64,
    /// From the decision to the endpoint.
    pub delay_ms: u64,
    /// Fewest endpoints in the group.
    pub min: u32,
    /// Most endpoints in the group.
    pub max: u32,
    /// How new ones start.
    pub cold: Option<Cold>,
}

impl Scenario {
    /// Parses and checks.
    ///
    /// # Errors
    /// What cannot be simulated; the error names the JSON path.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let scenario: Self =
            serde_path_to_error::deserialize(&mut reader).map_err(|error| ConfigError {
                path: error.path().to_string(),
                message: error.into_inner().to_string(),
            })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Number of request classes.
    #[must_use]
    pub fn class_count(&self) -> usize {
        self.request_classes.methods.len() * self.request_classes.message_sizes.len()
    }

    /// Bounds between the message sizes, as a policy's `message_bytes_buckets`: powers of 4 from
    /// 1 KiB, as many as tell the sizes apart, and no more than a policy may have.
    #[must_use]
    pub fn size_bounds(&self) -> Vec<u64> {
        let sizes = self.request_classes.message_sizes.len();
        (1..sizes.min(SIZES_MAX)).map(smallest_bytes).collect()
    }

    /// Bytes of a message of a size; sizes beyond those that can be told apart share the last.
    #[must_use]
    pub fn message_bytes(&self, size: usize) -> u64 {
        smallest_bytes(size.min(SIZES_MAX - 1))
    }

    /// Factor on the service time of each method (row) in each affinity group (column).
    #[must_use]
    pub fn affinity(&self) -> Vec<Vec<f64>> {
        let methods = self.request_classes.methods.len();
        match &self.service_time.affinity {
            None => vec![vec![1.0]; methods],
            Some(Affinity::Matrix(rows)) => rows.clone(),
            Some(Affinity::Groups {
                groups,
                factor,
                every,
            }) => {
                let count = f64::from(*groups);
                // The mean over the groups is 1: (own + (count - 1) factor own) / count.
                let own = count / (1.0 + (count - 1.0) * factor);
                (0..methods as u32)
                    .map(|method| {
                        (0..*groups)
                            .map(|group| match method {
                                _ if method % every != 0 => 1.0,
                                _ if (method / every) % groups == group => own,
                                _ => own * factor,
                            })
                            .collect()
                    })
                    .collect()
            }
        }
    }

    /// Popularity of each method, relative, weighted by its mean cost.
    fn method_work(&self) -> Vec<f64> {
        let kinds = &self.request_classes;
        let total: f64 = kinds.methods.iter().map(|m| m.popularity * m.cost).sum();
        kinds
            .methods
            .iter()
            .map(|m| m.popularity * m.cost / total)
            .collect()
    }

    /// Calls per second that all endpoints together can do when calls are placed in proportion to
    /// what each can do, blind to their class.
    #[must_use]
    pub fn capacity_rps(&self) -> f64 {
        let affinity = self.affinity();
        let work = self.method_work();
        let columns = affinity[0].len();
        let mut index = 0;
        let mut total = 0.0;
        for group in &self.endpoints {
            for position in 0..group.count {
                let column = index % columns;
                let factor: f64 = work
                    .iter()
                    .zip(&affinity)
                    .map(|(share, row)| share * row[column])
                    .sum();
                let noise = self.mean_noise(&group.name, position, index as u32);
                total += f64::from(group.workers) * group.speed * noise / factor;
                index += 1;
            }
        }
        total / (self.service_time.mean_ms / 1_000.0)
    }

    /// Mean factor of the noise on an endpoint.
    fn mean_noise(&self, group: &str, position: u32, index: u32) -> f64 {
        self.noise
            .iter()
            .filter(|noise| noise.endpoints.takes(group, position, index))
            .map(|noise| {
                (noise.speed * noise.slow_ms + noise.normal_ms) / (noise.slow_ms + noise.normal_ms)
            })
            .product()
    }

    /// Mean calls per second that arrive.
    #[must_use]
    pub fn offered_rps(&self) -> f64 {
        match (&self.load.trace, self.load.rate) {
            (Some(trace), _) => {
                let span_ms = (self.warmup_ms + self.duration_ms) as f64;
                let within = trace.at_ms.partition_point(|&at| at < span_ms);
                within as f64 / (span_ms / 1_000.0)
            }
            (None, Rate::Rps(rps)) => rps,
            (None, Rate::Fraction(fraction)) => fraction * self.capacity_rps(),
        }
    }

    /// Mean rate of the busiest lasting phase over the mean rate.
    fn peak(&self) -> f64 {
        match self.load.pattern {
            Pattern::Ramp { from, to, .. } if self.load.trace.is_none() => from.max(to),
            _ => 1.0,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let count = self.sidecars.count;
        check((1..=10_000).contains(&count), "sidecars.count", || {
            format!("found `{count}`, expected 1 to 10000")
        })?;
        self.check_endpoints()?;
        self.check_classes()?;
        self.check_service_time()?;
        self.check_network()?;
        self.check_times()?;
        for (index, event) in self.events.iter().enumerate() {
            self.check_event(event, &format!("events[{index}]"))?;
        }
        for (index, noise) in self.noise.iter().enumerate() {
            let at = format!("noise[{index}]");
            self.check_selection(&noise.endpoints, &format!("{at}.endpoints"))?;
            positive(noise.speed, &format!("{at}.speed"))?;
            positive(noise.slow_ms, &format!("{at}.slow_ms"))?;
            positive(noise.normal_ms, &format!("{at}.normal_ms"))?;
        }
        if let Some(autoscale) = &self.autoscale {
            self.check_autoscale(autoscale)?;
        }
        self.check_load()
    }

    fn check_endpoints(&self) -> Result<(), ConfigError> {
        check(!self.endpoints.is_empty(), "endpoints", || {
            "no group of endpoints; write at least one".into()
        })?;
        let mut names = HashSet::new();
        let mut total = 0_u32;
        for (index, group) in self.endpoints.iter().enumerate() {
            let at = format!("endpoints[{index}]");
            check(names.insert(&group.name), &format!("{at}.name"), || {
                format!("group `{}` stands twice; rename one", group.name)
            })?;
            check(
                (1..=ENDPOINTS_MAX).contains(&group.count),
                &format!("{at}.count"),
                || format!("found `{}`, expected 1 to {ENDPOINTS_MAX}", group.count),
            )?;
            check(
                (1..=10_000).contains(&group.workers),
                &format!("{at}.workers"),
                || format!("found `{}`, expected 1 to 10000", group.workers),
            )?;
            positive(group.speed, &format!("{at}.speed"))?;
            let weight = group.static_weight;
            check(
                (0.0..=1e6).contains(&weight),
                &format!("{at}.static_weight"),
                || format!("found `{weight}`, expected 0 to 1000000"),
            )?;
            total = total.saturating_add(group.count);
        }
        check(total <= ENDPOINTS_MAX, "endpoints", || {
            format!("{total} endpoints in all, the most is {ENDPOINTS_MAX}")
        })?;
        let views = u64::from(total) * u64::from(self.sidecars.count);
        check(views <= VIEWS_MAX, "sidecars.count", || {
            format!("{views} pairs of sidecar and endpoint, the most is {VIEWS_MAX}")
        })
    }

    fn check_classes(&self) -> Result<(), ConfigError> {
        let kinds = &self.request_classes;
        for (key, list) in [
            ("methods", &kinds.methods),
            ("message_sizes", &kinds.message_sizes),
        ] {
            let at = format!("request_classes.{key}");
            check(!list.is_empty(), &at, || "write at least one".into())?;
            let mut names = HashSet::new();
            for (index, kind) in list.iter().enumerate() {
                check(
                    names.insert(&kind.name),
                    &format!("{at}[{index}].name"),
                    || format!("`{}` stands twice; rename one", kind.name),
                )?;
                positive(kind.popularity, &format!("{at}[{index}].popularity"))?;
                positive(kind.cost, &format!("{at}[{index}].cost"))?;
            }
        }
        let count = self.class_count();
        check(count <= CLASSES_MAX, "request_classes", || {
            format!("{count} classes, the most is {CLASSES_MAX}")
        })
    }

    fn check_service_time(&self) -> Result<(), ConfigError> {
        positive(self.service_time.mean_ms, "service_time.mean_ms")?;
        match self.service_time.law {
            Law::Constant {} | Law::Exponential {} => {}
            Law::Lognormal { sigma } => {
                check(
                    (0.0..=5.0).contains(&sigma),
                    "service_time.law.lognormal.sigma",
                    || format!("found `{sigma}`, expected 0 to 5"),
                )?;
            }
            Law::Bimodal { ratio, share } => {
                check(ratio >= 1.0, "service_time.law.bimodal.ratio", || {
                    format!("found `{ratio}`, expected 1 or more")
                })?;
                fraction(share, "service_time.law.bimodal.share")?;
            }
            Law::Pareto { alpha } => {
                check(alpha > 1.0, "service_time.law.pareto.alpha", || {
                    format!("found `{alpha}`, expected more than 1: there is no mean otherwise")
                })?;
            }
        }
        match &self.service_time.affinity {
            None => Ok(()),
            Some(Affinity::Groups {
                groups,
                factor,
                every,
            }) => {
                let at = "service_time.affinity.groups";
                check(
                    (1..=1_000).contains(groups),
                    &format!("{at}.groups"),
                    || format!("found `{groups}`, expected 1 to 1000"),
                )?;
                check(*every >= 1, &format!("{at}.every"), || {
                    "found `0`, expected 1 or more".into()
                })?;
                positive(*factor, &format!("{at}.factor"))
            }
            Some(Affinity::Matrix(rows)) => {
                let at = "service_time.affinity.matrix";
                let methods = self.request_classes.methods.len();
                check(rows.len() == methods, at, || {
                    format!(
                        "{} rows for {methods} methods; write one for each",
                        rows.len()
                    )
                })?;
                for (index, row) in rows.iter().enumerate() {
                    let at = format!("{at}[{index}]");
                    check(!row.is_empty() && row.len() == rows[0].len(), &at, || {
                        format!("{} columns, the first row has {}", row.len(), rows[0].len())
                    })?;
                    for factor in row {
                        positive(*factor, &at)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn check_network(&self) -> Result<(), ConfigError> {
        at_least_zero(self.network.rtt_ms, "network.rtt_ms")?;
        let mut known: HashSet<&str> = self.sidecars.zones.iter().map(String::as_str).collect();
        for group in &self.endpoints {
            known.extend(group.zones.iter().map(String::as_str));
        }
        for (index, pair) in self.network.pairs.iter().enumerate() {
            let at = format!("network.pairs[{index}]");
            at_least_zero(pair.rtt_ms, &format!("{at}.rtt_ms"))?;
            for zone in [&pair.zones.0, &pair.zones.1] {
                check(
                    known.contains(zone.as_str()),
                    &format!("{at}.zones"),
                    || format!("no sidecar and no endpoint stands in zone `{zone}`"),
                )?;
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        at_least_zero(self.deadline_ms, "deadline_ms")?;
        check(self.duration_ms >= 1, "duration_ms", || {
            "found `0`, expected at least `1ms`".into()
        })?;
        check(
            (SCRAPE_MS_MIN..=SCRAPE_MS_MAX).contains(&self.scrape_interval_ms),
            "scrape_interval_ms",
            || {
                format!(
                    "found `{}` ms, expected `1s` to `10m`",
                    self.scrape_interval_ms
                )
            },
        )?;
        if let Some(outlier) = &self.outlier_detection {
            outlier.validate("outlier_detection")?;
        }
        check(
            self.warmup_ms.saturating_add(self.duration_ms) <= DURATION_MS_MAX,
            "duration_ms",
            || "warm-up and duration are longer than `24h`, the most".into(),
        )
    }

    fn check_event(&self, event: &Event, at: &str) -> Result<(), ConfigError> {
        let end_ms = self.warmup_ms + self.duration_ms;
        check(event.at_ms < end_ms, &format!("{at}.at_ms"), || {
            format!(
                "comes {} ms after the start, the run ends at {end_ms} ms",
                event.at_ms
            )
        })?;
        let within = |name: &str, key: &str| format!("{at}.action.{name}.{key}");
        match &event.action {
            Action::Slow {
                endpoints, speed, ..
            } => {
                self.check_selection(endpoints, &within("slow", "endpoints"))?;
                positive(*speed, &within("slow", "speed"))
            }
            Action::Fail {
                endpoints, share, ..
            } => {
                self.check_selection(endpoints, &within("fail", "endpoints"))?;
                fraction(*share, &within("fail", "share"))
            }
            Action::Hang { endpoints, .. } => {
                self.check_selection(endpoints, &within("hang", "endpoints"))
            }
            Action::Restart {
                endpoints, cold, ..
            } => {
                self.check_selection(endpoints, &within("restart", "endpoints"))?;
                check_cold(cold.as_ref(), &within("restart", "cold"))
            }
            Action::Add { group, count, cold } => {
                self.check_group(group, &within("add", "group"))?;
                check(
                    (1..=ENDPOINTS_MAX).contains(count),
                    &within("add", "count"),
                    || format!("found `{count}`, expected 1 to {ENDPOINTS_MAX}"),
                )?;
                check_cold(cold.as_ref(), &within("add", "cold"))
            }
            Action::Remove { endpoints } => {
                self.check_selection(endpoints, &within("remove", "endpoints"))
            }
            Action::AffinityShift {} => check(
                self.service_time.affinity.is_some(),
                &format!("{at}.action.affinity_shift"),
                || "there is no affinity that could move; write `service_time.affinity`".into(),
            ),
            Action::ReportLoss { endpoints, .. } => {
                check(
                    self.reports.enabled,
                    &format!("{at}.action.report_loss"),
                    || "there are no reports to lose; switch `reports` on".into(),
                )?;
                self.check_selection(endpoints, &within("report_loss", "endpoints"))
            }
            Action::ModelFault { .. } | Action::TrainerDown { .. } => Ok(()),
        }
    }

    fn check_group(&self, name: &str, at: &str) -> Result<(), ConfigError> {
        let known = self.endpoints.iter().any(|group| group.name == name);
        check(known, at, || {
            let names: Vec<_> = self
                .endpoints
                .iter()
                .map(|g| format!("`{}`", g.name))
                .collect();
            format!("there is no group `{name}`; there are {}", names.join(", "))
        })
    }

    fn check_selection(&self, selection: &Selection, at: &str) -> Result<(), ConfigError> {
        if let Some(group) = &selection.group {
            self.check_group(group, &format!("{at}.group"))?;
        }
        for (key, value) in [("every", selection.every), ("count", selection.count)] {
            check(value != Some(0), &format!("{at}.{key}"), || {
                "found `0`, expected 1 or more".into()
            })?;
        }
        Ok(())
    }

    fn check_autoscale(&self, autoscale: &Autoscale) -> Result<(), ConfigError> {
        self.check_group(&autoscale.group, "autoscale.group")?;
        check(
            autoscale.target > 0.0 && autoscale.target <= 1.0,
            "autoscale.target",
            || {
                format!(
                    "found `{}`, expected more than 0 and at most 1",
                    autoscale.target
                )
            },
        )?;
        check(autoscale.every_ms >= 1_000, "autoscale.every_ms", || {
            "expected at least `1s`".into()
        })?;
        check(
            (1..=autoscale.max).contains(&autoscale.min),
            "autoscale.min",
            || {
                format!(
                    "found `{}`, expected 1 to `max`, which is {}",
                    autoscale.min, autoscale.max
                )
            },
        )?;
        check(autoscale.max <= ENDPOINTS_MAX, "autoscale.max", || {
            format!("found `{}`, the most is {ENDPOINTS_MAX}", autoscale.max)
        })?;
        check_cold(autoscale.cold.as_ref(), "autoscale.cold")
    }

    fn check_load(&self) -> Result<(), ConfigError> {
        match self.load.rate {
            Rate::Fraction(value) => positive(value, "load.rate.fraction")?,
            Rate::Rps(value) => positive(value, "load.rate.rps")?,
        }
        match self.load.pattern {
            Pattern::Constant => {}
            Pattern::Mmpp {
                factor,
                burst_ms,
                calm_ms,
            } => {
                positive(burst_ms, "load.pattern.mmpp.burst_ms")?;
                positive(calm_ms, "load.pattern.mmpp.calm_ms")?;
                let most = (burst_ms + calm_ms) / burst_ms;
                check(
                    (1.0..=most).contains(&factor),
                    "load.pattern.mmpp.factor",
                    || {
                        format!(
                        "found `{factor}`, expected 1 to {most:.3}: with more, the rate between \
                         bursts would be below 0"
                    )
                    },
                )?;
            }
            Pattern::Ramp { from, to, .. } => {
                at_least_zero(from, "load.pattern.ramp.from")?;
                at_least_zero(to, "load.pattern.ramp.to")?;
                check(from > 0.0 || to > 0.0, "load.pattern.ramp.to", || {
                    "`from` and `to` are both 0: there would be no call".into()
                })?;
            }
        }
        if let Some(trace) = &self.load.trace {
            self.check_trace(trace)?;
        }
        let load = self.offered_rps() * self.peak() / self.capacity_rps();
        let at = match (&self.load.trace, self.load.rate) {
            (Some(_), _) => "load.trace",
            (None, Rate::Fraction(_)) => "load.rate.fraction",
            (None, Rate::Rps(_)) => "load.rate.rps",
        };
        check(self.allow_overload || load < 1.0, at, || {
            format!(
                "{:.0} calls per second are {load:.3} of the {:.0} that the endpoints can do; lower \
                 the load or write `allow_overload: true`",
                self.offered_rps() * self.peak(),
                self.capacity_rps()
            )
        })
    }

    fn check_trace(&self, trace: &Trace) -> Result<(), ConfigError> {
        let at = "load.trace";
        let rows = trace.at_ms.len();
        let complete = rows == trace.class.len() && rows == trace.work_ms.len();
        check(complete && rows > 0, at, || "the trace has no calls".into())?;
        let ascending = trace.at_ms.windows(2).all(|pair| pair[0] <= pair[1]);
        let finite = trace
            .at_ms
            .iter()
            .chain(&trace.work_ms)
            .all(|&v| v.is_finite() && v >= 0.0);
        check(ascending && finite, at, || {
            "times must ascend from 0, work must be 0 or more".into()
        })?;
        let classes = self.class_count() as u32;
        check(trace.class.iter().all(|&class| class < classes), at, || {
            format!("a class is not below {classes}")
        })
    }
}

impl Selection {
    /// Whether it takes an endpoint: its group, its place there, its place among all.
    #[must_use]
    pub fn takes(&self, group: &str, position: u32, index: u32) -> bool {
        let place = match &self.group {
            Some(name) if name != group => return false,
            Some(_) => position,
            None => index,
        };
        let every = self.every.unwrap_or(1);
        place % every == 0 && self.count.is_none_or(|count| place / every < count)
    }
}

fn check_cold(cold: Option<&Cold>, at: &str) -> Result<(), ConfigError> {
    cold.map_or(Ok(()), |cold| positive(cold.speed, &format!("{at}.speed")))
}

fn positive(value: f64, at: &str) -> Result<(), ConfigError> {
    check(value > 0.0 && value <= 1e9, at, || {
        format!("found `{value}`, expected more than 0 and at most 1e9")
    })
}

fn at_least_zero(value: f64, at: &str) -> Result<(), ConfigError> {
    check((0.0..=1e9).contains(&value), at, || {
        format!("found `{value}`, expected 0 or more")
    })
}

fn fraction(value: f64, at: &str) -> Result<(), ConfigError> {
    check(value > 0.0 && value <= 1.0, at, || {
        format!("found `{value}`, expected more than 0 and at most 1")
    })
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
