"""What the scenario of the access log makes of its figures."""

from __future__ import annotations

import pytest
from benchmarks.harness.errors import BenchmarkError
from benchmarks.scenarios.access_log import TARGET, TURNS, Outcome


def test_both_kinds_stand_alike_in_a_round() -> None:
    places = {kind: [n for n, turn in enumerate(TURNS) if turn == kind] for kind in TURNS}
    assert sum(places["on"]) == sum(places["off"])


def test_the_ratio_is_taken_inside_rounds_and_reached_with_its_whole_interval() -> None:
    off = {0: 10e-6, 1: 20e-6, 2: 10e-6}
    near = Outcome.of({"on": {n: 1.05 * each for n, each in off.items()}, "off": off}, 1_000)
    assert near.ratio.median == pytest.approx(1.05)
    assert near.cpu_us["off"].median == pytest.approx(10.0)
    assert near.is_reached
    wide = Outcome.of({"on": {0: 10e-6, 1: 20e-6, 2: 12e-6}, "off": off}, 1_000)
    assert wide.ratio.mean < TARGET < wide.interval[1]
    assert not wide.is_reached


def test_no_round_is_an_error() -> None:
    with pytest.raises(BenchmarkError):
        Outcome.of({"on": {}, "off": {}}, 1_000)
