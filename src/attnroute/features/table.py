"""The bookkeeping table: how long a request class takes on an endpoint, without queueing.

Once a window (1 s) the sums of finished calls become service times (`attribute`), are added to sums
that decay (`Sums`) and give the table (`estimate`): S0 per class and endpoint, the endpoint's mean
sbar, and by `ConcurrencyLearner` how many calls an endpoint works on at a time. A cell that has
seen few calls leans on its class's mean, its endpoint's speed and how the endpoint does with the
class's kind, so a new class or endpoint starts near the truth. No network, no randomness, no clock:
time comes as the length of a window. The same code runs in the sidecar for its own traffic, in the
trainer for the fleet and in the simulator. Formulas, units and examples: docs/model.md.

Arrays are float64; C classes, E endpoints, n cells that changed. Seconds everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

__all__ = [
    "CONCURRENCY_COLUMNS",
    "OTHER",
    "Attribution",
    "Cells",
    "ConcurrencyLearner",
    "ConcurrencyParameters",
    "EndpointWindow",
    "Estimate",
    "Sums",
    "TableParameters",
    "add_cells",
    "attribute",
    "estimate",
    "kind_of",
    "kinds_of",
]

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

OTHER = "other"
"""The class that all calls share for which there is no class of their own."""


@dataclass(frozen=True)
class ConcurrencyParameters:
    """Constants of `ConcurrencyLearner`."""

    windows: int = 120
    windows_min: int = 6
    """Below so many c is 1."""
    calls_min: float = 20.0
    """Windows are joined until they hold so many calls."""
    slack: float = 1.25
    """Up to so many times its idle value v counts as unhurried."""
    saturated: float = 0.95
    """Reported utilization beyond which a window says nothing."""
    quiet: float = 0.85
    """The same where rates are reported: up to there little of the latency is waiting."""


@dataclass(frozen=True)
class TableParameters:
    """Constants of the table. The defaults are those that the evaluation in docs/model.md names."""

    decay_s: float = 10.0
    """Time constant of the sums: after it they weigh 1/e."""
    mean_service_start_s: float = 0.02
    """g before any data."""
    cell_prior_calls: float = 8.0
    """So many calls' worth a cell leans on its class, endpoint and kind."""
    kind_prior_calls: float = 2.0
    """So many calls' worth an endpoint's ratio for a kind leans on 1; infinity switches it off."""
    endpoint_prior_calls: float = 5.0
    """So many calls' worth an endpoint's factor leans on 1; infinity switches it off."""
    mean_prior_calls: float = 5.0
    """So many calls' worth an endpoint's own mean leans on the fleet's times its factor."""
    class_floor: float = 0.01
    """A class mean is at least this share of g."""
    cell_floor: float = 0.05
    """S0 is at least this share of its class mean."""
    young_s: float = 30.0
    young_calls: float = 3.0
    young_factor: float = 3.0
    """An endpoint younger than `young_s` with fewer decayed calls than `young_calls` is taken to be
    so many times slower: a cold start must not draw the fleet. 1 switches it off."""
    concurrency: ConcurrencyParameters = field(default_factory=ConcurrencyParameters)


@dataclass(frozen=True)
class Cells:
    """Sums of one window over the successes of a (class, endpoint), only of cells that changed."""

    request_class: Index
    endpoint: Index
    calls: Array
    latency_s: Array
    service_samples: Array
    """Number of reported service times."""
    service_s: Array
    """Their sum."""
    estimated_s: Array
    """Sum over answers of (latency - rtt)/max(1, (n' + 1)/c), rule (c)."""

    def __len__(self) -> int:
        return len(self.calls)

    def sound(self) -> npt.NDArray[np.bool_]:
        """[n]: whose numbers can be true. NaN is not zero, and one cell that is wrong must not take
        the others with it."""
        good = self.calls >= 0
        for column in (self.latency_s, self.service_samples, self.service_s):
            good &= np.isfinite(column) & (column >= 0)
        good &= np.isfinite(self.calls) & np.isfinite(self.estimated_s)
        return good

    def only(self, keep: npt.NDArray[np.bool_]) -> Cells:
        """These cells, [n]."""
        if keep.all():
            return self
        return Cells(**{column.name: getattr(self, column.name)[keep] for column in fields(self)})


