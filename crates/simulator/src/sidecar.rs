//! One simulated sidecar: a production service with endpoints, and nothing else.
//!
//! This is the gate between what is true and what is known. The world calls these methods and a
//! sidecar sees no more of it: which endpoints there are, as discovery tells it, and the times,
//! statuses and reports of its own calls and probes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use attnroute_dataplane::address::Address;
use attnroute_dataplane::attempt::{Attempt, Probe, RequestInfo, Sample};
use attnroute_dataplane::class::Traits;
use attnroute_dataplane::config::{EndpointSetConfig, ServiceConfig};
use attnroute_dataplane::endpoint::{Endpoint, Outcome};
use attnroute_dataplane::orca::LoadReport;
use attnroute_dataplane::rng::Rng;
#[cfg(test)]
use attnroute_dataplane::score_table::Scores;
use attnroute_dataplane::service::Service;
use http::HeaderMap;

/// A service, its draws, and its endpoints by their number in the world.
#[derive(Debug)]
pub(crate) struct Sidecar {
    service: Service,
    rng: Rng,
    endpoints: Vec<Option<Arc<Endpoint>>>,
    due: Vec<u32>,
    /// Of every call: none that matter.
    headers: HeaderMap,
    #[cfg(test)]
    pub(crate) log: Option<Vec<Seen>>,
}

/// What a call shows to its sidecar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) path: &'a str,
    pub(crate) message_bytes: u64,
    /// What consistent hashing goes by.
    pub(crate) key: u64,
}

/// Everything that a sidecar was told and did, to be played again.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    Set(EndpointSetConfig),
    Failing(u32, bool),
    /// Path, message bytes, key, and whom it was given to.
    Call(u64, String, u64, u64, Option<u32>),
    /// Oldest attempt of that number first.
    Answer(u64, u32, u64, Outcome, Option<LoadReport>),
    Probes(u64, Vec<u32>),
    Probed(u64, u32, Option<Probe>),
    Reported(u64, u32, LoadReport),
    Pinged(u32, u64),
    Scored(u64),
}

impl Sidecar {
    pub(crate) fn new(config: &ServiceConfig, seed: u64) -> Self {
        Self {
            service: Service::new(config.clone(), seed),
            rng: Rng::stream(seed, 0),
            endpoints: Vec::new(),
            due: Vec::new(),
            headers: HeaderMap::new(),
            #[cfg(test)]
            log: None,
        }
    }

    /// The production service that picks.
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// What discovery says.
    pub(crate) fn apply_endpoints(&mut self, set: &EndpointSetConfig) {
        #[cfg(test)]
        self.note(Seen::Set(set.clone()));
        self.service.apply_endpoints(set.clone());
        self.endpoints.clear();
        let snapshot = self.service.snapshot();
        for member in snapshot.members.iter() {
            let number = number_of(&member.endpoint) as usize;
            if self.endpoints.len() <= number {
                self.endpoints.resize(number + 1, None);
            }
            self.endpoints[number] = Some(Arc::clone(&member.endpoint));
        }
    }

    /// Connects to an endpoint fail, or succeed again.
    pub(crate) fn set_failing(&mut self, number: u32, failing: bool) {
        #[cfg(test)]
        self.note(Seen::Failing(number, failing));
        if let Some(endpoint) = self.endpoint(number) {
            self.service.set_failing(endpoint, failing);
        }
    }

    /// Picks an endpoint for a call; None if there is none.
    pub(crate) fn call(&mut self, now_ns: u64, call: Incoming<'_>) -> Option<Attempt> {
        self.service.maintain(now_ns);
        let snapshot = self.service.snapshot();
        let traits = Traits {
            path: call.path,
            message_bytes: Some(call.message_bytes),
            headers: &self.headers,
            timeout: None,
        };
        let request = RequestInfo {
            class: self.service.classify(&snapshot, &traits).0,
            key: Some(call.key),
            rule: 0,
        };
        let attempt = self
            .service
            .begin_attempt(&snapshot, now_ns, request, &mut self.rng)
            .ok();
        drop(snapshot);
        #[cfg(test)]
        self.note(Seen::Call(
            now_ns,
            call.path.to_owned(),
            call.message_bytes,
            call.key,
            attempt
                .as_ref()
                .map(|attempt| number_of(attempt.endpoint())),
        ));
        attempt
    }

    /// Numbers of the endpoints that should be probed after a pick.
    pub(crate) fn probes_due(&mut self, now_ns: u64) -> &[u32] {
        let snapshot = self.service.snapshot();
        self.service
            .probes_due(&snapshot, now_ns, &mut self.rng, &mut self.due);
        for index in &mut self.due {
            *index = number_of(&snapshot.members[*index as usize].endpoint);
        }
        drop(snapshot);
        #[cfg(test)]
        {
            let due = self.due.clone();
            self.note(Seen::Probes(now_ns, due));
        }
        &self.due
    }

