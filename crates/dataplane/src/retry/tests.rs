use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{Budget, Circumstances, Ended, Plan, PushBack, Refused, Verdict, PUSH_BACK};
use crate::config::{BudgetConfig, Codes, RetryConfig};
use crate::grpc::Code;
use crate::rng::Rng;

const MS: u64 = 1_000_000;

fn failed(code: Code) -> Ended {
    Ended {
        code,
        unprocessed: false,
        timed_out: false,
        push_back: PushBack::Unsaid,
    }
}

fn unprocessed() -> Ended {
    Ended {
        unprocessed: true,
        ..failed(Code::Unavailable)
    }
}

fn rule(max_attempts: u32) -> RetryConfig {
    RetryConfig {
        max_attempts,
        ..RetryConfig::default()
    }
}

fn free() -> Budget {
    Budget::new(&BudgetConfig {
        floor: u32::MAX,
        ..BudgetConfig::default()
    })
}

fn at_leisure(budget: &Budget) -> Circumstances<'_> {
    Circumstances {
        remaining: None,
        replayable: true,
        budget,
        now_ns: 0,
    }
}

#[test]
fn rs_08_a_budget_does_not_shrink_with_the_burst() {
    let budget = Budget::new(&BudgetConfig {
        share: 1.0,
        floor: 0,
        ..BudgetConfig::default()
    });
    (0..6).for_each(|_| budget.begin());
    assert!((0..6).all(|_| budget.take(5 * MS)));
    assert!(!budget.take(5 * MS));
    // They end; what ended counts like what runs.
    (0..6).for_each(|_| budget.end(6 * MS));
    budget.begin();
    assert!(budget.take(7 * MS));
    assert!(!budget.take(7 * MS));
}

#[test]
fn a_budget_has_a_floor_and_comes_back_with_time() {
    let config = BudgetConfig::default();
    let budget = Budget::new(&config);
    let window_ns = config.window_ms * MS;
    assert!((0..3).all(|_| budget.take(0)));
    assert!(!budget.take(0));
    assert!(!budget.take(window_ns - 1));
    let later = window_ns * 11 / 10;
    assert!((0..3).all(|_| budget.take(later)));
    assert!(!budget.take(later));
}

#[test]
fn what_is_not_listed_is_final() {
    let (budget, mut rng) = (free(), Rng::new(1));
    for code in Code::ALL {
        let verdict =
            Plan::new(Some(&rule(2))).after(&failed(code), &at_leisure(&budget), &mut rng);
        assert_eq!(
            verdict == Verdict::Final,
            code != Code::Unavailable,
            "{code:?}"
        );
        let without = Plan::new(None).after(&failed(code), &at_leisure(&budget), &mut rng);
        assert_eq!(without, Verdict::Final);
    }
}

#[test]
fn attempts_are_counted_with_the_first() {
    let (budget, mut rng) = (free(), Rng::new(1));
    let mut plan = Plan::new(Some(&rule(3)));
    let verdicts =
        [0; 3].map(|_| plan.after(&failed(Code::Unavailable), &at_leisure(&budget), &mut rng));
    assert!(matches!(
        verdicts[..2],
        [Verdict::Again(_), Verdict::Again(_)]
    ));
    assert_eq!(verdicts[2], Verdict::Refused(Refused::Attempts));
}

#[test]
fn rs_16_what_was_not_processed_goes_again_once_at_once_then_by_the_rule() {
    let mut rng = Rng::new(1);
    // The budget lets nothing through: only the first one is free.
    let empty = Budget::new(&BudgetConfig {
        share: 0.0,
        floor: 0,
        ..BudgetConfig::default()
    });
    for rule in [None, Some(rule(2))] {
        let mut plan = Plan::new(rule.as_ref());
        let mut next = || plan.after(&unprocessed(), &at_leisure(&empty), &mut rng);
        assert_eq!(next(), Verdict::Again(Duration::ZERO));
        assert_eq!(next(), Verdict::Refused(Refused::Budget));
    }
    let budget = free();
    let mut plan = Plan::new(None);
    let verdicts: Vec<_> =
        std::iter::repeat_with(|| plan.after(&unprocessed(), &at_leisure(&budget), &mut rng))
            .take_while(|verdict| matches!(verdict, Verdict::Again(_)))
            .take(100)
            .collect();
    assert_eq!(verdicts.len(), 5, "it ends, whatever the budget");
    // It does not use up the attempts of the rule.
    let mut plan = Plan::new(Some(&self::rule(2)));
    let mut after = |ended| plan.after(&ended, &at_leisure(&budget), &mut rng);
    assert_eq!(after(unprocessed()), Verdict::Again(Duration::ZERO));
    assert!(matches!(
        after(failed(Code::Unavailable)),
        Verdict::Again(_)
    ));
    assert_eq!(
        after(failed(Code::Unavailable)),
        Verdict::Refused(Refused::Attempts)
    );
}

#[test]
fn an_attempt_of_which_its_own_time_was_over_goes_again() {
    let (budget, mut rng) = (free(), Rng::new(1));
    let ended = Ended {
        timed_out: true,
        ..failed(Code::DeadlineExceeded)
    };
    let timed = RetryConfig {
        per_try_timeout_ms: Some(100),
        ..rule(2)
    };
    let verdict = Plan::new(Some(&timed)).after(&ended, &at_leisure(&budget), &mut rng);
    assert!(matches!(verdict, Verdict::Again(_)));
    let verdict = Plan::new(Some(&rule(2))).after(&ended, &at_leisure(&budget), &mut rng);
    assert_eq!(verdict, Verdict::Final);
}