@dataclass(frozen=True)
class EndpointWindow:
    """What a window says of endpoints: float64[E] each."""

    rtt_s: Array
    """NaN before the first measurement."""
    concurrency: Array
    """Calls an endpoint works on at a time, where configured or reported; NaN where unknown."""
    utilization: Array
    """Sum over the reports that carry the busy share of `concurrency`; NaN without any."""
    rps: Array
    """Sum of reported rates over the same reports; 0 without any."""


@dataclass(frozen=True)
class Attribution:
    """Service times of a window.

    x_s: float64[n], summed over a cell's calls; busy_s, calls, wait_s: float64[E], the window's
    service time, its successes and the mean wait of a call in the queue.
    """

    x_s: Array
    busy_s: Array
    calls: Array
    latency_s: Array
    wait_s: Array


def attribute(cells: Cells, endpoints: EndpointWindow) -> Attribution:
    """Splits latency into network, queue and service (docs/model.md, "Service time").

    (a) where at least half of a cell's calls came with a reported service time, by these; (b) for
    an endpoint without such a cell whose reports carry rate and utilization, by its busy time;
    (c) else by the estimate made for every answer.
    """
    size = len(endpoints.rtt_s)
    at = cells.endpoint
    rtt_s = np.where(np.isfinite(endpoints.rtt_s), np.maximum(endpoints.rtt_s, 0.0), 0.0)
    called = cells.calls > 0
    reported = called & (cells.service_samples * 2 >= cells.calls)
    samples = np.where(reported, cells.service_samples, 1.0)
    x_s = np.where(reported, cells.calls * cells.service_s / samples, cells.estimated_s)
    x_s = np.where(called, x_s, 0.0)

    calls = _by_endpoint(at, cells.calls, size)
    latency_s = _by_endpoint(at, cells.latency_s, size)
    served_s = latency_s - calls * rtt_s
    per_call = np.where(calls > 0, 1.0 / np.maximum(calls, 1.0), 0.0)

    by_busy = _by_endpoint(at, reported.astype(np.float64), size) == 0
    by_busy &= (endpoints.rps > 0) & np.isfinite(endpoints.utilization)
    by_busy &= np.isfinite(endpoints.concurrency) & (endpoints.concurrency > 0)
    if by_busy.any():
        ratio = np.where(by_busy, endpoints.utilization, 0.0) / np.where(
            by_busy, endpoints.rps, 1.0
        )
        known = np.where(by_busy, endpoints.concurrency, 0.0)
        busy_b = np.maximum(0.0, np.minimum(calls * known * ratio, served_s))
        wait_b = np.maximum(0.0, (served_s - busy_b) * per_call)
        x_b = cells.latency_s - cells.calls * (rtt_s + wait_b)[at]
        x_s = np.where(by_busy[at], x_b, x_s)
    else:
        busy_b = wait_b = np.zeros(size)
    x_sum_s = _by_endpoint(at, x_s, size)
    return Attribution(
        x_s=x_s,
        busy_s=np.where(by_busy, busy_b, np.maximum(0.0, x_sum_s)),
        calls=calls,
        latency_s=latency_s,
        wait_s=np.where(by_busy, wait_b, np.maximum(0.0, (served_s - x_sum_s) * per_call)),
    )


def _by_endpoint(at: Index, values: Array, size: int) -> Array:
    found: Array = np.bincount(at, weights=values, minlength=size).astype(np.float64)
    return found[:size]


def add_cells(into: Array, row: Index, column: Index, values: Array) -> None:
    """Adds values to cells of a matrix; of a cell that stands there several times all."""
    flat = np.bincount(row * into.shape[1] + column, weights=values, minlength=into.size)
    into += flat.reshape(into.shape)


