//! Picks that were recorded: what each saw, whom it chose, and what it takes to draw the same again.
//!
//! A sampled pick pays for its record, every other one for a comparison. The ring is bounded and
//! nobody waits for it: where it is full the oldest record goes, where the control side holds it
//! the record is dropped, and both are counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Uri;
use parking_lot::Mutex;
use serde_json::{json, Value};

use crate::attempt::{Attempt, RequestInfo, Tried};
use crate::balancer::learned::trace::{Scan, Tracing};
use crate::balancer::Balancer;
use crate::endpoint::Endpoint;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::{Service, Snapshot};

/// Records between two looks of the control side.
const RING_MAX: usize = 4_096;

/// Candidates that a record names; beyond it only their number is known.
const CANDIDATES_MAX: usize = 64;

/// What a pick saw of one endpoint that it could choose.
#[derive(Debug)]
struct Candidate {
    endpoint: Arc<Endpoint>,
    in_flight: u32,
    static_weight: f32,
    /// Probability that the rule gave it.
    weight: f32,
}

/// What a pick saw, taken just before it.
#[derive(Debug)]
pub struct Sight {
    candidates: Vec<Candidate>,
    candidates_total: usize,
    /// Whom the rules leave and the pick does not take: the call was there before, or they are full.
    left_out: Vec<Arc<Endpoint>>,
    left_out_total: usize,
    epoch: u64,
    rng_key: u64,
    rng_counter: u64,
    compares_all: bool,
    /// Notes what `learned` compares, until the pick is recorded.
    tracing: Option<Tracing>,
}

/// One recorded pick.
#[derive(Debug)]
struct Decision {
    at_ns: u64,
    picked_ns: u64,
    service: Arc<Service>,
    uri: Uri,
    class: u32,
    key: Option<u64>,
    chosen: Arc<Endpoint>,
    reason: Reason,
    /// What `learned` compared.
    scan: Option<Scan>,
    sight: Sight,
}

/// The ring.
#[derive(Debug, Default)]
pub struct Decisions {
    ring: Mutex<VecDeque<Decision>>,
    dropped: AtomicU64,
}

impl Sight {
    /// What the pick for that call, which comes now, will see: what the rules of its route leave,
    /// less those that [`Service::begin_within_limits`] leaves out.
    #[must_use]
    pub fn take(
        snapshot: &Snapshot,
        now_ns: u64,
        request: RequestInfo,
        tried: &Tried,
        rng: &Rng,
    ) -> Self {
        let weights = snapshot.weights_for(request.rule, now_ns);
        let (left, left_out) = apart(snapshot, request.rule, tried);
        let candidate = |index: &u32| {
            let member = &snapshot.members[*index as usize];
            Candidate {
                endpoint: Arc::clone(&member.endpoint),
                in_flight: member.endpoint.live.in_flight(),
                static_weight: member.static_weight,
                weight: weights[*index as usize],
            }
        };
        Self {
            candidates: left.iter().take(CANDIDATES_MAX).map(candidate).collect(),
            candidates_total: left.len(),
            left_out_total: left_out.len(),
            left_out: left_out
                .iter()
                .take(CANDIDATES_MAX)
                .map(|index| Arc::clone(&snapshot.members[*index as usize].endpoint))
                .collect(),
            epoch: snapshot.epoch,
            rng_key: rng.key(),
            rng_counter: rng.counter(),
            compares_all: snapshot.compares_all_for(request.rule),
            tracing: matches!(snapshot.balancer, Balancer::Learned(_)).then(Tracing::begin),
        }
    }

    /// The next best, where the rule compared everybody and everybody is here.
    fn runner_up(&self, chosen: &Endpoint, reason: Reason) -> Option<&Candidate> {
        let by_rule = matches!(reason, Reason::Sticky | Reason::Explore);
        if !self.compares_all || by_rule || self.candidates_total > self.candidates.len() {
            return None;
        }
        let cost =
            |one: &Candidate| (f64::from(one.in_flight) + 1.0) / f64::from(one.static_weight);
        self.candidates
            .iter()
            .filter(|one| one.endpoint.id != chosen.id)
            .min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }
}

/// Whom the rules of a route leave, parted into those that a pick may take and the others, by the
/// judgement of [`Service::begin_within_limits`]. Where all of them were tried, any with room is
/// taken.
fn apart(snapshot: &Snapshot, rule: u32, tried: &Tried) -> (Vec<u32>, Vec<u32>) {
    let most = snapshot.settings.limits.max_inflight_per_endpoint;
    let endpoint = |index: &u32| &snapshot.members[*index as usize].endpoint;
    let has_room = |index: &u32| most.is_none_or(|most| endpoint(index).live.in_flight() < most);
    let is_new = |index: &u32| has_room(index) && !tried.contains(endpoint(index).id);
    let left = snapshot.left_for(rule).iter().copied();
    let (taken, others): (Vec<_>, Vec<_>) = left.clone().partition(is_new);
    if taken.is_empty() && !tried.is_empty() {
        return left.partition(has_room);
    }
    (taken, others)
}

