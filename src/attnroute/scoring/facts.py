"""What features are made of, kept beside the table of a service in a sidecar.

The table's sums remember 10 s; those with a shorter memory are made from them as the trainer makes
its own (`features.fast`), so that serving and training read the same. Load and errors come from the
own windows and are kept by the endpoints' names.

Pure: time comes as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attnroute.features.facts import Facts
from attnroute.features.fast import FastSums
from attnroute.features.table import Array, Estimate, Index, Sums, kinds_of
from attnroute.features.window import ServiceWindow
from attnroute.scoring.base import ScoringInput

__all__ = ["FactsKeeper", "of_layout", "sums_at"]

LOAD_S = 2.0
"""Memory of utilization and calls in flight: of the last window mostly, and an endpoint that got
no call in one window is not unknown at once."""

ERRORS_S = 10.0

_NOTHING = 1e-3
"""Of a decayed weight: less says nothing any more."""


@dataclass
class _Load:
    """Decayed sums of the own windows, [E] each."""

    utilization: Array = field(default_factory=lambda: np.zeros(0))
    utilization_weight: Array = field(default_factory=lambda: np.zeros(0))
    inflight: Array = field(default_factory=lambda: np.zeros(0))
    inflight_weight: Array = field(default_factory=lambda: np.zeros(0))
    errors: Array = field(default_factory=lambda: np.zeros(0))
    answers: Array = field(default_factory=lambda: np.zeros(0))


class FactsKeeper:
    """Of one service. decay_s: of the table's sums. own_zone: of the sidecar; empty where
    unknown."""

    def __init__(self, decay_s: float, own_zone: str = "") -> None:
        self.own_zone = own_zone
        self.short = FastSums(decay_s)
        """In the places of the table's ledger; `arrange` follows its prunes."""
        self._endpoints: tuple[str, ...] = ()
        self._attributes: Sequence[Mapping[str, str]] = ()
        self._load = _Load()
        self._load_s = -math.inf

    def observe(
        self, window: ServiceWindow, attributes: Sequence[Mapping[str, str]], now_s: float
    ) -> None:
        """Takes in an own window. attributes: labels of its endpoints, their zone under `zone`;
        empty where unknown."""
        if window.endpoints != self._endpoints:
            columns = _places(self._endpoints, window.endpoints)
            for name, values in vars(self._load).items():
                setattr(self._load, name, _carried(values, columns))
            self._endpoints = window.endpoints
        self._attributes = attributes
        passed_s = max(0.0, now_s - self._load_s)
        self._load_s = now_s
        load, size = self._load, len(window.endpoints)
        short, long = math.exp(-passed_s / LOAD_S), math.exp(-passed_s / ERRORS_S)
        _, weight, met, *_ = window.load()
        failed = np.bincount(window.cells.endpoint, window.errors, size)[:size]
        load.utilization = load.utilization * short + _finite(window.utilization)
        load.utilization_weight = load.utilization_weight * short + window.utilization_reports
        load.inflight = load.inflight * short + _finite(met)
        load.inflight_weight = load.inflight_weight * short + weight
        load.errors = load.errors * long + failed
        load.answers = load.answers * long + window.ended

    def forget(self, endpoint: str) -> None:
        """Another process answers there now."""
        if endpoint in self._endpoints:
            place = self._endpoints.index(endpoint)
            for values in vars(self._load).values():
                values[place] = 0.0

    def facts(
        self,
        given: ScoringInput,
        table: Estimate,
        at: tuple[Index, Index],
        sums: Sums,
        age_s: Array,
    ) -> Facts:
        """Everything known now. table: in the layout's order; sums: of the ledger; at: rows and
        columns of the layout in it; age_s: [E]. Look at the sums (`short.look`) before."""
        columns = _places(self._endpoints, given.endpoints)
        load = _Load(
            **{name: _carried(values, columns) for name, values in vars(self._load).items()}
        )
        labels = tuple(
            self._attributes[column] if 0 <= column < len(self._attributes) else {}
            for column in columns
        )
        return Facts(
            classes=tuple(given.classes),
            endpoints=tuple(given.endpoints),
            sums=sums_at(sums, at),
            table=table,
            fast=sums_at(self.short.fast, at),
            recent=sums_at(self.short.recent, at),
            utilization=_mean(load.utilization, load.utilization_weight),
            inflight=_mean(load.inflight, load.inflight_weight),
            error_share=np.nan_to_num(_mean(load.errors, load.answers)),
            age_s=age_s,
            rtt_s=given.rtt_s,
            concurrency=given.concurrency,
            zone_match=np.array([self._zone_match(one.get("zone", "")) for one in labels]),
            labels=labels,
            usable=given.usable,
        )

    def _zone_match(self, zone: str) -> float:
        return float(zone == self.own_zone) if zone and self.own_zone else math.nan


def sums_at(sums: Sums, at: tuple[Index, Index]) -> Sums:
    """A ledger's sums of some rows and columns, copied."""
    cells = np.ix_(*at)
    return Sums(sums.num_s[cells], sums.den[cells], sums.busy_s[at[1]], sums.calls[at[1]])


def of_layout(
    table: Estimate, classes: Sequence[str], kinds: Index, at: tuple[Index, Index]
) -> Estimate:
    """A ledger's table for some of its classes and endpoints, in their order; its kinds are
    numbered as `kinds_of(classes)` does. kinds: of the ledger's classes; at: rows and columns."""
    rows, columns = at
    own = kinds_of(classes)
    _, first = np.unique(own, return_index=True)
    return Estimate(
        table.mean_s,
        table.class_mean_s[rows],
        table.endpoint_factor[columns],
        table.kind_ratio[np.ix_(kinds[rows[first]], columns)],
        table.cost_s[np.ix_(rows, columns)],
        table.mean_service_s[columns],
    )


def _places(had: Sequence[str], now: Sequence[str]) -> Index:
    """[len(now)]: where each name stood, -1 where it did not."""
    known = {name: place for place, name in enumerate(had)}
    return np.array([known.get(name, -1) for name in now], dtype=np.intp)


def _carried(values: Array, places: Index) -> Array:
    if len(values) == 0:
        return np.zeros(len(places))
    return np.where(places >= 0, values[places], 0.0)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _mean(total: Array, weight: Array) -> npt.NDArray[np.float64]:
    told = weight > _NOTHING
    return np.where(told, total / np.where(told, weight, 1.0), np.nan)