@dataclass
class Sums:
    """Decayed sums: service seconds and calls per cell, busy seconds and calls per endpoint."""

    num_s: Array
    den: Array
    busy_s: Array
    calls: Array

    @classmethod
    def empty(cls, classes: int, endpoints: int) -> Sums:
        """Sums of nothing: [C, E] and [E]."""
        cell, row = (classes, endpoints), (endpoints,)
        return cls(np.zeros(cell), np.zeros(cell), np.zeros(row), np.zeros(row))

    def decay(self, factor: float) -> None:
        """Multiplies everything; factor e^(-dt/decay_s), 0 to 1."""
        for column in (self.num_s, self.den, self.busy_s, self.calls):
            column *= factor

    def add(
        self, request_class: Index, endpoint: Index, x_s: Array, calls: Array, weight: float = 1.0
    ) -> None:
        """Adds cells of a window; weight below 1 where the window is older than now. A cell may
        stand there several times."""
        add_cells(self.num_s, request_class, endpoint, x_s * weight)
        add_cells(self.den, request_class, endpoint, calls * weight)

    def add_endpoints(
        self, endpoint: Index, busy_s: Array, calls: Array, weight: float = 1.0
    ) -> None:
        """Adds endpoint sums of a window."""
        np.add.at(self.busy_s, endpoint, busy_s * weight)
        np.add.at(self.calls, endpoint, calls * weight)

    def plus(self, other: Sums) -> Sums:
        """The sums of both, of the same shape."""
        return Sums(
            self.num_s + other.num_s,
            self.den + other.den,
            self.busy_s + other.busy_s,
            self.calls + other.calls,
        )

    def forget_endpoint(self, endpoint: int) -> None:
        """Drops what was known of an endpoint: another process answers there now."""
        self.num_s[:, endpoint] = self.den[:, endpoint] = 0.0
        self.busy_s[endpoint] = self.calls[endpoint] = 0.0

    def is_empty(self) -> bool:
        """Whether no call was ever added."""
        return not bool(self.calls.any())


@dataclass(frozen=True)
class Estimate:
    """The table: what a call takes, without queueing, in seconds."""

    mean_s: float
    """g, of the fleet."""
    class_mean_s: Array
    """cm, [C]."""
    endpoint_factor: Array
    """f, [E]: an endpoint's time over the fleet's for the same calls."""
    kind_ratio: Array
    """r, [M, E]: an endpoint's time for a kind over what its factor says."""
    cost_s: Array
    """S0, [C, E]."""
    mean_service_s: Array
    """sbar, [E]."""


def estimate(
    sums: Sums,
    kinds: Index,
    young: npt.NDArray[np.bool_],
    mean_before_s: float,
    parameters: TableParameters = TableParameters(),
) -> Estimate:
    """The table as the sums have it (docs/model.md, "The table").

    kinds: [C], the kind of every class, 0 to M-1, every one taken. young: [E], endpoints younger
    than `young_s`. mean_before_s: g of the last window, kept while nothing is in the sums.
    """
    p = parameters
    total_busy_s, total_calls = float(sums.busy_s.sum()), float(sums.calls.sum())
    g = total_busy_s / total_calls if total_busy_s > 0 and total_calls > 0 else mean_before_s

    class_calls, class_s = sums.den.sum(axis=1), sums.num_s.sum(axis=1)
    seen = class_calls > 0
    means = class_s / np.where(seen, class_calls, 1.0)
    class_mean_s = np.where(seen, np.maximum(means, p.class_floor * g), g)

    expected_s = sums.den * class_mean_s[:, None]
    factor = _ratio(sums.busy_s, expected_s.sum(axis=0), p.endpoint_prior_calls * g)
    expected_s *= factor
    ratio = _kind_ratio(sums, expected_s, kinds, g, p)

    prior_s = class_mean_s[:, None] * factor * ratio[kinds]
    cost_s = (sums.num_s + p.cell_prior_calls * prior_s) / (sums.den + p.cell_prior_calls)
    cost_s = np.maximum(cost_s, np.maximum(p.cell_floor * class_mean_s, 1e-6)[:, None])
    leaning = p.mean_prior_calls
    mean_service_s = (sums.busy_s + leaning * g * factor) / (sums.calls + leaning)
    if not sums.is_empty():
        slow = np.where(young & (sums.calls < p.young_calls), p.young_factor, 1.0)
        cost_s *= slow
        mean_service_s *= slow
    return Estimate(g, class_mean_s, factor, ratio, cost_s, mean_service_s)


