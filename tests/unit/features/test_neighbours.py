"""What similar endpoints and methods say of a pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.facts import facts

from attnroute.features import neighbours as module
from attnroute.features.facts import Facts
from attnroute.features.neighbours import neighbours
from attnroute.features.table import Sums, estimate, kinds_of


def made(num_s: np.ndarray, den: np.ndarray, classes: tuple[str, ...]) -> Facts:
    sums = Sums(num_s, den, num_s.sum(axis=0), den.sum(axis=0))
    table = estimate(sums, kinds_of(classes), np.zeros(den.shape[1], dtype=bool), 0.02)
    return replace(facts(classes, den.shape[1]), sums=sums, table=table)


def two_sorts(calls: float = 40.0) -> Facts:
    """Methods 0 and 1 are three times slower on the second half of six endpoints, 2 and 3 on the
    first; of method 0 endpoint 5 has seen nothing."""
    slow = (np.arange(4)[:, None] < 2) == (np.arange(6) >= 3)
    den = np.full((4, 6), calls)
    den[0, 5] = 0.0
    return made(den * np.where(slow, 0.03, 0.01), den, tuple(f"/s/M{one}" for one in range(4)))


def test_both_know_what_the_pair_itself_has_not_shown() -> None:
    given = two_sorts()
    found, table = neighbours(given), given.table
    usual_s = table.class_mean_s[0] * table.endpoint_factor[5]
    truth = np.log(0.03 / usual_s)
    # Two calls' worth of nothing known stand against it, and patterns are never quite alike.
    assert 0.6 * truth < found.endpoint_ratio[0, 5] < 1.1 * truth
    assert 0.6 * truth < found.kind_ratio[0, 5] < 1.1 * truth
    assert found.endpoint_calls[0, 5] > 20
    assert found.kind_calls[0, 5] > 15
    assert abs(np.log(table.cost_s[0, 5] / 0.03)) > 0.3, "the table alone is far from it"


def test_a_pair_is_not_its_own_neighbour() -> None:
    """One endpoint, one method: nobody else to ask."""
    given = made(np.array([[0.5]]), np.array([[10.0]]), ("/s/A",))
    found = neighbours(given)
    assert found.endpoint_ratio.tolist() == found.kind_ratio.tolist() == [[0.0]]
    assert found.endpoint_calls.tolist() == found.kind_calls.tolist() == [[0.0]]


def test_sizes_of_a_method_are_one_kind_and_other_is_none() -> None:
    classes = ("/s/A;bytes=..1024", "/s/A;bytes=1024..", "other")
    den = np.full((3, 4), 10.0)
    found = neighbours(made(den * 0.02, den, classes))
    assert (found.endpoint_calls[0] == found.endpoint_calls[1]).all()
    assert not found.endpoint_calls[2].any()
    assert not found.kind_calls[2].any()


def test_of_many_endpoints_the_most_called_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    given = two_sorts()
    whole = neighbours(given)
    monkeypatch.setattr(module, "_ANCHORS_MAX", 3)
    given.sums.calls[:3] += 1.0
    some = neighbours(given)
    assert some.endpoint_calls[0, 5] < whole.endpoint_calls[0, 5]
    assert some.kind_calls.tolist() == whole.kind_calls.tolist()
