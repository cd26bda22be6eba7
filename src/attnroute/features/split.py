"""How the calls of a fleet are best spread over endpoints, as if calls were a fluid.

Given how long each class takes where, and how many calls of it come, the split is the routing
probabilities that make the least sum of time on the way, service and queues, all classes and zones
together. It sees what a pick by costs cannot: that an endpoint which is good for everybody should
be left to those who need it most. The trainer solves it for the fleet; a sidecar draws candidates
by it. Formulas, units and an example: docs/model.md, "Split".

Pure numpy; Z zones, C classes, E endpoints, float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute.features.window import Split

__all__ = ["FleetSplit", "SplitParameters", "over", "queue_slope", "solve"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SplitParameters:
    """Constants of the solver."""

    iterations: int = 60
    start: float = 0.9
    """Share of what is begun with; the rest is uniform, since what is 0 would stay 0."""
    step: float = 0.6
    step_halves: float = 10.0
    """After so many iterations a step is half as long."""
    exponent_max: float = 2.0
    load_max: float = 0.97
    """Busy share of an endpoint from which on its queue is taken to be that of this share."""
    queue_weight: float = 0.6


def queue_slope(load: Array, concurrency: Array, parameters: SplitParameters) -> Array:
    """dq/dr of q = r^e/(1 - r), e = sqrt(2 (c + 1)): calls that wait more for one more busy one.

    load: [E], offered busy calls over c; concurrency: c, [E].
    """
    r = np.clip(load, 1e-4, parameters.load_max)
    e = np.sqrt(2.0 * (concurrency + 1.0))
    return np.asarray(r ** (e - 1.0) * (e * (1.0 - r) + r) / (1.0 - r) ** 2)


def solve(
    calls: Array,
    service_s: Array,
    rtt_s: Array,
    concurrency: Array,
    begun: Array,
    parameters: SplitParameters = SplitParameters(),
) -> Array:
    """The split by exponentiated gradient, [Z, C, E]; rows sum to 1.

    calls: [Z, C], a second; service_s: S, [C, E]; rtt_s: [Z, E]; concurrency: c, [E], at least 1;
    begun: [Z, C, E], rows that sum to 1, best the solution of a second ago.
    """
    p = parameters
    split = p.start * begun + (1.0 - p.start) / begun.shape[-1]
    way_s = rtt_s[:, None, :] + service_s
    for iteration in range(p.iterations):
        load = np.einsum("zc,zce,ce->e", calls, split, service_s) / concurrency
        # What one more call a second of a class costs at an endpoint, by everybody's waiting.
        wait = p.queue_weight * queue_slope(load, concurrency, p) / concurrency
        slope_s = way_s + wait * service_s
        mean_s = (split * way_s).sum(axis=-1, keepdims=True)
        above = (slope_s - (split * slope_s).sum(axis=-1, keepdims=True)) / mean_s
        step = p.step / (1.0 + iteration / p.step_halves)
        split = split * np.exp(np.clip(-step * above, -p.exponent_max, p.exponent_max))
        split /= split.sum(axis=-1, keepdims=True)
    return np.asarray(split)


RATE_HALVES_S = 5.0
"""A zone's rate of calls leans half on what was before this."""

RATE_MIN = 1e-3
"""Calls a second below which a class is not solved for."""


