"""Sums with a shorter memory, from the table's sums alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnroute.features.fast import FAST_S, RECENT_S, FastSums, spread_weight
from attnroute.features.table import Sums


def sums(calls: list[list[float]], seconds_a_call: float = 0.02) -> Sums:
    den = np.array(calls, dtype=np.float64)
    return Sums(den * seconds_a_call, den, den.sum(axis=0) * seconds_a_call, den.sum(axis=0))


def played(length_s: float, until_s: float) -> FastSums:
    """10 calls a second on one cell, looked at each length_s, as a table of 10 s has them."""
    keeper, table, at_s = FastSums(), sums([[0.0]]), 0.0
    keeper.look(table, at_s)
    while at_s < until_s:
        at_s += length_s
        table.decay(math.exp(-length_s / 10))
        weight = spread_weight(length_s, 10)
        table.den += 10 * length_s * weight
        table.num_s += 0.2 * length_s * weight
        table.calls += 10 * length_s * weight
        table.busy_s += 0.2 * length_s * weight
        keeper.look(table, at_s)
    return keeper


def test_windows_of_a_second_are_added_as_they_are() -> None:
    keeper = played(1.0, 3.0)
    steps = [math.exp(-age / FAST_S) for age in range(3)]
    assert keeper.fast.den[0, 0] == pytest.approx(10 * sum(steps))
    steps = [math.exp(-age / RECENT_S) for age in range(3)]
    assert keeper.recent.den[0, 0] == pytest.approx(10 * sum(steps))
    assert keeper.recent.num_s[0, 0] == pytest.approx(0.2 * sum(steps))
    assert keeper.recent.busy_s[0] == pytest.approx(0.2 * sum(steps))


@pytest.mark.parametrize("length_s", [0.5, 2.0, 5.0])
def test_it_does_not_matter_how_often_one_looks(length_s: float) -> None:
    """What a sidecar sees each second and the trainer each five must mean the same."""
    often, other = played(1.0, 40.0), played(length_s, 40.0)
    for name in ("fast", "recent"):
        assert getattr(other, name).den == pytest.approx(getattr(often, name).den, rel=1e-6)


def test_what_was_there_at_the_first_look_counts_as_a_steady_stream() -> None:
    keeper = FastSums()
    keeper.look(sums([[10.0]]), 5.0)
    assert keeper.fast.den[0, 0] == pytest.approx(6.0)
    assert keeper.recent.den[0, 0] == pytest.approx(1.5)


def test_an_endpoint_that_began_anew_keeps_nothing() -> None:
    keeper = FastSums()
    keeper.look(sums([[10.0, 10.0]]), 0.0)
    keeper.look(sums([[10.0, 2.0]]), 1.0, restarted=[1])
    assert keeper.fast.den[0, 1] == pytest.approx(2.0)
    assert keeper.fast.den[0, 0] > 5


def test_sums_that_shrink_add_nothing() -> None:
    keeper = FastSums()
    keeper.look(sums([[10.0]]), 0.0)
    keeper.look(sums([[1.0]]), 1.0)
    assert keeper.fast.den[0, 0] == pytest.approx(6 * math.exp(-1 / FAST_S))


def test_names_move_with_their_sums() -> None:
    keeper = FastSums()
    keeper.look(sums([[1.0, 2.0], [3.0, 4.0]]), 0.0)
    keeper.arrange(np.array([1, -1, 0]), np.array([-1, 1]))
    assert keeper.fast.den / 0.6 == pytest.approx(np.array([[0, 4], [0, 0], [0, 2]]))
    keeper.look(sums([[0.0, 4.0], [5.0, 0.0], [0.0, 2.0]]), 1.0)
    assert keeper.fast.den[1, 0] == pytest.approx(5.0)
