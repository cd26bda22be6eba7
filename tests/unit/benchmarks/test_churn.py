"""The file of endpoints that the churn scenario keeps changing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scenarios.churn import CHANGE_INTERVAL_S, HALF, Intervals, Members

from attnroute.policy.load import parse_endpoints


def test_each_set_is_the_other_half(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    members = Members(path, range(1, 2 * HALF + 1))
    seen = []
    for _ in range(3):
        seen.append([spec.address for spec in parse_endpoints(path.read_bytes(), path)])
        members.write()
    assert seen[0] == [f"127.0.0.1:{port}" for port in range(1, HALF + 1)]
    assert seen[1] == [f"127.0.0.1:{port}" for port in range(HALF + 1, 2 * HALF + 1)]
    assert seen[2] == seen[0]


def test_a_thousand_endpoints_a_minute_join() -> None:
    assert HALF * 60 / CHANGE_INTERVAL_S >= 999


def test_the_ratio_is_of_pooled_calls_and_its_interval_holds_it() -> None:
    found = Intervals()
    for pair in range(20):
        found.quiet.append([100.0] * 98 + [1_000.0 + pair] * 2)
        found.churning.append([100.0] * 98 + [1_080.0 + pair] * 2)
    quiet_us, churning_us = found.p99s_us(range(20))
    # Two calls of a hundred are slow: the 99th percentile is the middle one of them.
    assert (quiet_us, churning_us) == (1_009.0, 1_089.0)
    low, high = found.interval(50)
    assert 1.07 < low <= churning_us / quiet_us <= high < 1.09


def test_one_bad_interval_widens_the_interval() -> None:
    found = Intervals()
    for pair in range(4):
        found.quiet.append([100.0] * 100)
        found.churning.append([100.0] * 90 + [100.0 if pair else 5_000.0] * 10)
    low, high = found.interval(100)
    assert (low, high) == (1.0, 50.0)
