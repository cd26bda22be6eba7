"""The fleet's table of one service, in the trainer: windows of all sidecars as one set of sums.

A window is split into service times by the rules of the sidecar's own table, with that sidecar's
round trips, so that the sums are those that one sidecar would have that made every call. Each
sidecar gets them whole once, then what changed; what is not sent decays where it is.

Pure: no socket, no clock. The exchange itself is `attnroute.fleet`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from attnroute.features.ledger import LEFT_OUT, Ledger
from attnroute.features.split import FleetSplit, SplitParameters
from attnroute.features.table import (
    CONCURRENCY_COLUMNS,
    Array,
    ConcurrencyLearner,
    Estimate,
    Index,
    Sums,
    TableParameters,
    attribute,
    estimate,
)
from attnroute.features.window import FleetState, ServiceWindow

__all__ = ["CALLING_WINDOWS", "FleetTable", "Subscriber"]

CALLING_WINDOWS = 3
"""A sidecar counts as calling the service while one of its last so many windows had calls."""

AGE_S_MAX = 60.0
"""An older window weighs nothing."""

_PRUNE_TICKS = 60
_RTT_SHARE = 20
"""The 5th percentile of sorted values is the element floor(len/20)."""


@dataclass
class Subscriber:
    """One sidecar's stream."""

    sidecar: bytes
    zone: str
    sequence: int = 0
    sent_tick: int = -1
    """Tick up to which it has everything; -1: nothing yet."""


@dataclass
class _Known:
    """A sidecar's state, whichever stream it comes by."""

    zone: str
    watermark: int = 0
    called_tick: int = -CALLING_WINDOWS - 1
    seen_s: float = 0.0
    rtt_s: dict[str, float] = field(default_factory=dict)


