"""Scrapes played through the table: what was known at each, and what came next.

The same sums, the same table, the same features as in a sidecar, one scrape at a time. A sample is
the matrices as of one scrape with the numbers of the scrape after it, which neither the table nor
the network has seen: the pair that the gate judges by, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from attnroute.features.extract import Matrices, extract
from attnroute.features.facts import Facts
from attnroute.features.fast import FastSums, spread_weight
from attnroute.features.ledger import LEFT_OUT, Ledger
from attnroute.features.table import (
    CONCURRENCY_COLUMNS,
    Array,
    Attribution,
    ConcurrencyLearner,
    EndpointWindow,
    Index,
    Sums,
    TableParameters,
    add_cells,
    attribute,
    estimate,
    kinds_of,
)
from attnroute.features.window import BUCKETS
from attnroute.train.scrapes import Scrape

__all__ = ["Replay", "Sample", "samples"]

CLASSES_MAX = 1024
ENDPOINTS_MAX = 20_000
_ERRORS_S = 10.0
_PRUNE_SCRAPES = 60
_RATE_MEMORY = 0.5


@dataclass(frozen=True)
class Sample:
    """Features as of a scrape, and the scrape after it; C classes, E endpoints in one order."""

    matrices: Matrices
    calls: Array
    """[C, E], successes of the next scrape."""
    x_s: Array
    """[C, E], their service time."""
    buckets: Array
    """[C, BUCKETS]."""
    wait_s: Array
    """[E], mean wait of a call in the next scrape."""
    rate: Array
    """[C], calls a second, an average that halves each scrape."""
    concurrency: Array
    """[E]."""
    mean_s: float
    """g."""
    at_s: float


class Replay:
    """One service's table, as scrapes build it."""

    def __init__(self, parameters: TableParameters | None = None) -> None:
        self._parameters = parameters or TableParameters()
        self._ledger = Ledger("table", classes_max=CLASSES_MAX, endpoints_max=ENDPOINTS_MAX)
        self._fast = FastSums(self._parameters.decay_s)
        self._learner = ConcurrencyLearner(0)
        self._entered_s: dict[str, float] = {}
        self._errors: dict[str, tuple[float, float]] = {}
        self._rate: dict[str, float] = {}
        self._mean_s = self._parameters.mean_service_start_s
        self._class_mean_s: dict[str, float] = {}
        self._scrapes = 0

    def take(self, scrape: Scrape) -> tuple[Facts, Array]:
        """Takes in a scrape; returns what is known after it, of its endpoints and of every class
        that has been called of late, and the classes' rates, [C] calls a second."""
        attribution = attributed(scrape)
        ledger, memory_s = self._ledger, self._parameters.decay_s
        columns, restarted = ledger.columns(scrape.endpoints, scrape.started_s, scrape.at_s, "any")
        rows = ledger.rows(scrape.classes)
        ledger.decay(math.exp(-scrape.length_s / memory_s))
        sums = ledger.layer("table")
        weight = spread_weight(scrape.length_s, memory_s)
        at, known = columns[scrape.cells.endpoint], columns != LEFT_OUT
        kept = at != LEFT_OUT
        sums.add(
            rows[scrape.cells.request_class][kept],
            at[kept],
            attribution.x_s[kept],
            scrape.cells.calls[kept],
            weight,
        )
        sums.add_endpoints(
            columns[known], attribution.busy_s[known], attribution.calls[known], weight
        )
        self._fast.look(sums, scrape.at_s, restarted)
        for column in restarted:
            self._entered_s[ledger.endpoints[column]] = scrape.at_s
        for address in scrape.endpoints:
            self._entered_s.setdefault(address, scrape.at_s - scrape.length_s)
        self._learn_concurrency(scrape, attribution, columns, restarted)
        self._note_rates(scrape)
        facts = self._facts(scrape, sums, columns)
        self._scrapes += 1
        if self._scrapes % _PRUNE_SCRAPES == 0:
            self._prune(scrape)
        return facts, np.array([self._rate.get(name, 0.0) for name in facts.classes])

    def _facts(self, scrape: Scrape, sums: Sums, columns: Index) -> Facts:
        ledger = self._ledger
        called = sums.den.sum(axis=1) > 1e-2
        rows = np.flatnonzero(called)
        # What is left out has no place in the sums; its own row would be a guess.
        columns = columns[columns != LEFT_OUT]
        names = {name: place for place, name in enumerate(scrape.endpoints)}
        endpoints = tuple(ledger.endpoints[column] for column in columns)
        own = np.array([names[name] for name in endpoints], dtype=np.intp)
        ages = np.array([scrape.at_s - self._entered_s.get(name, -math.inf) for name in endpoints])
        young = np.zeros(len(ledger.endpoints), dtype=bool)
        young[columns] = ages < self._parameters.young_s
        table = estimate(sums, ledger.kinds(), young, self._mean_s, self._parameters)
        self._mean_s = table.mean_s
        self._class_mean_s = dict(zip(ledger.classes, table.class_mean_s.tolist(), strict=True))
        classes = tuple(ledger.classes[row] for row in rows)
        at = np.ix_(rows, columns)

        def part(whole: Sums) -> Sums:
            return Sums(whole.num_s[at], whole.den[at], whole.busy_s[columns], whole.calls[columns])

        _, first = np.unique(kinds_of(classes), return_index=True)
        learned = np.ones(len(ledger.endpoints))
        learned[: self._learner.endpoints] = self._learner.learned
        reported = scrape.concurrency[own]
        chosen = type(table)(
            table.mean_s,
            table.class_mean_s[rows],
            table.endpoint_factor[columns],
            table.kind_ratio[np.ix_(ledger.kinds()[rows[first]], columns)],
            table.cost_s[at],
            table.mean_service_s[columns],
        )
        return Facts(
            classes=classes,
            endpoints=endpoints,
            sums=part(sums),
            table=chosen,
            fast=part(self._fast.fast),
            recent=part(self._fast.recent),
            utilization=scrape.utilization[own],
            inflight=scrape.inflight[own],
            error_share=np.array([self._error_share(name) for name in endpoints]),
            age_s=ages,
            rtt_s=np.nan_to_num(scrape.rtt_s[own]),
            concurrency=np.where(reported > 0, reported, learned[columns]),
            # All sidecars together have no zone; it is told by the endpoints' own labels.
            zone_match=np.full(len(endpoints), np.nan),
            labels=tuple(scrape.labels[place] for place in own),
            usable=np.ones(len(endpoints), dtype=bool),
        )

    def _error_share(self, endpoint: str) -> float:
        errors, answers = self._errors.get(endpoint, (0.0, 0.0))
        return errors / answers if answers > 0 else 0.0

    def _note_rates(self, scrape: Scrape) -> None:
        calls = np.bincount(scrape.cells.request_class, scrape.cells.calls, len(scrape.classes))
        now = dict(zip(scrape.classes, (calls / scrape.length_s).tolist(), strict=False))
        for name in self._rate.keys() | now.keys():
            old = self._rate.get(name, now.get(name, 0.0))
            self._rate[name] = _RATE_MEMORY * old + (1 - _RATE_MEMORY) * now.get(name, 0.0)
        size = len(scrape.endpoints)
        left = math.exp(-scrape.length_s / _ERRORS_S)
        failed = np.bincount(scrape.cells.endpoint, scrape.errors, size)
        answers = failed + np.bincount(scrape.cells.endpoint, scrape.cells.calls, size)
        for place, name in enumerate(scrape.endpoints):
            errors, total = self._errors.get(name, (0.0, 0.0))
            self._errors[name] = (
                errors * left + float(failed[place]),
                total * left + float(answers[place]),
            )

    def _learn_concurrency(
        self, scrape: Scrape, attribution: Attribution, columns: Index, restarted: list[int]
    ) -> None:
        size, had = len(self._ledger.endpoints), self._learner.endpoints
        if size != had:
            self._learner.resize(np.arange(had), size)
        for column in restarted:
            self._learner.forget(column)
        means = np.array([self._class_mean_s.get(name, self._mean_s) for name in scrape.classes])
        cells, known = scrape.cells, columns != LEFT_OUT
        expected = np.bincount(
            cells.endpoint, means[cells.request_class] * cells.calls, len(columns)
        )
        calls = attribution.calls
        served_s = attribution.latency_s - calls * np.nan_to_num(scrape.rtt_s)
        met = scrape.inflight * calls
        # The page for training has neither utilization nor rates: those rows stay 0, unknown.
        told = np.stack((calls, served_s, expected[: len(columns)], met, calls, met))
        part = np.zeros((CONCURRENCY_COLUMNS, size))
        part[: len(told), columns[known]] = told[:, known]
        self._learner.observe(part)

    def _prune(self, scrape: Scrape) -> None:
        kept = self._ledger.prune(set(scrape.classes), set(scrape.endpoints))
        if kept is not None:
            rows, columns = kept
            self._fast.arrange(rows, columns)
            self._learner.resize(columns[columns < self._learner.endpoints], len(columns))
        alive = set(self._ledger.endpoints)
        for known in (self._entered_s, self._errors):
            for gone in known.keys() - alive:
                del known[gone]
        for gone in self._rate.keys() - set(self._ledger.classes):
            del self._rate[gone]


