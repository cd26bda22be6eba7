"""Several scorers: who has a say, and what a broken one costs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnroute.scoring.arbiter import BENCH_S, TABLE_SPREAD, Arbiter
from attnroute.scoring.base import Scored, ScorerInfo, ScoringInput
from attnroute.scoring.guardrail import gate_weight

TABLE_S = np.array([[0.01, 0.02], [0.04, 0.04]])


def given(calls: float = 50.0) -> ScoringInput:
    ones = np.ones(2)
    return ScoringInput(
        classes=("a", "b"), endpoints=("x", "y"), table_cost_s=TABLE_S,
        calls=np.full((2, 2), calls), mean_service_s=ones, endpoint_factor=ones,
        class_mean_s=ones, rtt_s=np.zeros(2), concurrency=ones, usable=np.ones(2, dtype=bool),
    )  # fmt: skip


class Plugin:
    """Says the table's times, changed."""

    def __init__(self, change: Callable[[Scored], Any], name: str = "plugin") -> None:
        self.info = ScorerInfo(name, "1.0.0", "", 0.001)
        self.change = change

    def score(self, given: ScoringInput) -> Scored:
        said = Scored(
            cost_s=given.table_cost_s.copy(),
            probability=np.full(given.table_cost_s.shape, 0.5),
            spread=np.full(given.table_cost_s.shape, 0.3),
            confidence=np.ones(given.table_cost_s.shape),
        )
        changed: Scored = self.change(said)
        return changed


def times(factor: float) -> Callable[[Scored], Scored]:
    return lambda said: replace(said, cost_s=said.cost_s * factor)


def sure(confidence: float, factor: float) -> Callable[[Scored], Scored]:
    return lambda said: replace(
        times(factor)(said), confidence=np.full(said.cost_s.shape, confidence)
    )


W = gate_weight(0.0)  # 0.73: what a scorer starts with


def test_the_table_alone() -> None:
    blended = Arbiter().blend(given(), 0.0)
    np.testing.assert_array_equal(blended.cost_s, TABLE_S)
    np.testing.assert_allclose(blended.probability.sum(axis=1), 1.0)
    assert blended.probability[0, 0] > blended.probability[0, 1]
    assert blended.probability[1].tolist() == [0.5, 0.5]
    assert (blended.spread == TABLE_SPREAD).all()
    assert blended.model == ""


def test_one_scorer_has_its_weight() -> None:
    blended = Arbiter([Plugin(times(2.0))]).blend(given(), 0.0)
    np.testing.assert_allclose(blended.cost_s, TABLE_S * 2**W)
    table_p = 2**1.5 / (1 + 2**1.5)
    assert blended.probability[0, 0] == pytest.approx(table_p + W * (0.5 - table_p))
    np.testing.assert_allclose(blended.spread, TABLE_SPREAD + W * (0.3 - TABLE_SPREAD))
    assert blended.model == "plugin-1.0.0"


def test_two_scorers_share_and_never_have_more_than_all() -> None:
    arbiter = Arbiter([Plugin(times(2.0), "one"), Plugin(sure(0.5, 0.5), "two")])
    blended = arbiter.blend(given(), 0.0)
    one, two = W / (1.5 * W), 0.5 * W / (1.5 * W)
    assert 1.5 * W > 1
    np.testing.assert_allclose(blended.cost_s, TABLE_S * 2 ** (one - two))
    assert blended.model == "one-1.0.0+two-1.0.0"


def test_without_confidence_there_is_no_say() -> None:
    for confidence in (0.0, -1.0, math.nan):
        blended = Arbiter([Plugin(sure(confidence, 2.0))]).blend(given(), 0.0)
        np.testing.assert_allclose(blended.cost_s, TABLE_S)


def broken(what: str) -> Callable[[Scored], Any]:
    def change(said: Scored) -> Any:
        if what == "raises":
            raise RuntimeError("no")
        if what == "shape":
            return replace(said, cost_s=said.cost_s[:1])
        if what == "nothing":
            return None
        value = {"nan": math.nan, "inf": math.inf, "zero": 0.0, "negative": -1.0}[what]
        return Scored(*[np.full(said.cost_s.shape, value)] * 4)

    return change


