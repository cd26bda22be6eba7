"""The bookkeeping table, against worked examples of two kinds: the file of known answers that the
Rust side passes too, and sums small enough to do by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnroute.features.table import (
    Attribution,
    Cells,
    ConcurrencyLearner,
    EndpointWindow,
    Estimate,
    Sums,
    TableParameters,
    attribute,
    estimate,
    kind_of,
    kinds_of,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vectors.json"
EXAMPLES: Mapping[str, Any] = {
    example["name"]: example for example in json.loads(GOLDEN.read_bytes())["examples"]
}
TABLES = [
    "table, rule (c), three windows",
    "table, rule (a) and (c) mixed",
    "table, rule (b), two windows",
]


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-9)


def cells_of(window: Mapping[str, Any]) -> Cells:
    """The cells of an example's matrices, in no particular order."""
    calls = np.array(window["cnt"], dtype=float)
    touched = np.argwhere(calls > 0)[::-1]
    at = (touched[:, 0], touched[:, 1])

    def column(name: str) -> Any:
        return np.array(window[name], dtype=float)[at] if name in window else np.zeros(len(touched))

    return Cells(
        at[0], at[1], calls[at], column("lat"), column("svc_cnt"), column("svc"), column("x")
    )


def endpoints_of(inputs: Mapping[str, Any], window: Mapping[str, Any]) -> EndpointWindow:
    size = len(inputs["rtt"])
    unknown = np.full(size, np.nan)
    return EndpointWindow(
        rtt_s=np.array(inputs["rtt"]),
        concurrency=np.array(inputs["c"], dtype=float) if "c" in inputs else unknown,
        utilization=np.array(window["util"]) if "util" in window else unknown,
        rps=np.array(window["rps"]) if "rps" in window else np.zeros(size),
    )


def learn(sums: Sums, cells: Cells, attribution: Attribution) -> None:
    sums.add(cells.request_class, cells.endpoint, attribution.x_s, cells.calls)
    everyone = np.arange(len(attribution.calls))
    sums.add_endpoints(everyone, attribution.busy_s, attribution.calls)


@pytest.mark.parametrize("name", TABLES)
def test_known_answers(name: str) -> None:
    example = EXAMPLES[name]
    inputs = example["inputs"]
    kinds = np.array(inputs["kind"])
    sums = Sums.empty(len(kinds), len(inputs["rtt"]))
    g = 0.02
    for window, expected in zip(
        inputs["windows"], example["expected"]["after_window"], strict=True
    ):
        cells = cells_of(window)
        attribution = attribute(cells, endpoints_of(inputs, window))
        sums.decay(math.exp(-window["dt"] / 10.0))
        learn(sums, cells, attribution)
        table = estimate(sums, kinds, np.array(window["age"]) < 30, g)
        g = table.mean_s
        check(table, sums, expected)
        near(attribution.wait_s, expected["wbar"])
        if "busy" in expected:
            near(attribution.busy_s, expected["busy"])
        if "x_used" in expected:
            used = np.zeros_like(sums.den)
            used[cells.request_class, cells.endpoint] = attribution.x_s
            near(used, expected["x_used"])


def check(table: Estimate, sums: Sums, expected: Mapping[str, Any]) -> None:
    near(table.mean_s, expected["g"])
    near(table.class_mean_s, expected["cm"])
    near(table.endpoint_factor, expected["f"])
    near(table.kind_ratio.T, expected["r"])
    near(table.cost_s, expected["S0"])
    near(table.mean_service_s, expected["sbar"])
    for name, found in (
        ("num", sums.num_s),
        ("den", sums.den),
        ("Y", sums.busy_s),
        ("D", sums.calls),
    ):
        if name in expected:
            near(found, expected[name])