#[test]
fn rs_17_push_back_is_obeyed() {
    let of = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(&PUSH_BACK, HeaderValue::from_static(value));
        PushBack::of(&headers)
    };
    assert_eq!(PushBack::of(&HeaderMap::new()), PushBack::Unsaid);
    assert_eq!(of("500"), PushBack::Wait(Duration::from_millis(500)));
    assert_eq!(of("0"), PushBack::Wait(Duration::ZERO));
    assert_eq!(
        of("2147483647"),
        PushBack::Wait(Duration::from_millis(2_147_483_647))
    );
    for stop in [
        "-1",
        "abc",
        "",
        "99999999999",
        "2147483648",
        "1.5",
        "007",
        "+5",
        "99999999999999999999",
    ] {
        assert_eq!(of(stop), PushBack::Stop, "{stop}");
    }
    let (budget, mut rng) = (free(), Rng::new(1));
    let mut verdict = |push_back, remaining| {
        let ended = Ended {
            push_back,
            ..failed(Code::Unavailable)
        };
        let circumstances = Circumstances {
            remaining,
            ..at_leisure(&budget)
        };
        Plan::new(Some(&rule(2))).after(&ended, &circumstances, &mut rng)
    };
    let half_a_second = PushBack::Wait(Duration::from_millis(500));
    assert_eq!(
        verdict(half_a_second, None),
        Verdict::Again(Duration::from_millis(500))
    );
    assert_eq!(
        verdict(PushBack::Wait(Duration::ZERO), None),
        Verdict::Again(Duration::ZERO)
    );
    assert_eq!(
        verdict(PushBack::Stop, None),
        Verdict::Refused(Refused::PushBack)
    );
    let left = Some(Duration::from_millis(500));
    assert_eq!(
        verdict(half_a_second, left),
        Verdict::Refused(Refused::Deadline)
    );
}

#[test]
fn what_cannot_be_sent_again_is_refused() {
    let (budget, mut rng) = (free(), Rng::new(1));
    let circumstances = Circumstances {
        replayable: false,
        ..at_leisure(&budget)
    };
    for ended in [failed(Code::Unavailable), unprocessed()] {
        let verdict = Plan::new(Some(&rule(2))).after(&ended, &circumstances, &mut rng);
        assert_eq!(verdict, Verdict::Refused(Refused::Buffer));
    }
    let verdict =
        Plan::new(Some(&rule(2))).after(&failed(Code::Internal), &circumstances, &mut rng);
    assert_eq!(verdict, Verdict::Final);
}

#[test]
fn waits_grow_from_nothing_to_the_largest() {
    let budget = free();
    let config = RetryConfig {
        max_attempts: 5,
        backoff_ms: 100,
        max_backoff_ms: 300,
        on: Codes::of(&[Code::Aborted]),
        ..RetryConfig::default()
    };
    let mut longest = [0_u128; 4];
    let mut shortest = [u128::MAX; 4];
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(Some(&config));
        for (longest, shortest) in longest.iter_mut().zip(&mut shortest) {
            let verdict = plan.after(&failed(Code::Aborted), &at_leisure(&budget), &mut rng);
            let Verdict::Again(wait) = verdict else {
                panic!("{verdict:?}");
            };
            *longest = wait.as_millis().max(*longest);
            *shortest = wait.as_millis().min(*shortest);
        }
    }
    for (longest, bound) in longest.into_iter().zip([100, 200, 300, 300]) {
        assert!(
            longest < bound && longest >= bound * 95 / 100,
            "{longest} {bound}"
        );
    }
    assert!(shortest.into_iter().all(|wait| wait < 15), "{shortest:?}");
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Begin,
    End,
    Retry,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Begin),
        1 => Just(Event::End),
        3 => Just(Event::Retry),
        1 => (1_u64..400).prop_map(Event::Pass),
    ]
}

proptest! {
    /// In no window are there more retries than the floor, or the share of the calls that run or
    /// ended in it; and one that is refused would have been the one too many of a window a tenth
    /// longer.
    #[test]
    fn a_budget_holds_in_every_window(
        share in 0.0..=1.0_f64,
        floor in 0_u32..5,
        events in proptest::collection::vec(event(), 0..400),
    ) {
        let config = BudgetConfig { share, window_ms: 1_000, floor };
        let budget = Budget::new(&config);
        let (mut now_ms, mut running) = (0_u64, 0_u32);
        let (mut ended, mut granted) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                Event::Begin => {
                    budget.begin();
                    running += 1;
                }
                Event::End if running > 0 => {
                    budget.end(now_ms * MS);
                    running -= 1;
                    ended.push(now_ms);
                }
                Event::End => {}
                Event::Pass(ms) => now_ms += ms,
                Event::Retry => {
                    let since = |times: &[u64], ms: u64| {
                        times.iter().filter(|at| **at + ms > now_ms).count() as f64
                    };
                    let allowed = |ms| {
                        let calls = since(&ended, ms) + f64::from(running);
                        (share * calls).max(f64::from(floor))
                    };
                    if budget.take(now_ms * MS) {
                        granted.push(now_ms);
                        prop_assert!(since(&granted, 1_000) <= allowed(1_100));
                    } else {
                        prop_assert!(since(&granted, 1_100) + 1.0 > allowed(1_000));
                    }
                }
            }
        }
    }
}
