//! Picks that were recorded: what each saw, whom it chose, and what it takes to draw the same again.
//!
//! A sampled pick pays for its record, every other one for a comparison. Records stay here, a bounded
//! number per service, and are written out for whoever asks: most are never looked at, and text of
//! all of them would cost the control side more than everything else it does. Nobody waits: where
//! somebody is reading, the record is dropped and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Uri;
use parking_lot::Mutex;
use serde_json::{json, Value};

use crate::attempt::{Attempt, RequestInfo, Tried};
use crate::balancer::learned::trace::{Scan, Tracing};
use crate::balancer::Balancer;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::{Service, Snapshot};

/// Candidates that a record names; beyond it only their number is known.
const CANDIDATES_MAX: usize = 64;

/// What a pick saw of one endpoint that it could choose.
#[derive(Debug)]
struct Candidate {
    id: u64,
    /// Of the endpoint; not the endpoint, which may leave long before the record does.
    name: Arc<str>,
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
    left_out: Vec<Arc<str>>,
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
    uri: Uri,
    /// `None` where classes are not told apart.
    class: Option<Arc<str>>,
    key: Option<u64>,
    chosen_id: u64,
    chosen: Arc<str>,
    reason: Reason,
    /// What `learned` compared.
    scan: Option<Scan>,
    sight: Sight,
}

/// How recording goes, of every service.
#[derive(Debug)]
pub struct Recording {
    keep: AtomicUsize,
    dropped: AtomicU64,
}

/// The records of one service.
#[derive(Debug, Default)]
pub struct Decisions {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// Number of the newest record, from 1.
    newest: u64,
    records: VecDeque<Arc<Decision>>,
}

/// Records as they are read.
#[derive(Debug)]
pub struct Recorded {
    /// A JSON list, oldest first.
    pub rows: Vec<u8>,
    /// Number of the newest record there is; 0 before the first.
    pub newest: u64,
}

impl Recording {
    /// keep: records per service.
    #[must_use]
    pub const fn new(keep: usize) -> Self {
        Self {
            keep: AtomicUsize::new(keep),
            dropped: AtomicU64::new(0),
        }
    }

    /// From the next record of a service on.
    pub fn configure(&self, keep: usize) {
        self.keep.store(keep, Relaxed);
    }

    /// Records lost so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
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
                id: member.endpoint.id,
                name: Arc::clone(&member.endpoint.name),
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
                .map(|index| Arc::clone(&snapshot.members[*index as usize].endpoint.name))
                .collect(),
            epoch: snapshot.epoch,
            rng_key: rng.key(),
            rng_counter: rng.counter(),
            compares_all: snapshot.compares_all_for(request.rule),
            tracing: matches!(snapshot.balancer, Balancer::Learned(_)).then(Tracing::begin),
        }
    }

    /// The next best, where the rule compared everybody and everybody is here.
    fn runner_up(&self, chosen_id: u64, reason: Reason) -> Option<&Candidate> {
        let by_rule = matches!(reason, Reason::Sticky | Reason::Explore);
        if !self.compares_all || by_rule || self.candidates_total > self.candidates.len() {
            return None;
        }
        let cost =
            |one: &Candidate| (f64::from(one.in_flight) + 1.0) / f64::from(one.static_weight);
        self.candidates
            .iter()
            .filter(|one| one.id != chosen_id)
            .min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }
}

/// Whom the rules of a route leave, parted into those that a pick may take and the others, by the
/// judgement of [`Service::begin_within_limits`]. Where all of them were tried, any with room is
/// taken.
fn apart(snapshot: &Snapshot, rule: u32, tried: &Tried) -> (Vec<u32>, Vec<u32>) {
    let limits = &snapshot.settings.limits;
    let endpoint = |index: &u32| &snapshot.members[*index as usize].endpoint;
    let has_room = |index: &u32| endpoint(index).live.has_room(limits);
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
    pub fn record(
        recording: &Recording,
        service: &Service,
        uri: &Uri,
        attempt: &Attempt,
        mut sight: Sight,
    ) {
        let scan = sight.tracing.take().map(|tracing| tracing.take());
        let request = attempt.request();
        let decision = Decision {
            at_ns: wall_ns(),
            picked_ns: attempt.started_ns(),
            uri: uri.clone(),
            class: service.class_name(request.class),
            key: request.key,
            chosen_id: attempt.endpoint().id,
            chosen: Arc::clone(&attempt.endpoint().name),
            reason: attempt.reason(),
            scan,
            sight,
        };
        let Some(mut ring) = service.decisions.ring.try_lock() else {
            recording.dropped.fetch_add(1, Relaxed);
            return;
        };
        while ring.records.len() >= recording.keep.load(Relaxed).max(1) {
            ring.records.pop_front();
        }
        ring.records.push_back(Arc::new(decision));
        ring.newest += 1;
    }

    /// At most `count` records of those after that number, oldest first.
    #[must_use]
    pub fn after(&self, service: &str, number: u64, count: usize) -> Recorded {
        let (first, records, newest) = {
            let ring = self.ring.lock();
            let oldest = ring.newest - ring.records.len() as u64 + 1;
            let first = oldest.max(number.saturating_add(1));
            let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX);
            let records = ring.records.iter().skip(skipped).take(count);
            (first, records.cloned().collect::<Vec<_>>(), ring.newest)
        };
        let rows = records.iter().zip(first..);
        let rows = rows.map(|(record, number)| record.describe(service, number));
        Recorded {
            rows: Value::Array(rows.collect()).to_string().into_bytes(),
            newest,
        }
    }
}

