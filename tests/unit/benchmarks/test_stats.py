"""Medians, paired ratios, and what a run can show."""

from __future__ import annotations

import math

import pytest
from benchmarks.harness.stats import Spread, paired_ratio, quantile
from hypothesis import given
from hypothesis import strategies as st


def test_spread_is_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(median=3.0, low=1.0, high=10.0)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_spread_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_ratio_is_taken_within_rounds() -> None:
    """The machine was twice as slow in round 1: each ratio is 0.5, though the figures spread."""
    ratio = paired_ratio({0: 10.0, 1: 20.0, 2: 10.0}, {0: 20.0, 1: 40.0, 2: 20.0})
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high, ratio.resolution) == (0.5, 0.5, 0.5, 0.0)
    assert ratio.verdict == "lower"


def test_ratio_takes_only_rounds_that_both_have() -> None:
    ratio = paired_ratio({0: 1.0, 1: 9.0}, {0: 2.0, 2: 4.0})
    assert ratio is not None
    assert (ratio.rounds, ratio.median) == (1, 0.5)


def test_rounds_without_positive_denominator_are_left_out() -> None:
    assert paired_ratio({0: 1.0}, {0: -2.0}) is None
    assert paired_ratio({0: 1.0}, {1: 2.0}) is None
    ratio = paired_ratio({0: 1.0, 1: 3.0}, {0: 0.0, 1: 2.0})
    assert ratio is not None
    assert ratio.median == 1.5


def test_resolution_is_the_half_width_of_the_students_interval() -> None:
    """Ratios 0.9, 1.0, 1.1: deviation 0.1, t(2 degrees) 4.303, root of 3 rounds."""
    ratio = paired_ratio({0: 0.9, 1: 1.0, 2: 1.1}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert ratio is not None
    assert ratio.resolution == pytest.approx(4.303 * 0.1 / math.sqrt(3))
    assert ratio.verdict == "no difference shown"


def test_single_round_shows_nothing() -> None:
    ratio = paired_ratio({0: 1.0}, {0: 10.0})
    assert ratio is not None
    assert math.isnan(ratio.resolution)
    assert ratio.verdict == "no difference shown"


def test_higher_is_named() -> None:
    ratio = paired_ratio({0: 2.0, 1: 2.1, 2: 2.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert ratio is not None
    assert ratio.verdict == "higher"


def test_many_rounds_use_the_normal_quantile() -> None:
    numerator = {number: 1.0 + number % 2 for number in range(60)}
    ratio = paired_ratio(numerator, dict.fromkeys(range(60), 1.0))
    assert ratio is not None
    assert ratio.resolution == pytest.approx(1.96 * 0.5042 / math.sqrt(60), rel=1e-3)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)])
def test_quantile_is_the_nearest_rank(share: float, value: float) -> None:
    assert quantile([float(number) for number in range(1, 101)], share) == value


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_no_quantile(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(values, share)


@given(
    st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40),
    st.floats(0.001, 1.0),
)
def test_quantile_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
