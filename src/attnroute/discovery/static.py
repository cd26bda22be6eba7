"""Endpoints written into the policy: one answer, which only a new policy changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from attnroute.discovery.base import EndpointSet, EndpointSpec, Resolved

__all__ = ["StaticResolver"]


class StaticResolver:
    """Yields its set once and ends."""

    name = "static"

    def __init__(self, endpoints: Iterable[EndpointSpec]) -> None:
        self._set = EndpointSet(tuple(endpoints))

    async def watch(self) -> AsyncIterator[Resolved]:
        yield self._set