@pytest.mark.parametrize("what", ["raises", "shape", "nothing", "nan", "inf", "zero", "negative"])
def test_a_broken_scorer_leaves_the_table(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    arbiter = Arbiter([Plugin(broken(what))])
    blended = arbiter.blend(given(), 0.0)
    np.testing.assert_allclose(blended.cost_s, TABLE_S)
    assert np.isfinite(blended.probability).all()
    assert (blended.probability >= 0).all()
    np.testing.assert_allclose(blended.probability.sum(axis=1), 1.0)
    assert np.isfinite(blended.spread).all()
    (seat,) = arbiter.seats
    assert seat.faults == 1
    assert (seat.repaired > 0) == (what not in ("raises", "shape", "nothing"))


def test_a_faulting_scorer_is_benched_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    plugin = Plugin(broken("raises"))
    arbiter = Arbiter([plugin])
    for _ in range(3):
        arbiter.blend(given(), 0.0)
    plugin.change = times(2.0)
    assert arbiter.blend(given(), BENCH_S - 1).model == ""
    assert arbiter.blend(given(), BENCH_S + 1).model == "plugin-1.0.0"
    assert arbiter.seats[0].faults == 3


CELL = (np.array([0]), np.array([0]))


def judge(arbiter: Arbiter, mean_s: float, calls: float = 60.0) -> None:
    """A window in which calls of class a took mean_s on endpoint x."""
    table = TABLE_S[CELL]
    arbiter.judge(np.array([calls]), np.array([calls * mean_s]), table, CELL)


def test_each_scorer_is_judged_on_what_it_said_itself() -> None:
    good, bad = Plugin(times(1.5), "good"), Plugin(times(0.5), "bad")
    arbiter = Arbiter([good, bad])
    judge(arbiter, 0.015)  # nothing has been said yet
    assert arbiter.seats[0].gate.steps == 0
    arbiter.blend(given(), 0.0)
    for _ in range(3):
        judge(arbiter, 0.015)
    assert arbiter.seats[0].weight > 0.99
    assert arbiter.seats[1].weight < 1e-6
    blended = arbiter.blend(given(), 0.0)
    np.testing.assert_allclose(blended.cost_s, TABLE_S * 1.5 ** arbiter.seats[0].weight, rtol=1e-3)


def test_who_contradicts_the_table_is_held_back_until_it_was_right_five_times() -> None:
    arbiter = Arbiter([Plugin(times(5.0))])
    seat = arbiter.seats[0]
    arbiter.blend(given(), 0.0)
    assert seat.in_conflict
    assert seat.conflicts == 1
    assert seat.weight == 0.2
    weights = []
    for _ in range(5):
        weights.append(seat.weight)
        judge(arbiter, 0.05)  # it was right
    assert weights == [0.2] * 5
    assert seat.weight > 0.9


def test_a_contradiction_on_little_traffic_is_none() -> None:
    def far_on_one(said: Scored) -> Scored:
        cost_s = said.cost_s.copy()
        cost_s[0, 0] *= 5
        return replace(said, cost_s=cost_s)

    arbiter = Arbiter([Plugin(far_on_one)])
    some = given()
    some.calls[0, 0] = 30  # of 180
    arbiter.blend(some, 0.0)
    assert [seat.in_conflict for seat in arbiter.seats] == [False]
    some.calls[0, 0] = 50  # of 200
    arbiter.blend(some, 0.0)
    assert [seat.in_conflict for seat in arbiter.seats] == [True]
    none = Arbiter([Plugin(times(5.0))])
    none.blend(given(0.0), 0.0)
    assert not none.seats[0].in_conflict


def test_values_that_cannot_be_true_bench_a_scorer_and_longer_each_time() -> None:
    def one_wrong(said: Scored) -> Scored:
        cost_s = said.cost_s.copy()
        cost_s[0, 0] = math.nan
        return replace(said, cost_s=cost_s)

    plugin = Plugin(one_wrong)
    arbiter = Arbiter([plugin])
    (seat,) = arbiter.seats
    now_s, waits = 0.0, []
    for _ in range(6):
        for _ in range(3):
            arbiter.blend(given(), now_s)
        waits.append(seat.benched_until_s - now_s)
        arbiter.blend(given(), now_s)
        assert seat.weight == 0.0
        now_s = seat.benched_until_s
    assert waits == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    assert (seat.benched, seat.repaired, seat.faults) == (6, 18, 18)
    plugin.change = times(1.1)
    arbiter.blend(given(), now_s)
    assert seat.weight == W
    arbiter.blend(given(), now_s + 901.0)  # as long good as it was benched: it begins anew
    plugin.change = one_wrong
    for _ in range(3):
        arbiter.blend(given(), now_s + 902.0)
    assert seat.benched_until_s == now_s + 962.0


def test_a_scorer_in_shadow_is_judged_and_has_no_say() -> None:
    arbiter = Arbiter()
    seat = arbiter.seat(Plugin(times(1.5)), say=0.0)
    blended = arbiter.blend(given(), 0.0)
    np.testing.assert_array_equal(blended.cost_s, TABLE_S)
    assert blended.model == ""
    for _ in range(3):
        judge(arbiter, 0.015)
    assert (seat.good_steps, seat.bad_steps) == (3, 0)
    assert seat.weight > 0.99
    seat.say = 0.25
    blended = arbiter.blend(given(), 0.0)
    np.testing.assert_allclose(blended.cost_s, TABLE_S * 1.5 ** (0.25 * seat.weight))
    judge(arbiter, 0.001)
    assert (seat.good_steps, seat.bad_steps) == (0, 1)
    arbiter.unseat(seat)
    assert arbiter.seats == []
    arbiter.unseat(seat)


def test_a_gate_begins_with_what_shadow_reached() -> None:
    arbiter = Arbiter()
    assert arbiter.seat(Plugin(times(1.5)), gd=0.01).weight == pytest.approx(gate_weight(0.01))


def test_where_a_scorer_had_nothing_to_say_it_is_not_judged() -> None:
    def unsure_of_x(said: Scored) -> Scored:
        confidence = said.confidence.copy()
        confidence[:, 0] = 0.0
        return replace(said, cost_s=said.cost_s * 9.0, confidence=confidence)

    arbiter = Arbiter([Plugin(unsure_of_x)])
    arbiter.blend(given(), 0.0)
    judge(arbiter, 0.015)  # on x
    assert arbiter.seats[0].gate.steps == 0
    cell = (np.array([0]), np.array([1]))
    arbiter.judge(np.array([60.0]), np.array([60 * 0.02]), TABLE_S[cell], cell)
    assert arbiter.seats[0].gate.steps == 1
    assert arbiter.seats[0].weight < 1e-6
