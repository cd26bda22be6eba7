"""Follows the sources of every service and hands their sets to the data plane, merged.

Each source has a resolver and a task of its own. Their newest good sets are merged, and a service
gets at most one set per `PUBLISH_INTERVAL_S`: what changes in between comes with the next one, so
that a burst of changes costs one snapshot. A set that the data plane refuses, or that names an
address of this process, is a failure of the source like any other: the last good set stays, the
reason is kept for admin and `/readyz`, and the next set is tried as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from attnroute.dataplane import DataPlaneError
from attnroute.discovery.base import (
    EndpointSet,
    FailureKind,
    Resolved,
    Resolver,
    encode_endpoints,
)
from attnroute.discovery.merge import merge
from attnroute.logs import fields

__all__ = ["EndpointSink", "SourceEvents", "SourcePlan", "SourceStatus", "Sources"]

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 5.0
"""Wait before a resolver that broke is started again; only a fault of ours gets there."""

PUBLISH_INTERVAL_S = 0.1
"""Least time between two sets of a service; after a quiet time a change goes out at once."""

PUBLISH_SHARE = 0.05
"""Share of the time that publishing may take: a set that takes long to build waits for more
changes, so that thousands of endpoints that come and go cost no more than this."""


class EndpointSink(Protocol):
    """Where sets go."""

    def apply_endpoints(self, service: str, endpoints: bytes) -> int: ...


class SourceEvents(Protocol):
    """What is counted."""

    def source_updated(self, service: str, source: str) -> None: ...
    def source_failed(self, service: str, source: str, kind: FailureKind) -> None: ...
    def source_state(self, service: str, *, stale: bool) -> None: ...
    def source_gone(self, service: str, source: str) -> None: ...


@dataclass(frozen=True)
class SourcePlan:
    """Which sources a service has.

    identity: equal as long as the running resolvers may go on; make: builds new ones, in the order
    in which they are merged.
    """

    identity: object
    make: Callable[[], Sequence[Resolver]]
    zone_label: str = ""
    """As for `merge.merge`."""


@dataclass(frozen=True)
class SourceStatus:
    """What the sources of a service said last."""

    name: str
    error: str
    """Empty while the newest set of each is in force."""


@dataclass
class _Part:
    """One source of a service."""

    resolver: Resolver
    in_force: EndpointSet | None = None
    newest: EndpointSet | None = None
    """Not in force yet."""
    error: str = ""
    failed_last: bool = False
    """The last answer was a failure: a set from before it does not clear the error."""
    answered: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.resolver.name


@dataclass
class _Source:
    """All sources of one service."""

    service: str
    plan: SourcePlan
    parts: list[_Part]
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Every part gave a set or a failure."""
    not_before_s: float = 0.0
    timer: asyncio.TimerHandle | None = None