def _ratio(measured_s: Array, expected_s: Array, prior_s: Array | float) -> Array:
    """(measured + prior)/(expected + prior); 1 where the prior is infinite."""
    if np.isinf(prior_s).all():
        return np.ones_like(expected_s)
    return (measured_s + prior_s) / (expected_s + prior_s)


def _kind_ratio(sums: Sums, expected_s: Array, kinds: Index, g: float, p: TableParameters) -> Array:
    """r, [M, E]; expected_s: [C, E], den cm f."""
    if len(kinds) == 0:
        return np.ones((0, expected_s.shape[1]))
    # Sums over the classes of a kind: rows in the order of kinds, then one pass over each run.
    order = np.argsort(kinds, kind="stable")
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    measured_s = np.maximum(0.0, np.add.reduceat(sums.num_s[order], starts, axis=0))
    kind_expected_s = np.add.reduceat(expected_s[order], starts, axis=0)
    kind_calls = np.add.reduceat(sums.den[order], starts, axis=0)
    seen = kind_calls > 0
    mean_s = np.where(seen, kind_expected_s / np.where(seen, kind_calls, 1.0), g)
    return _ratio(measured_s, kind_expected_s, p.kind_prior_calls * mean_s)


def kind_of(request_class: str) -> str:
    """A class's kind: its canonical string without the message size.

    `/shop.Cart/Get;bytes=1024..16384;x-tier=gold` gives `/shop.Cart/Get;x-tier=gold`.
    """
    parts = request_class.split(";")
    if len(parts) > 1 and parts[1].startswith("bytes="):
        del parts[1]
    return ";".join(parts)


def kinds_of(classes: Sequence[str]) -> Index:
    """[C]: the kinds of classes, numbered from 0 in order of appearance."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(kind_of(one), len(numbers)) for one in classes], dtype=np.intp
    )


def _median(values: Array) -> float:
    """numpy's own loads its masked arrays first, a tenth of a second and 2 MB."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float(ordered[middle - 1] + ordered[middle]) / 2.0


CONCURRENCY_COLUMNS = 9


