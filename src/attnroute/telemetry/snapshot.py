"""What the data plane counts for a service, read as one consistent state, and shares of picks.

The data plane gives the endpoint list and the counters by two calls; each names the endpoint epoch
it belongs to, and a pair is used only if both name the same one, so that a number cannot land on
another endpoint. Counters are totals since an endpoint was added: a share over the last seconds is
the difference to an older sample of the same endpoint id, which is never reused.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attnroute.clock import Clock
from attnroute.dataplane import rows

SHARE_WINDOW_S = 10.0
"""Over how long a share is measured."""

SAMPLE_INTERVAL_S = 1.0
"""How often counters are sampled; a share spans up to this much more than its window."""

# Enough for the window at the sampling interval, and one sample that is older.
_SAMPLES_MAX = int(SHARE_WINDOW_S / SAMPLE_INTERVAL_S) + 2

# Two reads race with discovery only while a set is being replaced, which takes microseconds.
_READ_ATTEMPTS = 100


class EndpointSource(Protocol):
    """The part of the data plane this module reads."""

    def endpoints(self, service: str) -> tuple[int, bytes]: ...
    def snapshot(self, service: str) -> tuple[int, bytes]: ...


@dataclass(frozen=True)
class EndpointInfo:
    """An endpoint as discovery described it."""

    address: str
    static_weight: float
    zone: str
    labels: Mapping[str, str]
    priority: int = 0
    override: str = ""
    """What an operator decided about it: `drain`, `pin` or nothing."""


@dataclass(frozen=True)
class ServiceSnapshot:
    """Endpoints of a service and their counters, in the same order.

    rows: ENDPOINT_DTYPE[E] (attnroute.dataplane).
    """

    service: str
    endpoint_epoch: int
    endpoints: tuple[EndpointInfo, ...]
    rows: npt.NDArray[np.void]


class SnapshotReader:
    """Reads snapshots; keeps the parsed endpoint list of a service until its set changes."""

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._parsed: dict[str, tuple[tuple[int, bytes], tuple[EndpointInfo, ...]]] = {}

    def read(self, service: str) -> ServiceSnapshot:
        """The state of `service` now.

        Raises what the data plane raises for an unknown service, and RuntimeError if the endpoint
        set was replaced during every attempt.
        """
        for _ in range(_READ_ATTEMPTS):
            epoch, data = self._source.snapshot(service)
            table = rows(data)
            # The ids tell a service that was removed and came back from what it was before.
            key = (epoch, table["id"].tobytes())
            cached = self._parsed.get(service)
            if cached is not None and cached[0] == key:
                return ServiceSnapshot(service, epoch, cached[1], table)
            list_epoch, listed = self._source.endpoints(service)
            endpoints = _parse(listed)
            if list_epoch == epoch and len(endpoints) == len(table):
                self._parsed[service] = (key, endpoints)
                return ServiceSnapshot(service, epoch, endpoints, table)
        raise RuntimeError(f"the endpoint set of `{service}` changed during every read")

    def forget(self, service: str) -> None:
        """Drops what is kept of a service that is gone."""
        self._parsed.pop(service, None)


def _parse(listed: bytes) -> tuple[EndpointInfo, ...]:
    entries: list[dict[str, Any]] = json.loads(listed)
    return tuple(
        EndpointInfo(
            address=entry["address"],
            static_weight=entry["static_weight"],
            zone=entry["zone"],
            labels=entry["labels"],
            priority=entry.get("priority", 0),
            override=entry.get("override") or "",
        )
        for entry in entries
    )


@dataclass(frozen=True)
class _Sample:
    time_s: float
    ids: npt.NDArray[np.uint64]
    picks: npt.NDArray[np.uint64]


class ShareWindow:
    """Shares of picks over the last SHARE_WINDOW_S of one service; memory is bounded."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_MAX)

    def __len__(self) -> int:
        return len(self._samples)

    def sample(self, now_s: float, table: npt.NDArray[np.void]) -> None:
        """Remembers the counters. now_s: monotonic; table: ENDPOINT_DTYPE[E]."""
        while len(self._samples) > 1 and now_s - self._samples[1].time_s >= SHARE_WINDOW_S:
            self._samples.popleft()
        self._samples.append(_Sample(now_s, table["id"].copy(), table["picks"].copy()))

    def shares(self, now_s: float, table: npt.NDArray[np.void]) -> npt.NDArray[np.float64] | None:
        """Fraction of the window's picks that went to each row of `table`.

        Picks of endpoints that are gone do not count. Returns float64[E] that sums to 1, or None
        if no row was picked in the window.
        """
        then = self._oldest_needed(now_s)
        if then is None:
            recent = table["picks"].astype(np.float64)
        else:
            recent = picks_between(then.ids, then.picks, table["id"], table["picks"])
        total = recent.sum()
        return recent / total if total > 0 else None

    def _oldest_needed(self, now_s: float) -> _Sample | None:
        """The newest sample that is at least a window old, else the oldest there is."""
        found: _Sample | None = None
        for sample in self._samples:
            if found is not None and now_s - sample.time_s < SHARE_WINDOW_S:
                break
            found = sample
        return found


def picks_between(
    ids_then: npt.NDArray[np.uint64],
    picks_then: npt.NDArray[np.uint64],
    ids_now: npt.NDArray[np.uint64],
    picks_now: npt.NDArray[np.uint64],
) -> npt.NDArray[np.float64]:
    """Picks of each id of now since then; an id that was not there then began at 0.

    ids and picks: uint64[E] of then and of now. Returns float64[E of now], >= 0.
    """
    order = np.argsort(ids_then)
    sorted_ids = ids_then[order]
    places = np.searchsorted(sorted_ids, ids_now)
    known = places < len(sorted_ids)
    known[known] = sorted_ids[places[known]] == ids_now[known]
    before = np.zeros(len(ids_now), dtype=np.uint64)
    before[known] = picks_then[order][places[known]]
    # Unsigned: a difference below zero would wrap to a huge number.
    return (picks_now - np.minimum(before, picks_now)).astype(np.float64)


class Telemetry:
    """Snapshots and shares of every service, for admin and whatever else looks from outside."""

    def __init__(self, source: EndpointSource, clock: Clock) -> None:
        self._clock = clock
        self._reader = SnapshotReader(source)
        self._windows: dict[str, ShareWindow] = {}

    def read(self, service: str) -> ServiceSnapshot:
        """The state of `service` now; raises as SnapshotReader.read does."""
        return self._reader.read(service)

    def shares(self, snapshot: ServiceSnapshot) -> npt.NDArray[np.float64] | None:
        """ShareWindow.shares of the snapshot's service."""
        window = self._windows.get(snapshot.service)
        if window is None:
            window = ShareWindow()
        return window.shares(self._clock.now_s(), snapshot.rows)

    def sample(self, services: Iterable[str]) -> None:
        """Remembers the counters of these services and forgets every other service."""
        names = set(services)
        for gone in self._windows.keys() - names:
            del self._windows[gone]
            self._reader.forget(gone)
        for name in names:
            window = self._windows.setdefault(name, ShareWindow())
            window.sample(self._clock.now_s(), self._reader.read(name).rows)