impl Decisions {
    /// Keeps what a pick saw and did.
    pub fn record(&self, service: &Arc<Service>, uri: &Uri, attempt: &Attempt, mut sight: Sight) {
        let scan = sight.tracing.take().map(|tracing| tracing.take());
        let request = attempt.request();
        let decision = Decision {
            at_ns: wall_ns(),
            picked_ns: attempt.started_ns(),
            service: Arc::clone(service),
            uri: uri.clone(),
            class: request.class.index,
            key: request.key,
            chosen: Arc::clone(attempt.endpoint()),
            reason: attempt.reason(),
            scan,
            sight,
        };
        let Some(mut ring) = self.ring.try_lock() else {
            self.dropped.fetch_add(1, Relaxed);
            return;
        };
        if ring.len() >= RING_MAX {
            ring.pop_front();
            self.dropped.fetch_add(1, Relaxed);
        }
        ring.push_back(decision);
    }

    /// Records lost so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Takes the oldest records out, as a JSON list, and how many were lost so far.
    #[must_use]
    pub fn take(&self, max: usize) -> (Vec<u8>, u64) {
        let taken: Vec<_> = {
            let mut ring = self.ring.lock();
            let count = ring.len().min(max);
            ring.drain(..count).collect()
        };
        let rows = taken.iter().map(Decision::describe).collect();
        let dropped = self.dropped();
        (Value::Array(rows).to_string().into_bytes(), dropped)
    }
}

impl Decision {
    fn describe(&self) -> Value {
        let candidates: Vec<_> = self
            .sight
            .candidates
            .iter()
            .map(Candidate::describe)
            .collect();
        let runner_up = self.sight.runner_up(&self.chosen, self.reason);
        let left_out = self.sight.left_out.iter().map(|one| one.name.as_str());
        json!({
            "at_ns": self.at_ns,
            "picked_ns": self.picked_ns,
            "service": self.service.name,
            "method": self.uri.path(),
            "request_class": self.class,
            "key": self.key,
            "endpoint": self.chosen.name,
            "runner_up": runner_up.map(|one| one.endpoint.name.as_str()),
            "reason": self.reason.name(),
            "endpoint_epoch": self.sight.epoch,
            "rng_key": self.sight.rng_key,
            "rng_counter": self.sight.rng_counter,
            "candidates": candidates,
            "learned": self.scan.as_ref().and_then(Scan::describe),
            "candidates_total": self.sight.candidates_total,
            "left_out": left_out.collect::<Vec<_>>(),
            "left_out_total": self.sight.left_out_total,
        })
    }
}

impl Candidate {
    fn describe(&self) -> Value {
        json!({
            "address": self.endpoint.name,
            "in_flight": self.in_flight,
            "static_weight": self.static_weight,
            "weight": self.weight,
        })
    }
}

