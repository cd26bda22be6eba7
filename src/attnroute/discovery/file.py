"""Endpoints in a file of their own: followed while the sidecar runs, replaced as a whole.

A file that is gone, half-written or wrong says nothing about the endpoints, so it is a failure and
the last good set stays. `endpoints: []` is an answer and empties the service; nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from attnroute.discovery.base import EndpointSet, EndpointSpec, Resolved, ResolveFailure
from attnroute.errors import EndpointFileError
from attnroute.types import FileContent, FileUnreadable

__all__ = ["FileResolver", "Follow", "Parse"]

BYTES_MAX = 16 << 20


class Follow(Protocol):
    """How a file is followed: `attnroute.policy.watch.FileWatcher.follow`."""

    def __call__(
        self, path: Path, *, poll_interval_s: float, bytes_max: int
    ) -> AsyncGenerator[FileContent | FileUnreadable, None]: ...


Parse = Callable[[bytes, Path], tuple[EndpointSpec, ...]]
"""How its content is read: `attnroute.policy.load.parse_endpoints`."""


class FileResolver:
    """Yields the set of a file, at first and at each change."""

    name = "file"

    def __init__(self, path: Path, *, refresh_s: float, follow: Follow, parse: Parse) -> None:
        self._path = path
        self._refresh_s = refresh_s
        self._follow = follow
        self._parse = parse

    async def watch(self) -> AsyncIterator[Resolved]:
        following = self._follow(self._path, poll_interval_s=self._refresh_s, bytes_max=BYTES_MAX)
        async with contextlib.aclosing(following) as looks:
            async for look in looks:
                if isinstance(look, FileContent):
                    # A long list takes a second; admin should answer meanwhile.
                    yield await asyncio.to_thread(self._read, look.content)
                else:
                    yield ResolveFailure(f"endpoint file `{self._path}` {look.reason}")

    def _read(self, content: bytes) -> Resolved:
        try:
            return EndpointSet(self._parse(content, self._path))
        except EndpointFileError as error:
            reason = str(error.problems[0])
            if more := len(error.problems) - 1:
                reason += f" (and {more} more)"
            return ResolveFailure(reason)