def test_nothing_known() -> None:
    example = EXAMPLES["table, no data"]
    kinds, ages = np.array(example["inputs"]["kind"]), np.array(example["inputs"]["age"])
    # Young endpoints are no slower while nothing at all is known.
    for young in (ages < 30, np.ones(len(ages), dtype=bool)):
        table = estimate(Sums.empty(len(kinds), len(ages)), kinds, young, 0.02)
        expected = example["expected"]
        near(table.mean_s, expected["g"])
        for found, name in (
            (table.class_mean_s, "cm_all"),
            (table.endpoint_factor, "f_all"),
            (table.kind_ratio, "r_all"),
            (table.cost_s, "S0_all"),
            (table.mean_service_s, "sbar_all"),
        ):
            near(found, np.full(found.shape, expected[name]))


def one_endpoint(**columns: float) -> EndpointWindow:
    given = {"rtt_s": 0.0, "concurrency": math.nan, "utilization": math.nan, "rps": 0.0} | columns
    return EndpointWindow(**{name: np.array([value]) for name, value in given.items()})


def one_cell(**columns: float) -> Cells:
    given = {
        "calls": 4.0, "latency_s": 0.4, "service_samples": 0.0, "service_s": 0.0,
        "estimated_s": 0.3,
    } | columns  # fmt: skip
    zero = np.zeros(1, dtype=np.intp)
    return Cells(zero, zero, **{name: np.array([value]) for name, value in given.items()})


@pytest.mark.parametrize(
    ("cell", "endpoint", "x_s", "busy_s", "wait_s"),
    [
        # (c): 4 calls of 100 ms, of which 10 ms network and by the estimate 75 ms service.
        ({}, {"rtt_s": 0.01}, 0.3, 0.3, 0.015),
        # (a): 2 of 4 calls report 50 ms together with 0.1 s: all four took 0.2 s.
        ({"service_samples": 2.0, "service_s": 0.1}, {}, 0.2, 0.2, 0.05),
        # Fewer than half reported: (c) again.
        ({"service_samples": 1.0, "service_s": 0.05}, {}, 0.3, 0.3, 0.025),
        # (b): c 2, busy 0.5 at 20 calls/s: 50 ms a call, 0.2 s for four.
        ({}, {"concurrency": 2.0, "utilization": 0.5, "rps": 20.0}, 0.2, 0.2, 0.05),
        # (b) never says more than the latency itself.
        ({}, {"concurrency": 2.0, "utilization": 2.0, "rps": 20.0}, 0.4, 0.4, 0.0),
        # (b) needs a known c, a utilization and a rate.
        ({}, {"utilization": 0.5, "rps": 20.0}, 0.3, 0.3, 0.025),
        ({}, {"concurrency": 2.0, "rps": 20.0}, 0.3, 0.3, 0.025),
        ({}, {"concurrency": 2.0, "utilization": 0.5}, 0.3, 0.3, 0.025),
        # No rtt yet: 0.
        ({}, {"rtt_s": math.nan}, 0.3, 0.3, 0.025),
        # A window without a success adds nothing, whatever else stands in it.
        ({"calls": 0.0, "latency_s": 0.0}, {}, 0.0, 0.0, 0.0),
    ],
)
def test_service_time_by_hand(
    cell: Mapping[str, float],
    endpoint: Mapping[str, float],
    x_s: float,
    busy_s: float,
    wait_s: float,
) -> None:
    found = attribute(one_cell(**cell), one_endpoint(**endpoint))
    near(found.x_s, [x_s])
    near(found.busy_s, [busy_s])
    near(found.wait_s, [wait_s])


def test_an_endpoint_that_reports_service_times_anywhere_is_not_split_by_utilization() -> None:
    cells = Cells(
        np.array([0, 1]), np.array([0, 0]), np.array([4.0, 4.0]), np.array([0.4, 0.8]),
        np.array([4.0, 0.0]), np.array([0.2, 0.0]), np.array([0.3, 0.5]),
    )  # fmt: skip
    found = attribute(cells, one_endpoint(concurrency=2.0, utilization=0.5, rps=20.0))
    near(found.x_s, [0.2, 0.5])


