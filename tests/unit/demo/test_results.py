"""Figures of the tables against hand-computed values."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.messages import Sample
from attnroute.demo.plan import make_plan
from attnroute.demo.results import Results, mean, quantile
from attnroute.demo.world import WORLDS

PLAN = make_plan(180.0, BALANCERS)
OFFSET_S = PLAN.settle_s + 0.5

GOOD = Sample(
    order=0,
    offset_s=OFFSET_S,
    lateness_s=0.001,
    latency_s=0.050,
    status=0,
    endpoint=0,
    wait_s=0.010,
    service_s=0.038,
)


def results() -> Results:
    return Results(WORLDS["mixed"], PLAN, BALANCERS)


class TestQuantile:
    @pytest.mark.parametrize(
        ("share", "expected"), [(0.01, 1), (0.5, 50), (0.9, 90), (0.99, 99), (0.995, 100), (1, 100)]
    )
    def test_of_a_hundred(self, share: float, expected: float) -> None:
        assert quantile([float(value) for value in range(1, 101)], share) == expected

    def test_every_whole_percent_is_exact_despite_rounding(self) -> None:
        ordered = [float(value) for value in range(1, 101)]
        assert [quantile(ordered, percent / 100) for percent in range(1, 101)] == ordered

    def test_of_one_and_of_none(self) -> None:
        assert quantile([7.0], 0.01) == quantile([7.0], 1.0) == 7.0
        assert math.isnan(quantile([], 0.5))

    @pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
    def test_refuses_what_is_no_share(self, share: float) -> None:
        with pytest.raises(ValueError, match="quantile"):
            quantile([1.0], share)


def test_mean_of_none_does_not_exist() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(mean([]))


def test_figures_by_hand() -> None:
    run = results()
    latencies_s = (0.010, 0.020, 0.030, 0.100)
    run.add(
        replace(GOOD, latency_s=latency_s, endpoint=endpoint)
        for latency_s, endpoint in zip(latencies_s, (0, 1, 11, 11), strict=True)
    )
    run.add([replace(GOOD, status=14, endpoint=-1, detail="gone")])
    row = run.figures()[0]
    assert row.balancer == PLAN.slices[0].balancer.key
    assert (row.calls, row.errors) == (5, 1)
    assert row.mean_ms == pytest.approx(40.0)
    assert (row.p50_ms, row.p90_ms, row.p99_ms) == pytest.approx((20.0, 100.0, 100.0))
    assert (row.wait_mean_ms, row.service_mean_ms) == pytest.approx((10.0, 38.0))
    assert row.slow_share == 0.5


def test_only_settled_calls_of_slices_are_measured() -> None:
    run = results()
    run.add([replace(GOOD, offset_s=PLAN.settle_s - 0.01), replace(GOOD, order=len(PLAN.slices))])
    assert sum(row.calls for row in run.figures()) == 0
    assert run.finished_calls == 2


def test_a_failure_anywhere_counts() -> None:
    run = results()
    run.add([replace(GOOD, order=len(PLAN.slices), status=14, detail="gone")] * 2)
    assert run.failed_calls == 2
    assert run.failures == {"status 14: gone": 2}
    assert all(row.errors == 0 for row in run.figures())


def test_slices_of_a_balancer_stand_end_to_end() -> None:
    run = results()
    turns = [turn for turn in PLAN.slices if turn.balancer.key == "round_robin"]
    run.add(replace(GOOD, order=turn.number) for turn in turns)
    times_s = [point.time_s for point in run.measured["round_robin"].points]
    assert times_s == pytest.approx([0.5 + turn.round_number * PLAN.measured_s for turn in turns])


def test_no_slow_endpoint_no_share() -> None:
    run = Results(WORLDS["affinity"], PLAN, BALANCERS)
    run.add([GOOD])
    assert run.figures()[0].slow_share is None


def test_a_slow_machine_is_noticed() -> None:
    run = results()
    run.add([GOOD] * 99)
    run.add([replace(GOOD, lateness_s=0.5)])
    assert run.kept_up
    run.add([replace(GOOD, lateness_s=0.5)])
    assert not run.kept_up


def test_the_document_is_json_even_without_calls() -> None:
    text = json.dumps(results().document(), allow_nan=False)
    document = json.loads(text)
    assert [row["balancer"] for row in document["balancers"]] == [b.key for b in BALANCERS]
    assert document["balancers"][0]["mean_ms"] is None
    assert document["generator"] == {"lateness_p99_ms": None, "kept_up": True}
