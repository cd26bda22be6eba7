"""The learning side of a sidecar, put together: the tick, the page for training, the fleet
exchange.

A service is learned from where its policy has `request_class` or balances by `learned`. Windows end
once a second on the monotonic clock; a process that was stopped does not make up for the seconds
that it missed, its next window is only longer. What the fleet says is published when it comes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from attnroute.clock import Clock
from attnroute.fleet.client import FleetClient, FleetClientEvents, Identity
from attnroute.fleet.messages import ModelReport
from attnroute.parameters import gate_parameters, table_parameters
from attnroute.policy.balancers import Learned
from attnroute.policy.learning import GateKeys, TableKeys
from attnroute.policy.load import LoadedPolicy
from attnroute.policy.schema import Service
from attnroute.scoring.loop import LoopEvents, ScoreLoop, ScorePlane, Seating, ServicePlan
from attnroute.telemetry.training import PageLimits, TrainingPage

__all__ = ["WINDOW_S", "Learning", "LearningEvents"]

logger = logging.getLogger(__name__)

WINDOW_S = 1.0


class LearningEvents(LoopEvents, FleetClientEvents, Protocol):
    """What is counted."""


class Learning:
    """Made and used on one event loop. ticked: told how long a tick took, in seconds. seating:
    who seats scorers beside the table. models: what the fleet is told of a service's gates."""

    def __init__(
        self,
        plane: ScorePlane,
        loaded: LoadedPolicy,
        clock: Clock,
        events: LearningEvents,
        identity: Identity,
        ticked: Callable[[float], None],
        seating: Seating | None = None,
        models: Callable[[str], Sequence[ModelReport]] = lambda _: (),
    ) -> None:
        self._clock = clock
        self._events = events
        self._identity = identity
        self._ticked = ticked
        self._models = models
        self._page = TrainingPage(
            sidecar_id=identity.sidecar_id.hex(),
            zone="",
            version=identity.version,
            limits=PageLimits(loaded.policy.fleet.training_series),
        )
        self._loop = ScoreLoop(plane, clock, events, self._page, self._announce, seating)
        self._fleet: FleetClient | None = None
        self._spoke = asyncio.Event()

    def page(self) -> bytes:
        """The page for training; may be called from a worker thread."""
        return self._page.render()

    async def configure(self, loaded: LoadedPolicy, page: str) -> None:
        """Brings a policy into force; what stays keeps what it has learned. page: the bound
        address of the HTTP pages."""
        policy = loaded.policy
        learned = {
            name: service
            for name, service in policy.services.items()
            if service.request_class is not None or service.balancer.type == "learned"
        }
        zones = {
            name: service.locality.own_zone
            for name, service in learned.items()
            if service.locality is not None
        }
        self._loop.configure(
            {
                name: _plan(service, policy.fleet.sidecars, zones.get(name, ""))
                for name, service in learned.items()
            }
        )
        self._page.configure(
            # A sidecar is in one place; the page says it if all its services agree.
            zone=next(iter(zones.values())) if len(set(zones.values())) == 1 else "",
            limits=PageLimits(policy.fleet.training_series),
        )
        if self._fleet is not None and self._fleet.address != policy.fleet.trainer:
            await self._fleet.close()
            self._fleet = None
        if policy.fleet.trainer is not None:
            if self._fleet is None:
                self._fleet = FleetClient(
                    policy.fleet.trainer,
                    replace(
                        self._identity, metrics_port=_reachable_port(page, policy.fleet.trainer)
                    ),
                    self._clock,
                    self._events,
                    heard=self._spoke.set,
                    models=self._models,
                )
            self._fleet.replace(self._loop.tables(), zones)

    async def run(self) -> None:
        """Ends a window each second and publishes what the fleet says, for ever."""
        next_s = self._clock.now_s() + WINDOW_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, next_s - self._clock.now_s())):
                    await self._spoke.wait()
            except TimeoutError:
                next_s = max(next_s + WINDOW_S, self._clock.now_s())
                self._timed(self._loop.window)
            else:
                self._spoke.clear()
                self._timed(self._loop.fleet_spoke)

    def _timed(self, work: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        work()
        self._ticked(time.perf_counter() - began_s)

    async def close(self) -> None:
        """Ends the exchange."""
        if self._fleet is not None:
            await self._fleet.close()
            self._fleet = None

    def _announce(self, service: str) -> None:
        if self._fleet is not None:
            self._fleet.announce(service)


def _plan(service: Service, sidecars: int, own_zone: str) -> ServicePlan:
    learned = service.balancer if isinstance(service.balancer, Learned) else None
    return ServicePlan(
        learned is not None,
        service.concurrency,
        sidecars,
        own_zone,
        table_parameters(TableKeys() if learned is None else learned.table),
        gate_parameters(GateKeys() if learned is None else learned.gate),
    )


def _reachable_port(page: str, trainer: str) -> int:
    """The port of the HTTP pages if the trainer can reach them: it is on this machine, or they are
    not on loopback. 0 if not."""
    host, _, port = page.rpartition(":")
    if page.startswith("unix:"):
        return 0
    near = trainer.startswith("unix:") or _is_loopback(trainer.rpartition(":")[0])
    return int(port) if near or not _is_loopback(host) else 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
