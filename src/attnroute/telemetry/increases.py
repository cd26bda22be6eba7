"""What counters of the training page went up by, whichever way its samples came.

A page is what one sidecar showed at one moment: scraped directly, or put together again from what a
Prometheus server stored of it. Both go through here, so both give the same sums. No data is not
zero: a first sample, one that is not finite, one that was taken before the last, all say nothing. A
value below the one before is a restart, and the new value is the increase. A gap between pages
loses nothing.

Pure: no socket; time comes with the page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attnroute.features.window import BUCKETS
from attnroute.telemetry.training import BOUNDS_S

__all__ = ["CELL_COLUMNS", "IncreaseBook", "Increases", "LabelRules", "Page", "Sample"]

CLOCK_BACK_S = 60.0
"""A page that is older than the last one by more was stamped by a clock that went back."""

FORGET_S = 600.0
"""A sidecar that has shown nothing for so long is a new one when it comes again."""

TARGETS_MAX = 10_000

CELL_COLUMNS = (
    "latency_seconds_sum",
    "latency_seconds_count",
    "service_seconds_total",
    "service_samples_total",
    "estimated_service_seconds_total",
    "errors_total",
)
"""Columns of a cell's increase, in this order."""

_CELL = {f"attnroute_training_{name}": place for place, name in enumerate(CELL_COLUMNS)}
_BUCKET = "attnroute_training_class_latency_seconds_bucket"
_CLASS_COUNT = "attnroute_training_class_latency_seconds_count"
_INFLIGHT = "attnroute_endpoint_inflight_seconds_total"
_RTT = "attnroute_endpoint_rtt_seconds"
_CONCURRENCY = "attnroute_endpoint_concurrency"
_INFO = "attnroute_endpoint_info"
_SIDECAR = "attnroute_sidecar_info"
_COUNTERS = frozenset((*_CELL, _INFLIGHT))
_CLASS_LABELS = ("service", "request_class")
_ENDPOINT_LABELS = ("service", "endpoint")
_LABELS_OF = {
    **dict.fromkeys(_CELL, ("service", "request_class", "endpoint")),
    _BUCKET: (*_CLASS_LABELS, "le"),
    _CLASS_COUNT: _CLASS_LABELS,
    _INFLIGHT: _ENDPOINT_LABELS,
    _RTT: _ENDPOINT_LABELS,
    _CONCURRENCY: _ENDPOINT_LABELS,
    _INFO: (*_ENDPOINT_LABELS, "zone", "incarnation", "labels"),
    _SIDECAR: ("sidecar_id", "zone", "version"),
}
# The last bound is infinite.
_BOUNDS = {bound: place for place, bound in enumerate((*BOUNDS_S, math.inf))}

Cell = tuple[str, str, str]
"""Service, request class, endpoint."""

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Page:
    """What one sidecar showed. at_s: when, in seconds of whoever took it; replica: which of several
    copies of the same page."""

    target: str
    at_s: float
    samples: Sequence[Sample]
    replica: str = ""


@dataclass(frozen=True)
class LabelRules:
    """How a server changed labels on the way.

    replica: labels that tell copies of one series apart. renamed: our name to what it is called
    there; `exported_<name>`, as Prometheus calls a label that its target has too, is known without.
    """

    replica: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def split(self, labels: Mapping[str, str]) -> tuple[dict[str, str], str, str]:
        """Our labels, the target that everything else names, and the replica."""
        rest = dict(labels)
        ours: dict[str, str] = {}
        for name in _LABELS_OF.get(rest.pop("__name__", ""), ()):
            for there in (self.renamed.get(name), f"exported_{name}", name):
                if there is not None and there in rest:
                    ours[name] = rest.pop(there)
                    break
        replica = ",".join(f"{name}={rest.pop(name)}" for name in sorted(self.replica & set(rest)))
        target = ",".join(f"{name}={value}" for name, value in sorted(rest.items()))
        return ours, target, replica


