"""Real gRPC peers: a grpcio endpoint with scripted methods, and channels to it.

Messages are plain bytes, because a proxy never looks into them. The endpoint serves
`/test.Peer/<Method>`; what a method does can be told by request metadata, so that one endpoint
serves every test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio

SERVICE = "test.Peer"
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
UNLIMITED: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 256 * 1024),
    ("grpc.absolute_max_metadata_size", 256 * 1024),
)


def path(method: str) -> str:
    """The `:path` of a method of the peer."""
    return f"/{SERVICE}/{method}"


@dataclass
class GrpcPeer:
    """An endpoint that remembers what reached it."""

    address: str = ""
    started: int = 0
    cancelled: int = 0
    seen_metadata: list[dict[str, list[str | bytes]]] = field(default_factory=list)
    time_remaining_s: list[float | None] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """`Block` and `BlockStream` go on when it is set."""
    received: list[bytes] = field(default_factory=list)
    """Messages of streams, as they arrive."""
    server: Any = None

    def note(self, context: Any) -> Metadata:
        """Records one call; returns the metadata it came with."""
        self.started += 1
        pairs = [(str(key), value) for key, value in context.invocation_metadata() or ()]
        grouped: dict[str, list[str | bytes]] = {}
        for key, value in pairs:
            grouped.setdefault(key, []).append(value)
        self.seen_metadata.append(grouped)
        self.time_remaining_s.append(context.time_remaining())
        return pairs

    async def unary(self, request: bytes, context: Any) -> bytes:
        """Sends the request back; `echo-*` metadata comes back as headers and as `trail-*`."""
        pairs = self.note(context)
        echoed = [(key, value) for key, value in pairs if key.startswith("echo-")]
        await context.send_initial_metadata(echoed)
        context.set_trailing_metadata([(f"trail-{key}", value) for key, value in echoed])
        return request

    async def fail(self, request: bytes, context: Any) -> bytes:
        """Ends with the status in `fail-code` and the text in the request, headers never sent."""
        metadata = dict(self.note(context))
        details = metadata.get("fail-details-bin", b"")
        if details:
            context.set_trailing_metadata([("grpc-status-details-bin", details)])
        code = next(c for c in grpc.StatusCode if c.value[0] == int(metadata["fail-code"]))
        await context.abort(code, request.decode())
        raise AssertionError("abort returned")

    async def block(self, request: bytes, context: Any) -> bytes:
        """Answers when `release` is set; counts a cancellation."""
        self.note(context)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def client_stream(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Answers `messages bytes` after the half-close."""
        self.note(context)
        count = total = 0
        async for message in requests:
            self.received.append(message)
            count, total = count + 1, total + len(message)
        return f"{count} {total}".encode()

    async def server_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """`count size`: that many messages of that size, numbered in their first bytes."""
        self.note(context)
        count, size = (int(part) for part in request.split())
        for number in range(count):
            yield str(number).encode().ljust(size, b".")

    async def block_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """`count`: that many messages, then silence until `release` is set."""
        self.note(context)
        try:
            for number in range(int(request)):
                yield str(number).encode()
            await self.release.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def bidi(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Each message comes back at once; after the half-close one more: `end`."""
        self.note(context)
        async for message in requests:
            self.received.append(message)
            yield message
        yield b"end"

    async def bidi_early(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        """Reads one message, answers it and ends, while the client may go on sending."""
        self.note(context)
        yield await anext(requests)

    async def counts(self, request: bytes, context: Any) -> bytes:
        """How many calls began, how many were cancelled, and what is left of this one's time."""
        remaining_s = context.time_remaining()
        left_ms = -1 if remaining_s is None else int(remaining_s * 1e3)
        found = {"started": self.started, "cancelled": self.cancelled, "left_ms": left_ms}
        return json.dumps(found).encode()

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """All methods by name."""
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Counts": grpc.unary_unary_rpc_method_handler(self.counts),
            "Block": grpc.unary_unary_rpc_method_handler(self.block),
            "ClientStream": grpc.stream_unary_rpc_method_handler(self.client_stream),
            "ServerStream": grpc.unary_stream_rpc_method_handler(self.server_stream),
            "BlockStream": grpc.unary_stream_rpc_method_handler(self.block_stream),
            "Bidi": grpc.stream_stream_rpc_method_handler(self.bidi),
            "BidiEarly": grpc.stream_stream_rpc_method_handler(self.bidi_early),
        }