def test_a_table_by_hand() -> None:
    """Two classes of kinds of their own, two endpoints; class 0 takes 10 ms on endpoint 0 and 30 ms
    on endpoint 1, 8 calls each; class 1 never ran."""
    sums = Sums.empty(2, 2)
    sums.add(np.array([0, 0]), np.array([0, 1]), np.array([0.08, 0.24]), np.array([8.0, 8.0]))
    sums.add_endpoints(np.array([0, 1]), np.array([0.08, 0.24]), np.array([8.0, 8.0]))
    table = estimate(sums, np.array([0, 1]), np.zeros(2, dtype=bool), 0.02)
    near(table.mean_s, 0.02)
    near(table.class_mean_s, [0.02, 0.02])
    # Expected 0.16 s of each; 5 calls of 20 ms as prior: (0.08 + 0.1)/0.26 and (0.24 + 0.1)/0.26.
    f = np.array([0.18 / 0.26, 0.34 / 0.26])
    near(table.endpoint_factor, f)
    # By kind: measured over 0.16 f, 2 calls of 20 ms f as prior.
    r = (np.array([0.08, 0.24]) + 0.04 * f) / (0.16 * f + 0.04 * f)
    near(table.kind_ratio, [r, [1.0, 1.0]])
    near(table.cost_s[0], (np.array([0.08, 0.24]) + 8 * 0.02 * f * r) / 16)
    near(table.cost_s[1], 0.02 * f)
    near(table.mean_service_s, (np.array([0.08, 0.24]) + 0.1 * f) / 13)


def test_mechanisms_can_be_switched_off() -> None:
    sums = Sums.empty(1, 2)
    sums.add(np.array([0, 0]), np.array([0, 1]), np.array([0.02, 0.06]), np.array([2.0, 2.0]))
    sums.add_endpoints(np.array([0, 1]), np.array([0.02, 0.06]), np.array([2.0, 2.0]))
    off = TableParameters(
        kind_prior_calls=math.inf, endpoint_prior_calls=math.inf, young_factor=1.0
    )
    table = estimate(sums, np.array([0]), np.ones(2, dtype=bool), 0.02, off)
    near(table.endpoint_factor, [1.0, 1.0])
    near(table.kind_ratio, [[1.0, 1.0]])
    near(table.cost_s, [[(0.02 + 0.16) / 10, (0.06 + 0.16) / 10]])
    near(table.mean_service_s, [0.12 / 7, 0.16 / 7])


def test_g_stays_while_nothing_is_in_the_sums() -> None:
    sums = Sums.empty(1, 1)
    table = estimate(sums, np.array([0]), np.zeros(1, dtype=bool), 0.005)
    near(table.mean_s, 0.005)
    near(table.cost_s, [[0.005]])


def test_no_class_and_no_endpoint() -> None:
    none = estimate(Sums.empty(0, 2), np.zeros(0, dtype=np.intp), np.zeros(2, dtype=bool), 0.02)
    assert none.cost_s.shape == (0, 2)
    assert none.kind_ratio.shape == (0, 2)
    near(none.mean_service_s, [0.02, 0.02])
    empty = estimate(Sums.empty(2, 0), np.array([0, 1]), np.zeros(0, dtype=bool), 0.02)
    assert empty.cost_s.shape == (2, 0)


def test_cells_that_cannot_be_true_are_dropped_alone() -> None:
    size = 7
    columns = {
        name: np.ones(size)
        for name in ("calls", "latency_s", "service_samples", "service_s", "estimated_s")
    }
    columns["latency_s"][0] = math.nan
    columns["latency_s"][1] = -1.0
    columns["calls"][2] = math.inf
    columns["service_s"][3] = -0.5
    columns["estimated_s"][4] = math.nan
    columns["estimated_s"][5] = -0.25  # a faster answer than the rtt: can be
    at = np.arange(size)
    cells = Cells(at, at, **columns)
    assert list(np.flatnonzero(cells.sound())) == [5, 6]
    kept = cells.only(cells.sound())
    assert list(kept.endpoint) == [5, 6]
    assert kept.sound().all()


