"""What came out: the samples of each balancer and the figures of the tables.

Quantiles are nearest rank, so each is the latency of a call that happened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from attnroute.demo.balancers import Balancer
from attnroute.demo.faults import FaultResults
from attnroute.demo.messages import Sample
from attnroute.demo.models import ModelResults
from attnroute.demo.plan import Plan, Slice
from attnroute.demo.world import World

LATENESS_P99_S_MAX = 0.010
"""Beyond this a machine is too slow: the generator's delay would be a visible part of latency."""

TOO_SLOW = (
    "this machine was too slow or too busy for a fair comparison: calls were sent too late; "
    "close what else runs and repeat"
)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank quantile of sorted values: the smallest that at least `share` of them reach.

    NaN without values. Raises ValueError unless 0 < share <= 1.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"a quantile lies in (0, 1], not at {share}")
    if not ordered:
        return math.nan
    # The small amount keeps 0.07 * 100 = 7.000000000000001 at rank 7.
    return ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]


def mean(values: Sequence[float]) -> float:
    """NaN without values."""
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the closing table. Latencies in milliseconds, of calls that succeeded."""

    balancer: str
    calls: int
    errors: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    wait_mean_ms: float
    """Of the mean: in endpoints' queues."""
    service_mean_ms: float
    """Of the mean: with endpoints' workers."""
    slow_share: float | None
    """Share of calls that slow endpoints answered; None where no endpoint is slow."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured call on the time axis of its balancer: slices end to end."""

    time_s: float
    latency_s: float


@dataclass
class Measured:
    """The measured calls of one balancer."""

    balancer: Balancer
    points: list[Point] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    services_s: list[float] = field(default_factory=list)
    by_endpoint: Counter[int] = field(default_factory=Counter)
    errors: int = 0

    def figures(self, world: World) -> Figures:
        """The row of this balancer so far."""
        ordered = sorted(point.latency_s for point in self.points)
        answered = len(ordered)
        slow = sum(self.by_endpoint[index] for index in world.slow_endpoints)
        return Figures(
            balancer=self.balancer.key,
            calls=answered + self.errors,
            errors=self.errors,
            mean_ms=1e3 * mean(ordered),
            p50_ms=1e3 * quantile(ordered, 0.50),
            p90_ms=1e3 * quantile(ordered, 0.90),
            p99_ms=1e3 * quantile(ordered, 0.99),
            wait_mean_ms=1e3 * mean(self.waits_s),
            service_mean_ms=1e3 * mean(self.services_s),
            slow_share=slow / answered if world.slow_endpoints and answered else None,
        )


@dataclass
class Results:
    """Takes every sample of a run, measured or not."""

    world: World
    plan: Plan
    balancers: Sequence[Balancer]
    measured: dict[str, Measured] = field(init=False)
    failures: Counter[str] = field(default_factory=Counter)
    """Failed calls by status and message, those of bridges and settling included, those of turns
    with endpoints that are ill not."""
    finished_calls: int = 0
    lateness_s: list[float] = field(default_factory=list)
    faults: FaultResults = field(init=False)
    models: ModelResults = field(default_factory=ModelResults)
    _slices: dict[int, Slice] = field(init=False)

    def __post_init__(self) -> None:
        self.measured = {balancer.key: Measured(balancer) for balancer in self.balancers}
        self.faults = FaultResults(self.balancers)
        self._slices = {slice_.number: slice_ for slice_ in self.plan.slices}

    def add(self, samples: Iterable[Sample]) -> None:
        """Orders are numbered as slices; other numbers are bridges, and turns with endpoints that
        are ill."""
        for sample in samples:
            self._add(sample)

    def _add(self, sample: Sample) -> None:
        self.finished_calls += 1
        self.lateness_s.append(sample.lateness_s)
        if self.faults.owns(sample):
            return
        if sample.status:
            self.failures[f"status {sample.status}: {sample.detail}"] += 1
        slice_ = self._slices.get(sample.order)
        if slice_ is None or sample.offset_s < self.plan.settle_s:
            return
        measured = self.measured[slice_.balancer.key]
        if sample.status:
            measured.errors += 1
            return
        since_settled_s = sample.offset_s - self.plan.settle_s
        time_s = slice_.round_number * self.plan.measured_s + since_settled_s
        measured.points.append(Point(time_s, sample.latency_s))
        measured.waits_s.append(sample.wait_s)
        measured.services_s.append(sample.service_s)
        measured.by_endpoint[sample.endpoint] += 1

    @property
    def failed_calls(self) -> int:
        """Over the whole run, but for the turns with endpoints that are ill."""
        return self.failures.total()

    @property
    def lateness_p99_s(self) -> float:
        """How late the generator sent calls; NaN before any."""
        return quantile(sorted(self.lateness_s), 0.99)

    @property
    def kept_up(self) -> bool:
        """False if the machine was too slow for the comparison to be fair."""
        return not self.lateness_p99_s > LATENESS_P99_S_MAX

    def figures(self) -> list[Figures]:
        """One row per balancer, in the order of the comparison."""
        return [measured.figures(self.world) for measured in self.measured.values()]

    def document(self) -> dict[str, Any]:
        """For `--json`; numbers that do not exist are null."""
        lateness_ms = 1e3 * self.lateness_p99_s
        return {
            "world": self.world.name,
            "calls_per_s": round(self.world.calls_per_s, 1),
            "capacity_per_s": round(self.world.capacity_per_s, 1),
            "rounds": self.plan.rounds,
            "measured_s_per_balancer": round(self.plan.rounds * self.plan.measured_s, 3),
            "finished_calls": self.finished_calls,
            "failed_calls": self.failed_calls,
            "failures": dict(self.failures),
            "generator": {
                "lateness_p99_ms": None if math.isnan(lateness_ms) else round(lateness_ms, 3),
                "kept_up": self.kept_up,
            },
            "balancers": [_rounded(asdict(row)) for row in self.figures()],
            "model": self.models.document(),
            "faults": [row.document() for row in self.faults.figures()],
        }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    def value(given: Any) -> Any:
        if not isinstance(given, float):
            return given
        return None if math.isnan(given) else round(given, 4)

    return {key: value(given) for key, given in row.items()}
