"""The scores of a service, window by window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.windows import CellSums, service_window

from attnroute.features.merge import FleetTable, Subscriber
from attnroute.features.split import SplitParameters
from attnroute.features.window import ServiceWindow
from attnroute.scoring.base import Scored, ScorerInfo, ScoringInput
from attnroute.scoring.service import Layout, Scores, ServiceScores

A, B = "10.0.0.1:1", "10.0.0.2:1"
GET, PUT = "/cart/Get;bytes=..1024", "/cart/Put;bytes=unknown"


def layout(window: ServiceWindow, ids: Mapping[str, int] | None = None) -> Layout:
    numbers = ids or {A: 1, B: 2}
    return Layout(
        1, 1, window.classes, window.endpoints, tuple(numbers[name] for name in window.endpoints)
    )


def step(
    service: ServiceScores,
    now_s: float,
    cells: Mapping[tuple[str, str], CellSums],
    ids: Mapping[str, int] | None = None,
    **others: Any,
) -> Scores:
    window = service_window(cells, **others)
    usable = np.ones(len(window.endpoints), dtype=bool)
    service.observe(layout(window, ids), window, usable, now_s)
    scores = service.scores(now_s)
    assert scores is not None
    return scores


def cost(scores: Scores, request_class: str, endpoint: str) -> float:
    row = scores.layout.classes.index(request_class)
    return float(scores.table_cost_s[row, scores.layout.endpoints.index(endpoint)])


BOTH: Mapping[tuple[str, str], CellSums] = {(GET, A): (20, 0.2), (GET, B): (20, 0.6)}


def test_before_any_window_there_are_no_scores() -> None:
    assert ServiceScores(sidecars=4, now_s=0.0).scores(0.0) is None


def test_what_is_published_fits_the_boundary() -> None:
    service = ServiceScores(sidecars=4, now_s=0.0)
    scores = step(service, 100.0, {**BOTH, (PUT, A): (1, 0.1)})
    for matrix in (scores.cost_s, scores.table_cost_s, scores.spread, scores.probability):
        assert matrix.dtype == np.float32
        assert matrix.shape == (2, 2)
        assert matrix.flags.c_contiguous
        assert np.isfinite(matrix).all()
        assert (matrix >= 0).all()
    for row in (scores.mean_service_s, scores.concurrency):
        assert row.dtype == np.float32
        assert row.shape == (2,)
    np.testing.assert_allclose(scores.probability.sum(axis=1), 1.0, rtol=1e-6)
    assert cost(scores, GET, A) < cost(scores, GET, B)
    assert scores.probability[0, 0] > scores.probability[0, 1]
    assert (scores.sidecars, scores.model) == (4, "")


def test_an_endpoint_that_is_new_is_slow_until_it_has_calls_or_is_30_s_old() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    only_a: Mapping[tuple[str, str], CellSums] = {(GET, A): (20, 0.2)}
    step(service, 0.0, only_a)
    plain = cost(step(service, 31.0, only_a), GET, A)
    joined = step(service, 32.0, only_a, extra_endpoints=(B,))
    assert cost(joined, GET, B) == pytest.approx(3 * plain, rel=0.1)
    called = step(service, 33.0, {**only_a, (GET, B): (4, 0.04)})
    assert cost(called, GET, B) == pytest.approx(plain, rel=0.1)
    # The address comes back as another endpoint, without calls.
    again = step(service, 70.0, only_a, {A: 1, B: 3}, extra_endpoints=(B,))
    assert cost(again, GET, B) == pytest.approx(3 * plain, rel=0.1)
    old = step(service, 101.0, only_a, {A: 1, B: 3}, extra_endpoints=(B,))
    assert cost(old, GET, B) == pytest.approx(plain, rel=0.1)


def test_a_restart_under_the_same_address_starts_from_nothing() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    fast: Mapping[tuple[str, str], CellSums] = {(GET, A): (20, 0.2), (GET, B): (20, 0.02)}
    for second in range(40):
        before = step(service, float(second), fast, started_s={B: 100.0})
    assert cost(before, GET, B) < 0.005
    idle: Mapping[tuple[str, str], CellSums] = {(GET, A): (20, 0.2)}
    after = step(service, 40.0, idle, started_s={B: 200.0}, extra_endpoints=(B,))
    assert cost(after, GET, B) > 0.02
    assert cost(after, GET, A) == pytest.approx(cost(before, GET, A), rel=0.2)


def test_numbers_that_cannot_be_true_reach_no_table() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    step(service, 50.0, BOTH)
    right = step(service, 51.0, {})
    right = step(service, 51.0, {}, extra_endpoints=(A, B))
    wrong: Mapping[tuple[str, str], CellSums] = {
        (GET, A): (20, math.nan), (GET, B): (-5, 0.1), (PUT, A): (5, math.inf),
    }  # fmt: skip
    scores = step(
        service, 51.0, wrong, rtt_s={A: math.nan, B: -1.0}, concurrency={A: math.nan, B: -2.0},
        started_s={A: math.nan},
    )  # fmt: skip
    assert service.dropped_cells == 3
    assert np.isfinite(scores.cost_s).all()
    assert (scores.concurrency >= 1).all()
    again = step(service, 51.0, {}, extra_endpoints=(A, B))
    np.testing.assert_array_equal(again.mean_service_s, right.mean_service_s)


def test_concurrency_is_configured_else_reported_else_the_fleets_else_learned() -> None:
    def run(service: ServiceScores, **others: Any) -> list[float]:
        for second in range(10):
            scores = step(service, float(second), BOTH, inflight=3.0, **others)
        return [float(value) for value in scores.concurrency]

    assert run(ServiceScores(sidecars=1, now_s=0.0)) == [3.0, 1.0]  # B is slow throughout
    assert run(ServiceScores(sidecars=1, now_s=0.0), concurrency={A: 8.0}) == [8.0, 1.0]
    configured = ServiceScores(sidecars=1, now_s=0.0, concurrency=5.0)
    assert run(configured, concurrency={A: 8.0}) == [5.0, 5.0]
    fleet = FleetTable(trainer=b"t" * 16, now_s=0.0, classes_max=8, endpoints_max=8)
    told = service_window({(GET, B): (1, 0.1)}, concurrency={B: 6.0}, rtt_s={B: 0.007})
    fleet.window(Subscriber(b"o", ""), 1, 0.0, told, 0.0)
    fleet.tick(0.0)
    service = ServiceScores(sidecars=1, now_s=0.0)
    service.shared.opened()
    assert service.shared.update(fleet.update(Subscriber(b"m", ""), 0.0), 0.0)
    assert run(service) == [3.0, 6.0]


def test_round_trips_of_the_zone_stand_in_for_own_ones() -> None:
    fleet = FleetTable(trainer=b"t" * 16, now_s=0.0, classes_max=8, endpoints_max=8)
    told = service_window({(GET, A): (20, 0.2), (GET, B): (20, 0.2)}, rtt_s={A: 0.001, B: 0.1})
    fleet.window(Subscriber(b"o", ""), 1, 0.0, told, 0.0)
    fleet.tick(0.0)
    service = ServiceScores(sidecars=1, now_s=0.0)
    service.shared.opened()
    assert service.shared.update(fleet.update(Subscriber(b"m", ""), 0.0), 0.0)
    far = step(service, 1.0, {}, extra_endpoints=(A, B))
    assert far.probability.shape == (0, 2)
    far = step(service, 2.0, {(GET, A): (1, 0.01)}, extra_endpoints=(B,))
    assert far.probability[0, 0] > 0.9
    near = step(service, 3.0, {(GET, A): (1, 0.01)}, extra_endpoints=(B,), rtt_s={B: 0.0001})
    assert near.probability[0, 0] < 0.6


def test_an_endpoint_that_cannot_be_used_has_no_probability() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    window = service_window(BOTH)
    service.observe(layout(window), window, np.array([False, True]), 1.0)
    scores = service.scores(1.0)
    assert scores is not None
    assert scores.probability.tolist() == [[0.0, 1.0]]


class Fixed:
    """A scorer that says the same for every cell."""

    def __init__(self, seconds: float) -> None:
        self.info = ScorerInfo("fixed", "0.1.0", "", 0.0)
        self.seconds = seconds

    def score(self, given: ScoringInput) -> Scored:
        shape = given.table_cost_s.shape
        return Scored(
            np.full(shape, self.seconds), np.full(shape, 1 / shape[1]), np.ones(shape),
            np.ones(shape),
        )  # fmt: skip


@pytest.mark.parametrize("bad_s", [math.nan, 0.0001, 50.0])
def test_a_poisoned_scorer_is_off_after_its_first_full_window(bad_s: float) -> None:
    scorer = Fixed(0.01)
    service = ServiceScores(sidecars=1, now_s=0.0, scorers=[scorer])
    one: Mapping[tuple[str, str], CellSums] = {(GET, A): (30, 0.3), (GET, B): (30, 0.3)}
    for second in range(10):
        healthy = step(service, float(second), one)
    assert service.arbiter.seats[0].weight > 0.3
    assert healthy.model == "fixed-0.1.0"
    scorer.seconds = bad_s
    step(service, 10.0, one)  # said from now on
    after = step(service, 11.0, one)  # judged on the window that it was said for
    assert service.arbiter.seats[0].weight < 1e-6
    np.testing.assert_allclose(after.cost_s, after.table_cost_s, rtol=1e-3)


def test_a_scorer_is_not_judged_on_cells_that_it_was_not_asked_about() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0, scorers=[Fixed(0.01)])
    step(service, 0.0, {(GET, A): (60, 0.6)})
    step(service, 1.0, {(PUT, A): (60, 6.0), (GET, B): (60, 6.0)})
    assert service.arbiter.seats[0].gate.steps == 0
    step(service, 2.0, {(PUT, A): (60, 6.0)})
    assert service.arbiter.seats[0].gate.steps == 1


def test_what_is_gone_is_forgotten() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    for second in range(0, 130 * 5, 5):
        name = f"/junk/{second};bytes=unknown"
        step(service, float(second), {(name, A): (1, 0.01), (GET, B): (1, 0.01)})
    names = len(service.shared.ledger.classes)
    assert names < 110
    scores = step(service, 1000.0, BOTH)
    assert np.isfinite(scores.cost_s).all()


def test_candidates_are_drawn_by_the_split_of_the_fleet_while_it_is_fresh() -> None:
    service = ServiceScores(sidecars=4, now_s=0.0)
    fleet = FleetTable(
        trainer=b"t" * 16, now_s=0.0, classes_max=9, endpoints_max=9, split=SplitParameters()
    )
    # Both classes are a little faster on A; only one of them suffers on B.
    cells: Mapping[tuple[str, str], CellSums] = {
        (GET, A): (400, 4.0), (GET, B): (400, 4.4), (PUT, A): (300, 3.0), (PUT, B): (300, 24.0),
    }  # fmt: skip
    stream = Subscriber(b"x" * 16, "")
    service.shared.opened()
    window = service_window(cells)
    split = None
    for second in range(1, 20):
        step(service, float(second), cells)
        assert fleet.window(stream, second, 0.0, window, float(second))
        fleet.tick(float(second))
        state = fleet.update(stream, float(second))
        split = state.split
        assert split is not None
        assert service.shared.update(state, float(second))
    scores = service.scores(19.0)
    assert scores is not None
    assert split is not None
    get, put = (scores.layout.classes.index(one) for one in (GET, PUT))
    a, b = (scores.layout.endpoints.index(one) for one in (A, B))
    at = split.classes.index(GET), split.endpoints.index(B)
    assert scores.probability[get, b] == pytest.approx(split.probability[at], rel=1e-5)
    assert scores.probability[get, b] > 0.8
    assert scores.probability[put, a] > 0.8
    np.testing.assert_allclose(scores.probability.sum(axis=1), 1.0, rtol=1e-6)
    # Five seconds later it says nothing any more.
    late = service.scores(24.5)
    assert late is not None
    assert late.probability[get, b] < 0.5


def test_an_update_without_a_split_ends_it() -> None:
    service = ServiceScores(sidecars=4, now_s=0.0)
    stream, fleet = (
        Subscriber(b"x" * 16, ""),
        FleetTable(
            trainer=b"t" * 16, now_s=0.0, classes_max=9, endpoints_max=9, split=SplitParameters()
        ),
    )
    service.shared.opened()
    fleet.window(stream, 1, 0.0, service_window(BOTH), 0.0)
    fleet.tick(1.0)
    first = fleet.update(stream, 1.0)
    assert service.shared.update(first, 1.0)
    assert service.shared.split(1.0) is first.split is not None
    fleet.tick(2.0)
    assert service.shared.update(replace(fleet.update(stream, 2.0), split=None), 2.0)
    assert service.shared.split(2.0) is None