def test_a_forgotten_endpoint_leaves_the_others() -> None:
    sums = Sums.empty(1, 2)
    sums.add(np.array([0, 0]), np.array([0, 1]), np.array([0.02, 0.06]), np.array([2.0, 3.0]))
    sums.add_endpoints(np.array([0, 1]), np.array([0.02, 0.06]), np.array([2.0, 3.0]))
    sums.forget_endpoint(0)
    near(sums.den, [[0.0, 3.0]])
    near(sums.calls, [0.0, 3.0])
    near(sums.plus(sums).busy_s, [0.0, 0.12])


@pytest.mark.parametrize(
    ("request_class", "kind"),
    [
        ("/shop.Cart/Get;bytes=1024..16384;x-tier=gold", "/shop.Cart/Get;x-tier=gold"),
        ("/shop.Cart/Get;bytes=unknown", "/shop.Cart/Get"),
        ("/shop.Cart/Get", "/shop.Cart/Get"),
        ("/shop.Cart/Get;x-a=1;bytes=2", "/shop.Cart/Get;x-a=1;bytes=2"),
        ("other", "other"),
    ],
)
def test_the_kind_of_a_class(request_class: str, kind: str) -> None:
    assert kind_of(request_class) == kind


def test_kinds_are_numbered_without_gaps() -> None:
    classes = ["other", "/a;bytes=..1024", "/b;bytes=..1024", "/a;bytes=unknown", "other"]
    assert list(kinds_of(classes)) == [0, 1, 2, 1, 0]


# How many calls an endpoint works on at a time.


def concurrency_window(
    inflight: float,
    v: npt.NDArray[np.float64],
    calls: float = 20.0,
    utilization: float | None = 0.01,
    rate: float = 0.0,
) -> npt.NDArray[np.float64]:
    """[9, E] of endpoints whose classes take 10 ms; by default so idle that no bound is felt, and
    no rate is reported."""
    ones = np.full(len(v), calls)
    known = 0.0 if utilization is None else 1.0
    busy = 0.0 if utilization is None else utilization
    met = ones * (inflight - 1.0)
    seen = (ones * inflight, ones, met, ones * busy, ones * known, ones * rate)
    return np.stack((ones, ones * 0.01 * v, ones * 0.01, *seen))


def feed(
    learner: ConcurrencyLearner,
    inflight: float,
    v: float,
    calls: float = 20.0,
    utilization: float | None = 0.01,
    rate: float = 0.0,
) -> float:
    """One window of one endpoint."""
    window = concurrency_window(inflight, np.array([v]), calls, utilization, rate)
    return float(learner.observe(window)[0])


def test_concurrency_is_1_until_six_windows_are_there() -> None:
    learner = ConcurrencyLearner(1)
    assert [feed(learner, 3.0, 1.0) for _ in range(5)] == [1.0] * 5
    assert feed(learner, 3.0, 1.0) == 2.0  # at most doubled
    assert feed(learner, 3.0, 1.0) == 3.0
    assert feed(learner, 3.0, 1.0) == 3.0


def test_concurrency_is_the_most_in_flight_that_took_no_longer() -> None:
    learner = ConcurrencyLearner(1)
    # c = 4: up to four calls take 10 ms, eight take twice as long.
    for inflight, v in [(1.2, 1.0), (1.7, 1.02), (3.6, 1.1), (8.0, 2.0), (6.0, 1.5)] * 4:
        learned = feed(learner, inflight, v)
    assert learned == 4.0