    /// A probe came back; `None`: nobody there answers probes.
    pub(crate) fn probed(&mut self, now_ns: u64, number: u32, probe: Option<Probe>) {
        #[cfg(test)]
        self.note(Seen::Probed(now_ns, number, probe));
        match (self.endpoint(number), probe) {
            (Some(endpoint), Some(probe)) => self.service.probed(endpoint, now_ns, probe),
            (Some(endpoint), None) => self.service.probe_unanswered(endpoint, now_ns),
            (None, _) => {} // it left the set meanwhile
        }
    }

    /// A ping of a connection came back.
    pub(crate) fn pinged(&mut self, number: u32, rtt_ns: u64) {
        #[cfg(test)]
        self.note(Seen::Pinged(number, rtt_ns));
        if let Some(endpoint) = self.endpoint(number) {
            endpoint.live.rtt_ns.store(rtt_ns, Relaxed);
        }
    }

    /// Whether anybody learns from its calls.
    pub(crate) fn learns(&self) -> bool {
        self.service.snapshot().settings.tracking.is_some()
    }

    /// A call ended.
    pub(crate) fn answered(
        &mut self,
        now_ns: u64,
        attempt: Attempt,
        outcome: Outcome,
        report: Option<&LoadReport>,
    ) {
        let sample = Sample {
            outcome,
            latency_ns: now_ns - attempt.started_ns(),
            push_back_ns: None,
            report,
        };
        #[cfg(test)]
        self.note(Seen::Answer(
            now_ns,
            number_of(attempt.endpoint()),
            attempt.started_ns(),
            outcome,
            report.copied(),
        ));
        self.service.end_attempt(attempt, now_ns, &sample);
    }

    /// A report came out of band.
    pub(crate) fn reported(&mut self, now_ns: u64, number: u32, report: &LoadReport) {
        #[cfg(test)]
        self.note(Seen::Reported(now_ns, number, *report));
        if let Some(endpoint) = self.endpoint(number) {
            self.service.reported(endpoint, now_ns, report);
        }
    }

    fn endpoint(&self, number: u32) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(number as usize)?.as_ref()
    }

    /// Scores were published: made up, but different for every class and endpoint.
    #[cfg(test)]
    pub(crate) fn scored(&mut self, now_ns: u64) {
        self.note(Seen::Scored(now_ns));
        self.service.maintain(now_ns);
        let (classes, snapshot) = (self.service.classes(), self.service.snapshot());
        let (rows, columns) = (classes.entries().len(), snapshot.members.len());
        let cost_s: Vec<f32> = (0..rows * columns)
            .map(|place| 0.005 * (1.0 + (place * 7 % 11) as f32))
            .collect();
        let scores = Scores {
            endpoint_epoch: snapshot.epoch,
            class_epoch: classes.epoch(),
            cost_s: &cost_s,
            table_cost_s: &cost_s,
            spread: &vec![0.6; rows * columns],
            probability: &vec![1.0 / columns as f32; rows * columns],
            mean_service_s: &cost_s[..columns],
            concurrency: &vec![2.0; columns],
            sidecars: 3,
            model: "",
        };
        self.service.publish_scores(&scores, now_ns).expect("sound");
    }

    /// The set that it was told last.
    #[cfg(test)]
    pub(crate) fn current_set(&self) -> EndpointSetConfig {
        let snapshot = self.service.snapshot();
        let endpoints = snapshot
            .members
            .iter()
            .map(|member| attnroute_dataplane::config::EndpointConfig {
                address: member.endpoint.address.clone(),
                static_weight: member.static_weight,
                zone: member.zone.clone(),
                labels: member.labels.clone(),
                priority: member.priority,
                operator_override: member.operator_override,
            })
            .collect();
        EndpointSetConfig { endpoints }
    }

    #[cfg(test)]
    fn note(&mut self, seen: Seen) {
        if let Some(log) = &mut self.log {
            log.push(seen);
        }
    }
}

/// The address of an endpoint: its number, as discovery would tell one.
pub(crate) fn address_of(number: u32) -> Address {
    let [_, high, middle, low] = number.to_be_bytes();
    Address::Tcp(SocketAddr::from((
        Ipv4Addr::new(10, high, middle, low),
        50_051,
    )))
}

/// The number that [`address_of`] wrote down.
pub(crate) fn number_of(endpoint: &Endpoint) -> u32 {
    match &endpoint.address {
        Address::Tcp(SocketAddr::V4(address)) => {
            let [_, high, middle, low] = address.ip().octets();
            u32::from_be_bytes([0, high, middle, low])
        }
        _ => unreachable!("every address here is made by `address_of`"),
    }
}