@dataclass
class ConcurrencyLearner:
    """How many calls an endpoint works on at a time, from latency against calls in flight.

    While an endpoint has fewer calls than that in it, a call takes as long as in an idle one. Kept
    per endpoint are the last 120 windows of at least 20 calls (shorter ones are joined): v, latency
    over what the calls' classes take, and the mean number in flight. The answer is the largest
    number in flight at which v was within 1.25 of its idle value (P10). Too high costs much (16 for
    2: 115 ms mean instead of 24), too low little, so it starts at 1 and at most doubles a window.

    v alone would run away: with a c that is too high the queue stays in the service times, hence in
    what the classes are thought to take, and v looks idle at any load. So c is never above what
    does not hang on c: an endpoint that works on c calls at a time has at least c times its
    utilization u in it. By Little's law it has rate times latency W in it, hence c is at most
    b = rate W/u, with rate and u from the same reports; where little waits, b is hardly more than
    c. Of that the P10 counts, of the windows with u up to 0.85: beyond, a queue looks like workers.
    Where no rate is reported, b is the mean number met by others over u, and its P10 counts; u is
    taken to be 1 where it is not reported either.
    """

    endpoints: int
    parameters: ConcurrencyParameters = field(default_factory=ConcurrencyParameters)
    learned: Array = field(init=False)
    _v: npt.NDArray[np.float32] = field(init=False)
    _inflight: npt.NDArray[np.float32] = field(init=False)
    _bound: npt.NDArray[np.float32] = field(init=False)
    _by_rate: npt.NDArray[np.bool_] = field(init=False)
    _count: Index = field(init=False)
    _next: Index = field(init=False)
    _joined: Array = field(init=False)

    def __post_init__(self) -> None:
        self.learned = np.ones(self.endpoints)
        shape = (self.endpoints, self.parameters.windows)
        self._v = np.full(shape, np.inf, dtype=np.float32)
        self._inflight = np.zeros(shape, dtype=np.float32)
        self._bound = np.full(shape, np.inf, dtype=np.float32)
        self._by_rate = np.zeros(self.endpoints, dtype=bool)
        self._count = np.zeros(self.endpoints, dtype=np.intp)
        self._next = np.zeros(self.endpoints, dtype=np.intp)
        # Of the window that is being joined: what `observe` is given.
        self._joined = np.zeros((CONCURRENCY_COLUMNS, self.endpoints))

    def resize(self, keep: Index, endpoints: int) -> None:
        """Keeps these endpoints, in this order, and makes room for `endpoints` in all."""
        fresh = ConcurrencyLearner(endpoints, self.parameters)
        size = len(keep)
        for name in ("learned", "_v", "_inflight", "_bound", "_by_rate", "_count", "_next"):
            getattr(fresh, name)[:size] = getattr(self, name)[keep]
        fresh._joined[:, :size] = self._joined[:, keep]
        self.__dict__.update(fresh.__dict__)

    def forget(self, endpoint: int) -> None:
        """Starts again for an endpoint: another process answers there now."""
        self.learned[endpoint] = 1.0
        self._v[endpoint] = self._bound[endpoint] = np.inf
        self._count[endpoint] = self._next[endpoint] = 0
        self._joined[:, endpoint] = 0.0

    def observe(self, window: Array) -> Array:
        """Takes in a window; returns what is learned, [E], at least 1.

        window: [CONCURRENCY_COLUMNS, E]: successes; their latency without rtt; sum of their
        classes' means as of before this window; then `ServiceWindow.load`.
        """
        self._joined += np.where(np.isfinite(window).all(axis=0), window, 0.0)
        full = np.flatnonzero(self._joined[0] >= self.parameters.calls_min)
        if len(full) == 0:
            return self.learned
        full = full[(self._joined[2, full] > 0) & (self._joined[4, full] > 0)]
        calls, served, expected, in_flight, seen, met, busy, told, rate = self._joined[:, full]
        self._joined[:, self._joined[0] >= self.parameters.calls_min] = 0.0
        place = self._next[full]
        self._v[full, place] = served / expected
        self._inflight[full, place] = np.ceil(in_flight / seen)
        utilization = np.where(told > 0, busy / np.where(told > 0, told, 1.0), 1.0)
        by_rate = (told > 0) & (rate > 0)
        most = np.where(by_rate, self.parameters.quiet, self.parameters.saturated)
        telling = (told == 0) | ((utilization > 0) & (utilization <= most))
        inside = np.where(by_rate, rate / np.where(by_rate, told, 1.0) * served / calls, met / seen)
        self._bound[full, place] = np.where(
            telling, inside / np.where(telling, utilization, 1.0), np.inf
        )
        self._by_rate[full] = by_rate
        self._next[full] = (place + 1) % self.parameters.windows
        self._count[full] = np.minimum(self._count[full] + 1, self.parameters.windows)
        self._learn(full)
        return self.learned

    def _learn(self, changed: Index) -> None:
        ready = np.flatnonzero(self._count >= self.parameters.windows_min)
        changed = changed[self._count[changed] >= self.parameters.windows_min]
        if len(changed) == 0:
            return
        # Places that are not filled yet hold infinity and sort behind the rest.
        ordered = np.sort(self._v[ready], axis=1)
        idle = ordered[np.arange(len(ready)), self._count[ready] // 10]
        fleet_idle = _median(idle.astype(np.float64))
        base = idle[np.searchsorted(ready, changed)]
        unhurried = self._v[changed] <= self.parameters.slack * base[:, None]
        most = np.where(unhurried, self._inflight[changed], 0.0).max(axis=1)
        bounds = np.sort(self._bound[changed], axis=1)
        telling = np.isfinite(bounds).sum(axis=1)
        p = self.parameters
        least = np.where(telling >= p.windows_min, telling // 10, p.windows - 1)
        quantile = np.where(self._by_rate[changed], least, self._count[changed] // 10)
        bound = bounds[np.arange(len(changed)), quantile]
        now = np.clip(np.minimum(most, np.floor(bound)), 1.0, 2.0 * self.learned[changed])
        # Slow whatever is in it, or busy all the time: neither says how many it works on.
        slow = (base > self.parameters.slack * fleet_idle) | np.isinf(bound)
        self.learned[changed] = np.where(slow, np.minimum(now, self.learned[changed]), now)
