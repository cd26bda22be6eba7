use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::Void;
use crate::attempt::{Attempt, RequestClass, RequestInfo, Sample};
use crate::config::{BalancerConfig, EndpointSetConfig, ServiceConfig, ServiceLimits};
use crate::endpoint::Outcome;
use crate::grpc::Code;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::service::Service;

const MS: u64 = 1_000_000;

/// A service of one route with rules, `/`, whose calls take as long as the test says.
struct Bench {
    service: Service,
    rng: Rng,
    now_ns: u64,
}

impl Bench {
    /// Endpoints by zone; `rest`: further keys of the service.
    fn new(zones: &[&str], balancer: &str, rules: &str, rest: &str) -> Self {
        let json = format!(
            r#"{{"name":"cart","authorities":[],"balancer":{{"type":"{balancer}"}},
                "routes":[{{"match":{{"path_prefix":"/"}},"rules":{rules}}}]{rest}}}"#
        );
        let config = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
        let bench = Self {
            service: Service::new(config, 1),
            rng: Rng::stream(1, 0),
            now_ns: 10_000 * MS,
        };
        bench.set(zones);
        bench
    }

    fn set(&self, zones: &[&str]) {
        let mut json = String::from(r#"{"endpoints":["#);
        for (index, zone) in zones.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let address = address(index);
            let _ = write!(json, r#"{comma}{{"address":"{address}","zone":"{zone}"}}"#);
        }
        json.push_str("]}");
        let set = EndpointSetConfig::parse(json.as_bytes(), &ServiceLimits::default());
        self.service.apply_endpoints(set.expect("a valid set"));
    }

    fn set_failing(&self, index: usize, failing: bool) {
        let snapshot = self.service.snapshot();
        let endpoint = snapshot.members[index].endpoint.clone();
        self.service.set_failing(&endpoint, failing);
    }

    fn call(&mut self, key: Option<u64>) -> Attempt {
        self.now_ns += MS / 10;
        let snapshot = self.service.snapshot();
        let route = snapshot.settings.routes.find("/shop.Cart/Get");
        let request = RequestInfo {
            class: RequestClass::default(),
            key,
            rule: route.map_or(0, |route| route.rule),
        };
        self.service
            .begin_attempt(&snapshot, self.now_ns, request, &mut self.rng)
            .expect("someone is usable")
    }

    /// Picks that end at once.
    fn picks(&mut self, count: usize, key: impl Fn(usize) -> Option<u64>) -> Vec<(u32, Reason)> {
        (0..count)
            .map(|number| {
                let attempt = self.call(key(number));
                let picked = (attempt.index(), attempt.reason());
                let sample = Sample::new(Outcome::Answered(Code::Ok), MS);
                self.service.end_attempt(attempt, self.now_ns, &sample);
                picked
            })
            .collect()
    }

    fn shares(&mut self, count: usize) -> HashMap<u32, f64> {
        let mut shares = HashMap::new();
        for (index, _) in self.picks(count, |_| None) {
            *shares.entry(index).or_default() += 1.0 / count as f64;
        }
        shares
    }

    fn voids(&self, void: Void) -> u64 {
        self.service.stats.voids[void as usize].load(Relaxed)
    }
}

fn address(index: usize) -> String {
    format!("10.0.0.1:{}", 1 + index)
}

fn any_balancer() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&BalancerConfig::NAMES[..])
}

#[test]
fn pins_are_void_and_counted_while_none_of_them_is_usable() {
    let rules = r#"{"pin":["10.0.0.1:2","10.0.0.1:9"]}"#;
    let mut bench = Bench::new(&[""; 4], "round_robin", rules, "");
    assert_eq!(bench.picks(8, |_| None), [(1, Reason::Pinned); 8]);
    assert_eq!(bench.voids(Void::Pin), 0);
    bench.set_failing(1, true);
    let shares = bench.shares(300);
    assert_eq!(shares.len(), 3);
    assert_eq!(bench.voids(Void::Pin), 300);
    bench.set_failing(1, false);
    assert_eq!(bench.picks(1, |_| None), [(1, Reason::Pinned)]);
}

