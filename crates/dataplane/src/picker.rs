//! The picker of one service without sockets, for the simulator, tests and replay: the same
//! snapshot, balancers and counters as in the data plane, with time as an argument.

use std::collections::{HashMap, VecDeque};

use http::HeaderMap;

use crate::attempt::{Attempt, Probe, RequestClass, RequestInfo, Sample};
use crate::class::Traits;
use crate::config::{EndpointSetConfig, ServiceConfig};
use crate::endpoint::Endpoint;
use crate::error::{ConfigError, Error};
use crate::orca::LoadReport;
use crate::rng::Rng;
use crate::service::{Reason, Refusal, Service};

/// A service and a stream of draws.
#[derive(Debug)]
pub struct Picker {
    service: Service,
    rng: Rng,
    /// Attempts in flight by the id of their endpoint, oldest first.
    open: HashMap<u64, VecDeque<Attempt>>,
    /// Latest time that anybody named.
    now_ns: u64,
}

impl Picker {
    /// A picker without endpoints.
    ///
    /// # Errors
    /// The service's configuration is refused.
    pub fn new(service_config: &[u8], seed: u64) -> Result<Self, Error> {
        let config = ServiceConfig::parse(service_config)?;
        Ok(Self {
            service: Service::new(config, seed),
            rng: Rng::stream(seed, 0),
            open: HashMap::new(),
            now_ns: 0,
        })
    }

    /// Replaces the endpoint set; returns its epoch.
    ///
    /// # Errors
    /// The set is refused; the old one stays.
    pub fn apply_endpoints(&self, endpoints: &[u8]) -> Result<u64, Error> {
        let limits = self.service.snapshot().settings.limits.clone();
        let set = EndpointSetConfig::parse(endpoints, &limits)?;
        Ok(self.service.apply_endpoints(set).0)
    }

    /// What the pool reports when connects to an endpoint fail, or succeed again.
    ///
    /// # Errors
    /// There is no endpoint of that index.
    pub fn set_failing(&self, index: usize, failing: bool) -> Result<(), Error> {
        let endpoint = self.endpoint(index)?;
        self.service.set_failing(&endpoint, failing);
        Ok(())
    }

    /// Does what is due, such as the end of an ejection.
    pub fn maintain(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.service.maintain(now_ns);
    }

    /// The rule set of a path, for [`RequestInfo::rule`].
    #[must_use]
    pub fn rule_of(&self, path: &str) -> u32 {
        let snapshot = self.service.snapshot();
        let route = snapshot.settings.routes.find(path);
        route.map_or(0, |route| route.rule)
    }

    /// The class of a call without headers.
    #[must_use]
    pub fn classify(&self, path: &str, message_bytes: Option<u64>) -> RequestClass {
        let traits = Traits {
            path,
            message_bytes,
            headers: &HeaderMap::new(),
            timeout: None,
        };
        let snapshot = self.service.snapshot();
        self.service.classify(&snapshot, &traits).0
    }

    /// Picks, and counts the attempt as in flight until [`Picker::finished`].
    ///
    /// # Errors
    /// No endpoint can take a call.
    pub fn pick(&mut self, now_ns: u64, request: RequestInfo) -> Result<(u32, Reason), Refusal> {
        self.maintain(now_ns);
        let snapshot = self.service.snapshot();
        let attempt = self
            .service
            .begin_attempt(&snapshot, now_ns, request, &mut self.rng)?;
        let picked = (attempt.index(), attempt.reason());
        let queue = self.open.entry(attempt.endpoint().id).or_default();
        queue.push_back(attempt);
        Ok(picked)
    }

    /// Ends the oldest attempt that an endpoint has in flight.
    ///
    /// # Errors
    /// There is no endpoint of that index, or it has nothing in flight.
    pub fn finished(
        &mut self,
        index: usize,
        now_ns: u64,
        sample: &Sample<'_>,
    ) -> Result<(), Error> {
        self.now_ns = self.now_ns.max(now_ns);
        let endpoint = self.endpoint(index)?;
        let queue = self.open.get_mut(&endpoint.id);
        let Some(attempt) = queue.and_then(VecDeque::pop_front) else {
            let message = format!("endpoint {index} has nothing in flight");
            return Err(refused("index", message));
        };
        self.service.end_attempt(attempt, now_ns, sample);
        Ok(())
    }

    /// Takes in a load report of an endpoint, out of band: a serialised `OrcaLoadReport`.
    ///
    /// # Errors
    /// There is no endpoint of that index.
    pub fn reported(&self, index: usize, now_ns: u64, report: &LoadReport) -> Result<(), Error> {
        let endpoint = self.endpoint(index)?;
        self.service.reported(&endpoint, now_ns, report);
        Ok(())
    }

    /// Indices of the endpoints to probe after a pick.
    pub fn probes_due(&mut self, now_ns: u64) -> Vec<u32> {
        let mut due = Vec::new();
        let snapshot = self.service.snapshot();
        self.service
            .probes_due(&snapshot, now_ns, &mut self.rng, &mut due);
        due
    }

    /// Takes in the answer of a probe.
    ///
    /// # Errors
    /// There is no endpoint of that index.
    pub fn probed(&self, index: usize, now_ns: u64, probe: Probe) -> Result<(), Error> {
        let endpoint = self.endpoint(index)?;
        self.service.probed(&endpoint, now_ns, probe);
        Ok(())
    }

    /// Reads a serialised `OrcaLoadReport`.
    ///
    /// # Errors
    /// It is none.
    pub fn decode_report(&self, message: &[u8]) -> Result<LoadReport, Error> {
        let snapshot = self.service.snapshot();
        LoadReport::decode(message, &snapshot.settings.metric_names)
            .map_err(|_| refused("report", "is no serialised OrcaLoadReport".into()))
    }

    /// The latest time of a pick or an end.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The service itself, to read its snapshot and counters.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    fn endpoint(&self, index: usize) -> Result<std::sync::Arc<Endpoint>, Error> {
        let snapshot = self.service.snapshot();
        snapshot
            .members
            .get(index)
            .map(|member| member.endpoint.clone())
            .ok_or_else(|| {
                let message = format!(
                    "found {index}, there are {} endpoints",
                    snapshot.members.len()
                );
                refused("index", message)
            })
    }
}

fn refused(path: &str, message: String) -> Error {
    ConfigError {
        path: path.into(),
        message,
    }
    .into()
}
