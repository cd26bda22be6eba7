use super::{Ended, Expected, Ledger, Pace};
use crate::cells::{EndpointState, CELL_BYTES, ENDPOINT_BYTES};
use crate::endpoint::Outcome;
use crate::grpc::Code;
use crate::orca::LoadReport;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

const OK: Outcome = Outcome::Answered(Code::Ok);
const FAILED: Outcome = Outcome::Answered(Code::Unavailable);

fn ended(now_ns: u64, class: u32, outcome: Outcome, latency_ns: u64) -> Ended<'static> {
    Ended {
        now_ns,
        class: (class, class),
        class_epoch: 1,
        outcome,
        latency_ns,
        expected: Expected::default(),
        report: None,
        ping_ns: 0,
    }
}

fn state() -> EndpointState {
    EndpointState {
        id: 7,
        started_s: 1.5,
        concurrency: f32::NAN,
        rtt_s: f32::NAN,
        usable: true,
        ejected: false,
    }
}

/// Rows of a window and the calls of each of four classes.
fn drain(ledger: &Ledger, now_ns: u64) -> (Vec<u8>, Vec<u8>, [u32; 4]) {
    let (mut endpoints, mut cells, mut calls) = (Vec::new(), Vec::new(), [0; 4]);
    let rows = (&mut endpoints, &mut cells);
    ledger.drain(now_ns, 3, state(), rows, &mut calls);
    (endpoints, cells, calls)
}

fn u32_at(row: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"))
}

fn f32_at(row: &[u8], at: usize) -> f32 {
    f32::from_bits(u32_at(row, at))
}

fn f64_at(row: &[u8], at: usize) -> f64 {
    f64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"))
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3)
}

#[test]
fn a_window_holds_what_ended_in_it_and_each_call_once() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    let report = LoadReport {
        service_time_s: Some(0.015),
        ..LoadReport::default()
    };
    for _ in 0..3 {
        ledger.begin(0);
    }
    let with_report = Ended {
        report: Some(&report),
        ..ended(20 * MS, 2, OK, 20 * MS)
    };
    ledger.ended(&with_report, &pace);
    ledger.ended(&ended(30 * MS, 2, OK, 30 * MS), &pace);
    ledger.ended(&ended(40 * MS, 1, FAILED, 40 * MS), &pace);
    let (endpoints, cells, calls) = drain(&ledger, SECOND);
    assert_eq!(
        (endpoints.len(), cells.len()),
        (ENDPOINT_BYTES, 2 * CELL_BYTES)
    );
    assert_eq!(calls, [0, 1, 2, 0]);
    let ints: Vec<_> = (0..6).map(|at| u32_at(&cells, 4 * at)).collect();
    assert_eq!(
        ints,
        [2, 3, 2, 0, 1, 0],
        "class, endpoint, calls, errors, samples"
    );
    let sums: Vec<_> = (0..3).map(|at| f64_at(&cells, 24 + 8 * at)).collect();
    // Nothing waits: the estimate is the latency less the 5 ms on the way, for both.
    assert!(
        near(sums[0], 0.05) && near(sums[1], 0.015) && near(sums[2], 0.04),
        "{sums:?}"
    );
    let buckets: u32 = (0..30).map(|at| u32_at(&cells, 48 + 4 * at)).sum();
    assert_eq!(buckets, 2);
    let failed = &cells[CELL_BYTES..];
    assert_eq!(
        (u32_at(failed, 0), u32_at(failed, 8), u32_at(failed, 12)),
        (1, 0, 1)
    );
    let inflight_s = f64_at(&endpoints, 16);
    assert!(near(inflight_s, 0.02 + 0.03 + 0.04), "{inflight_s}");
    assert_eq!(u32_at(&endpoints, 24), 3);
    assert!(near(f32_at(&endpoints, 72).into(), 0.005), "rtt");
    let (endpoints, cells, calls) = drain(&ledger, 2 * SECOND);
    assert_eq!((cells.len(), calls), (0, [0; 4]));
    assert_eq!((f64_at(&endpoints, 16), u32_at(&endpoints, 24)), (0.0, 0));
}

#[test]
fn calls_in_flight_count_while_they_run_and_censored_ones_nowhere_else() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    ledger.begin(SECOND);
    ledger.begin(SECOND);
    let (endpoints, _, _) = drain(&ledger, 3 * SECOND);
    assert!(near(f64_at(&endpoints, 16), 4.0));
    ledger.leave(None);
    let gone = ended(5 * SECOND, 1, Outcome::Censored(Code::Cancelled), SECOND);
    ledger.ended(&gone, &pace);
    let (endpoints, cells, _) = drain(&ledger, 9 * SECOND);
    assert!(near(f64_at(&endpoints, 16), 2.0), "one of them, for 2 s");
    assert_eq!((cells.len(), u32_at(&endpoints, 24)), (0, 0));
}