@contextlib.asynccontextmanager
async def grpc_peer(
    *,
    address: str = "127.0.0.1:0",
    options: Sequence[tuple[str, Any]] = (),
    compression: grpc.Compression | None = None,
) -> AsyncIterator[GrpcPeer]:
    """A running endpoint; `address` may be `unix:/path`."""
    peer = GrpcPeer()
    peer.server = grpc.aio.server(options=[*UNLIMITED, *options], compression=compression)
    handler = grpc.method_handlers_generic_handler(SERVICE, dict(peer.handlers()))
    peer.server.add_generic_rpc_handlers((handler,))
    port = peer.server.add_insecure_port(address)
    peer.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    await peer.server.start()
    try:
        yield peer
    finally:
        peer.release.set()
        await peer.server.stop(grace=None)


@dataclass(frozen=True)
class GrpcClient:
    """A channel and the method kinds as callables over bytes."""

    channel: grpc.aio.Channel

    def unary(self, method: str = "Unary") -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        """One message each way."""
        return self.channel.unary_unary(path(method))

    def client_stream(
        self, method: str = "ClientStream"
    ) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
        """Many up, one down."""
        return self.channel.stream_unary(path(method))

    def server_stream(
        self, method: str = "ServerStream"
    ) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        """One up, many down."""
        return self.channel.unary_stream(path(method))

    def bidi(self, method: str = "Bidi") -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
        """Many each way."""
        return self.channel.stream_stream(path(method))


@contextlib.asynccontextmanager
async def grpc_client(
    address: str,
    *,
    authority: str = "test",
    options: Sequence[tuple[str, Any]] = (),
    compression: grpc.Compression | None = None,
) -> AsyncIterator[GrpcClient]:
    """A channel of its own connection to `ip:port` or `unix:/path`."""
    given = [
        ("grpc.default_authority", authority),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        *UNLIMITED,
        *options,
    ]
    async with grpc.aio.insecure_channel(
        address, options=given, compression=compression
    ) as channel:
        yield GrpcClient(channel)


async def every_kind(client: GrpcClient) -> AsyncIterator[tuple[str, object]]:
    """Everything a call of each kind can show, to compare runs with and without a proxy."""
    sent: Metadata = [("echo-a", "1"), ("echo-a", "2"), ("echo-b-bin", b"\0")]
    call = client.unary()(b"one", metadata=sent)
    yield "unary", await call
    initial = [(k, v) for k, v in await call.initial_metadata() or () if k.startswith("echo-")]
    trailing = [(k, v) for k, v in await call.trailing_metadata() or () if k.startswith("trail-")]
    yield "unary metadata", (sorted(initial), sorted(trailing))
    yield "client stream", await client.client_stream()(iter([b"a" * n for n in range(100)]))
    yield "server stream", [m async for m in client.server_stream()(b"100 1000")]
    yield "bidi", [m async for m in client.bidi()(iter([b"x" * n for n in range(100)]))]
    yield "empty", (await client.unary()(b""), await client.client_stream()(iter([])))
    for code in range(1, 17):
        text = f"text of {code}: 100% caf\u00e9\n".encode()
        asked: Metadata = [("fail-code", str(code)), ("fail-details-bin", bytes([code]) * 50)]
        yield f"status {code}", await _status(client.unary("Fail")(text, metadata=asked))
    yield "unknown method", await _status(client.unary("NoSuchMethod")(b""))


async def _status(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> object:
    tail = [(k, v) for k, v in await call.trailing_metadata() or () if k.endswith("-bin")]
    return await call.code(), await call.details(), tail
