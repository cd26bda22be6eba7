"""The scores of one service: a window comes in, the table of what a call costs comes out.

In this order, once a window: the scorers are judged on it, then the table learns from it, with what
the fleet says, then every scorer is asked and the blend is what the picker goes by. Pure but for
the scorers: no socket, no clock, so the simulator plays the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from attnroute.features.table import (
    CONCURRENCY_COLUMNS,
    Array,
    Attribution,
    ConcurrencyLearner,
    Estimate,
    Index,
    TableParameters,
    attribute,
    estimate,
)
from attnroute.features.view import SharedTable
from attnroute.features.window import ServiceWindow
from attnroute.scoring.arbiter import Arbiter
from attnroute.scoring.base import Scorer, ScoringInput
from attnroute.scoring.facts import FactsKeeper, of_layout
from attnroute.scoring.guardrail import GateParameters

__all__ = ["Layout", "Scores", "ServiceScores"]

PRUNE_WINDOWS = 60


@dataclass(frozen=True)
class Layout:
    """What the rows and columns of a window are, as the data plane numbers them. Epochs are those
    of the data plane: what is published under them lands where it belongs or nowhere."""

    class_epoch: int
    endpoint_epoch: int
    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    ids: tuple[int, ...]
    """Of endpoints, unique in the process and never used again."""


@dataclass(frozen=True)
class Scores:
    """What is published: float32, [C, E] and [E], in the layout's order."""

    layout: Layout
    cost_s: npt.NDArray[np.float32]
    table_cost_s: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]
    probability: npt.NDArray[np.float32]
    mean_service_s: npt.NDArray[np.float32]
    concurrency: npt.NDArray[np.float32]
    sidecars: int
    model: str


@dataclass
class _InForce:
    """What was scored last, for the judgement of the window after it."""

    classes: dict[str, int]
    endpoints: dict[str, int]
    table_cost_s: Array


@dataclass
class _Local:
    """The last window's layout in the ledger's places."""

    layout: Layout
    rtt_s: Array
    usable: npt.NDArray[np.bool_]
    known_concurrency: Array
    rows: Index = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    columns: Index = field(default_factory=lambda: np.zeros(0, dtype=np.intp))


