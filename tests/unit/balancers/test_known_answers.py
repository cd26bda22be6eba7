"""Picks and weights computed by hand, through the compiled picker."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from typing import Any

import pytest

from attnroute.dataplane import DataPlaneError, Picker, rows
from attnroute.policy.balancers import BALANCER_NAMES

MS = 1_000_000
SECOND = 1_000_000_000


class Bench:
    """A service of endpoints with these static weights."""

    def __init__(self, balancer: dict[str, Any], weights: list[float], **settings: Any) -> None:
        config = {"name": "cart", "authorities": [], "balancer": balancer} | settings
        self.picker = Picker(json.dumps(config).encode(), 7)
        endpoints = [
            {"address": f"10.0.0.{index + 1}:80", "static_weight": weight}
            for index, weight in enumerate(weights)
        ]
        self.picker.apply_endpoints(json.dumps({"endpoints": endpoints}).encode())

    def weights(self) -> list[float]:
        _, data = self.picker.snapshot()
        return [float(weight) for weight in rows(data)["weight"]]

    def answer_all(self, count: int, now_ns: int, latency_ns: list[int]) -> None:
        """Picks until every endpoint has had `count` calls, and lets them all end then."""
        seen: Counter[int] = Counter()
        while any(seen[index] < count for index in range(len(latency_ns))):
            index, _ = self.picker.pick(now_ns)
            seen[index] += 1
        for index, calls in seen.items():
            for _ in range(calls):
                self.picker.finished(index, now_ns, latency_ns[index], 0)


def report(*, cpu: float = 0.0, qps: float = 0.0, named: dict[str, float] | None = None) -> bytes:
    """An `OrcaLoadReport`, byte by byte: doubles in fields 1 and 6, a map in field 8."""
    message = b"\x09" + struct.pack("<d", cpu) + b"\x31" + struct.pack("<d", qps)
    for name, value in (named or {}).items():
        entry = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x11" + struct.pack("<d", value)
        message += b"\x42" + bytes([len(entry)]) + entry
    return message


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_reason_is_the_name_and_seeds_repeat(name: str) -> None:
    picks = []
    for _ in range(2):
        bench = Bench({"type": name}, [1.0, 2.0, 0.0, 1.0])
        picks.append([bench.picker.pick(call * MS) for call in range(200)])
    assert picks[0] == picks[1]
    assert all(index != 2 for index, _ in picks[0])
    others = {"weighted_round_robin": "round_robin", "learned": "no_reports"}
    fallback = others.get(name, name)
    assert {reason for _, reason in picks[0]} <= {fallback, "random"}


@pytest.mark.parametrize("name", ["round_robin", "random", "weighted_round_robin"])
def test_shares_follow_static_weights(name: str) -> None:
    bench = Bench({"type": name}, [1.0, 3.0, 4.0])
    assert bench.weights() == [0.125, 0.375, 0.5]
    counts = Counter(bench.picker.pick(0)[0] for _ in range(8_000))
    for index, expected in enumerate([1_000, 3_000, 4_000]):
        # Five deviations of a draw; a schedule is exact.
        slack = 5 * math.sqrt(expected) if name == "random" else 2
        assert abs(counts[index] - expected) <= slack


def test_weighted_round_robin_by_reports() -> None:
    bench = Bench({"type": "weighted_round_robin", "blackout_ms": 0}, [1.0, 1.0, 1.0])
    # 100 / 0.5 = 200 and 100 / 0.25 = 400; the third reports nothing and gets 300.
    bench.picker.reported(0, SECOND, report(cpu=0.5, qps=100))
    bench.picker.reported(1, 3 * SECOND, report(cpu=0.25, qps=100))
    assert bench.weights() == pytest.approx([2 / 9, 4 / 9, 3 / 9])
    counts = Counter(bench.picker.pick(3 * SECOND) for _ in range(900))
    assert {reason for _, reason in counts} == {"weighted_round_robin"}
    assert [round(counts[index, "weighted_round_robin"] / 100) for index in range(3)] == [2, 4, 3]


def test_peak_ewma_takes_the_lesser_of_two() -> None:
    bench = Bench({"type": "peak_ewma"}, [1.0, 1.0, 1.0])
    bench.answer_all(1, SECOND, [10 * MS, 20 * MS, 30 * MS])
    # Three pairs: the fastest stands in two and wins both, the slowest wins none.
    assert bench.weights() == pytest.approx([2 / 3, 1 / 3, 0])


def test_c3_takes_the_least_score() -> None:
    bench = Bench({"type": "c3"}, [1.0, 1.0])
    bench.answer_all(1, SECOND, [20 * MS, 30 * MS])
    assert bench.weights() == [1, 0]
    # q_reported = 1: 20 - 20 + 2^3 * 20 = 160 ms against 30 ms.
    bench.picker.reported(0, SECOND, report(named={"attnroute.inflight": 1.0}))
    assert bench.weights() == [0, 1]


def test_prequal_takes_the_fastest_of_the_less_loaded() -> None:
    config = {"type": "prequal", "probe_source": "endpoints", "hot_quantile": 0.84}
    bench = Bench(config, [1.0] * 8)
    assert bench.picker.pick(0)[1] == "random"
    due = bench.picker.probes_due(0)
    assert len(due) == len(set(due)) == 3
    for index, inflight, latency_ms in [(0, 1, 20), (1, 9, 1), (2, 2, 10), (3, 1, 30)]:
        bench.picker.probed(index, SECOND, inflight, latency_ms * MS)
    # 9 calls are hot: of the others the one at 10 ms.
    assert bench.picker.pick(SECOND) == (2, "prequal")


def test_latency_observation_tries_what_it_does_not_know() -> None:
    bench = Bench({"type": "latency_observation", "exploration": 0.0}, [1.0, 1.0])
    assert bench.weights() == [0.5, 0.5]
    bench.answer_all(10, SECOND, [20 * MS, 10 * MS])
    assert bench.weights() == [0, 1]


@pytest.mark.parametrize("name", ["ring_hash", "maglev"])
def test_keys_stay_until_their_endpoint_is_full(name: str) -> None:
    bench = Bench({"type": name}, [1.0] * 4)
    owners = Counter(bench.picker.pick(0, 0, 42)[0] for _ in range(40))
    owner, calls = owners.most_common(1)[0]
    # Of 40 calls in flight each may have ceil(1.25 * 40 / 4) = 13.
    assert calls in (12, 13)
    assert max(owners.values()) <= 13
    for index, count in owners.items():
        for _ in range(count):
            bench.picker.finished(index, 0, MS, 0)
    assert bench.picker.pick(0, 0, 42)[0] == owner


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_slow_start_ends(name: str) -> None:
    bench = Bench({"type": name}, [1.0, 1.0], slow_start={"window_ms": 1_000})
    early: Counter[int] = Counter()
    for call in range(2_000):
        index, _ = bench.picker.pick(call)
        bench.picker.finished(index, call, MS, 0)
        early[index] += 1
    assert min(early[0], early[1]) > 0
    assert sum(bench.weights()) == pytest.approx(1)


def test_what_is_no_report_is_an_error_here() -> None:
    bench = Bench({"type": "c3"}, [1.0, 1.0])
    with pytest.raises(DataPlaneError):
        bench.picker.reported(0, 0, b"\xff")
    with pytest.raises(DataPlaneError):
        bench.picker.reported(9, 0, report())
