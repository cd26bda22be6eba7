"""What features are made of, kept beside the table of a service in a sidecar.

The table's sums remember 10 s. A model also wants to know what happened just now: the same sums
with a memory of 6 s, and those of the last second or two alone. Both are had from what the shared
sums grew by between two looks, so they hold the whole fleet's calls, as the table does. Load and
errors come from the own windows.

Everything is kept by the names of a layout and carried over when it changes. Pure: time comes as an
argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attnroute.features.facts import Facts
from attnroute.features.table import Array, Estimate, Index, Sums, kinds_of
from attnroute.features.window import ServiceWindow
from attnroute.scoring.base import ScoringInput

__all__ = ["FAST_S", "FactsKeeper", "Names", "of_layout"]

FAST_S = 6.0
"""Memory of the fast sums."""

RECENT_S = 1.0
"""The recent sums hold so much at least, and twice as much at most."""

LOAD_S = 2.0
"""Memory of utilization and calls in flight: of the last window mostly, and an endpoint that got
no call in one window is not unknown at once."""

ERRORS_S = 10.0

_RESTARTED = 0.5
"""Sums of an endpoint that fall below this share of what decay left of them were dropped."""

_NOTHING = 1e-3
"""Of a decayed weight: less says nothing any more."""


@dataclass(frozen=True)
class Names:
    """What rows and columns are."""

    classes: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()


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
    """Of one service. own_zone: of the sidecar, empty where unknown."""

    def __init__(self, own_zone: str = "") -> None:
        self.own_zone = own_zone
        self._endpoints: tuple[str, ...] = ()
        self._attributes: Sequence[Mapping[str, str]] = ()
        self._load = _Load()
        self._load_s = -math.inf
        self._names = Names()
        self._before: Sums | None = None
        self._fast = Sums.empty(0, 0)
        self._recent = Sums.empty(0, 0)
        self._recent_before = Sums.empty(0, 0)
        self._at_s = -math.inf
        self._turned_s = -math.inf

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
        _, weight, met, _, _ = window.load()
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
        sums: Sums,
        table: Estimate,
        age_s: Array,
        now_s: float,
        decay_s: float,
    ) -> Facts:
        """Everything known now. given, sums, table: in one layout; age_s: [E]; decay_s: of sums."""
        names = Names(tuple(given.classes), tuple(given.endpoints))
        self._advance(names, sums, now_s, decay_s)
        columns = _places(self._endpoints, names.endpoints)
        load = _Load(
            **{name: _carried(values, columns) for name, values in vars(self._load).items()}
        )
        labels = tuple(
            self._attributes[column] if 0 <= column < len(self._attributes) else {}
            for column in columns
        )
        return Facts(
            classes=names.classes,
            endpoints=names.endpoints,
            sums=sums,
            table=table,
            fast=_copied(self._fast),
            recent=self._recent.plus(self._recent_before),
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

    def _advance(self, names: Names, sums: Sums, now_s: float, decay_s: float) -> None:
        """Adds what the sums grew by since the last look."""
        if names != self._names:
            rows = _places(self._names.classes, names.classes)
            columns = _places(self._names.endpoints, names.endpoints)
            for name in ("_fast", "_recent", "_recent_before"):
                setattr(self, name, _rearranged(getattr(self, name), rows, columns))
            if self._before is not None:
                self._before = _rearranged(self._before, rows, columns)
            self._names = names
        if self._before is None:
            # As many calls as the shorter memory would hold of a steady stream.
            self._fast = _scaled(sums, FAST_S / decay_s)
            self._turned_s = now_s
        else:
            passed_s = max(0.0, now_s - self._at_s)
            left = math.exp(-passed_s / decay_s)
            gone = sums.calls < _RESTARTED * left * self._before.calls - _NOTHING
            for kept in (self._fast, self._recent, self._recent_before, self._before):
                for column in np.flatnonzero(gone):
                    kept.forget_endpoint(int(column))
            if now_s - self._turned_s >= RECENT_S:
                self._recent_before, self._recent = self._recent, _scaled(sums, 0.0)
                self._turned_s = now_s
            grown = _growth(sums, self._before, left)
            self._fast.decay(math.exp(-passed_s / FAST_S))
            self._fast = self._fast.plus(grown)
            self._recent = self._recent.plus(grown)
        self._before, self._at_s = _copied(sums), now_s


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


def _growth(sums: Sums, before: Sums, left: float) -> Sums:
    """What was added since; sums that were told anew and are less count as nothing added."""
    den = sums.den - left * before.den
    calls = sums.calls - left * before.calls
    new, called = den > _NOTHING, calls > _NOTHING
    return Sums(
        np.where(new, sums.num_s - left * before.num_s, 0.0),
        np.where(new, den, 0.0),
        np.where(called, np.maximum(0.0, sums.busy_s - left * before.busy_s), 0.0),
        np.where(called, calls, 0.0),
    )


def _places(had: Sequence[str], now: Sequence[str]) -> Index:
    """[len(now)]: where each name stood, -1 where it did not."""
    known = {name: place for place, name in enumerate(had)}
    return np.array([known.get(name, -1) for name in now], dtype=np.intp)


def _carried(values: Array, places: Index) -> Array:
    if len(values) == 0:
        return np.zeros(len(places))
    return np.where(places >= 0, values[places], 0.0)


def _rearranged(sums: Sums, rows: Index, columns: Index) -> Sums:
    fresh = Sums.empty(len(rows), len(columns))
    row, column = np.flatnonzero(rows >= 0), np.flatnonzero(columns >= 0)
    here, there = np.ix_(row, column), np.ix_(rows[row], columns[column])
    fresh.num_s[here], fresh.den[here] = sums.num_s[there], sums.den[there]
    fresh.busy_s[column], fresh.calls[column] = (
        sums.busy_s[columns[column]],
        sums.calls[columns[column]],
    )
    return fresh


def _scaled(sums: Sums, factor: float) -> Sums:
    return Sums(sums.num_s * factor, sums.den * factor, sums.busy_s * factor, sums.calls * factor)


def _copied(sums: Sums) -> Sums:
    return _scaled(sums, 1.0)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _mean(total: Array, weight: Array) -> npt.NDArray[np.float64]:
    told = weight > _NOTHING
    return np.where(told, total / np.where(told, weight, 1.0), np.nan)