class ServiceScores:
    """concurrency: of every endpoint, where the policy knows it. sidecars: M until a trainer says
    otherwise. now_s: monotonic, as everywhere. own_zone: of the sidecar, empty where unknown."""

    def __init__(
        self,
        *,
        sidecars: int,
        now_s: float,
        concurrency: float | None = None,
        parameters: TableParameters | None = None,
        scorers: Sequence[Scorer] = (),
        own_zone: str = "",
        gate: GateParameters | None = None,
    ) -> None:
        self.parameters = parameters or TableParameters()
        self.shared = SharedTable(sidecars=sidecars, decay_s=self.parameters.decay_s, now_s=now_s)
        self.arbiter = Arbiter(scorers, gate)
        self.dropped_cells = 0
        self.estimate: Estimate | None = None
        self.configured = concurrency
        self._mean_s = self.parameters.mean_service_start_s
        self._learner = ConcurrencyLearner(0, self.parameters.concurrency)
        self._entered_s: dict[int, float] = {}
        self._from_start: frozenset[int] | None = None
        """Endpoints that were there before the first window: how long is not known."""
        self.facts = FactsKeeper(self.parameters.decay_s, own_zone)
        self._restarted: list[int] = []
        """Columns, since the last scores."""
        self._local: _Local | None = None
        self._in_force: _InForce | None = None
        self._windows = 0

    def follow(self, parameters: TableParameters, gate: GateParameters) -> None:
        """Goes by other constants from now on. What was learned stays, but for the concurrency of
        endpoints where that is learned otherwise."""
        if parameters.concurrency != self.parameters.concurrency:
            self._learner = ConcurrencyLearner(
                len(self.shared.ledger.endpoints), parameters.concurrency
            )
        self.parameters = parameters
        self.shared.decay_s = parameters.decay_s
        self.arbiter.follow(gate)

    def observe(
        self,
        layout: Layout,
        window: ServiceWindow,
        usable: npt.NDArray[np.bool_],
        now_s: float,
        attributes: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Takes in the window that just ended. window: in the layout's order; usable: [E];
        attributes: [E], labels of endpoints, `zone` among them, where known."""
        window, dropped = window.sound()
        self.dropped_cells += dropped
        known = np.where(
            (window.concurrency > 0) & np.isfinite(window.concurrency), window.concurrency, np.nan
        )
        if self.configured is not None:
            known = np.full(len(known), self.configured)
        attribution = attribute(window.cells, window.seen(known))
        self._judge(window, attribution)

        means = self._class_means_s(window)
        _, columns, restarted = self.shared.observe(window, attribution, now_s)
        self._enter(layout, restarted, columns, now_s)
        if self.arbiter.needs_facts:
            self.facts.observe(window, attributes, now_s)
        self._learn_concurrency(window, attribution, columns, restarted, means)
        self._local = _Local(layout, window.rtt_s, usable, known)
        self._windows += 1
        if self._windows % PRUNE_WINDOWS == 0:
            self._prune(layout)

    def scores(self, now_s: float) -> Scores | None:
        """The table and its blend now; None before the first window."""
        local = self._local
        if local is None:
            return None
        ledger = self.shared.ledger
        # Classes without calls, endpoints without windows: the table has a row for each.
        local.rows = ledger.rows(local.layout.classes)
        local.columns, _ = ledger.columns(
            local.layout.endpoints, np.zeros(len(local.layout.endpoints)), now_s, "never"
        )
        sums = self.shared.sums(now_s)
        young = np.zeros(len(ledger.endpoints), dtype=bool)
        for index, identity in enumerate(local.layout.ids):
            age_s = now_s - self._entered_s.get(identity, -np.inf)
            young[local.columns[index]] = age_s < self.parameters.young_s
        self.estimate = table = estimate(sums, ledger.kinds(), young, self._mean_s, self.parameters)
        self._mean_s = table.mean_s
        at = np.ix_(local.rows, local.columns)
        given = ScoringInput(
            classes=local.layout.classes,
            endpoints=local.layout.endpoints,
            table_cost_s=table.cost_s[at],
            calls=sums.den[at],
            mean_service_s=table.mean_service_s[local.columns],
            endpoint_factor=table.endpoint_factor[local.columns],
            class_mean_s=table.class_mean_s[local.rows],
            rtt_s=self._rtt_s(local),
            concurrency=self._concurrency(local),
            usable=local.usable,
            split=self.shared.split(now_s),
        )
        if self.arbiter.needs_facts:
            self.facts.short.look(sums, now_s, self._restarted)
            places = (local.rows, local.columns)
            own = of_layout(table, given.classes, ledger.kinds(), places)
            ages_s = self._ages_s(local.layout, now_s)
            facts = self.facts.facts(given, own, places, sums, ages_s)
            given = replace(given, facts=facts)
        self._restarted = []
        return self._blended(local.layout, given, now_s)

    def _ages_s(self, layout: Layout, now_s: float) -> Array:
        """[E]: since an endpoint entered the set or was restarted; infinite where it was there
        before this process."""
        old = self._from_start or frozenset()
        return np.array(
            [
                np.inf if one in old else now_s - self._entered_s.get(one, -np.inf)
                for one in layout.ids
            ]
        )

    def _blended(self, layout: Layout, given: ScoringInput, now_s: float) -> Scores:
        blended = self.arbiter.blend(given, now_s)
        self._in_force = _InForce(
            {name: index for index, name in enumerate(layout.classes)},
            {name: index for index, name in enumerate(layout.endpoints)},
            given.table_cost_s,
        )
        probability = blended.probability.astype(np.float32)
        return Scores(
            layout=layout,
            cost_s=_float32(blended.cost_s),
            table_cost_s=_float32(given.table_cost_s),
            spread=_float32(blended.spread),
            probability=_float32(probability / probability.sum(axis=1, keepdims=True)),
            mean_service_s=_float32(given.mean_service_s),
            concurrency=_float32(given.concurrency),
            sidecars=self.shared.sidecars,
            model=blended.model,
        )

    def _judge(self, window: ServiceWindow, attribution: Attribution) -> None:
        """Gates the scorers on cells that were scored before the window began."""
        force = self._in_force
        if force is None or not self.arbiter.seats or len(window.cells) == 0:
            return
        rows = np.array([force.classes.get(name, -1) for name in window.classes], dtype=np.intp)
        columns = np.array(
            [force.endpoints.get(name, -1) for name in window.endpoints], dtype=np.intp
        )
        row, column = rows[window.cells.request_class], columns[window.cells.endpoint]
        known = (row >= 0) & (column >= 0)
        at = (row[known], column[known])
        self.arbiter.judge(
            window.cells.calls[known], attribution.x_s[known], force.table_cost_s[at], at
        )

    def _class_means_s(self, window: ServiceWindow) -> Array:
        """[C] of the window: class means as of before it."""
        rows = self.shared.ledger.rows(window.classes)
        if self.estimate is None:
            return np.full(len(rows), self._mean_s)
        known = self.estimate.class_mean_s
        return np.where(rows < len(known), known[np.minimum(rows, len(known) - 1)], self._mean_s)

    def _enter(self, layout: Layout, restarted: list[int], columns: Index, now_s: float) -> None:
        again = set(restarted)
        self._restarted += restarted
        if self._from_start is None and layout.ids:
            self._from_start = frozenset(layout.ids)
        for index, identity in enumerate(layout.ids):
            if int(columns[index]) in again:
                self._from_start = (self._from_start or frozenset()) - {identity}
                self.facts.forget(layout.endpoints[index])
            if identity not in self._entered_s or int(columns[index]) in again:
                self._entered_s[identity] = now_s
        for gone in self._entered_s.keys() - set(layout.ids):
            del self._entered_s[gone]

    def _learn_concurrency(
        self,
        window: ServiceWindow,
        attribution: Attribution,
        columns: Index,
        restarted: list[int],
        means_s: Array,
    ) -> None:
        size, had = len(self.shared.ledger.endpoints), self._learner.endpoints
        if size != had:
            self._learner.resize(np.arange(had), size)
        for column in restarted:
            self._learner.forget(column)
        cells = window.cells
        rtt_s = np.where(np.isfinite(window.rtt_s), np.maximum(window.rtt_s, 0.0), 0.0)
        expected_s = np.bincount(
            cells.endpoint, means_s[cells.request_class] * cells.calls, len(columns)
        )
        part = np.zeros((CONCURRENCY_COLUMNS, size))
        part[:, columns] = np.stack(
            (
                attribution.calls,
                attribution.latency_s - attribution.calls * rtt_s,
                expected_s[: len(columns)],
                *window.load(),
            )
        )
        self._learner.observe(part)

    def _concurrency(self, local: _Local) -> Array:
        """c: configured, else reported, else what the fleet has learned, else this sidecar."""
        fleet = np.array(
            [self.shared.fleet_concurrency(address) for address in local.layout.endpoints]
        )
        learned = np.ones(len(self.shared.ledger.endpoints))
        learned[: self._learner.endpoints] = self._learner.learned
        found = np.where(np.isfinite(fleet), fleet, learned[local.columns])
        known = local.known_concurrency
        return np.maximum(1.0, np.where(np.isfinite(known), known, found))

    def _rtt_s(self, local: _Local) -> Array:
        """Own round trips, else those that others of the zone measure, else 0."""
        fleet = np.array([self.shared.fleet_rtt_s(address) for address in local.layout.endpoints])
        rtt_s = np.where(np.isfinite(local.rtt_s), local.rtt_s, fleet)
        return np.where(np.isfinite(rtt_s), np.maximum(rtt_s, 0.0), 0.0)

    def _prune(self, layout: Layout) -> None:
        kept = self.shared.prune(set(layout.classes), set(layout.endpoints))
        if kept is None:
            return
        rows, columns = kept
        self._learner.resize(columns, len(columns))
        self.facts.short.arrange(rows, columns)
        self._restarted = []
        if self.estimate is not None:
            # Only class means are read from an estimate that is past.
            means = self.estimate.class_mean_s
            kept_means = means[rows[rows < len(means)]]
            self.estimate = Estimate(self.estimate.mean_s, kept_means, *([np.zeros(0)] * 4))


def _float32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)