/// Nanoseconds since 1970-01-01 UTC.
pub(crate) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Uri;
    use serde_json::{json, Value};

    use super::{Decisions, Sight, CANDIDATES_MAX, RING_MAX};
    use crate::attempt::{Attempt, RequestInfo, Tried};
    use crate::balancer::learned::trace::replay;
    use crate::config::{EndpointSetConfig, ServiceConfig};
    use crate::rng::Rng;
    use crate::service::Service;

    fn service(balancer: &Value, endpoints: usize) -> Arc<Service> {
        service_with(balancer, &json!([]), endpoints)
    }

    fn service_with(balancer: &Value, routes: &Value, endpoints: usize) -> Arc<Service> {
        let config = json!({
            "name": "cart", "authorities": ["cart"], "balancer": balancer, "routes": routes,
        });
        service_of(&config, endpoints)
    }

    /// Every second endpoint is in the zone `near`.
    fn service_of(config: &Value, endpoints: usize) -> Arc<Service> {
        let config = ServiceConfig::parse(config.to_string().as_bytes()).unwrap();
        let service = Service::new(config, 1);
        let address = |number| format!("10.0.{}.{}:1", number / 250, number % 250);
        let rows: Vec<_> = (0..endpoints)
            .map(|number| {
                let zone = if number % 2 == 0 { "near" } else { "far" };
                json!({"address": address(number), "zone": zone})
            })
            .collect();
        let set = json!({"endpoints": rows}).to_string();
        let limits = service.snapshot().settings.limits.clone();
        service.apply_endpoints(EndpointSetConfig::parse(set.as_bytes(), &limits).unwrap());
        Arc::new(service)
    }

    /// Picks once, on the record.
    fn pick(decisions: &Decisions, service: &Arc<Service>, rng: &mut Rng) {
        pick_for(decisions, service, RequestInfo::default(), rng);
    }

    fn pick_for(
        decisions: &Decisions,
        service: &Arc<Service>,
        request: RequestInfo,
        rng: &mut Rng,
    ) {
        let snapshot = service.snapshot();
        let sight = Sight::take(&snapshot, 5, request, &Tried::default(), rng);
        let attempt = service.begin_attempt(&snapshot, 5, request, rng).unwrap();
        decisions.record(service, &Uri::from_static("/a/B"), &attempt, sight);
    }

    fn taken(decisions: &Decisions, max: usize) -> (Vec<Value>, u64) {
        let (rows, dropped) = decisions.take(max);
        (serde_json::from_slice(&rows).unwrap(), dropped)
    }

    #[test]
    fn the_ring_keeps_the_newest_and_counts_what_it_lost() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(1));
        let service = service(&json!({"type": "random"}), 3);
        for _ in 0..RING_MAX + 5 {
            pick(&decisions, &service, &mut rng);
        }
        let (first, dropped) = taken(&decisions, 10);
        assert_eq!((first.len(), dropped), (10, 5));
        let (rest, _) = taken(&decisions, usize::MAX);
        assert_eq!(rest.len(), RING_MAX - 10);
        assert_eq!(taken(&decisions, usize::MAX).0.len(), 0);
    }

    #[test]
    fn a_record_is_enough_to_pick_the_same_again() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(2));
        let service = service(&json!({"type": "random"}), 7);
        for _ in 0..50 {
            pick(&decisions, &service, &mut rng);
        }
        for row in taken(&decisions, 50).0 {
            let number = |key: &str| row[key].as_u64().unwrap();
            let mut replayed = Rng::at(number("rng_key"), number("rng_counter"));
            let snapshot = service.snapshot();
            let now_ns = number("picked_ns");
            let chosen = service
                .choose(&snapshot, now_ns, RequestInfo::default(), &mut replayed)
                .unwrap();
            let endpoint = &snapshot.members[chosen.0 as usize].endpoint;
            assert_eq!(row["endpoint"], endpoint.name.as_str());
            assert_eq!(row["reason"], chosen.1.name());
        }
    }

    /// Picks on the record, one attempt after the other, for a call that fails everywhere.
    fn pick_again(
        decisions: &Decisions,
        service: &Arc<Service>,
        times: usize,
        rng: &mut Rng,
    ) -> Vec<Attempt> {
        let (request, mut tried) = (RequestInfo::default(), Tried::default());
        let mut one = || {
            let snapshot = service.snapshot();
            let sight = Sight::take(&snapshot, 5, request, &tried, rng);
            let attempt = service
                .begin_within_limits(&snapshot, 5, request, &tried, rng)
                .unwrap();
            decisions.record(service, &Uri::from_static("/a/B"), &attempt, sight);
            tried.add(attempt.endpoint().id);
            attempt
        };
        (0..times).map(|_| one()).collect()
    }

    fn names(list: &Value) -> Vec<String> {
        let name = |one: &Value| one.as_str().or(one["address"].as_str()).unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    }

    #[test]
    fn a_further_attempt_names_whom_it_left_out() {
        for balancer in ["least_request", "learned", "random"] {
            let (decisions, mut rng) = (Decisions::default(), Rng::new(5));
            let service = service(&json!({"type": balancer}), 3);
            let attempts = pick_again(&decisions, &service, 4, &mut rng);
            let (rows, _) = taken(&decisions, 4);
            let mut before = Vec::new();
            for (row, attempt) in rows.iter().zip(&attempts).take(3) {
                let mut left_out = names(&row["left_out"]);
                left_out.sort();
                before.sort();
                assert_eq!(left_out, before, "{balancer}");
                assert_eq!(row["left_out_total"], before.len());
                assert_eq!(row["candidates_total"], 3 - before.len());
                let candidates = names(&row["candidates"]);
                assert!(candidates.contains(&attempt.endpoint().name), "{balancer}");
                let runner_up = row["runner_up"].as_str();
                assert!(runner_up.is_none_or(|one| !before.contains(&one.to_owned())));
                before.push(attempt.endpoint().name.clone());
            }
            // Everybody was tried: nobody is left out any more.
            assert_eq!(
                (
                    names(&rows[3]["left_out"]).len(),
                    names(&rows[3]["candidates"]).len()
                ),
                (0, 3)
            );
        }
    }

    #[test]
    fn a_full_endpoint_is_named_as_left_out() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(6));
        let config = json!({
            "name": "cart", "authorities": [], "limits": {"max_inflight_per_endpoint": 1},
        });
        let service = service_of(&config, 2);
        let attempts: Vec<_> = (0..2)
            .flat_map(|_| pick_again(&decisions, &service, 1, &mut rng))
            .collect();
        let (rows, _) = taken(&decisions, 2);
        assert_eq!(names(&rows[0]["left_out"]).len(), 0);
        assert_eq!(
            names(&rows[1]["left_out"]),
            [attempts[0].endpoint().name.as_str()]
        );
        assert_eq!(
            names(&rows[1]["candidates"]),
            [attempts[1].endpoint().name.as_str()]
        );
    }

    #[test]
    fn further_attempts_compute_again() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(7));
        let learned = service(&json!({"type": "learned"}), 4);
        let zoned = json!({
            "name": "cart", "authorities": [], "balancer": {"type": "learned"},
            "locality": {"own_zone": "near", "min_healthy": 0.5},
        });
        let zoned = service_of(&zoned, 4);
        for service in [&learned, &zoned] {
            for _ in 0..20 {
                pick_again(&decisions, service, 5, &mut rng);
            }
        }
        let (rows, _) = taken(&decisions, 200);
        let (mut recomputed, mut compared_by_none) = (0, 0);
        for row in &rows {
            if row["learned"].is_null() {
                // Only where the other zone had to help out, by the calls in flight.
                assert_eq!(row["reason"], "least_request");
                compared_by_none += 1;
                continue;
            }
            let again = replay(row).unwrap();
            assert_eq!(again["identical"], true, "{again}: {row}");
            let compared = names(&row["learned"]["compared"]);
            let left_out = names(&row["left_out"]);
            assert!(compared.iter().all(|one| !left_out.contains(one)), "{row}");
            recomputed += 1;
        }
        assert_eq!(recomputed + compared_by_none, 200);
        assert!(
            recomputed >= 150 && compared_by_none > 0,
            "{compared_by_none}"
        );
    }

    #[test]
    fn a_record_names_whom_the_rules_of_its_route_left() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(4));
        let pinned = ["10.0.0.1:1", "10.0.0.3:1"];
        let service = service_with(
            &json!({"type": "least_request", "choice_count": "all"}),
            &json!([
                {"match": {"path": "/a/Pinned"}, "rules": {"pin": pinned}},
                {"match": {"path": "/a/Sticky"}, "rules": {"sticky": {"header": "x-key"}}},
            ]),
            5,
        );
        for rule in 0..=2 {
            let request = RequestInfo {
                key: Some(7),
                rule,
                ..RequestInfo::default()
            };
            pick_for(&decisions, &service, request, &mut rng);
        }
        let (rows, _) = taken(&decisions, 3);
        let named = |row: &Value| -> Vec<String> {
            let candidates = row["candidates"].as_array().unwrap();
            let address = |one: &Value| one["address"].as_str().unwrap().to_owned();
            candidates.iter().map(address).collect()
        };
        assert_eq!(named(&rows[0]).len(), 5);
        assert_eq!(named(&rows[1]), pinned);
        assert_eq!(rows[1]["candidates_total"], 2);
        let weights = rows[1]["candidates"].as_array().unwrap().iter();
        assert_eq!(
            weights
                .map(|one| one["weight"].as_f64().unwrap())
                .sum::<f64>(),
            1.0
        );
        assert!(pinned.contains(&rows[1]["runner_up"].as_str().unwrap()));
        // The key chose, not the load: nobody came second.
        assert_eq!(
            (&rows[2]["reason"], named(&rows[2]).len()),
            (&"sticky".into(), 5)
        );
        assert!(rows[2]["runner_up"].is_null());
    }

    #[test]
    fn a_full_scan_has_a_second_and_what_is_not_named_is_counted() {
        let (decisions, mut rng) = (Decisions::default(), Rng::new(3));
        let all = json!({"type": "least_request", "choice_count": "all"});
        pick(&decisions, &service(&all, 2), &mut rng);
        pick(&decisions, &service(&all, CANDIDATES_MAX + 1), &mut rng);
        pick(
            &decisions,
            &service(&json!({"type": "random"}), 2),
            &mut rng,
        );
        let (rows, _) = taken(&decisions, 3);
        assert_ne!(rows[0]["runner_up"], rows[0]["endpoint"]);
        assert!(rows[0]["runner_up"].is_string());
        assert!(rows[1]["runner_up"].is_null());
        assert_eq!(
            rows[1]["candidates"].as_array().unwrap().len(),
            CANDIDATES_MAX
        );
        assert_eq!(rows[1]["candidates_total"], CANDIDATES_MAX + 1);
        assert!(rows[2]["runner_up"].is_null());
        // The call that was being placed is not among those it saw.
        assert_eq!(rows[0]["candidates"][0]["in_flight"], 0);
    }
}
