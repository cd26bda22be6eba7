"""The page `/metrics/training`: what a model learns from, as counters per class and endpoint.

Kept here and not in the data plane, because windows are handed out once and this page is as of the
last window's edge: a scrape sees all of a window or nothing of it. Series of an endpoint or a class
that is gone go with it; within a series nothing falls. The number of series is bounded: beyond the
setting the least called classes share `other` from then on, counted.

The text is written by hand. The official library takes ten times as long for a page of many series,
which every scrape would pay.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attnroute.features.table import OTHER, add_cells
from attnroute.features.window import BUCKETS, ServiceWindow

__all__ = ["BOUNDS_S", "EndpointLabels", "PageLimits", "TrainingPage"]

Array = npt.NDArray[np.float64]

BOUNDS_S = tuple(100_000 * 8**j // 5**j / 1e9 for j in range(BUCKETS - 1))
"""Upper bounds of the buckets, 100 us * 1.6^j in whole nanoseconds, as the data plane has them; the
last bucket has none."""

_CELL_FAMILIES = (
    ("latency_seconds_sum", "latency_s"),
    ("latency_seconds_count", "calls"),
    ("service_seconds_total", "service_s"),
    ("service_samples_total", "service_samples"),
    ("estimated_service_seconds_total", "estimated_s"),
    ("errors_total", "errors"),
)
_NAME = "\0"
"""Stands for the name of a family; no label holds it."""

_CELL_SERIES = len(_CELL_FAMILIES)
_CLASS_SERIES = BUCKETS + 2
_ENDPOINT_SERIES = 4

_HELP = {
    "training_latency_seconds": (
        "summary",
        "Latency of successful calls, from the request headers to the end of the answer.",
    ),
    "training_service_seconds_total": ("counter", "Service times that endpoints reported."),
    "training_service_samples_total": ("counter", "Number of reported service times."),
    "training_estimated_service_seconds_total": (
        "counter",
        "Service times estimated from latency and calls in flight, of successful calls.",
    ),
    "training_errors_total": ("counter", "Failed calls."),
    "training_class_latency_seconds": ("histogram", "Latency of successful calls of a class."),
    "endpoint_inflight_seconds_total": (
        "counter",
        "Own calls in flight, integrated over time.",
    ),
    "endpoint_rtt_seconds": ("gauge", "Least round trip of late."),
    "endpoint_concurrency": ("gauge", "Calls worked on at a time, as the endpoint reports."),
    "endpoint_info": (
        "gauge",
        "1; incarnation: Unix start time as reported, empty where unknown.",
    ),
    "sidecar_info": ("gauge", "1, for whoever puts pages of several sidecars together."),
    "training_classes_folded_total": (
        "counter",
        "Classes that share the class `other` on this page, because it has too many series.",
    ),
}


@dataclass(frozen=True)
class PageLimits:
    """series: at most on the page, about."""

    series: int = 60_000


@dataclass(frozen=True)
class EndpointLabels:
    """What discovery says of an endpoint, in label form."""

    zone: str
    labels: str
    """`key=value` pairs, sorted, joined by commas."""


@dataclass(frozen=True)
class _Shot:
    """One service as a page shows it; per class [C], per endpoint [E]."""

    service: str
    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    lines: str
    """As `_cell_lines` makes them."""
    cells: list[Array]
    """Values of those lines, per family."""
    buckets: npt.NDArray[np.int64]
    class_sum_s: Array
    inflight_s: Array
    rtt_s: Array
    concurrency: Array
    started_s: Array
    labels: tuple[EndpointLabels, ...]


@dataclass
class _Totals:
    """One service: classes and endpoints by name, sums since each came."""

    classes: list[str] = field(default_factory=list)
    endpoints: list[str] = field(default_factory=list)
    cells: dict[str, Array] = field(default_factory=dict)
    buckets: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, BUCKETS), dtype=np.int64)
    )
    class_sum_s: Array = field(default_factory=lambda: np.zeros(0))
    inflight_s: Array = field(default_factory=lambda: np.zeros(0))
    rtt_s: Array = field(default_factory=lambda: np.zeros(0))
    concurrency: Array = field(default_factory=lambda: np.zeros(0))
    started_s: Array = field(default_factory=lambda: np.zeros(0))
    labels: tuple[EndpointLabels, ...] = ()
    folded: set[str] = field(default_factory=set)
    _lines: tuple[bytes, str] = (b"", "")
    """Lines of the cells that were used last, and which those were."""

    def shot(self, service: str) -> _Shot:
        """What is written, as it is now."""
        used = self.used()
        rows, columns = np.nonzero(used)
        if self._lines[0] != (cells := used.tobytes()):
            self._lines = cells, _cell_lines(service, self, rows, columns)
        return _Shot(
            service=service,
            classes=tuple(self.classes),
            endpoints=tuple(self.endpoints),
            lines=self._lines[1],
            cells=[self.cells[name][rows, columns] for _, name in _CELL_FAMILIES],
            buckets=self.buckets.copy(),
            class_sum_s=self.class_sum_s.copy(),
            inflight_s=self.inflight_s.copy(),
            rtt_s=self.rtt_s,
            concurrency=self.concurrency,
            started_s=self.started_s,
            labels=self.labels,
        )

    def used(self) -> npt.NDArray[np.bool_]:
        """[C, E]: cells that have a series."""
        return (self.cells["calls"] > 0) | (self.cells["errors"] > 0)

    def series(self) -> int:
        return (
            int(self.used().sum()) * _CELL_SERIES
            + len(self.classes) * _CLASS_SERIES
            + len(self.endpoints) * _ENDPOINT_SERIES
        )

    def arrange(self, classes: Sequence[str], endpoints: Sequence[str]) -> None:
        """Keeps what is known of these classes and endpoints, and nothing else."""
        if self.cells and list(classes) == self.classes and list(endpoints) == self.endpoints:
            return
        rows, old_rows = _places(self.classes, classes)
        columns, old_columns = _places(self.endpoints, endpoints)
        shape = (len(classes), len(endpoints))
        for _, name in _CELL_FAMILIES:
            fresh = np.zeros(shape)
            if name in self.cells:
                fresh[np.ix_(rows, columns)] = self.cells[name][np.ix_(old_rows, old_columns)]
            self.cells[name] = fresh
        buckets = np.zeros((len(classes), BUCKETS), dtype=np.int64)
        buckets[rows] = self.buckets[old_rows]
        class_sum_s = np.zeros(len(classes))
        class_sum_s[rows] = self.class_sum_s[old_rows]
        inflight_s = np.zeros(len(endpoints))
        inflight_s[columns] = self.inflight_s[old_columns]
        self.buckets, self.class_sum_s, self.inflight_s = buckets, class_sum_s, inflight_s
        self.classes, self.endpoints = list(classes), list(endpoints)
        self._lines = b"", ""

    def add(self, window: ServiceWindow, inflight_s: Array) -> None:
        """Adds a window; its endpoints are those arranged, in order."""
        self.inflight_s += np.where(np.isfinite(inflight_s), np.maximum(inflight_s, 0.0), 0.0)
        self.rtt_s, self.concurrency = window.rtt_s, window.concurrency
        self.started_s = window.started_s
        known = {name: row for row, name in enumerate(self.classes)}
        rows = np.array(
            [known.get(name, known.get(OTHER, -1)) for name in window.classes], dtype=np.intp
        )
        cells = window.cells
        row = rows[cells.request_class]
        for name, values in (
            ("latency_s", cells.latency_s),
            ("calls", cells.calls),
            ("service_s", cells.service_s),
            ("service_samples", cells.service_samples),
            # A counter never falls: a faster answer than the rtt makes an estimate below 0.
            ("estimated_s", np.maximum(cells.estimated_s, 0.0)),
            ("errors", window.errors),
        ):
            add_cells(self.cells[name], row, cells.endpoint, values)
        places, filled = window.filled
        place, bucket = np.divmod(places, BUCKETS)
        self.buckets += (
            np.bincount(row[place] * BUCKETS + bucket, filled, self.buckets.size)
            .astype(np.int64)
            .reshape(self.buckets.shape)
        )
        self.class_sum_s += np.bincount(row, cells.latency_s, len(self.classes))


def _places(
    old: Sequence[str], new: Sequence[str]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Where what stays stands now, and where it stood."""
    before = {name: place for place, name in enumerate(old)}
    pairs = [(place, before[name]) for place, name in enumerate(new) if name in before]
    array = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    return array[:, 0], array[:, 1]