class Sources:
    """The running resolvers; made and used on one event loop."""

    def __init__(
        self,
        sink: EndpointSink,
        events: SourceEvents,
        on_change: Callable[[], None],
        *,
        own: Container[str] = (),
        restart_delay_s: float = RESTART_DELAY_S,
        publish_interval_s: float = PUBLISH_INTERVAL_S,
    ) -> None:
        """on_change is called after each answer of a source; own: addresses of this process."""
        self._restart_delay_s = restart_delay_s
        self._publish_interval_s = publish_interval_s
        self._own = own
        self._sink = sink
        self._events = events
        self._on_change = on_change
        self._sources: dict[str, _Source] = {}

    def replace(self, plans: Mapping[str, SourcePlan]) -> None:
        """Stops what is not in `plans` or changed in it, starts what is new.

        The set of a service whose sources changed stays until the new ones have one.
        """
        for service, source in list(self._sources.items()):
            plan = plans.get(service)
            if plan is None or plan.identity != source.plan.identity:
                del self._sources[service]
                _cancel(source)
                for part in source.parts:
                    self._events.source_gone(service, part.name)
        for service, plan in plans.items():
            if service not in self._sources:
                source = _Source(service, plan, [_Part(resolver) for resolver in plan.make()])
                self._sources[service] = source
                for part in source.parts:
                    part.task = asyncio.create_task(
                        self._follow(source, part), name=f"source {service} {part.name}"
                    )

    async def first_answers(self, timeout_s: float) -> None:
        """Returns when every source gave a set or a failure, or when the time is over."""
        waiting = [source.answered.wait() for source in self._sources.values()]
        try:
            await asyncio.wait_for(asyncio.gather(*waiting), timeout_s)
        except TimeoutError:
            silent = [s.service for s in self._sources.values() if not s.answered.is_set()]
            logger.warning("endpoint sources are slow", extra=fields(services=silent))

    def status(self, service: str) -> SourceStatus:
        """The state of that service's sources; of an unknown service an empty one."""
        source = self._sources.get(service)
        if source is None:
            return SourceStatus("", "")
        names = dict.fromkeys(part.name for part in source.parts)
        errors = dict.fromkeys(part.error for part in source.parts if part.error)
        return SourceStatus("+".join(names), "; ".join(errors))

    async def close(self) -> None:
        """Stops every resolver; the sets stay."""
        sources = list(self._sources.values())
        self._sources.clear()
        for source in sources:
            _cancel(source)
        tasks = [part.task for source in sources for part in source.parts if part.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, source: _Source, part: _Part) -> None:
        while True:
            try:
                async for resolved in part.resolver.watch():
                    self._take(source, part, resolved)
            except Exception as error:
                logger.exception("endpoint source broke", extra=fields(service=source.service))
                self._failed(source, part, f"the source broke: {error!r}", "error")
            else:
                return
            await asyncio.sleep(self._restart_delay_s)

    def _take(self, source: _Source, part: _Part, resolved: Resolved) -> None:
        if not isinstance(resolved, EndpointSet):
            # What was good before is still good; what waited to come into force as well.
            self._failed(source, part, resolved.reason, resolved.kind)
            return
        own = next((e.address for e in resolved.endpoints if e.address in self._own), None)
        if own is not None:
            reason = f"`{own}` is an address of this sidecar, which must not call itself; remove it"
            self._failed(source, part, reason, "refused")
            return
        part.newest, part.answered, part.failed_last = resolved, True, False
        self._publish_soon(source)

    def _publish_soon(self, source: _Source) -> None:
        """Publishes at once if the last time is long enough ago and every source has answered."""
        if source.timer is not None or not all(part.answered for part in source.parts):
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= source.not_before_s:
            self._publish(source)
        else:
            source.timer = loop.call_at(source.not_before_s, self._publish, source)

    def _publish(self, source: _Source) -> None:
        source.timer = None
        fresh = [part for part in source.parts if part.newest is not None]
        sets = [part.newest or part.in_force for part in source.parts]
        merged = merge(
            (each for each in sets if each is not None), zone_label=source.plan.zone_label
        )
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            epoch = self._sink.apply_endpoints(source.service, encode_endpoints(merged))
        except DataPlaneError as error:
            reason = ": ".join(str(argument) for argument in error.args)
            for part in fresh:
                part.newest = None
                self._failed(source, part, reason, "refused")
            return
        ended_s = loop.time()
        source.not_before_s = ended_s + max(
            self._publish_interval_s, (ended_s - began_s) / PUBLISH_SHARE
        )
        for part in fresh:
            part.in_force, part.newest = part.newest, None
            if not part.failed_last:
                part.error = ""
            self._events.source_updated(source.service, part.name)
        logger.info(
            "endpoints in force",
            extra=fields(
                service=source.service, endpoints=len(merged.endpoints), endpoint_epoch=epoch
            ),
        )
        self._changed(source)

    def _failed(self, source: _Source, part: _Part, reason: str, kind: FailureKind) -> None:
        first = not part.answered
        part.error, part.failed_last, part.answered = reason, True, True
        self._events.source_failed(source.service, part.name, kind)
        logger.warning(
            "endpoint source failed; the last good set stays",
            extra=fields(service=source.service, source=part.name, kind=kind, reason=reason),
        )
        if first and any(each.newest is not None for each in source.parts):
            # The others waited for this one.
            self._publish_soon(source)
        self._changed(source)

    def _changed(self, source: _Source) -> None:
        stale = any(part.error for part in source.parts)
        self._events.source_state(source.service, stale=stale)
        if all(part.answered for part in source.parts):
            source.answered.set()
        self._on_change()


def _cancel(source: _Source) -> None:
    if source.timer is not None:
        source.timer.cancel()
    for part in source.parts:
        if part.task is not None:
            part.task.cancel()
