"""Fetching a bundle, file by file, from where an earlier attempt stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.bundle.manifest import MANIFEST, MANIFEST_BYTES_MAX, SIGNATURE
from attnroute.registry.cache import Partial
from attnroute.registry.messages import MESSAGE_BYTES_MAX, SERVICE, reference
from attnroute.registry.types import ChannelState

__all__ = ["CHANNEL_OPTIONS", "DamagedError", "Fetcher"]

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    # The proxy of the environment may well be this sidecar.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # A channel says nothing for days; a registry whose machine is gone is found by pings.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
SIGNATURE_BYTES_MAX = 1 << 10


class DamagedError(Exception):
    """What came is not what was named; it is asked for again. The argument is a word for why."""


class Fetcher:
    """message_s: for the next part of a file; fetch_s: for one file, a slower one goes on with the
    next attempt. fetched: called with the bytes of each part."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        message_s: float,
        fetch_s: float,
        fetched: Callable[[int], None],
    ) -> None:
        self._channel = channel
        self._message_s = message_s
        self._fetch_s = fetch_s
        self._fetched = fetched

    async def fetch(self, partial: Partial, state: ChannelState) -> None:
        """What is missing of a bundle. Raises DamagedError, BundleError (its manifest), OSError
        (the own disk, or a registry that is silent), AioRpcError; what came so far stays."""
        await self._file(partial, state, MANIFEST, MANIFEST_BYTES_MAX)
        if not await asyncio.to_thread(partial.manifest_is_right):
            raise DamagedError("hash")
        files = await asyncio.to_thread(partial.files)
        for name, entry in files.items():
            await self._file(partial, state, name, entry.size_bytes)
            if not await asyncio.to_thread(partial.is_right, name, entry):
                raise DamagedError("hash")
        await asyncio.to_thread(partial.drop, SIGNATURE)
        try:
            await self._file(partial, state, SIGNATURE, SIGNATURE_BYTES_MAX)
        except grpc.aio.AioRpcError as error:
            # Not signed: that is for the reader to judge.
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    async def _file(self, partial: Partial, state: ChannelState, name: str, bytes_max: int) -> None:
        """One file, from what is here of it already to its end."""
        have = await asyncio.to_thread(partial.have, name)
        method: grpc.aio.UnaryStreamMultiCallable[pb.FetchRequest, pb.FetchResponse] = (
            self._channel.unary_stream(
                f"/{SERVICE.full_name}/Fetch",
                request_serializer=pb.FetchRequest.SerializeToString,
                response_deserializer=pb.FetchResponse.FromString,
            )
        )
        request = pb.FetchRequest(
            ref=reference(state.name, state.version, state.manifest_sha256),
            path=name,
            offset_bytes=have,
        )
        call = method(request, timeout=self._fetch_s)
        try:
            while True:
                async with asyncio.timeout(self._message_s):
                    message = await call.read()
                if not isinstance(message, pb.FetchResponse):
                    return
                if message.offset_bytes != have or have + len(message.data) > bytes_max:
                    await asyncio.to_thread(partial.drop, name)
                    raise DamagedError("malformed")
                await asyncio.to_thread(partial.append, name, message.data)
                have += len(message.data)
                self._fetched(len(message.data))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                await asyncio.to_thread(partial.drop, name)
            raise
        finally:
            call.cancel()
