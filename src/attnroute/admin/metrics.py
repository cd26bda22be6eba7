"""What Python itself counts, and the one exposition that `/metrics` serves.

The data plane writes its own families; those here are about the control side: policy, sources,
tick, admin, process. Names never overlap, so the page is the one text after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from attnroute.discovery.base import FailureKind

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The one format there is, whatever a scraper prefers."""

RELOAD_RESULTS = ("applied", "rejected", "unchanged")
"""Values of `result` in attnroute_policy_reloads_total."""

# A tick takes well under a millisecond when little changed; the upper end shows a stalled process.
_TICK_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class ControlMetrics:
    """Families of the control side, in a registry of their own."""

    def __init__(self, version: str) -> None:
        # Times at which a series was made would go out as families of their own, `..._created`.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._build = self._gauge("build_info", "1, labelled with the running version.", "version")
        self._build.labels(version).set(1)
        self._declare_policy()
        self._declare_discovery()
        self._declare_out_of_band()
        self.tick_duration = Histogram(
            "attnroute_tick_duration_seconds",
            "Time one tick of the control loop took.",
            registry=self._registry,
            buckets=_TICK_BOUNDS_S,
        )
        self.admin_limit_hits = self._counter(
            "admin_limit_hits",
            "Calls of the admin API that a limit refused.",
            "limit",
        )
        self.admin_limit_hits.labels("admin_watches")
        self._watches = self._gauge("admin_watches", "Open WatchWeights and WatchPicks streams.")

    def watch_streams(self, read: Callable[[], int]) -> None:
        """Takes the number of open streams from `read` at every scrape."""
        self._watches.set_function(read)

    def policy_applied(self, sha256: str, generation: int, wall_s: float) -> None:
        """A policy came into force."""
        self._policy_info.clear()
        self._policy_info.labels(sha256).set(1)
        self._generation.set(generation)
        self._applied_at.set(wall_s)

    def policy_reloaded(self, result: str) -> None:
        """A reload ended with one of RELOAD_RESULTS."""
        self._reloads.labels(result).inc()
        self._rejected.set(1 if result == "rejected" else 0)

    def source_updated(self, service: str, source: str) -> None:
        """A source gave a set that the data plane took."""
        self._declare_source(service, source)
        self._updates.labels(service, source).inc()

    def source_failed(self, service: str, source: str, kind: FailureKind) -> None:
        """A source gave no set that counts; the last good one stays."""
        self._declare_source(service, source)
        self._errors.labels(service, source, kind).inc()

    def source_state(self, service: str, *, stale: bool) -> None:
        """Whether what is in force is older than what a source said last."""
        self._stale.labels(service).set(stale)

    def source_gone(self, service: str, source: str) -> None:
        """Drops the series of a source that is no longer used."""
        for family in (self._updates, self._errors):
            family.remove_by_labels({"service": service, "source": source})
        self._stale.remove_by_labels({"service": service})

    def spans(self, result: str, count: int) -> None:
        """Spans were `exported`, or have `failed`."""
        self._spans.labels(result).inc(count)

    def out_of_band_report(self, service: str) -> None:
        """An endpoint sent a load report between calls."""
        self._reports.labels(service).inc()

    def out_of_band_failure(self, service: str, reason: str) -> None:
        """A stream of such reports ended: the status, or `silent`."""
        self._report_failures.labels(service, reason).inc()

    def out_of_band_followed(self, service: str, followed: int, left_out: int) -> None:
        """How many endpoints are asked, and how many the limit leaves out."""
        self._reports.labels(service)
        self._followed.labels(service).set(followed)
        self._left_out.labels(service).set(left_out)

    def out_of_band_gone(self, service: str) -> None:
        """Drops the series of a service that asks for no such reports any more."""
        for family in (self._reports, self._report_failures, self._followed, self._left_out):
            family.remove_by_labels({"service": service})

    def _declare_source(self, service: str, source: str) -> None:
        """A source that never failed shows 0: an alert needs the series before the first time."""
        self._updates.labels(service, source)
        for kind in get_args(FailureKind):
            self._errors.labels(service, source, kind)

    def render(self) -> bytes:
        """The families as text, format 0.0.4."""
        return generate_latest(self._registry)

    def _declare_policy(self) -> None:
        self._policy_info = self._gauge(
            "policy_info", "1, labelled with the hash of the policy file in force.", "sha256"
        )
        self._generation = self._gauge(
            "policy_generation", "Number of policies that came into force since the start."
        )
        self._applied_at = self._gauge(
            "policy_applied_timestamp_seconds",
            "When the policy in force was applied, in Unix time.",
        )
        self._rejected = self._gauge(
            "policy_rejected", "1 while the newest policy file is not in force, else 0."
        )
        self._reloads = self._counter(
            "policy_reloads", "Reloads of the policy file by their result.", "result"
        )
        for result in RELOAD_RESULTS:
            self._reloads.labels(result)

        self._spans = self._counter(
            "spans", "Spans of calls, by whether the collector took them.", "result"
        )
        for result in ("exported", "failed"):
            self._spans.labels(result)

    def _declare_discovery(self) -> None:
        self._updates = self._counter(
            "discovery_updates", "Endpoint sets taken from a source.", "service", "source"
        )
        self._errors = self._counter(
            "discovery_errors",
            "Answers of a source that left the last good set in force: error, empty or refused.",
            "service",
            "source",
            "reason",
        )
        self._stale = self._gauge(
            "discovery_stale",
            "1 while the source of a service fails and its last good set serves, else 0.",
            "service",
        )

    def _declare_out_of_band(self) -> None:
        self._reports = self._counter(
            "out_of_band_reports", "Load reports that came between calls.", "service"
        )
        self._report_failures = self._counter(
            "out_of_band_failures",
            "Streams of such reports that ended, by gRPC status, or `silent`.",
            "service",
            "reason",
        )
        self._followed = self._gauge(
            "out_of_band_endpoints", "Endpoints that are asked for such reports.", "service"
        )
        self._left_out = self._gauge(
            "out_of_band_left_out",
            "Endpoints beyond `load_reports.out_of_band.max_endpoints`, which are not asked.",
            "service",
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"attnroute_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"attnroute_{name}", text, labels, registry=self._registry)


def join(parts: Iterable[bytes]) -> bytes:
    """One exposition of several; each part ends with a line break."""
    return b"".join(part if part.endswith(b"\n") or not part else part + b"\n" for part in parts)