@dataclass
class Increases:
    """What went up between two looks, over all sidecars."""

    cells: dict[Cell, npt.NDArray[np.float64]] = field(default_factory=dict)
    """[6] each: CELL_COLUMNS."""
    buckets: dict[tuple[str, str], npt.NDArray[np.float64]] = field(default_factory=dict)
    """[BUCKETS] by service and class: successes by latency."""
    inflight_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """By service and endpoint: calls in flight, integrated."""
    rtt_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """The least that any sidecar measures."""
    concurrency: dict[tuple[str, str], float] = field(default_factory=dict)
    info: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """Zone, incarnation and labels of an endpoint."""
    pages: int = 0
    span_s: float = 0.0
    """The longest time between two pages of one sidecar that this is over."""

    @property
    def calls(self) -> float:
        """Successful calls."""
        return float(sum(cell[1] for cell in self.cells.values()))


@dataclass
class _Target:
    at_s: float = -math.inf
    sidecar: str = ""
    replica: str = ""
    seen_s: float = 0.0
    values: dict[_Key, float] = field(default_factory=dict)
    named_s: dict[_Key, float] = field(default_factory=dict)
    """When a series was shown last: one that is missing for a while has not begun anew."""
    tidied_s: float = -math.inf

    def forget(self, at_s: float) -> None:
        """Drops series that have not been shown for long; looks once in a while."""
        if at_s - self.tidied_s < FORGET_S:
            return
        self.tidied_s = at_s
        for key in [key for key, then_s in self.named_s.items() if at_s - then_s > FORGET_S]:
            del self.named_s[key]
            self.values.pop(key, None)


