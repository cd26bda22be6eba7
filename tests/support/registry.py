"""Registries and sidecars' sources of bundles over real sockets, and a bad line between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from tests.support.wait import patiently

from attnroute.registry.client import BundleSource, Patience, Update
from attnroute.registry.server import RegistryServer, ServerLimits
from attnroute.registry.store import Store

__all__ = ["FAST", "BadLine", "Events", "Follower", "following", "registry"]

FAST = Patience(first_s=0.02, growth=1.2, most_s=0.1, message_s=5.0, fetch_s=20.0, poll_s=0.02)


class Events:
    """Counts what server and sources count."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refused: list[tuple[str, str]] = []
        self.connected = False

    def registry_limit(self, limit: str) -> None:
        self.counts[limit] += 1

    def registry_streams(self, open_streams: int) -> None:
        self.counts["open"] = open_streams

    def registry_sent(self, sent_bytes: int) -> None:
        self.counts["sent"] += sent_bytes

    def registry_connected(self, *, connected: bool) -> None:
        self.connected = connected

    def registry_failed(self, reason: str) -> None:
        self.counts[reason] += 1

    def registry_fetched(self, fetched_bytes: int) -> None:
        self.counts["fetched"] += fetched_bytes

    def bundle_refused(self, version: str, problem: str) -> None:
        self.refused.append((version, problem))


@asynccontextmanager
async def registry(
    root: Path,
    address: str = "127.0.0.1:0",
    *,
    streams: int = 100,
    allow_changes: bool = False,
) -> AsyncIterator[tuple[Store, str, Events]]:
    """A store with a server that looks at its channels fifty times a second."""
    events, store = Events(), Store(root)
    service = RegistryServer(
        store,
        limits=ServerLimits(streams=streams),
        events=events,
        allow_changes=allow_changes,
        poll_s=0.02,
    )
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((service.handler,))
    port = server.add_insecure_port(address)
    await server.start()
    service.start()
    try:
        yield store, address if address.startswith("unix:") else f"127.0.0.1:{port}", events
    finally:
        await service.stop()
        await server.stop(0.2)


class Follower:
    """Takes what a source brings."""

    def __init__(self, source: BundleSource) -> None:
        self.source = source
        self.taken: list[Update] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for update in self.source.updates():
            self.taken.append(update)
            self._news.set()

    @property
    def versions(self) -> list[str]:
        return [update.state.version for update in self.taken]

    async def until(self, version: str) -> Update:
        """Waits until the source brought this version last."""
        while not self.taken or self.taken[-1].state.version != version:
            self._news.clear()
            await patiently(self._news.wait(), f"bundle {version}, not {self.versions}")
        return self.taken[-1]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.source.close()


@asynccontextmanager
async def following(source: BundleSource) -> AsyncIterator[Follower]:
    follower = Follower(source)
    try:
        yield follower
    finally:
        await follower.close()


@dataclass
class BadLine:
    """Stands between a source and a registry, and passes on what it is told to."""

    target: str
    cut_after: int | None = None
    """Bytes towards the sidecar after which a connection is cut."""
    chunk: int = 65_536
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, nothing passes towards the sidecar."""
    connections: int = 0
    address: str = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BadLine]:
        self.hold.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tasks = self._tasks = set[asyncio.Task[None]]()
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        host, _, port = self.target.rpartition(":")
        try:
            up = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        there = asyncio.create_task(self._pass(reader, up[1], None))
        back = asyncio.create_task(self._pass(up[0], writer, self.cut_after))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in (there, back):
                direction.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for end in (writer, up[1]):
                with contextlib.suppress(OSError):
                    end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut_after: int | None
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(self.chunk):
                if writer.transport.get_extra_info("peername")[1] != int(
                    self.target.rpartition(":")[2]
                ):
                    await self.hold.wait()
                if cut_after is not None:
                    data = data[: max(0, cut_after - passed)]
                passed += len(data)
                writer.write(data)
                await writer.drain()
                if cut_after is not None and passed >= cut_after:
                    return