#[test]
fn routes_without_rules_are_left_alone() {
    let mut bench = Bench::new(&[""; 3], "round_robin", r#"{"pin":["10.0.0.1:2"]}"#, "");
    let snapshot = bench.service.snapshot();
    let mut picked: Vec<_> = (0..3)
        .map(|_| {
            let request = RequestInfo::default();
            let chosen = bench.service.choose(&snapshot, 0, request, &mut bench.rng);
            chosen.expect("usable").0
        })
        .collect();
    picked.sort_unstable();
    assert_eq!(picked, [0, 1, 2]);
}

#[test]
fn a_key_keeps_its_endpoint_and_moves_only_with_it() {
    let rules = r#"{"sticky":{"header":"x-user"}}"#;
    let mut bench = Bench::new(&[""; 5], "random", rules, "");
    let before = bench.picks(200, |key| Some(key as u64));
    assert!(before.iter().all(|(_, reason)| *reason == Reason::Sticky));
    assert_eq!(bench.picks(200, |key| Some(key as u64)), before);
    let used: std::collections::HashSet<_> = before.iter().map(|(index, _)| *index).collect();
    assert_eq!(used.len(), 5);
    bench.set_failing(4, true);
    for (old, new) in before.iter().zip(bench.picks(200, |key| Some(key as u64))) {
        assert!(new.0 != 4 && (old.0 == 4 || new.0 == old.0));
    }
    // Without the key the balancer picks.
    assert_eq!(bench.picks(1, |_| None)[0].1, Reason::Random);
}

#[test]
fn one_hot_key_fills_its_endpoint_only_to_the_bound() {
    let rules = r#"{"sticky":{"header":"x-user"}}"#;
    let mut bench = Bench::new(&[""; 4], "random", rules, "");
    let open: Vec<_> = (0..100).map(|_| bench.call(Some(7))).collect();
    let mut counts = [0_u32; 4];
    open.iter()
        .for_each(|attempt| counts[attempt.index() as usize] += 1);
    // 1.25 of a quarter of 100, rounded up.
    assert!(counts.iter().all(|count| *count <= 32), "{counts:?}");
}

#[test]
fn the_own_zone_takes_all_calls_until_too_few_of_it_are_well() {
    let rest = r#","locality":{"own_zone":"a","min_healthy":0.8}"#;
    let zones = ["a", "a", "a", "a", "a", "b", "b"];
    let mut bench = Bench::new(&zones, "round_robin", "{}", rest);
    let near = |bench: &mut Bench| -> usize {
        let picks = bench.picks(4_000, |_| None);
        picks.iter().filter(|(index, _)| *index < 5).count()
    };
    assert_eq!(near(&mut bench), 4_000);
    bench.set_failing(0, true);
    assert_eq!(near(&mut bench), 4_000);
    // Two of five are well, which is half of the four that it takes.
    bench.set_failing(1, true);
    bench.set_failing(2, true);
    assert!((1_800..2_200).contains(&near(&mut bench)));
    let weights = bench.service.snapshot().weights(bench.now_ns);
    assert_eq!(weights, [0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25]);
    bench.set_failing(3, true);
    bench.set_failing(4, true);
    assert_eq!(near(&mut bench), 0);
}

#[test]
fn exploration_finds_who_has_too_few() {
    let rules = r#"{"explore":0.05}"#;
    let mut bench = Bench::new(&[""; 4], "peak_ewma", rules, "");
    let picks = bench.picks(2_000, |_| None);
    let tried = picks
        .iter()
        .filter(|(_, reason)| *reason == Reason::Explore);
    // With all of them at a fair share there is nobody to try.
    assert!(tried.count() < 40);
    let pinned = r#"{"explore":0.05,"pin":["10.0.0.1:1"],"max_share":1.0}"#;
    let mut bench = Bench::new(&[""; 4], "peak_ewma", pinned, "");
    assert!(bench
        .picks(500, |_| None)
        .iter()
        .all(|(index, _)| *index == 0));
}

#[test]
fn an_endpoint_that_the_balancer_shuns_is_explored() {
    // ring_hash without a header has no key: with one key everything goes to one endpoint.
    let rules = r#"{"explore":0.1}"#;
    let mut bench = Bench::new(&[""; 3], "ring_hash", rules, "");
    let picks = bench.picks(3_000, |_| Some(1));
    let mut counts = [0_u32; 3];
    picks
        .iter()
        .for_each(|(index, _)| counts[*index as usize] += 1);
    // A third of 10 % is what each should have at least; it is tried until it has.
    assert!(counts.iter().all(|count| *count >= 80), "{counts:?}");
    assert!(counts.iter().sum::<u32>() == 3_000 && counts.iter().max() > Some(&2_500));
}

#[test]
fn a_share_that_cannot_be_kept_is_void_and_counted() {
    let mut bench = Bench::new(&[""; 3], "round_robin", r#"{"max_share":0.3}"#, "");
    bench.picks(30, |_| None);
    assert_eq!(bench.voids(Void::MaxShare), 30);
}

#[test]
fn the_share_is_that_of_the_last_second() {
    let mut bench = Bench::new(&[""; 2], "ring_hash", r#"{"max_share":0.9}"#, "");
    bench.picks(1_000, |_| Some(1));
    // A second of silence, and everything is forgotten: nine in a row are 0.9 of ten again.
    bench.now_ns += 1_000 * MS;
    let own = bench.picks(1, |_| Some(1))[0].0;
    let next: Vec<_> = bench
        .picks(9, |_| Some(1))
        .into_iter()
        .map(|pick| pick.0)
        .collect();
    assert_eq!(next[..8], [own; 8]);
    assert_ne!(next[8], own);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_balancer_breaks_a_share(
        balancer in any_balancer(),
        count in 2_usize..8,
        percent in 20_u32..=100,
    ) {
        let share = f64::from(percent) / 100.0;
        prop_assume!(count as f64 * share >= 1.0);
        let rules = format!(r#"{{"max_share":{share},"explore":0.05}}"#);
        let mut bench = Bench::new(&vec![""; count], balancer, &rules, "");
        let picks = bench.picks(1_500, |_| Some(1));
        for window in picks.windows(1_000).step_by(50) {
            let mut counts = vec![0_u32; count];
            window.iter().for_each(|(index, _)| counts[*index as usize] += 1);
            // One more for what rounding gives when a window begins.
            let most = (share * 1_000.0).ceil() as u32 + 1;
            prop_assert!(counts.iter().all(|count| *count <= most), "{balancer}: {counts:?}");
        }
    }

    #[test]
    fn no_balancer_leaves_its_pins_or_picks_who_is_not_usable(
        balancer in any_balancer(),
        steps in proptest::collection::vec((0_usize..6, any::<bool>(), 1_usize..7), 1..20),
        sticky in any::<bool>(),
    ) {
        let sticky_rule = if sticky { r#","sticky":{"header":"x-user"}"# } else { "" };
        let rules = format!(
            r#"{{"pin":["10.0.0.1:1","10.0.0.1:3"],"explore":0.2,"max_share":0.6{sticky_rule}}}"#
        );
        let rest = r#","locality":{"own_zone":"a","min_healthy":0.7}"#;
        let zones = ["a", "b", "b", "a", "", "a"];
        let mut bench = Bench::new(&zones, balancer, &rules, rest);
        for (index, failing, count) in steps {
            bench.set(&zones[..count]);
            if index < count {
                bench.set_failing(index, failing);
            }
            let usable = bench.service.snapshot().usable.clone();
            let pins: Vec<_> = usable.iter().copied().filter(|i| [0, 2].contains(i)).collect();
            for (picked, _) in bench.picks(20, |key| Some(key as u64)) {
                prop_assert!(usable.contains(&picked));
                prop_assert!(pins.is_empty() || pins.contains(&picked), "{balancer}: {picked}");
            }
        }
    }
}

/// Endpoints of these priorities, and which of them cannot be connected to.
fn usable_of(priorities: &[u32], failing: &[usize], rest: &str) -> (Vec<u32>, Vec<u32>, bool) {
    let json = format!(r#"{{"name":"cart","authorities":[]{rest}}}"#);
    let config = ServiceConfig::parse(json.as_bytes()).expect("a valid service");
    let service = Service::new(config, 1);
    let endpoint = |(index, priority): (usize, &u32)| {
        format!(
            r#"{{"address":"{}","priority":{priority}}}"#,
            address(index)
        )
    };
    let endpoints: Vec<_> = priorities.iter().enumerate().map(endpoint).collect();
    let set = format!(r#"{{"endpoints":[{}]}}"#, endpoints.join(","));
    let set = EndpointSetConfig::parse(set.as_bytes(), &ServiceLimits::default());
    service.apply_endpoints(set.expect("a valid set"));
    for index in failing {
        let endpoint = service.snapshot().members[*index].endpoint.clone();
        service.set_failing(&endpoint, true);
    }
    let snapshot = service.snapshot();
    let (usable, standby) = (snapshot.usable.to_vec(), snapshot.standby.to_vec());
    (usable, standby, snapshot.panic)
}

#[test]
fn the_lowest_priority_with_enough_that_are_well_takes_the_calls() {
    let priorities = [1, 0, 0, 0, 0, 7, 1];
    let usable = |failing: &[usize]| usable_of(&priorities, failing, "");
    assert_eq!(usable(&[]), (vec![1, 2, 3, 4], vec![0, 5, 6], false));
    // Half of them are enough.
    assert_eq!(usable(&[1, 2]), (vec![3, 4], vec![0, 5, 6], false));
    assert_eq!(usable(&[1, 2, 3]), (vec![0, 6], vec![4, 5], false));
    assert_eq!(usable(&[0, 1, 2, 3, 6]), (vec![5], vec![4], false));
    // Nobody has enough: one set, and what can be connected to is used.
    assert_eq!(usable(&[0, 1, 2, 3, 5, 6]), (vec![4], vec![], false));
}

#[test]
fn without_a_panic_threshold_one_that_is_well_keeps_its_priority() {
    let rest = r#","panic_threshold":0"#;
    let (usable, standby, _) = usable_of(&[0, 0, 0, 1], &[0, 1], rest);
    assert_eq!((usable, standby), (vec![2], vec![3]));
    let (usable, standby, _) = usable_of(&[0, 0, 0, 1], &[0, 1, 2], rest);
    assert_eq!((usable, standby), (vec![3], vec![]));
}

#[test]
fn an_operator_may_pin_an_endpoint_that_stands_by() {
    let config = ServiceConfig::parse(br#"{"name":"cart","authorities":[]}"#).expect("valid");
    let service = Service::new(config, 1);
    let set = br#"{"endpoints":[{"address":"10.0.0.1:1"},
        {"address":"10.0.0.2:1","priority":1,"override":"pin"},
        {"address":"10.0.0.3:1","priority":1}]}"#;
    let set = EndpointSetConfig::parse(set, &ServiceLimits::default()).expect("a valid set");
    service.apply_endpoints(set);
    let snapshot = service.snapshot();
    assert_eq!((&*snapshot.usable, snapshot.pinned), (&[1][..], true));
}

#[test]
fn a_zone_is_judged_by_the_endpoints_of_the_priority_in_use() {
    // All of the own zone's endpoints that are in use are usable, whatever stands by.
    let json = br#"{"name":"cart","authorities":[],"locality":{"own_zone":"a","min_healthy":1}}"#;
    let service = Service::new(ServiceConfig::parse(json).expect("valid"), 1);
    let set = br#"{"endpoints":[{"address":"10.0.0.1:1","zone":"a"},
        {"address":"10.0.0.2:1","zone":"b"},
        {"address":"10.0.0.3:1","zone":"a","priority":1}]}"#;
    let set = EndpointSetConfig::parse(set, &ServiceLimits::default()).expect("a valid set");
    service.apply_endpoints(set);
    assert_eq!(service.snapshot().weights(0), [1.0, 0.0, 0.0]);
}