class IncreaseBook:
    """Remembers the last value of every counter of every sidecar."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        """What was not used, by reason, ever."""
        self._targets: dict[str, _Target] = {}
        self._gathered = Increases()

    def take(self, pages: Iterable[Page], now_s: float) -> None:
        """Takes in pages in any order. now_s: monotonic, here."""
        ordered = sorted(
            (page for page in pages if any(one.name in _LABELS_OF for one in page.samples)),
            key=lambda page: page.at_s,
        )
        replicas: dict[str, set[str]] = {}
        for page in ordered:
            replicas.setdefault(page.target, set()).add(page.replica)
        for page in ordered:
            target = self._target(page.target)
            if target is None:
                continue
            switched = page.replica != target.replica
            if switched and target.values and target.replica in replicas[page.target]:
                self.dropped["replica"] += 1
                continue
            if page.at_s <= target.at_s:
                if target.at_s - page.at_s <= CLOCK_BACK_S:
                    self.dropped["repeated"] += 1
                    continue
                target.values.clear()
                target.named_s.clear()
                target.tidied_s = -math.inf
                self.dropped["clock"] += 1
            self._read(target, page, switched=switched)
            target.seen_s = now_s
        for name, target in list(self._targets.items()):
            if now_s - target.seen_s > FORGET_S:
                del self._targets[name]

    def gather(self) -> Increases:
        """What went up since the last call."""
        gathered, self._gathered = self._gathered, Increases()
        return gathered

    @property
    def targets(self) -> int:
        """Sidecars that are known."""
        return len(self._targets)

    def _target(self, name: str) -> _Target | None:
        target = self._targets.get(name)
        if target is None:
            if len(self._targets) >= TARGETS_MAX:
                self.dropped["target"] += 1
                return None
            target = self._targets[name] = _Target()
        return target

    def _read(self, target: _Target, page: Page, *, switched: bool) -> None:
        gathered = self._gathered
        gathered.pages += 1
        if target.values:
            gathered.span_s = max(gathered.span_s, page.at_s - target.at_s)
        _restart(target, page)
        seen: set[_Key] = set()
        histograms: dict[tuple[str, str], dict[float, float]] = {}
        counts: dict[tuple[str, str], float] = {}
        for sample in page.samples:
            labels, value = sample.labels, sample.value
            service, endpoint = labels.get("service", ""), labels.get("endpoint", "")
            request_class = labels.get("request_class", "")
            if sample.name == _BUCKET:
                bounds = histograms.setdefault((service, request_class), {})
                bounds[_number(labels.get("le", ""))] = value
                continue
            if sample.name == _CLASS_COUNT:
                counts[service, request_class] = value
                continue
            if sample.name not in _COUNTERS:
                self._note(sample.name, (service, endpoint), labels, value)
                continue
            key = (sample.name, service, request_class, endpoint)
            if key in seen:
                self.dropped["twice"] += 1
                continue
            seen.add(key)
            more = self._increase(target, key, value, page.at_s, switched=switched)
            if more is None:
                continue
            if sample.name == _INFLIGHT:
                at = (service, endpoint)
                gathered.inflight_s[at] = gathered.inflight_s.get(at, 0.0) + more
            else:
                cell = gathered.cells.setdefault(
                    (service, request_class, endpoint), np.zeros(len(CELL_COLUMNS))
                )
                cell[_CELL[sample.name]] += more
        for at, bounds in histograms.items():
            self._histogram(target, page.at_s, at, bounds, counts.get(at), switched=switched)
        target.at_s, target.replica = page.at_s, page.replica
        target.forget(page.at_s)

    def _increase(
        self, target: _Target, key: _Key, value: float, at_s: float, *, switched: bool
    ) -> float | None:
        if not math.isfinite(value) or value < 0:
            self.dropped["not_finite"] += 1
            return None
        before = target.values.get(key)
        target.values[key], target.named_s[key] = value, at_s
        if before is None:
            return None
        if value >= before:
            return value - before
        # Copies of a page are taken at different moments: a step back between them is no restart.
        return None if switched else value

    def _histogram(
        self,
        target: _Target,
        at_s: float,
        at: tuple[str, str],
        bounds: Mapping[float, float],
        count: float | None,
        *,
        switched: bool,
    ) -> None:
        """Buckets are used only if they are ours, ordered and whole; else the class has none."""
        cumulative = [bounds.get(bound, math.nan) for bound in _BOUNDS]
        broken = len(bounds) != BUCKETS or not np.isfinite(cumulative).all()
        broken = broken or bool((np.diff(cumulative) < 0).any())
        if broken or (count is not None and count != cumulative[-1]):
            self.dropped["histogram"] += 1
            for bound in _BOUNDS:
                target.values.pop((_BUCKET, *at, repr(bound)), None)
            return
        ups = [
            self._increase(target, (_BUCKET, *at, repr(bound)), value, at_s, switched=switched)
            for bound, value in zip(_BOUNDS, np.diff(cumulative, prepend=0.0), strict=True)
        ]
        if all(up is not None for up in ups):
            into = self._gathered.buckets.setdefault(at, np.zeros(BUCKETS))
            into += np.array(ups, dtype=np.float64)

    def _note(
        self, name: str, at: tuple[str, str], labels: Mapping[str, str], value: float
    ) -> None:
        gathered = self._gathered
        if name == _INFO:
            gathered.info[at] = (
                labels.get("zone", ""),
                labels.get("incarnation", ""),
                labels.get("labels", ""),
            )
        elif name in (_RTT, _CONCURRENCY):
            if not math.isfinite(value) or value < 0:
                self.dropped["not_finite"] += 1
            elif name == _RTT:
                gathered.rtt_s[at] = min(value, gathered.rtt_s.get(at, math.inf))
            else:
                gathered.concurrency[at] = value


def _restart(target: _Target, page: Page) -> None:
    """Another process behind the same target: what it counts began at 0."""
    names = [one.labels.get("sidecar_id", "") for one in page.samples if one.name == _SIDECAR]
    if names and names[0] and names[0] != target.sidecar:
        if target.sidecar:
            target.values = dict.fromkeys(target.values, 0.0)
        target.sidecar = names[0]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