#[test]
fn the_estimate_divides_by_turns_as_the_worked_example() {
    // vectors.json, "x per answer, rule (c)": rtt 2 ms, c = 2.
    let answers = [
        (50_000, 3.0, 0.024),
        (50_000, 0.0, 0.048),
        (50_000, 1.0, 0.048),
    ];
    let answers = answers.into_iter().chain([(30_700, 4.0, 0.01148)]);
    for (latency_us, calls, expected) in answers {
        let (ledger, pace) = (Ledger::default(), Pace::default());
        ledger.set_concurrency(2.0);
        let answer = Ended {
            expected: Expected {
                calls,
                latency_s: 0.0,
            },
            ping_ns: 2 * MS,
            ..ended(SECOND, 1, OK, latency_us * 1_000)
        };
        ledger.ended(&answer, &pace);
        let (_, cells, _) = drain(&ledger, SECOND);
        let found = f64_at(&cells, 40);
        assert!(near(found, expected), "{found} {expected}");
    }
}

#[test]
fn reports_add_up() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    let report = |inflight| LoadReport {
        qps: Some(50.0),
        application_utilization: Some(0.5),
        concurrency: Some(4.0),
        inflight,
        ..LoadReport::default()
    };
    assert!(ledger.reported(SECOND, &report(Some(3.0)), 1, &pace));
    assert!(!ledger.reported(SECOND, &report(None), 1, &pace));
    let (row, _, _) = drain(&ledger, SECOND);
    assert_eq!(u32_at(&row, 28), 1);
    let sums: Vec<_> = (0..3).map(|at| f64_at(&row, 32 + 8 * at)).collect();
    assert_eq!(sums, [3.0, 100.0, 1.0]);
    assert_eq!((u32_at(&row, 56), f32_at(&row, 68)), (2, 4.0));
    assert!(f32_at(&row, 72).is_nan(), "no round trip yet");
    assert_eq!((u32_at(&row, 76), u32_at(&row, 80)), (1, 0));
}

#[test]
fn the_shortest_way_is_forgotten_after_a_minute() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    let report = LoadReport {
        service_time_s: Some(0.01),
        ..LoadReport::default()
    };
    let rtt = |at_s: u64, latency_ms: u64| {
        let answer = Ended {
            report: Some(&report),
            ..ended(at_s * SECOND, 1, OK, latency_ms * MS)
        };
        ledger.ended(&answer, &pace);
        (ledger.signals.rtt_s.load() * 1e3).round()
    };
    assert_eq!(rtt(0, 11), 1.0);
    assert_eq!(rtt(29, 15), 1.0);
    assert_eq!(rtt(59, 13), 1.0);
    assert_eq!(rtt(89, 14), 3.0);
    assert_eq!(rtt(500, 19), 9.0);
}

#[test]
fn what_moves_is_folded_into_other_and_late_ends_too() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    ledger.ended(&ended(SECOND, 1, OK, MS), &pace);
    ledger.ended(&ended(SECOND, 3, OK, MS), &pace);
    ledger.moved(2, &[1, 2], &[1]);
    // Its snapshot was that of epoch 1.
    ledger.ended(&ended(SECOND, 1, OK, MS), &pace);
    let (_, _, calls) = drain(&ledger, SECOND);
    assert_eq!(calls, [2, 0, 0, 1]);
}

#[test]
fn a_new_incarnation_has_no_past() {
    let (ledger, pace) = (Ledger::default(), Pace::default());
    ledger.begin(0);
    let surprising = Ended {
        expected: Expected {
            calls: 1.0,
            latency_s: 0.01,
        },
        ping_ns: MS,
        ..ended(SECOND, 1, FAILED, 20 * MS)
    };
    ledger.ended(&surprising, &pace);
    let surprising = Ended {
        outcome: OK,
        ..surprising
    };
    ledger.ended(&surprising, &pace);
    let report = LoadReport {
        inflight: Some(4.0),
        application_utilization: Some(1.0),
        ..LoadReport::default()
    };
    ledger.reported(SECOND, &report, 0, &pace);
    assert!(ledger
        .ratio_of(1)
        .is_some_and(|ratio| ratio.expected.load() > 0.0));
    assert!(ledger.calls(SECOND, 0, 0.0, 1e8) > 3.0);
    ledger.restarted();
    assert!(ledger
        .ratio_of(1)
        .is_some_and(|ratio| ratio.expected.load() == 0.0));
    assert_eq!(ledger.signals.ratio.measured.load(), 0.0);
    assert_eq!(ledger.signals.errors.load(), 0.0);
    assert_eq!(ledger.calls(SECOND, 2, 0.5, 1e8), 3.0);
    let (row, cells, _) = drain(&ledger, SECOND);
    assert_eq!((cells.len(), u32_at(&row, 24), u32_at(&row, 28)), (0, 0, 0));
}