class FleetSplit:
    """The split of one service, second by second, each begun where the last one ended."""

    def __init__(self, parameters: SplitParameters = SplitParameters()) -> None:
        self._parameters = parameters
        self._counted: dict[str, dict[str, float]] = {}
        self._rates: dict[str, dict[str, float]] = {}
        """Calls a second, by zone and class."""
        self._solved: dict[str, Split] = {}

    def count(self, zone: str, classes: Sequence[str], calls: Array) -> None:
        """Calls of a window of a sidecar of that zone; calls: [C]."""
        counted = self._counted.setdefault(zone, {})
        for name, count in zip(classes, calls.tolist(), strict=True):
            if count > 0:
                counted[name] = counted.get(name, 0.0) + count

    def tick(
        self,
        length_s: float,
        rows: Mapping[str, int],
        endpoints: Sequence[str],
        service_s: Array,
        concurrency: Array,
        rtt_s: Callable[[str], Array],
    ) -> None:
        """Solves for the second that ends. length_s: since the last one; rows: places of classes in
        service_s; service_s: S0, [., E]; concurrency: [E]; rtt_s: of a zone, [E], NaN unknown."""
        self._learn_rates(length_s)
        zones = sorted(self._rates)
        names = sorted({name for rates in self._rates.values() for name in rates if name in rows})
        if not names or not endpoints:
            self._solved = {}
            return
        at = [rows[name] for name in names]
        calls = np.array([[self._rates[zone].get(name, 0.0) for name in names] for zone in zones])
        way_s = np.stack([np.nan_to_num(rtt_s(zone), nan=0.0) for zone in zones])
        begun = np.stack(
            [
                self._begun(zone, names, endpoints, way + service_s[at])
                for zone, way in zip(zones, way_s, strict=True)
            ]
        )
        solved = solve(calls, service_s[at], way_s, concurrency, begun, self._parameters)
        self._solved = {
            zone: Split(tuple(names), tuple(endpoints), split)
            for zone, split in zip(zones, solved, strict=True)
        }

    def of_zone(self, zone: str) -> Split | None:
        """What was solved last; None where nobody of the zone calls."""
        return self._solved.get(zone)

    def _learn_rates(self, length_s: float) -> None:
        kept = 0.5 ** (length_s / RATE_HALVES_S)
        for zone in self._counted.keys() | self._rates.keys():
            rates, counted = self._rates.setdefault(zone, {}), self._counted.get(zone, {})
            for name in rates.keys() | counted.keys():
                now = counted.get(name, 0.0) / max(length_s, 1e-3)
                rates[name] = kept * rates[name] + (1.0 - kept) * now if name in rates else now
                if rates[name] < RATE_MIN:
                    del rates[name]
            if not rates:
                del self._rates[zone]
        self._counted.clear()

    def _begun(
        self, zone: str, names: Sequence[str], endpoints: Sequence[str], time_s: Array
    ) -> Array:
        """[C, E]: the last solution; what is new is begun with as the table alone has it."""
        time_s = np.maximum(time_s, 1e-9)
        begun = (time_s / time_s.min(axis=1, keepdims=True)) ** -1.5
        begun /= begun.sum(axis=1, keepdims=True)
        last = self._solved.get(zone)
        if last is not None and (*last.classes, *last.endpoints) == (*names, *endpoints):
            return last.probability
        return np.asarray(begun) if last is None else over(last, names, endpoints, begun)


def over(split: Split, classes: Sequence[str], endpoints: Sequence[str], instead: Array) -> Array:
    """The split over these classes and endpoints, [C, E]; rows sum to 1.

    instead: [C, E], rows that sum to 1: a class that the split lacks has its row, an endpoint that
    it lacks its share of it; where it is 0 an endpoint gets nothing.
    """
    row_of = {name: row for row, name in enumerate(split.classes)}
    column_of = {name: column for column, name in enumerate(split.endpoints)}
    rows = np.array([row_of.get(name, -1) for name in classes], dtype=np.intp)
    columns = np.array([column_of.get(name, -1) for name in endpoints], dtype=np.intp)
    found = split.probability[np.ix_(np.maximum(rows, 0), np.maximum(columns, 0))]
    known = (rows >= 0)[:, None] & (columns >= 0)[None, :] & np.isfinite(found) & (instead > 0)
    found = np.where(known, np.maximum(found, 0.0), 0.0)
    total = found.sum(axis=1, keepdims=True)
    known &= total > 0
    # What the split does not know keeps its share, the rest of the row is the split's.
    left = 1.0 - np.where(known, 0.0, instead).sum(axis=1, keepdims=True)
    return np.where(known, found / np.where(total > 0, total, 1.0) * left, instead)
