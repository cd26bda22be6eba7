"""Follows the source of every service and hands its sets to the data plane.

Each service has one resolver and one task. A set that the data plane refuses is a failure of the
source like any other: the last good set stays, the reason is kept for admin and `/readyz`, and the
next set is tried as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from attnroute.dataplane import DataPlaneError
from attnroute.discovery.base import EndpointSet, Resolved, Resolver, encode_endpoints
from attnroute.logs import fields

__all__ = ["EndpointSink", "SourceEvents", "SourcePlan", "SourceStatus", "Sources"]

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 5.0
"""Wait before a resolver that broke is started again; only a fault of ours gets there."""


class EndpointSink(Protocol):
    """Where sets go."""

    def apply_endpoints(self, service: str, endpoints: bytes) -> int: ...


class SourceEvents(Protocol):
    """What is counted."""

    def source_updated(self, service: str, source: str) -> None: ...
    def source_failed(self, service: str, source: str) -> None: ...
    def source_gone(self, service: str, source: str) -> None: ...


@dataclass(frozen=True)
class SourcePlan:
    """Which source a service has.

    identity: equal as long as the running resolver may go on; make: builds a new one.
    """

    identity: object
    make: Callable[[], Resolver]


@dataclass(frozen=True)
class SourceStatus:
    """What a source said last."""

    name: str
    error: str
    """Empty while the newest set is in force."""


@dataclass
class _Source:
    service: str
    plan: SourcePlan
    resolver: Resolver
    error: str = ""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Sources:
    """The running resolvers; made and used on one event loop."""

    def __init__(
        self,
        sink: EndpointSink,
        events: SourceEvents,
        on_change: Callable[[], None],
        *,
        restart_delay_s: float = RESTART_DELAY_S,
    ) -> None:
        """on_change is called after each answer of a source."""
        self._restart_delay_s = restart_delay_s
        self._sink = sink
        self._events = events
        self._on_change = on_change
        self._sources: dict[str, _Source] = {}

    def replace(self, plans: Mapping[str, SourcePlan]) -> None:
        """Stops what is not in `plans` or changed in it, starts what is new.

        The set of a service whose source changed stays until the new source has one.
        """
        for service, source in list(self._sources.items()):
            plan = plans.get(service)
            if plan is None or plan.identity != source.plan.identity:
                del self._sources[service]
                _cancel(source)
                self._events.source_gone(service, source.resolver.name)
        for service, plan in plans.items():
            if service not in self._sources:
                source = _Source(service, plan, plan.make())
                self._sources[service] = source
                source.task = asyncio.create_task(self._follow(source), name=f"source {service}")

    async def first_answers(self, timeout_s: float) -> None:
        """Returns when every source gave a set or a failure, or when the time is over."""
        waiting = [source.answered.wait() for source in self._sources.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*waiting), timeout_s)
        except TimeoutError:
            silent = [s.service for s in self._sources.values() if not s.answered.is_set()]
            logger.warning("endpoint sources are slow", extra=fields(services=silent))

    def status(self, service: str) -> SourceStatus:
        """The state of that service's source; of an unknown service an empty one."""
        source = self._sources.get(service)
        if source is None:
            return SourceStatus("", "")
        return SourceStatus(source.resolver.name, source.error)

    async def close(self) -> None:
        """Stops every resolver; the sets stay."""
        sources = list(self._sources.values())
        self._sources.clear()
        for source in sources:
            _cancel(source)
        tasks = [source.task for source in sources if source.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, source: _Source) -> None:
        while True:
            try:
                async for resolved in source.resolver.watch():
                    self._take(source, resolved)
            except Exception as error:
                logger.exception("endpoint source broke", extra=fields(service=source.service))
                self._failed(source, f"the source broke: {error!r}")
            else:
                return
            await asyncio.sleep(self._restart_delay_s)

    def _take(self, source: _Source, resolved: Resolved) -> None:
        if not isinstance(resolved, EndpointSet):
            self._failed(source, resolved.reason)
            return
        try:
            epoch = self._sink.apply_endpoints(source.service, encode_endpoints(resolved))
        except DataPlaneError as error:
            self._failed(source, ": ".join(str(part) for part in error.args))
            return
        source.error = ""
        self._events.source_updated(source.service, source.resolver.name)
        logger.info(
            "endpoints in force",
            extra=fields(
                service=source.service, endpoints=len(resolved.endpoints), endpoint_epoch=epoch
            ),
        )
        source.answered.set()
        self._on_change()

    def _failed(self, source: _Source, reason: str) -> None:
        source.error = reason
        self._events.source_failed(source.service, source.resolver.name)
        logger.warning(
            "endpoint source failed; the last good set stays",
            extra=fields(service=source.service, source=source.resolver.name, reason=reason),
        )
        source.answered.set()
        self._on_change()


def _cancel(source: _Source) -> None:
    if source.task is not None:
        source.task.cancel()