def attributed(scrape: Scrape) -> Attribution:
    """Service times of a scrape, by rules (a) and (c): nothing in it speaks of busy time."""
    size = len(scrape.endpoints)
    return attribute(
        scrape.cells,
        EndpointWindow(scrape.rtt_s, scrape.concurrency, np.full(size, np.nan), np.zeros(size)),
    )


def sample_of(facts: Facts, rate: Array, coming: Scrape) -> Sample:
    """Facts, and what came next of their classes and endpoints; what is new in it is left out."""
    attribution = attributed(coming)
    rows = {name: row for row, name in enumerate(facts.classes)}
    columns = {name: column for column, name in enumerate(facts.endpoints)}
    row = np.array([rows.get(name, -1) for name in coming.classes], dtype=np.intp)
    column = np.array([columns.get(name, -1) for name in coming.endpoints], dtype=np.intp)
    at = row[coming.cells.request_class], column[coming.cells.endpoint]
    known = (at[0] >= 0) & (at[1] >= 0)
    shape = (len(facts.classes), len(facts.endpoints))
    calls, x_s, buckets = np.zeros(shape), np.zeros(shape), np.zeros((shape[0], BUCKETS))
    add_cells(calls, at[0][known], at[1][known], coming.cells.calls[known])
    add_cells(x_s, at[0][known], at[1][known], np.maximum(attribution.x_s[known], 0.0))
    np.add.at(buckets, row[row >= 0], coming.buckets[row >= 0])
    wait_s = np.zeros(shape[1])
    wait_s[column[column >= 0]] = attribution.wait_s[column >= 0]
    return Sample(
        matrices=extract(facts),
        calls=calls,
        x_s=x_s,
        buckets=buckets,
        wait_s=wait_s,
        rate=rate,
        concurrency=facts.concurrency,
        mean_s=facts.table.mean_s,
        at_s=coming.at_s,
    )


def samples(
    scrapes: Iterable[Scrape], parameters: TableParameters | None = None
) -> Iterator[Sample]:
    """A sample for every scrape but the first, of one service, in their order."""
    replay = Replay(parameters)
    before: tuple[Facts, Array] | None = None
    for scrape in scrapes:
        if before is not None and before[0].classes and before[0].endpoints:
            yield sample_of(*before, scrape)
        before = replay.take(scrape)