class FleetTable:
    """trainer: id of this process. classes_max, endpoints_max: limits of names; beyond, a class is
    counted in `other`, an endpoint left out. split: solved each tick, where given."""

    def __init__(
        self,
        *,
        trainer: bytes,
        now_s: float,
        classes_max: int,
        endpoints_max: int,
        parameters: TableParameters | None = None,
        split: SplitParameters | None = None,
    ) -> None:
        parameters = parameters or TableParameters()
        self.ledger = Ledger("fleet", classes_max=classes_max, endpoints_max=endpoints_max)
        self.dropped_cells = 0
        self._trainer = trainer
        self._split = None if split is None else FleetSplit(split)
        self._ticked_s = now_s
        self._parameters = parameters
        self._at_s = now_s
        self._tick = 0
        self._sidecars: dict[bytes, _Known] = {}
        self._learner = ConcurrencyLearner(0, parameters.concurrency)
        self._known_concurrency = np.zeros(0)
        # Of the windows since the last tick: what the learner takes.
        self._pending = np.zeros((CONCURRENCY_COLUMNS, 0))
        self._changed = np.zeros((0, 0), dtype=np.int64)
        self._endpoint_changed = np.zeros(0, dtype=np.int64)
        self._zone_rtt_s: dict[str, dict[str, float]] = {}  # since the last tick
        self._estimate: Estimate | None = None
        self._mean_s = parameters.mean_service_start_s

    @property
    def sidecars(self) -> int:
        """Sidecars that call the service now."""
        return sum(
            self._tick - known.called_tick <= CALLING_WINDOWS for known in self._sidecars.values()
        )

    @property
    def watching(self) -> int:
        """Sidecars that are remembered, with calls or without."""
        return len(self._sidecars)

    def sums(self, now_s: float) -> Sums:
        """The sums decayed to now, in the order of the ledger's names."""
        self._to(now_s)
        return self.ledger.layer("fleet")

    def window(
        self, subscriber: Subscriber, number: int, age_s: float, window: ServiceWindow, now_s: float
    ) -> bool:
        """Takes in a window; False if it is in the sums already.

        number: the sidecar's own, rising. age_s: how long ago it ended.
        """
        known = self._sidecars.setdefault(subscriber.sidecar, _Known(subscriber.zone))
        known.zone, known.seen_s = subscriber.zone, now_s
        if number <= known.watermark:
            return False
        known.watermark = number
        window, dropped = window.sound()
        self.dropped_cells += dropped
        attribution = attribute(window.cells, window.seen(window.concurrency))
        for index in np.flatnonzero(np.isfinite(window.rtt_s)):
            known.rtt_s[window.endpoints[index]] = float(window.rtt_s[index])
        if not 0.0 <= age_s <= AGE_S_MAX:
            return True
        self._to(now_s)
        if attribution.calls.any():
            known.called_tick = self._tick
        columns, restarted = self.ledger.columns(
            window.endpoints, window.started_s, now_s, restarts="newer"
        )
        weight = math.exp(-age_s / self._parameters.decay_s)
        places = self.ledger.add("fleet", window, attribution, columns, weight)
        self._fit()
        for column in restarted:
            self._learner.forget(column)
            self._known_concurrency[column] = np.nan
        self._changed[places] = self._tick
        counted = columns != LEFT_OUT
        self._endpoint_changed[columns[counted]] = self._tick
        if self._split is not None:
            per_class = np.bincount(
                window.cells.request_class, window.cells.calls, len(window.classes)
            ).astype(np.float64)
            self._split.count(subscriber.zone, window.classes, per_class)
        self._learn_from(window, attribution.calls, attribution.latency_s, columns)
        return True

    def tick(self, now_s: float) -> None:
        """Ends a second: what was taken in since the last tick is one window of the fleet."""
        self._to(now_s)
        self._fit()
        self._learner.observe(self._pending)
        self._pending = np.zeros_like(self._pending)
        size = len(self.ledger.endpoints)
        self._estimate = estimate(
            self.ledger.layer("fleet"),
            self.ledger.kinds(),
            np.zeros(size, dtype=bool),
            self._mean_s,
            self._parameters,
        )
        self._mean_s = self._estimate.mean_s
        self._tick += 1
        self._zone_rtt_s.clear()
        if self._split is not None:
            self._solve(self._split, self._estimate.cost_s, now_s)
        self._ticked_s = now_s
        if self._tick % _PRUNE_TICKS == 0:
            self._prune(now_s)

    def update(self, subscriber: Subscriber, now_s: float) -> FleetState:
        """What a stream has to be sent now; call it after `tick`."""
        self._to(now_s)
        self._fit()
        ledger, sums = self.ledger, self.ledger.layer("fleet")
        full = subscriber.sent_tick < 0
        cells = np.argwhere((sums.den > 0) if full else self._changed >= subscriber.sent_tick)
        columns = np.flatnonzero(
            np.ones(len(ledger.endpoints), dtype=bool)
            if full
            else self._endpoint_changed >= subscriber.sent_tick
        )
        rows, cell_class = np.unique(cells[:, 0], return_inverse=True)
        subscriber.sequence += 1
        subscriber.sent_tick = self._tick
        known = self._sidecars.get(subscriber.sidecar)
        endpoints = tuple(ledger.endpoints[column] for column in columns)
        return FleetState(
            trainer=self._trainer,
            sequence=subscriber.sequence,
            full=full,
            sidecars=self.sidecars,
            watermark=0 if known is None else known.watermark,
            classes=tuple(ledger.classes[row] for row in rows),
            endpoints=endpoints,
            started_s=ledger.incarnation[columns],
            busy_s=sums.busy_s[columns],
            calls=sums.calls[columns],
            rtt_s=self._rtt_s(endpoints, subscriber.zone),
            concurrency=self._concurrency(columns),
            cell_class=cell_class,
            # A cell that changed has an endpoint that changed.
            cell_endpoint=np.searchsorted(columns, cells[:, 1]),
            cell_s=sums.num_s[cells[:, 0], cells[:, 1]],
            cell_calls=sums.den[cells[:, 0], cells[:, 1]],
            split=None if self._split is None else self._split.of_zone(subscriber.zone),
        )

    def _solve(self, split: FleetSplit, cost_s: Array, now_s: float) -> None:
        """For endpoints that some sidecar has named of late; the others have left."""
        columns = np.flatnonzero(self._tick - self._endpoint_changed <= CALLING_WINDOWS)
        endpoints = tuple(self.ledger.endpoints[column] for column in columns)
        split.tick(
            now_s - self._ticked_s,
            {name: row for row, name in enumerate(self.ledger.classes)},
            endpoints,
            cost_s[:, columns],
            np.maximum(1.0, self._concurrency(columns)),
            lambda zone: self._rtt_s(endpoints, zone),
        )

    def _learn_from(
        self, window: ServiceWindow, calls: Array, latency_s: Array, columns: Index
    ) -> None:
        """What a window says of concurrency; the classes' means are those of the last tick."""
        rows = self.ledger.rows(window.classes)
        means = np.full(len(self.ledger.classes), self._mean_s)
        if self._estimate is not None:
            size = min(len(means), len(self._estimate.class_mean_s))
            means[:size] = self._estimate.class_mean_s[:size]
        expected = means[rows[window.cells.request_class]] * window.cells.calls
        rtt_s = np.where(np.isfinite(window.rtt_s), np.maximum(window.rtt_s, 0.0), 0.0)
        counted = columns != LEFT_OUT
        part = np.stack(
            (
                calls,
                latency_s - calls * rtt_s,
                np.bincount(window.cells.endpoint, expected, len(columns))[: len(columns)],
                *window.load(),
            )
        )
        part = np.where(np.isfinite(part).all(axis=0), part, 0.0)
        for into, values in zip(self._pending, part, strict=True):
            np.add.at(into, columns[counted], values[counted])
        told = counted & np.isfinite(window.concurrency) & (window.concurrency > 0)
        self._known_concurrency[columns[told]] = window.concurrency[told]

    def _concurrency(self, columns: Index) -> Array:
        told = self._known_concurrency[columns]
        return np.where(np.isfinite(told), told, self._learner.learned[columns])

    def _rtt_s(self, endpoints: tuple[str, ...], zone: str) -> Array:
        """The 5th percentile of what the zone's sidecars measure, NaN without any."""
        least = self._zone_rtt_s.get(zone)
        if least is None:
            measured: dict[str, list[float]] = {}
            for known in self._sidecars.values():
                if known.zone == zone:
                    for address, rtt_s in known.rtt_s.items():
                        measured.setdefault(address, []).append(rtt_s)
            least = self._zone_rtt_s[zone] = {
                address: sorted(values)[len(values) // _RTT_SHARE]
                for address, values in measured.items()
            }
        return np.array([least.get(address, math.nan) for address in endpoints])

    def _to(self, now_s: float) -> None:
        if now_s > self._at_s:
            self.ledger.decay(math.exp(-(now_s - self._at_s) / self._parameters.decay_s))
            self._at_s = now_s

    def _fit(self) -> None:
        """Makes what stands beside the ledger as large as it."""
        rows, columns = len(self.ledger.classes), len(self.ledger.endpoints)
        if self._changed.shape == (rows, columns):
            return
        had_rows, had_columns = self._changed.shape
        changed = np.full((rows, columns), -1, dtype=np.int64)
        changed[:had_rows, :had_columns] = self._changed
        self._changed = changed
        more = columns - had_columns
        if more:
            self._endpoint_changed = np.append(self._endpoint_changed, np.full(more, -1))
            self._known_concurrency = np.append(self._known_concurrency, np.full(more, np.nan))
            self._pending = np.concatenate(
                (self._pending, np.zeros((CONCURRENCY_COLUMNS, more))), axis=1
            )
            self._learner.resize(np.arange(had_columns), columns)

    def _prune(self, now_s: float) -> None:
        for sidecar in [
            sidecar for sidecar, known in self._sidecars.items() if now_s - known.seen_s > AGE_S_MAX
        ]:
            del self._sidecars[sidecar]
        kept = self.ledger.prune((), ())
        if kept is not None:
            rows, columns = kept
            self._changed = self._changed[np.ix_(rows, columns)]
            self._endpoint_changed = self._endpoint_changed[columns]
            self._known_concurrency = self._known_concurrency[columns]
            self._pending = self._pending[:, columns]
            self._learner.resize(columns, len(columns))
            self._estimate = None
            named = set(self.ledger.endpoints)
            for known in self._sidecars.values():
                for gone in known.rtt_s.keys() - named:
                    del known.rtt_s[gone]
