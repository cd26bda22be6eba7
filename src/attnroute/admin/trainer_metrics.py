"""What the trainer counts, and its page `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest

__all__ = ["TrainerMetrics"]

FLEET_LIMITS = (
    "fleet.max_streams",
    "fleet.max_services",
    "fleet.max_classes",
    "fleet.max_endpoints",
)
REGISTRY_LIMITS = ("registry.max_streams", "training.max_memory")
PUBLISH_REFUSALS = ("too_soon", "follower", "frozen", "conflict", "disk")
FLEET_DROPS = ("malformed", "unknown", "again", "cell")


class TrainedCycle(Protocol):
    """What attnroute.train.messages.Trained says; a higher row."""

    @property
    def seconds(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def gain(self) -> float: ...
    @property
    def gate(self) -> float: ...
    @property
    def collapsed(self) -> bool: ...
    @property
    def rebalanced(self) -> bool: ...
    @property
    def rss_bytes(self) -> int: ...


class TrainerMetrics:
    """Families in a registry of their own."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauge("build_info", "1, labelled with the running version.", "version").labels(
            version
        ).set(1)
        self._windows = self._counter(
            "fleet_windows", "Windows of sidecars that were taken into the sums.", "service"
        )
        self._dropped = self._counter(
            "fleet_dropped",
            "What sidecars sent and was not used: `malformed`, `unknown` messages, a window that "
            "came `again`, a `cell` that cannot be true (once a second at most).",
            "service",
            "reason",
        )
        self._limits = self._counter(
            "limit_hits", "Times a limit of the trainer's file was reached.", "limit"
        )
        for limit in (*FLEET_LIMITS, *REGISTRY_LIMITS):
            self._limits.labels(limit)
        self._sidecars = self._gauge(
            "fleet_sidecars", "Sidecars with calls to the service in the last 3 s.", "service"
        )
        self._classes = self._gauge("fleet_classes", "Request classes with sums.", "service")
        self._endpoints = self._gauge("fleet_endpoints", "Endpoints with sums.", "service")
        self._looks = self._counter(
            "source_looks",
            "Times the source was looked at: `good`, `partial` (some of it failed), `failed`.",
            "source",
            "result",
        )
        self._failures = self._counter(
            "source_failures", "What went wrong at the source, by kind.", "source", "reason"
        )
        self._unused = self._counter(
            "samples_dropped", "Pages, series and values that were not used, by why.", "reason"
        )
        self._stale = self._gauge(
            "source_stale", "1 while the source has said nothing for 3 intervals, else 0."
        )
        self._calls = self._counter("observed_calls", "Successful calls seen through the source.")
        self._targets = self._gauge("source_sidecars", "Sidecars that the source showed of late.")
        self._add_registry()
        self._add_training()

    def _add_training(self) -> None:
        self._cycles = self._counter("training_cycles", "Cycles of training.")
        self._cycle_s = self._gauge("training_cycle_seconds", "What the last cycle took.")
        self._loss = self._gauge("training_loss", "Mean loss of the last cycle.")
        self._gain = self._gauge(
            "training_gain",
            "Of the model over the table on the last look, before it was trained on, nats a call.",
        )
        self._gate = self._gauge(
            "training_gate_weight", "The weight that a sidecar's gate would give the model."
        )
        self._collapsed = self._gauge(
            "training_collapsed",
            "1 while the model's probabilities have fallen onto few endpoints.",
        )
        self._rebalancings = self._counter(
            "training_rebalancings", "Cycles that pulled them apart again."
        )
        self._memory = self._gauge("training_memory_bytes", "Of the training process.")
        self._lost_looks = self._counter(
            "training_dropped_looks", "Looks that it was too busy for."
        )
        self._restarts = self._counter(
            "training_restarts", "Times it was started again, by why it had ended.", "reason"
        )
        for reason in ("exit", "memory"):
            self._restarts.labels(reason)
        self._candidates = self._counter(
            "training_candidates",
            "Bundles that passed their gates (`good`) or did not (`refused`).",
            "result",
        )
        for result in ("good", "refused"):
            self._candidates.labels(result)

    def _add_registry(self) -> None:
        self._streams = self._gauge("registry_streams", "Channels watched and files sent now.")
        self._sent = self._counter("registry_sent_bytes", "Bytes of bundles that were sent.")
        self._leads = self._gauge(
            "publisher_leads", "1 while this trainer is the one that publishes, else 0."
        )
        self._published = self._counter("bundles_published", "Bundles that were published.")
        self._refusals = self._counter(
            "publish_refusals",
            "Bundles that were not published, and channels that did not move: `too_soon`, another "
            "trainer publishes (`follower`), the channel is `frozen`, somebody else was faster "
            "(`conflict`), the `disk` or the directory does not take it.",
            "reason",
        )
        for reason in PUBLISH_REFUSALS:
            self._refusals.labels(reason)
        self._moves = self._counter(
            "channel_moves", "Times a channel was moved: `published`, `promoted`, `taken` back.",
            "channel",
            "reason",
        )  # fmt: skip
        self._pointing = self._gauge(
            "model_info", "1 for the version that a channel points at.", "channel", "version"
        )

    def fleet_window(self, service: str) -> None:
        """attnroute.fleet.server.FleetEvents."""
        self._windows.labels(service).inc()

    def fleet_dropped(self, service: str, reason: str) -> None:
        """attnroute.fleet.server.FleetEvents."""
        self._dropped.labels(service, reason).inc()

    def fleet_limit(self, limit: str) -> None:
        """attnroute.fleet.server.FleetEvents."""
        self._limits.labels(limit).inc()

    def fleet_state(self, service: str, *, sidecars: int, classes: int, endpoints: int) -> None:
        """attnroute.fleet.server.FleetEvents."""
        self._windows.labels(service)
        for reason in FLEET_DROPS:
            self._dropped.labels(service, reason)
        self._sidecars.labels(service).set(sidecars)
        self._classes.labels(service).set(classes)
        self._endpoints.labels(service).set(endpoints)

    def fleet_gone(self, service: str) -> None:
        """Drops the series of a service that no sidecar calls any more."""
        for family in (self._windows, self._sidecars, self._classes, self._endpoints):
            family.remove_by_labels({"service": service})
        self._dropped.remove_by_labels({"service": service})

    def source_looked(self, source: str, result: str, failures: Mapping[str, int]) -> None:
        """The source was looked at."""
        for known in ("good", "partial", "failed"):
            self._looks.labels(source, known)
        self._looks.labels(source, result).inc()
        for reason, count in failures.items():
            self._failures.labels(source, reason).inc(count)

    def samples_dropped(self, reason: str, count: int) -> None:
        """Something that the source showed was not used."""
        self._unused.labels(reason).inc(count)

    def source_state(self, *, calls: float, sidecars: int) -> None:
        """What the last look brought."""
        self._calls.inc(calls)
        self._targets.set(sidecars)

    def registry_limit(self, limit: str) -> None:
        """attnroute.registry.server.RegistryEvents."""
        self._limits.labels(limit).inc()

    def registry_streams(self, open_streams: int) -> None:
        """attnroute.registry.server.RegistryEvents."""
        self._streams.set(open_streams)

    def registry_sent(self, sent_bytes: int) -> None:
        """attnroute.registry.server.RegistryEvents."""
        self._sent.inc(sent_bytes)

    def training_done(self, trained: TrainedCycle) -> None:
        """attnroute.train.process.TrainingEvents."""
        self._cycles.inc()
        self._cycle_s.set(trained.seconds)
        self._loss.set(trained.loss)
        self._gain.set(trained.gain)
        self._gate.set(trained.gate)
        self._collapsed.set(trained.collapsed)
        self._rebalancings.inc(trained.rebalanced)
        self._memory.set(trained.rss_bytes)

    def training_dropped(self) -> None:
        """attnroute.train.process.TrainingEvents."""
        self._lost_looks.inc()

    def training_ended(self, reason: str) -> None:
        """attnroute.train.process.TrainingEvents."""
        self._restarts.labels(reason).inc()

    def trainer_limit(self, limit: str) -> None:
        """attnroute.train.process.TrainingEvents."""
        self._limits.labels(limit).inc()

    def candidate_judged(self, *, good: bool) -> None:
        """A bundle was made, or refused by its gates."""
        self._candidates.labels("good" if good else "refused").inc()

    def bundle_published(self, version: str) -> None:  # noqa: ARG002 # of no use as a label
        """attnroute.publishing.PublishEvents."""
        self._published.inc()

    def publish_refused(self, reason: str) -> None:
        """attnroute.publishing.PublishEvents."""
        self._refusals.labels(reason).inc()

    def channel_moved(self, channel: str, version: str, why: str) -> None:
        """attnroute.publishing.PublishEvents."""
        self._moves.labels(channel, why).inc()
        self._pointing.remove_by_labels({"channel": channel})
        self._pointing.labels(channel, version).set(1)

    def publisher_leads(self, *, leads: bool) -> None:
        """attnroute.publishing.PublishEvents."""
        self._leads.set(leads)

    def watch_staleness(self, stale: Callable[[], bool]) -> None:
        """Asks at every scrape whether the source is stale."""
        self._stale.set_function(lambda: float(stale()))

    def render(self) -> bytes:
        """The families as text, format 0.0.4."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"attnroute_trainer_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"attnroute_trainer_{name}", text, labels, registry=self._registry)
