"""Medians, spreads and paired ratios.

Rounds are compared pair by pair: the ratio of two proxies is taken inside a round, where they
share the state of the machine, and only then summarised. The spread of these ratios says what the
run can show at all: a difference smaller than `PairedRatio.resolution` is not one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom; beyond, the normal's 1.96
# is off by less than 4 %.
_STUDENT_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL_T95 = 1.96


@dataclass(frozen=True)
class Spread:
    """Median with the range of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError without values."""
        if not values:
            raise ValueError("a spread needs at least one value")
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class PairedRatio:
    """Ratio of two proxies over the rounds that have both.

    resolution: half-width of the 95 % interval of the mean ratio, relative to 1; NaN for a single
    round, which shows no difference of any size.
    """

    rounds: int
    median: float
    low: float
    high: float
    mean: float
    resolution: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean ratio."""
        return self.mean - self.resolution, self.mean + self.resolution

    @property
    def verdict(self) -> str:
        """`lower`, `higher`, or `no difference shown`, for this run alone."""
        low, high = self.interval
        if math.isnan(self.resolution) or low <= 1.0 <= high:
            return "no difference shown"
        return "lower" if high < 1.0 else "higher"


def paired_ratio(numerator: dict[int, float], denominator: dict[int, float]) -> PairedRatio | None:
    """Ratios round by round; both map round number to figure.

    Rounds whose denominator is not above zero have no ratio and are left out (added latency is a
    difference, noise can turn it negative). None if no round remains.
    """
    ratios = [
        numerator[number] / denominator[number]
        for number in sorted(numerator.keys() & denominator.keys())
        if denominator[number] > 0
    ]
    if not ratios:
        return None
    mean = statistics.fmean(ratios)
    count = len(ratios)
    resolution = math.nan
    if count > 1:
        t95 = _STUDENT_T95[count - 2] if count - 2 < len(_STUDENT_T95) else _NORMAL_T95
        resolution = t95 * statistics.stdev(ratios) / math.sqrt(count)
    spread = Spread.of(ratios)
    return PairedRatio(count, spread.median, spread.low, spread.high, mean, resolution)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of the ascending `ordered` do not exceed (nearest rank).

    Raises ValueError without values or for a share outside (0, 1].
    """
    if not ordered or not 0.0 < share <= 1.0:
        raise ValueError(f"no quantile {share} of {len(ordered)} values")
    return ordered[math.ceil(share * len(ordered)) - 1]
