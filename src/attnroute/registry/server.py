"""The registry over gRPC: what a store holds, for sidecars that cannot mount it.

One task looks at the watched channels several times a second, since other processes move them too;
streams wait for it and read no disk. Whoever reaches the address may read; a change needs
`allow_changes`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import grpc.aio

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.errors import BundleError, ConflictError, RegistryError
from attnroute.logs import fields
from attnroute.registry.messages import (
    CHUNK_BYTES,
    SERVICE,
    channel_message,
    listing_message,
)
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

__all__ = ["RegistryEvents", "RegistryServer", "ServerLimits"]

logger = logging.getLogger(__name__)

POLL_S = 0.5

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class ServerLimits:
    """What is served at a time. Every hit is counted."""

    streams: int = 4_096
    """Channels that are watched and files that are sent."""


class RegistryEvents(Protocol):
    """What is counted."""

    def registry_limit(self, limit: str) -> None: ...
    def registry_streams(self, open_streams: int) -> None: ...
    def registry_sent(self, sent_bytes: int) -> None: ...


class RegistryServer:
    """Made and used on one event loop; `handler` goes into a gRPC server before it starts."""

    def __init__(
        self,
        store: Store,
        *,
        limits: ServerLimits,
        events: RegistryEvents,
        allow_changes: bool = False,
        poll_s: float = POLL_S,
    ) -> None:
        self._store = store
        self._limits = limits
        self._events = events
        self._allow_changes = allow_changes
        self._poll_s = poll_s
        self._watched: Counter[_Key] = Counter()
        self._states: dict[_Key, ChannelState] = {}
        self._failing: set[_Key] = set()
        self._streams = 0
        self._moved = asyncio.Condition()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.handler = grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list,
                    request_deserializer=pb.ListRequest.FromString,
                    response_serializer=pb.ListResponse.SerializeToString,
                ),
                "Fetch": grpc.unary_stream_rpc_method_handler(
                    self._fetch,
                    request_deserializer=pb.FetchRequest.FromString,
                    response_serializer=pb.FetchResponse.SerializeToString,
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch,
                    request_deserializer=pb.WatchRequest.FromString,
                    response_serializer=pb.ChannelState.SerializeToString,
                ),
                "SetChannel": grpc.unary_unary_rpc_method_handler(
                    self._set_channel,
                    request_deserializer=pb.SetChannelRequest.FromString,
                    response_serializer=pb.ChannelState.SerializeToString,
                ),
            },
        )

    def start(self) -> None:
        """Looks at watched channels from now on."""
        self._task = asyncio.create_task(self._poll_forever(), name="registry channels")

    async def stop(self) -> None:
        """Ends every stream of Watch; to be called before the gRPC server stops."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._moved:
            self._moved.notify_all()

    async def look(self) -> None:
        """Looks at the watched channels once and wakes the streams of those that moved."""
        changed = False
        for key in list(self._watched):
            changed = await self._look_at(key) or changed
        if changed:
            async with self._moved:
                self._moved.notify_all()

    async def _look_at(self, key: _Key) -> bool:
        """Whether the channel moved. What cannot be read stays as it was last."""
        try:
            state = await asyncio.to_thread(self._store.channel, *key)
        except (RegistryError, BundleError, OSError) as error:
            if key not in self._failing:
                self._failing.add(key)
                logger.warning(
                    "a channel cannot be read; watchers keep what it said last",
                    extra=fields(name=key[0], channel=key[1], problem=str(error)),
                )
            return False
        self._failing.discard(key)
        if self._states.get(key) == state:
            return False
        self._states[key] = state
        return True

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("a look at the channels failed; the next one goes on")
            await asyncio.sleep(self._poll_s)

    async def _list(self, request: pb.ListRequest, context: _Context) -> pb.ListResponse:
        try:
            return listing_message(await asyncio.to_thread(self._store.listing, request.name))
        except RegistryError as error:
            await self._fail(context, error)

    async def _watch(
        self, request: pb.WatchRequest, context: _Context
    ) -> AsyncGenerator[pb.ChannelState, None]:
        key = request.name, request.channel
        await self._enter(context)
        self._watched[key] += 1
        try:
            try:
                state = await asyncio.to_thread(self._store.channel, *key)
            except (RegistryError, BundleError) as error:
                await self._fail(context, error)
            self._states.setdefault(key, state)
            sent: ChannelState | None = None
            while not self._closing:
                state = self._states[key]
                if state != sent:
                    sent = state
                    yield channel_message(state)
                    continue
                async with self._moved:
                    while self._states[key] == sent and not self._closing:
                        await self._moved.wait()
        finally:
            self._leave()
            self._watched[key] -= 1
            if not self._watched[key]:
                del self._watched[key]
                self._states.pop(key, None)
                self._failing.discard(key)

    async def _fetch(
        self, request: pb.FetchRequest, context: _Context
    ) -> AsyncGenerator[pb.FetchResponse, None]:
        await self._enter(context)
        try:
            path, size = await self._file(request, context)
            at = request.offset_bytes
            if at > size:
                await context.abort(
                    grpc.StatusCode.OUT_OF_RANGE,
                    f"`{request.path}` has {size} bytes, asked for from {at}; begin anew",
                )
            try:
                handle = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                await context.abort(
                    grpc.StatusCode.NOT_FOUND,
                    f"`{request.path}` is gone: {error.strerror}; list again",
                )
            try:
                while at < size:
                    data = await asyncio.to_thread(
                        os.pread, handle, min(CHUNK_BYTES, size - at), at
                    )
                    if not data:
                        await context.abort(
                            grpc.StatusCode.DATA_LOSS,
                            f"`{request.path}` ends at {at} of {size} bytes; publish it again",
                        )
                    yield pb.FetchResponse(offset_bytes=at, data=data)
                    at += len(data)
                    self._events.registry_sent(len(data))
            finally:
                os.close(handle)
        finally:
            self._leave()

    async def _file(self, request: pb.FetchRequest, context: _Context) -> tuple[Path, int]:
        """Path and size of a file that the store's bundle names, and of no other."""
        ref = request.ref
        try:
            listed = await asyncio.to_thread(self._store.listed, ref.name, ref.version)
            if ref.manifest_sha256 not in ("", listed.manifest_sha256):
                raise RegistryError(
                    f"version `{ref.version}` of `{ref.name}` has another manifest here; list again"
                )
            entry = listed.files.get(request.path)
            if entry is None:
                raise RegistryError(
                    f"version `{ref.version}` of `{ref.name}` has no file `{request.path[:80]}`"
                )
        except (RegistryError, BundleError) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return self._store.path(ref.name, ref.version) / request.path, entry.size_bytes

    async def _set_channel(
        self, request: pb.SetChannelRequest, context: _Context
    ) -> pb.ChannelState:
        if not self._allow_changes:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "this registry takes no changes; set `registry.allow_changes` in the trainer's "
                "file, or change the directory itself",
            )
        ref = request.bundle
        try:
            listed = await asyncio.to_thread(self._store.listed, request.name, ref.version)
            if ref.manifest_sha256 not in ("", listed.manifest_sha256):
                raise RegistryError(f"version `{ref.version}` has another manifest here")
            state = await asyncio.to_thread(
                lambda: self._store.point(
                    request.name,
                    request.channel,
                    ref.version,
                    expected_generation=request.expected_generation,
                    reason=request.reason,
                    operator=True,
                    frozen=request.frozen,
                )
            )
        except (RegistryError, BundleError) as error:
            await self._fail(context, error)
        await self.look()
        return channel_message(state)

    async def _enter(self, context: _Context) -> None:
        if self._streams >= self._limits.streams:
            self._events.registry_limit("registry.max_streams")
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"`{self._streams}` streams are open, the limit; raise `registry.max_streams`",
            )
        self._streams += 1
        self._events.registry_streams(self._streams)

    def _leave(self) -> None:
        self._streams -= 1
        self._events.registry_streams(self._streams)

    async def _fail(self, context: _Context, error: Exception) -> NoReturn:
        code = (
            grpc.StatusCode.ABORTED
            if isinstance(error, ConflictError)
            else grpc.StatusCode.FAILED_PRECONDITION
        )
        await context.abort(code, str(error))
        raise AssertionError("abort ends the call")
