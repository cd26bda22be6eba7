"""The tick: once a second windows from the data plane into tables, the page for training and the
fleet exchange.

A service that fails costs itself one tick. Nothing here waits, and no call waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnroute.clock import Clock
from attnroute.features.view import SharedTable
from attnroute.features.window import ServiceWindow
from attnroute.logs import fields
from attnroute.scoring.service import ServiceScores
from attnroute.scoring.windows import WindowReader, WindowSource
from attnroute.telemetry.training import EndpointLabels

__all__ = ["LoopEvents", "ScoreLoop", "ServicePlan", "WindowSink"]

logger = logging.getLogger(__name__)


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


class LoopEvents(Protocol):
    """What is counted."""

    def learning_begins(self, service: str) -> None: ...
    def window_failed(self, service: str, reason: str) -> None: ...
    def cells_dropped(self, service: str, count: int) -> None: ...
    def learning_gone(self, service: str) -> None: ...


@dataclass(frozen=True)
class ServicePlan:
    """What the policy says of a service that is learned from."""

    concurrency: float | None
    sidecars: int


class ScoreLoop:
    """Made and used on one event loop. announce: a window of that service waits to be sent."""

    def __init__(
        self,
        plane: WindowSource,
        clock: Clock,
        events: LoopEvents,
        sink: WindowSink,
        announce: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._events = events
        self._sink = sink
        self._announce = announce
        self._reader = WindowReader(plane)
        self._plans: dict[str, ServicePlan] = {}
        self._services: dict[str, ServiceScores] = {}

    def configure(self, plans: Mapping[str, ServicePlan]) -> None:
        """Follows these services and no others; one that stays keeps what it has learned."""
        for name in self._plans.keys() - plans.keys():
            self._reader.forget(name)
            del self._services[name]
            self._events.learning_gone(name)
        for name, plan in plans.items():
            scores = self._services.get(name)
            if scores is None:
                self._services[name] = ServiceScores(
                    sidecars=plan.sidecars,
                    now_s=self._clock.now_s(),
                    concurrency=plan.concurrency,
                )
                self._events.learning_begins(name)
                continue
            scores.configured = plan.concurrency
            if not scores.shared.trainer:
                scores.shared.sidecars = plan.sidecars
        self._plans = dict(plans)
        self._sink.keep(plans)

    def tables(self) -> Mapping[str, SharedTable]:
        """The services' sums, for the fleet exchange."""
        return {name: scores.shared for name, scores in self._services.items()}

    def window(self) -> None:
        """Ends a window of every service."""
        for name in self._plans:
            try:
                self._end_window(name)
            except Exception:
                self._events.window_failed(name, "error")
                logger.exception(
                    "a window failed; the next tick goes on", extra=fields(service=name)
                )

    def _end_window(self, name: str) -> None:
        taken = self._reader.take(name)
        if taken is None:
            self._events.window_failed(name, "lost")
            return
        scores = self._services[name]
        dropped = scores.dropped_cells
        scores.observe(taken.layout, taken.window, taken.usable, self._clock.now_s())
        if scores.dropped_cells > dropped:
            self._events.cells_dropped(name, scores.dropped_cells - dropped)
        self._sink.add(name, taken.window, taken.inflight_s, taken.labels)
        self._announce(name)