class TrainingPage:
    """The page of one sidecar. Windows come on one thread, `render` may run on another."""

    def __init__(
        self, *, sidecar_id: str, zone: str, version: str, limits: PageLimits | None = None
    ) -> None:
        self.folded = 0
        self._identity = {"sidecar_id": sidecar_id, "version": version}
        self._zone = zone
        self._limits = limits or PageLimits()
        self._services: dict[str, _Totals] = {}
        self._lock = threading.Lock()

    def add(
        self,
        service: str,
        window: ServiceWindow,
        inflight_s: Array,
        labels: Sequence[EndpointLabels],
    ) -> None:
        """Adds a window. inflight_s: [E]; labels: per endpoint."""
        window, _ = window.sound()
        with self._lock:
            totals = self._services.setdefault(service, _Totals())
            totals.folded &= set(window.classes)
            names = [name for name in window.classes if name not in totals.folded]
            if OTHER not in names:
                names.append(OTHER)
            totals.arrange(names, window.endpoints)
            totals.labels = tuple(labels)
            totals.add(window, inflight_s)
            self._fold()

    def configure(self, *, zone: str, limits: PageLimits) -> None:
        """Changes what a reload may change; classes that share `other` stay there."""
        self._zone, self._limits = zone, limits

    def keep(self, services: Iterable[str]) -> None:
        """Drops every other service."""
        with self._lock:
            for gone in self._services.keys() - set(services):
                del self._services[gone]

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        with self._lock:
            folded = self.folded
            shots = [totals.shot(service) for service, totals in self._services.items()]
        families: dict[str, list[str]] = {name: [] for name in _HELP}
        families["sidecar_info"].append(
            f"attnroute_sidecar_info{{{_labels(**self._identity, zone=self._zone)}}} 1\n"
        )
        families["training_classes_folded_total"].append(
            f"attnroute_training_classes_folded_total {folded}\n"
        )
        for shot in shots:
            _write_cells(families, shot)
            _write_classes(families["training_class_latency_seconds"], shot)
            _write_endpoints(families, shot)
        lines = []
        for name, (kind, text) in _HELP.items():
            lines.append(f"# HELP attnroute_{name} {text}\n# TYPE attnroute_{name} {kind}\n")
            lines.extend(families[name])
        return "".join(lines).encode()

    def _fold(self) -> None:
        """Puts the least called classes into `other` until the page is small enough again."""
        while sum(totals.series() for totals in self._services.values()) > self._limits.series:
            candidates = [
                (float(totals.cells["calls"][row].sum()), service, name)
                for service, totals in self._services.items()
                for row, name in enumerate(totals.classes)
                if name != OTHER
            ]
            if not candidates:
                return
            # A tenth at once: folding one by one would look at everything again each time.
            for _, service, name in sorted(candidates)[: max(1, len(candidates) // 10)]:
                totals = self._services[service]
                totals.folded.add(name)
                totals.arrange([kept for kept in totals.classes if kept != name], totals.endpoints)
                self.folded += 1


def _write_cells(families: Mapping[str, list[str]], shot: _Shot) -> None:
    # One format for all lines of a family: line by line takes four times as long.
    for (family, _), values in zip(_CELL_FAMILIES, shot.cells, strict=True):
        key = family.removesuffix("_sum").removesuffix("_count")
        lines = shot.lines.replace(_NAME, f"attnroute_training_{family}")
        families[f"training_{key}"].append(lines % tuple(values.tolist()))


def _cell_lines(
    service: str, totals: _Totals, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]
) -> str:
    """A line for each cell, with `_NAME` for the name and `%.15g` for the value."""
    heads = [
        f'{_NAME}{{service="{_escaped(service)}",request_class="{_escaped(name)}",endpoint="'
        for name in totals.classes
    ]
    ends = [f'{_escaped(name)}"}} ' for name in totals.endpoints]
    labels = "\n".join(
        heads[row] + ends[column]
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    )
    return labels.replace("%", "%%").replace("\n", "%.15g\n") + ("%.15g\n" if labels else "")


def _write_classes(lines: list[str], shot: _Shot) -> None:
    counts = np.cumsum(shot.buckets, axis=1).tolist()
    name = "attnroute_training_class_latency_seconds"
    bounds = (*BOUNDS_S, "+Inf")
    for row, request_class in enumerate(shot.classes):
        if not counts[row][-1]:
            continue
        labels = _labels(service=shot.service, request_class=request_class)
        head = f'{name}_bucket{{{labels},le="'
        lines.extend(
            f'{head}{bound}"}} {count}\n' for bound, count in zip(bounds, counts[row], strict=True)
        )
        lines.append(f"{name}_sum{{{labels}}} {float(shot.class_sum_s[row])!r}\n")
        lines.append(f"{name}_count{{{labels}}} {counts[row][-1]}\n")


def _write_endpoints(families: Mapping[str, list[str]], shot: _Shot) -> None:
    gauges = {
        "endpoint_inflight_seconds_total": shot.inflight_s.tolist(),
        "endpoint_rtt_seconds": shot.rtt_s.tolist(),
        "endpoint_concurrency": shot.concurrency.tolist(),
    }
    started = shot.started_s.tolist()
    for column, endpoint in enumerate(shot.endpoints):
        labels = _labels(service=shot.service, endpoint=endpoint)
        for family, values in gauges.items():
            if math.isfinite(values[column]):
                families[family].append(f"attnroute_{family}{{{labels}}} {values[column]!r}\n")
        info = _labels(
            zone=shot.labels[column].zone,
            incarnation=repr(started[column]) if started[column] > 0 else "",
            labels=shot.labels[column].labels,
        )
        families["endpoint_info"].append(f"attnroute_endpoint_info{{{labels},{info}}} 1\n")


def _labels(**values: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
