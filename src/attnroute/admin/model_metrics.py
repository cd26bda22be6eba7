"""What `/metrics` says of models and of scorers beside the table.

Read from their state when somebody scrapes: nothing here has to be kept in step. What a source of
bundles counts is the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from attnroute.rollout import ScorersState, SeatState

__all__ = ["ModelMetrics"]

STAGES = ("shadow", "canary", "serving")

_SEAT_COUNTERS: tuple[tuple[str, str, Callable[[SeatState], float]], ...] = (
    ("scorer_runs", "Scoring runs that were finished.", lambda seat: seat.runs),
    ("scorer_run_seconds", "What they took.", lambda seat: seat.took_s),
    (
        "scorer_runs_skipped",
        "Scoring runs that were not begun because one before was not over.",
        lambda seat: seat.skipped,
    ),
    (
        "scorer_runs_late",
        "Scoring runs that the tick did not wait for: they serve the next one.",
        lambda seat: seat.late,
    ),
    (
        "scorer_faults",
        "Scoring runs that failed, or gave values that cannot be true.",
        lambda seat: seat.faults,
    ),
    (
        "scorer_repaired_values",
        "Values that cannot be true, replaced by the table's.",
        lambda seat: seat.repaired,
    ),
    (
        "scorer_conflicts",
        "Scoring runs that contradict the table on more than a fifth of the traffic.",
        lambda seat: seat.conflicts,
    ),
    ("scorer_benchings", "How often it was benched for its faults.", lambda seat: seat.benched),
)


class ModelMetrics:
    """Families in a registry of their own (attnroute.registry.client.SourceEvents)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._connected = Gauge(
            "attnroute_registry_connected",
            "1 while bundles can be had from where the policy says, else 0.",
            registry=self._registry,
        )
        self._failures = self._counter(
            "registry_failures",
            "Times that the source of bundles failed: a gRPC status, `silent`, `malformed`, "
            "`disk`, `directory` or `ended`.",
            "reason",
        )
        self._fetched = self._counter("registry_fetched_bytes", "Bytes of bundles fetched.")

    def watch(self, state: Callable[[], ScorersState]) -> None:
        """Whose state is told."""
        self._registry.register(_States(state))

    def registry_connected(self, *, connected: bool) -> None:
        """The source can be reached, or not any more."""
        self._connected.set(connected)

    def registry_failed(self, reason: str) -> None:
        """It failed."""
        self._failures.labels(reason).inc()

    def registry_fetched(self, fetched_bytes: int) -> None:
        """Some of a bundle came."""
        self._fetched.inc(fetched_bytes)

    def bundle_refused(self, version: str, problem: str) -> None:
        """Counted with what else ends a bundle, in `attnroute_model_ends_total`."""

    def render(self) -> bytes:
        """The families as text, format 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"attnroute_{name}", text, labels, registry=self._registry)


class _States(Collector):
    def __init__(self, state: Callable[[], ScorersState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """prometheus_client.registry.Collector."""
        state = self._state()
        yield from _models(state)
        yield from _seats(state)

    def describe(self) -> Iterator[Metric]:
        """Nothing to compare names with before anything serves."""
        return iter(())


def _models(state: ScorersState) -> Iterator[Metric]:
    rollout = state.rollout
    info = GaugeMetricFamily(
        "attnroute_model_info",
        "1; the model that is in `shadow`, `canary` or `serving`.",
        labels=("version", "channel", "stage"),
    )
    for deployed in (rollout.serving, rollout.candidate):
        if deployed is not None:
            standing = deployed.standing
            info.add_metric((standing.version, state.channel, standing.stage), 1.0)
    yield info
    frozen = GaugeMetricFamily("attnroute_model_frozen", "1 while an operator keeps models as they "
                               "are.")  # fmt: skip
    frozen.add_metric((), float(rollout.frozen))
    yield frozen
    ends = CounterMetricFamily(
        "attnroute_model_ends",
        "Bundles that were refused or rolled back, by cause: `invalid`, `slow`, `gate`, `errors`, "
        "`no_gain`, `newer`, `channel`, `operator`, `policy`.",
        labels=("stage", "cause"),
    )
    for (stage, cause), count in sorted(rollout.ends.items()):
        ends.add_metric((stage, cause), count)
    yield ends


def _seats(state: ScorersState) -> Iterator[Metric]:
    labels = ("service", "scorer", "stage")
    weight = GaugeMetricFamily(
        "attnroute_model_gate_weight",
        "How far a scorer is trusted against the table, 0 to 1, by its gate.",
        labels=labels,
    )
    gain = GaugeMetricFamily(
        "attnroute_model_gate_gain",
        "gd of the gate: gain in likelihood over the table, nat a call.",
        labels=labels,
    )
    benched = GaugeMetricFamily(
        "attnroute_scorer_benched", "1 while it is not asked because of its faults.", labels=labels
    )
    counters = [
        CounterMetricFamily(f"attnroute_{name}", text, labels=labels)
        for name, text, _ in _SEAT_COUNTERS
    ]
    kept = GaugeMetricFamily(
        "attnroute_kv_cache_usage_ratio",
        "Encodings of endpoints kept over those that may be.",
        labels=("service", "stage"),
    )
    tables = [
        CounterMetricFamily(f"attnroute_kv_cache_{name}", text, labels=("service", "stage"))
        for name, text in (
            ("hits", "Endpoint encodings that were still there."),
            ("misses", "Endpoint encodings that were made."),
            ("evictions", "Endpoint encodings that made place for others."),
        )
    ]
    for seat in state.seats:
        names = (seat.service, seat.scorer, seat.stage)
        weight.add_metric(names, seat.weight)
        gain.add_metric(names, seat.gd)
        benched.add_metric(names, float(seat.on_bench))
        for family, (_, _, read) in zip(counters, _SEAT_COUNTERS, strict=True):
            family.add_metric(names, read(seat))
        if seat.kv is not None:
            where = (seat.service, seat.stage)
            kept.add_metric(where, seat.kv.usage)
            for family, value in zip(
                tables, (seat.kv.hits, seat.kv.misses, seat.kv.evicted), strict=True
            ):
                family.add_metric(where, value)
    yield from (weight, gain, benched, *counters, kept, *tables)
