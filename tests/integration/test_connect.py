"""Listener mode `connect`: HTTP CONNECT, with real gRPC clients that are told a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import GrpcClient, every_kind, grpc_client, grpc_peer
from tests.support.raw_h2 import PREFACE
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.wait import patiently, until

CONNECT = {"name": "in", "mode": "connect", "address": "127.0.0.1:0"}
TARGET = "cart.example:80"
TLS_HELLO = b"\x16\x03\x01\x00\x05hello"


@contextlib.asynccontextmanager
async def connect_plane(*endpoints: str, **settings: Any) -> AsyncIterator[DataPlaneHarness]:
    """A data plane with one `connect` listener; its service is called `TARGET` and nothing else."""
    service = {"authorities": [TARGET], **settings.pop("service", {})}
    async with data_plane(
        list(endpoints), listeners=[CONNECT], service=service, **settings
    ) as plane:
        yield plane


@contextlib.asynccontextmanager
async def proxied(
    plane: DataPlaneHarness, monkeypatch: pytest.MonkeyPatch, target: str = TARGET, **options: Any
) -> AsyncIterator[GrpcClient]:
    """A gRPC client that is told the listener as its proxy."""
    monkeypatch.setenv("grpc_proxy", f"http://{plane.address}")
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with grpc_client(target, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def tunnel(
    address: str, request: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that has sent `request`."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(request)
    try:
        yield reader, writer
    finally:
        writer.close()


def tunnels(plane: DataPlaneHarness, content: str) -> float:
    """How many tunnels held that."""
    return plane.metrics().value("attnroute_listener_tunnels_total", content=content)


def refused(plane: DataPlaneHarness, reason: str) -> float:
    """How many connections were refused so."""
    return plane.metrics().value("attnroute_listener_refused_total", reason=reason)


async def test_every_kind_of_call_passes_through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grpc_peer() as peer, connect_plane(peer.address) as plane:
        async with grpc_client(peer.address) as direct:
            expected = [found async for found in every_kind(direct)]
        async with proxied(plane, monkeypatch) as client:
            assert [found async for found in every_kind(client)] == expected
        assert tunnels(plane, "http2") == 1
        await plane.until_ended(len(expected))


async def test_calls_of_one_tunnel_are_balanced_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = {"balancer": {"type": "round_robin"}}
    async with (
        grpc_peer() as first,
        grpc_peer() as second,
        connect_plane(first.address, second.address, service=service) as plane,
        proxied(plane, monkeypatch, authority="whatever.the.client.says") as client,
    ):
        for _ in range(10):
            await client.unary()(b"x")
        assert (first.started, second.started) == (5, 5)
        assert tunnels(plane, "http2") == 1


async def test_a_target_that_is_no_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with grpc_peer() as peer, connect_plane(peer.address) as plane:
        async with proxied(plane, monkeypatch, "elsewhere.example:80") as client:
            call = client.unary()(b"x")
            assert await call.code() == grpc.StatusCode.UNAVAILABLE
            assert "404" in (await call.details() or "")
        request = b"CONNECT elsewhere.example:80 HTTP/1.1\r\n\r\n"
        async with tunnel(plane.address, request) as (reader, _):
            text = await patiently(reader.read(), "the answer")
        assert text.startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert b"no service has the authority `elsewhere.example:80`" in text
        assert b"configured are `cart.example:80`" in text
        assert refused(plane, "unknown_target") >= 2
        assert peer.started == 0


@pytest.mark.parametrize("target", ["listener", "admin", "endpoint", "loopback"])
async def test_a_target_is_never_dialled_by_its_name(target: str) -> None:
    """Nobody gets through the sidecar to where its policy does not lead: neither to the sidecar
    itself, whose tunnels would have no end, nor to what only the sidecar can reach."""
    met = 0

    async def meet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, grpc_peer() as peer, connect_plane(peer.address) as plane:
        named = {
            "listener": plane.address,
            "admin": f"127.0.0.1:{port}",
            "endpoint": peer.address,
            "loopback": f"localhost:{port}",
        }[target]
        request = f"CONNECT {named} HTTP/1.1\r\n\r\n".encode()
        async with tunnel(plane.address, request + TLS_HELLO) as (reader, _):
            text = await patiently(reader.read(), "the answer")
        assert text.startswith(b"HTTP/1.1 404 Not Found\r\n"), text
        assert f"no service has the authority `{named}`".encode() in text
        assert refused(plane, "unknown_target") == 1
        assert met == 0
        assert sum(tunnels(plane, content) for content in ("http2", "tls", "other")) == 0
        assert plane.metrics().value("attnroute_listener_open_connections") <= 1


async def test_http2_without_a_tunnel_is_served_by_its_authority() -> None:
    async with (
        raw_server(answer()) as endpoint,
        connect_plane(endpoint.address) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client, authority=TARGET).until_done()).grpc_status == 0
        unknown = await open_call(client, authority="nobody").until_done()
        assert unknown.grpc_status == grpc.StatusCode.UNAVAILABLE.value[0]
        assert "`nobody`" in unknown.grpc_message
        assert tunnels(plane, "http2") == 0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that greets nobody, and says what it hears."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")
    writer.close()


@pytest.mark.parametrize(
    ("first", "content"), [(TLS_HELLO, "tls"), (b"\0\1\2", "other"), (b"PRI nonsense", "other")]
)
@pytest.mark.parametrize("early", [False, True], ids=["after the answer", "with the request"])
async def test_other_bytes_pass_through(first: bytes, content: str, *, early: bool) -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    head = f"CONNECT {TARGET} HTTP/1.1\r\nhost: {TARGET}\r\n\r\n".encode()
    async with server, connect_plane(f"127.0.0.1:{port}") as plane:
        async with tunnel(plane.address, head + (first if early else b"")) as (reader, writer):
            established = await patiently(reader.readuntil(b"\r\n\r\n"), "the answer")
            assert established == b"HTTP/1.1 200 Connection established\r\n\r\n"
            if not early:
                writer.write(first)
            assert await patiently(reader.readexactly(len(first)), "the echo") == first
            big = bytes(range(256)) * 4_000
            writer.write(big)
            assert await patiently(reader.readexactly(len(big)), "the echo of much") == big
            writer.write_eof()
            assert await patiently(reader.read(), "what the server says last") == b"bye"
        assert tunnels(plane, content) == 1


async def test_bytes_for_nobody_end_the_tunnel() -> None:
    request = f"CONNECT {TARGET} HTTP/1.1\r\n\r\n".encode() + TLS_HELLO
    async with (
        connect_plane("127.0.0.1:9") as plane,
        tunnel(plane.address, request) as (reader, _),
    ):
        text = await patiently(reader.read(), "the end")
        assert text == b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET http://a/ HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", "http1"),
        (b"CONNECT cart HTTP/1.1\r\n\r\n", b"400 Bad Request", "malformed"),
        (b"CONNECT cart:80 HTTP/1.1\r\nbad\0field\r\n\r\n", b"400 Bad Request", "malformed"),
        (b"CONNECT cart:80 HTTP/1.1\r\nx: " + b"y" * 9_000, b"431 ", "head_too_long"),
    ],
)
async def test_mistakes_are_told(request_: bytes, status: bytes, reason: str) -> None:
    async with (
        connect_plane("127.0.0.1:9") as plane,
        tunnel(plane.address, request_) as (reader, _),
    ):
        text = await patiently(reader.read(), "the answer")
        assert text.startswith(b"HTTP/1.1 " + status), text
        head, _, body = text.partition(b"\r\n\r\n")
        assert body.startswith(b"attnroute: ")
        assert f"content-length: {len(body)}".encode() in head
        assert refused(plane, reason) == 1
        hits = plane.limit_hits("max_connect_head_bytes")
        assert hits == (1 if reason == "head_too_long" else 0)


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b"HTTP/1.1 408 "),
        (b"CONNECT cart.exa", b"HTTP/1.1 408 "),
        (PREFACE[:10], b"HTTP/1.1 408 "),
        (f"CONNECT {TARGET} HTTP/1.1\r\n\r\n".encode(), b"HTTP/1.1 200 "),
    ],
)
async def test_nobody_waits_for_ever(sent: bytes, answered: bytes) -> None:
    async with (
        connect_plane("127.0.0.1:9", timeouts={"handshake_ms": 100}) as plane,
        tunnel(plane.address, sent) as (reader, _),
    ):
        assert (await patiently(reader.read(), "the end")).startswith(answered)
        await until(lambda: refused(plane, "handshake_timeout") == 1, "its count")


async def test_a_drain_is_told_through_the_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        grpc_peer() as peer,
        connect_plane(peer.address) as plane,
        proxied(plane, monkeypatch) as client,
    ):
        call = client.unary("Block")(b"last")
        await until(lambda: peer.started == 1, "the call at the endpoint")
        draining = asyncio.create_task(plane.drain(linger_ms=0, limit_ms=60_000))
        with contextlib.suppress(ConnectionError):
            while True:  # until nobody listens any more
                async with tunnel(plane.address, b"") as (reader, _):
                    await patiently(reader.read(), "the end")
        peer.release.set()
        assert await call == b"last"
        assert await patiently(draining, "the drain")
