"""The plan: turns, rotation and the parts of a slice."""

from __future__ import annotations

from collections import Counter

import pytest

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.plan import SECONDS_DEFAULT, SECONDS_MIN, make_plan


@pytest.mark.parametrize("seconds", [SECONDS_MIN, 8.0, 44.0, SECONDS_DEFAULT, 600.0])
def test_the_parts_fill_the_time(seconds: float) -> None:
    plan = make_plan(seconds, BALANCERS)
    slice_s = plan.bridge_s + plan.settle_s + plan.measured_s
    assert slice_s * len(plan.slices) == pytest.approx(seconds)
    assert plan.measured_s >= 0.7 * slice_s
    assert plan.loaded_s == plan.settle_s + plan.measured_s


@pytest.mark.parametrize(
    ("seconds", "number"), [(SECONDS_MIN, 0), (60.0, 4), (120.0, 4), (160.0, 8)]
)
def test_the_model_comes_with_the_second_half_of_the_rounds(seconds: float, number: int) -> None:
    plan = make_plan(seconds, BALANCERS)
    assert plan.swap_number == number
    assert plan.slices[number].round_number == plan.rounds // 2


@pytest.mark.parametrize("seconds", [SECONDS_MIN, SECONDS_DEFAULT, 600.0])
def test_every_balancer_plays_each_round_once(seconds: float) -> None:
    plan = make_plan(seconds, BALANCERS)
    turns = Counter((turn.round_number, turn.balancer.key) for turn in plan.slices)
    expected = {(number, b.key) for number in range(plan.rounds) for b in BALANCERS}
    assert set(turns) == expected
    assert set(turns.values()) == {1}
    assert [turn.number for turn in plan.slices] == list(range(len(plan.slices)))


def test_the_default_run_has_rounds_that_begin_differently() -> None:
    plan = make_plan(SECONDS_DEFAULT, BALANCERS)
    assert plan.rounds == 3
    firsts = [turn.balancer.key for turn in plan.slices[:: len(BALANCERS)]]
    assert firsts == [balancer.key for balancer in BALANCERS][: plan.rounds]