impl Decision {
    fn describe(&self, service: &str, number: u64) -> Value {
        let candidates: Vec<_> = self
            .sight
            .candidates
            .iter()
            .map(Candidate::describe)
            .collect();
        let runner_up = self.sight.runner_up(self.chosen_id, self.reason);
        let left_out = self.sight.left_out.iter().map(|name| &**name);
        json!({
            "number": number,
            "at_ns": self.at_ns,
            "picked_ns": self.picked_ns,
            "service": service,
            "method": self.uri.path(),
            "request_class": self.class.as_deref(),
            "key": self.key,
            "endpoint": &*self.chosen,
            "runner_up": runner_up.map(|one| &*one.name),
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
            "address": &*self.name,
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

    use super::{Decisions, Recording, Sight, CANDIDATES_MAX};
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
    fn pick(service: &Service, rng: &mut Rng) {
        pick_for(service, RequestInfo::default(), rng);
    }

    static RECORDING: Recording = Recording::new(KEEP);
    const KEEP: usize = 100;

    fn pick_for(service: &Service, request: RequestInfo, rng: &mut Rng) {
        let snapshot = service.snapshot();
        let sight = Sight::take(&snapshot, 5, request, &Tried::default(), rng);
        let attempt = service.begin_attempt(&snapshot, 5, request, rng).unwrap();
        Decisions::record(
            &RECORDING,
            service,
            &Uri::from_static("/a/B"),
            &attempt,
            sight,
        );
    }

    fn after(service: &Service, number: u64, count: usize) -> (Vec<Value>, u64) {
        let found = service.decisions.after(&service.name, number, count);
        (serde_json::from_slice(&found.rows).unwrap(), found.newest)
    }

    fn numbers(rows: &[Value]) -> Vec<u64> {
        let number = |row: &Value| row["number"].as_u64().unwrap();
        rows.iter().map(number).collect()
    }

    #[test]
    fn the_newest_are_kept_under_numbers_that_only_rise() {
        let mut rng = Rng::new(1);
        let service = service(&json!({"type": "random"}), 3);
        assert_eq!(after(&service, 0, 10), (vec![], 0));
        for _ in 0..KEEP + 5 {
            pick(&service, &mut rng);
        }
        let newest = KEEP as u64 + 5;
        let (rows, found) = after(&service, 0, 3);
        assert_eq!((numbers(&rows), found), (vec![6, 7, 8], newest));
        assert_eq!(after(&service, 0, usize::MAX).0.len(), KEEP);
        assert_eq!(
            numbers(&after(&service, newest - 2, 10).0),
            [newest - 1, newest]
        );
        assert_eq!(after(&service, newest, 10), (vec![], newest));
        assert_eq!(after(&service, u64::MAX, 10), (vec![], newest));
    }

    #[test]
    fn a_policy_that_keeps_less_takes_effect_with_the_next_record() {
        let (recording, mut rng) = (Recording::new(10), Rng::new(1));
        let service = service(&json!({"type": "random"}), 3);
        let record = |rng: &mut Rng| {
            let snapshot = service.snapshot();
            let request = RequestInfo::default();
            let sight = Sight::take(&snapshot, 5, request, &Tried::default(), rng);
            let attempt = service.begin_attempt(&snapshot, 5, request, rng).unwrap();
            let uri = Uri::from_static("/a/B");
            Decisions::record(&recording, &service, &uri, &attempt, sight);
        };
        (0..10).for_each(|_| record(&mut rng));
        recording.configure(2);
        record(&mut rng);
        assert_eq!(numbers(&after(&service, 0, 100).0), [10, 11]);
    }

    #[test]
    fn whoever_reads_is_not_waited_for_and_what_is_lost_is_counted() {
        let (recording, mut rng) = (Recording::new(10), Rng::new(1));
        let service = service(&json!({"type": "random"}), 3);
        let snapshot = service.snapshot();
        let request = RequestInfo::default();
        let sight = Sight::take(&snapshot, 5, request, &Tried::default(), &rng);
        let attempt = service
            .begin_attempt(&snapshot, 5, request, &mut rng)
            .unwrap();
        let reading = service.decisions.ring.lock();
        let uri = Uri::from_static("/a/B");
        Decisions::record(&recording, &service, &uri, &attempt, sight);
        drop(reading);
        assert_eq!(recording.dropped(), 1);
        assert_eq!(after(&service, 0, 100).1, 0);
    }

    #[test]
    fn a_record_names_its_class_where_classes_are_told_apart() {
        let mut rng = Rng::new(1);
        let learned = service(&json!({"type": "learned"}), 2);
        pick(&learned, &mut rng);
        assert_eq!(after(&learned, 0, 1).0[0]["request_class"], "other");
        let classic = service(&json!({"type": "random"}), 2);
        pick(&classic, &mut rng);
        assert!(after(&classic, 0, 1).0[0]["request_class"].is_null());
    }

    #[test]
    fn a_record_is_enough_to_pick_the_same_again() {
        let mut rng = Rng::new(2);
        let service = service(&json!({"type": "random"}), 7);
        for _ in 0..50 {
            pick(&service, &mut rng);
        }
        for row in after(&service, 0, 50).0 {
            let number = |key: &str| row[key].as_u64().unwrap();
            let mut replayed = Rng::at(number("rng_key"), number("rng_counter"));
            let snapshot = service.snapshot();
            let now_ns = number("picked_ns");
            let chosen = service
                .choose(&snapshot, now_ns, RequestInfo::default(), &mut replayed)
                .unwrap();
            let endpoint = &snapshot.members[chosen.0 as usize].endpoint;
            assert_eq!(row["endpoint"], &*endpoint.name);
            assert_eq!(row["reason"], chosen.1.name());
        }
    }

    /// Picks on the record, one attempt after the other, for a call that fails everywhere.
    fn pick_again(service: &Arc<Service>, times: usize, rng: &mut Rng) -> Vec<Attempt> {
        let (request, mut tried) = (RequestInfo::default(), Tried::default());
        let mut one = || {
            let snapshot = service.snapshot();
            let sight = Sight::take(&snapshot, 5, request, &tried, rng);
            let attempt = service
                .begin_within_limits(&snapshot, 5, request, &tried, rng)
                .unwrap();
            let uri = Uri::from_static("/a/B");
            Decisions::record(&RECORDING, service, &uri, &attempt, sight);
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
            let mut rng = Rng::new(5);
            let service = service(&json!({"type": balancer}), 3);
            let attempts = pick_again(&service, 4, &mut rng);
            let (rows, _) = after(&service, 0, 4);
            let mut before = Vec::new();
            for (row, attempt) in rows.iter().zip(&attempts).take(3) {
                let mut left_out = names(&row["left_out"]);
                left_out.sort();
                before.sort();
                assert_eq!(left_out, before, "{balancer}");
                assert_eq!(row["left_out_total"], before.len());
                assert_eq!(row["candidates_total"], 3 - before.len());
                let candidates = names(&row["candidates"]);
                assert!(
                    candidates.contains(&attempt.endpoint().name.to_string()),
                    "{balancer}"
                );
                let runner_up = row["runner_up"].as_str();
                assert!(runner_up.is_none_or(|one| !before.contains(&one.to_owned())));
                before.push(attempt.endpoint().name.to_string());
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
        let mut rng = Rng::new(6);
        let config = json!({
            "name": "cart", "authorities": [], "limits": {"max_inflight_per_endpoint": 1},
        });
        let service = service_of(&config, 2);
        let attempts: Vec<_> = (0..2)
            .flat_map(|_| pick_again(&service, 1, &mut rng))
            .collect();
        let (rows, _) = after(&service, 0, 2);
        assert_eq!(names(&rows[0]["left_out"]).len(), 0);
        assert_eq!(names(&rows[1]["left_out"]), [&*attempts[0].endpoint().name]);
        assert_eq!(
            names(&rows[1]["candidates"]),
            [&*attempts[1].endpoint().name]
        );
    }

    #[test]
    fn further_attempts_compute_again() {
        let mut rng = Rng::new(7);
        let learned = service(&json!({"type": "learned"}), 4);
        let zoned = json!({
            "name": "cart", "authorities": [], "balancer": {"type": "learned"},
            "locality": {"own_zone": "near", "min_healthy": 0.5},
        });
        let zoned = service_of(&zoned, 4);
        for service in [&learned, &zoned] {
            for _ in 0..20 {
                pick_again(service, 5, &mut rng);
            }
        }
        let rows = [&learned, &zoned].map(|service| after(service, 0, 100).0);
        let rows = rows.concat();
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
        let mut rng = Rng::new(4);
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
            pick_for(&service, request, &mut rng);
        }
        let (rows, _) = after(&service, 0, 3);
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
        let mut rng = Rng::new(3);
        let all = json!({"type": "least_request", "choice_count": "all"});
        let services = [
            service(&all, 2),
            service(&all, CANDIDATES_MAX + 1),
            service(&json!({"type": "random"}), 2),
        ];
        let rows: Vec<_> = services
            .iter()
            .map(|service| {
                pick(service, &mut rng);
                after(service, 0, 1).0.remove(0)
            })
            .collect();
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