def test_concurrency_is_not_above_what_the_calls_and_the_utilization_say() -> None:
    # Three calls in it besides the reporting one at a utilization of 0.8: at most 3.75 at a time,
    # however little slower they seem to be.
    learner = ConcurrencyLearner(1)
    for _ in range(30):
        learned = feed(learner, 4.0, 1.0, utilization=0.8)
    assert learned == 3.0
    # The tenth of the windows with the least bound decides.
    for _ in range(4):
        learned = feed(learner, 3.0, 1.0, utilization=0.8)
    assert learned == 2.0


def test_concurrency_is_what_rate_latency_and_utilization_say() -> None:
    # 160 calls/s of 12 ms at a utilization of 0.8: at most 2.4 at a time, though one other call or
    # none is met. The tenth of the windows with the least of it decides: queues add to the others.
    learner = ConcurrencyLearner(1)
    for v in [1.2, 3.0, 1.5, 1.2, 3.0, 2.5, 3.0, 1.2]:
        learned = feed(learner, 1.9, v, utilization=0.8, rate=160.0)
    assert learned == 2.0
    # One at a time, with a wait of half a call: 1.5.
    learner = ConcurrencyLearner(1)
    for _ in range(8):
        learned = feed(learner, 2.5, 1.5, utilization=0.8, rate=80.0)
    assert learned == 1.0


def test_a_queue_at_a_busy_endpoint_does_not_look_like_workers() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(30):
        # One worker, and three times the service time at a utilization of 0.9.
        assert feed(learner, 4.0, 3.0, utilization=0.9, rate=90.0) == 1.0
    for _ in range(5):
        assert feed(learner, 4.0, 3.0, utilization=0.84, rate=84.0) == 1.0
    # Six windows that say something are enough, and then what they say counts.
    assert feed(learner, 4.0, 3.0, utilization=0.84, rate=84.0) == 2.0


def test_windows_without_a_moment_of_idleness_raise_nothing() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(30):
        assert feed(learner, 40.0, 1.0, utilization=1.0) == 1.0
    for _ in range(5):
        learned = feed(learner, 3.0, 1.0, utilization=0.5)
    assert learned == 4.0  # doubled twice


def test_without_a_utilization_an_endpoint_is_taken_to_be_busy() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(30):
        learned = feed(learner, 4.0, 1.0, utilization=None)
    assert learned == 3.0


def test_short_windows_are_joined() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(5 * 6 - 1):
        assert feed(learner, 2.0, 1.0, calls=4.0) == 1.0
    assert feed(learner, 2.0, 1.0, calls=4.0) == 2.0


def test_an_endpoint_slow_throughout_is_not_raised() -> None:
    learner = ConcurrencyLearner(3)
    v = np.array([1.0, 1.0, 1.3])
    for _ in range(10):
        learned = learner.observe(concurrency_window(4.0, v))
    assert list(learned) == [4.0, 4.0, 1.0]


def test_old_windows_leave() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(10):
        feed(learner, 4.0, 1.0)
    for _ in range(119):
        assert feed(learner, 2.0, 1.0) == 4.0
    assert feed(learner, 2.0, 1.0) == 2.0


def test_what_is_not_finite_is_not_learned() -> None:
    learner = ConcurrencyLearner(1)
    for _ in range(8):
        feed(learner, math.nan, 1.0)
    assert feed(learner, 3.0, 1.0) == 1.0


def test_a_restarted_endpoint_starts_again_and_the_others_stay() -> None:
    learner = ConcurrencyLearner(2)
    for _ in range(10):
        learner.observe(concurrency_window(4.0, np.ones(2)))
    learner.forget(0)
    assert list(learner.learned) == [1.0, 4.0]
    learner.resize(np.array([1, 0]), 3)
    assert list(learner.learned) == [4.0, 1.0, 1.0]
    learned = learner.observe(concurrency_window(4.0, np.ones(3)))
    assert list(learned) == [4.0, 1.0, 1.0]
