"""What a sidecar counts of its learning side; a part of `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import generate_latest

__all__ = ["LearningMetrics"]


class LearningMetrics:
    """Families in a registry of their own (attnroute.learning.LearningEvents)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._failures = self._counter(
            "window_failures",
            "Windows that nothing was learned from: `error`, or `lost` to endpoint sets or classes "
            "that changed too often.",
            "service",
            "reason",
        )
        self._dropped = self._counter(
            "window_cells_dropped",
            "Sums of a request class at an endpoint that cannot be true and were left out.",
            "service",
        )
        self._published = self._counter(
            "scores_published", "Score tables that the data plane took.", "service"
        )
        self._unpublished = self._counter(
            "scores_failures",
            "Score tables that it did not get: `error`, or `stale_epoch` where endpoints or "
            "classes had just changed.",
            "service",
            "reason",
        )
        self._connected = self._gauge(
            "fleet_connected",
            "1 while the trainer sends updates for the service, else 0.",
            "service",
        )
        self._sidecars = self._gauge(
            "fleet_sidecars", "Sidecars that call the service, as the trainer last said.", "service"
        )
        self._updates = self._counter("fleet_updates", "Updates of the trainer.", "service")
        self._fleet_failures = self._counter(
            "fleet_failures",
            "Streams to the trainer that ended: the gRPC status, `silent`, `gap` (an update was "
            "missing), `malformed` or `protocol`.",
            "service",
            "reason",
        )

    def learning_begins(self, service: str) -> None:
        """An alert needs the series before the first time."""
        for reason in ("error", "lost"):
            self._failures.labels(service, reason)
        self._dropped.labels(service)
        self._published.labels(service)
        for reason in ("error", "stale_epoch"):
            self._unpublished.labels(service, reason)

    def scores_published(self, service: str) -> None:
        """The data plane goes by new scores."""
        self._published.labels(service).inc()

    def scores_failed(self, service: str, reason: str) -> None:
        """It goes by those before."""
        self._unpublished.labels(service, reason).inc()

    def window_failed(self, service: str, reason: str) -> None:
        """A window was of no use."""
        self._failures.labels(service, reason).inc()

    def cells_dropped(self, service: str, count: int) -> None:
        """Cells of a window were left out."""
        self._dropped.labels(service).inc(count)

    def learning_gone(self, service: str) -> None:
        """Drops the series of a service that is not learned from any more."""
        for family in (self._failures, self._dropped, self._published, self._unpublished):
            family.remove_by_labels({"service": service})

    def fleet_connected(self, service: str, *, connected: bool) -> None:
        """The trainer sends updates, or does not any more."""
        self._connected.labels(service).set(connected)
        self._updates.labels(service)
        self._sidecars.labels(service)

    def fleet_updated(self, service: str, sidecars: int) -> None:
        """An update came."""
        self._updates.labels(service).inc()
        self._sidecars.labels(service).set(sidecars)

    def fleet_failed(self, service: str, reason: str) -> None:
        """A stream ended."""
        self._fleet_failures.labels(service, reason).inc()

    def fleet_gone(self, service: str) -> None:
        """Drops the series of an exchange that has ended."""
        for family in (self._connected, self._sidecars, self._updates, self._fleet_failures):
            family.remove_by_labels({"service": service})

    def render(self) -> bytes:
        """The families as text, format 0.0.4."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"attnroute_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"attnroute_{name}", text, labels, registry=self._registry)
