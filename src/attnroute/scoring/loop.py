"""The tick: once a second windows from the data plane into tables, the page for training and the
fleet exchange, and for services that balance by them scores back to the data plane.

Scores are published once a second: when the fleet has spoken, and else at the end of a window. Both
would cost twice the CPU for half a second's news of one sidecar among many. A service that fails
costs itself one tick. Nothing here waits, and no call waits for it: what was published serves until
it is too old, and then the fallback does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnroute.clock import Clock
from attnroute.dataplane import StaleEpochError
from attnroute.features.table import TableParameters
from attnroute.features.view import SharedTable
from attnroute.features.window import ServiceWindow
from attnroute.logs import fields
from attnroute.scoring.arbiter import Arbiter
from attnroute.scoring.guardrail import GateParameters
from attnroute.scoring.service import Scores, ServiceScores
from attnroute.scoring.windows import WindowReader, WindowSource
from attnroute.telemetry.training import EndpointLabels

__all__ = [
    "LoopEvents", "ScoreLoop", "ScorePlane", "Seating", "ServicePlan", "WindowSink", "publish",
]  # fmt: skip

logger = logging.getLogger(__name__)


class ScorePlane(WindowSource, Protocol):
    """What the loop uses of the data plane."""

    def publish_scores(
        self,
        service: str,
        *,
        endpoint_epoch: int,
        class_epoch: int,
        cost_s: npt.NDArray[np.float32],
        table_cost_s: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
        probability: npt.NDArray[np.float32],
        mean_service_s: npt.NDArray[np.float32],
        concurrency: npt.NDArray[np.float32],
        sidecars: int,
        model: str,
    ) -> int: ...


class WindowSink(Protocol):
    """Who else takes windows (attnroute.telemetry.training.TrainingPage)."""

    def add(
        self,
        service: str,
        window: ServiceWindow,
        inflight_s: npt.NDArray[np.float64],
        labels: Sequence[EndpointLabels],
    ) -> None: ...
    def keep(self, services: Iterable[str]) -> None: ...


class Seating(Protocol):
    """Who seats scorers beside the table, and judges them after each tick."""

    def attach(self, service: str, arbiter: Arbiter) -> None: ...
    def detach(self, service: str) -> None: ...
    def step(self) -> None: ...


class LoopEvents(Protocol):
    """What is counted."""

    def learning_begins(self, service: str) -> None: ...
    def window_failed(self, service: str, reason: str) -> None: ...
    def cells_dropped(self, service: str, count: int) -> None: ...
    def scores_published(self, service: str) -> None: ...
    def scores_failed(self, service: str, reason: str) -> None: ...
    def learning_gone(self, service: str) -> None: ...


@dataclass(frozen=True)
class ServicePlan:
    """What the policy says of a service that is learned from. scored: whether its balancer goes by
    what is learned."""

    scored: bool
    concurrency: float | None
    sidecars: int
    own_zone: str = ""
    table: TableParameters = field(default_factory=TableParameters)
    gate: GateParameters = field(default_factory=GateParameters)


class ScoreLoop:
    """Made and used on one event loop. announce: a window of that service waits to be sent."""

    def __init__(
        self,
        plane: ScorePlane,
        clock: Clock,
        events: LoopEvents,
        sink: WindowSink,
        announce: Callable[[str], None],
        seating: Seating | None = None,
    ) -> None:
        self._seating = seating
        self._seated: set[str] = set()
        self._plane = plane
        self._clock = clock
        self._events = events
        self._sink = sink
        self._announce = announce
        self._reader = WindowReader(plane)
        self._plans: dict[str, ServicePlan] = {}
        self._services: dict[str, ServiceScores] = {}
        self._heard: dict[str, int] = {}
        """Updates of the fleet that what is published holds."""
        self._fresh: set[str] = set()
        """Services whose scores were published since their last window."""

    def configure(self, plans: Mapping[str, ServicePlan]) -> None:
        """Follows these services and no others; one that stays keeps what it has learned."""
        for name in self._plans.keys() - plans.keys():
            self._reader.forget(name)
            self._leave(name)
            del self._services[name]
            self._heard.pop(name, None)
            self._fresh.discard(name)
            self._events.learning_gone(name)
        for name, plan in plans.items():
            scores = self._services.get(name)
            if scores is None:
                self._services[name] = ServiceScores(
                    sidecars=plan.sidecars,
                    now_s=self._clock.now_s(),
                    concurrency=plan.concurrency,
                    own_zone=plan.own_zone,
                    parameters=plan.table,
                    gate=plan.gate,
                )
                self._events.learning_begins(name)
                continue
            scores.configured = plan.concurrency
            scores.follow(plan.table, plan.gate)
            scores.facts.own_zone = plan.own_zone
            if not scores.shared.trainer:
                scores.shared.sidecars = plan.sidecars
        self._plans = dict(plans)
        self._sink.keep(plans)
        for name, plan in plans.items():
            if not plan.scored:
                self._leave(name)
            elif self._seating is not None and name not in self._seated:
                self._seating.attach(name, self._services[name].arbiter)
                self._seated.add(name)

    def _leave(self, name: str) -> None:
        if self._seating is not None and name in self._seated:
            self._seating.detach(name)
            self._seated.discard(name)

    def tables(self) -> Mapping[str, SharedTable]:
        """The services' sums, for the fleet exchange."""
        return {name: scores.shared for name, scores in self._services.items()}

    def window(self) -> None:
        """Ends a window of every service, and publishes what it says."""
        for name in self._plans:
            try:
                self._end_window(name)
            except Exception:
                self._events.window_failed(name, "error")
                logger.exception(
                    "a window failed; the next tick goes on", extra=fields(service=name)
                )
        if self._seating is not None:
            self._seating.step()

    def fleet_spoke(self) -> None:
        """Publishes where the fleet has said something since the last time."""
        for name, plan in self._plans.items():
            updates = self._services[name].shared.updates
            if plan.scored and updates != self._heard.get(name, 0):
                self._publish(name)

    def _end_window(self, name: str) -> None:
        taken = self._reader.take(name)
        if taken is None:
            self._events.window_failed(name, "lost")
            return
        scores = self._services[name]
        dropped = scores.dropped_cells
        now_s = self._clock.now_s()
        scores.observe(taken.layout, taken.window, taken.usable, now_s, taken.attributes)
        if scores.dropped_cells > dropped:
            self._events.cells_dropped(name, scores.dropped_cells - dropped)
        self._sink.add(name, taken.window, taken.inflight_s, taken.labels)
        self._announce(name)
        if self._plans[name].scored and name not in self._fresh:
            self._publish(name)
        self._fresh.discard(name)

    def _publish(self, name: str) -> None:
        service = self._services[name]
        self._heard[name] = service.shared.updates
        try:
            scores = service.scores(self._clock.now_s())
            if scores is None or not scores.layout.endpoints:
                return
            publish(self._plane, name, scores)
        except StaleEpochError:
            # The set has just changed: the data plane carries the rows over by itself.
            self._events.scores_failed(name, "stale_epoch")
        except Exception:
            self._events.scores_failed(name, "error")
            logger.exception(
                "scoring failed; the scores before serve on", extra=fields(service=name)
            )
        else:
            self._fresh.add(name)
            self._events.scores_published(name)


def publish(plane: ScorePlane, service: str, scores: Scores) -> int:
    """Hands scores to the data plane; returns the table's epoch. Raises StaleEpochError."""
    return plane.publish_scores(
        service,
        endpoint_epoch=scores.layout.endpoint_epoch,
        class_epoch=scores.layout.class_epoch,
        cost_s=scores.cost_s,
        table_cost_s=scores.table_cost_s,
        spread=scores.spread,
        probability=scores.probability,
        mean_service_s=scores.mean_service_s,
        concurrency=scores.concurrency,
        sidecars=scores.sidecars,
        model=scores.model,
    )
