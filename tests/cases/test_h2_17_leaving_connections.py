"""H2-17: an endless stream stays on a connection that takes no more calls, new calls go elsewhere,
and `connection.max_leaving` ends what stays for too long. Whoever leaves did nothing wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import NO_ERROR, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import patiently

UNAVAILABLE = 14
WATCH = "/t.S/Watch"


async def watched(stream: RawStream) -> None:
    """A watch sends one message and stays; anything else is answered."""
    if stream.value(":path") == WATCH.encode():
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"first"))
    else:
        await answer()(stream)


def leaving(max_leaving_ms: int, **connection: Any) -> dict[str, Any]:
    """A service whose endpoints must not be ejected for leaving."""
    return {
        "connection": {"max_leaving_ms": max_leaving_ms, **connection},
        "outlier_detection": {"consecutive_errors": 1, "max_ejected": 1.0},
    }


async def ended_by_the_limit(stream: RawStream, plane: DataPlaneHarness) -> None:
    await stream.until_done()
    assert stream.grpc_status == UNAVAILABLE, stream.describe()
    assert stream.reset_code is None
    assert "`connection.max_leaving`" in stream.grpc_message
    assert stream.data == grpc_message(b"first")
    assert plane.limit_hits("max_leaving") == 1
    assert plane.metrics().value("attnroute_endpoint_ejections_total") == 0


async def goes_away(endpoint: RawServer) -> None:
    """GOAWAY on the only connection, and everything that the peer has said to it is read."""
    (connection,) = endpoint.connections
    connection.goaway(max(connection.streams), NO_ERROR)
    connection.ping()
    await connection.until_pongs(1)


async def test_h2_17_a_watch_stays_and_new_calls_go_elsewhere() -> None:
    async with (
        raw_server(watched) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        watch = open_call(client, WATCH)
        await watch.until_bytes(10)
        await goes_away(endpoint)
        for _ in range(5):
            assert (await open_call(client).until_done()).grpc_status == 0
        assert len(endpoint.connections) == 2, "a call went to the connection that leaves"
        (held,) = [s for s in endpoint.streams if s.value(":path") == WATCH.encode()]
        held.data_frame(grpc_message(b"still here"))
        await watch.until_bytes(10 + 15)
        held.headers(trailers(0), end_stream=True)
        assert (await watch.until_done()).grpc_status == 0
        assert plane.limit_hits("max_leaving") == 0


async def test_h2_17_a_watch_ends_after_the_longest_stay() -> None:
    async with (
        raw_server(watched) as endpoint,
        data_plane([endpoint.address], service=leaving(100)) as plane,
        raw_client(plane.address) as client,
    ):
        watch = open_call(client, WATCH)
        await watch.until_bytes(10)
        assert (await open_call(client).until_done()).grpc_status == 0
        # Nobody calls after the GOAWAY, so that nobody but the connection itself can notice it.
        await goes_away(endpoint)
        await ended_by_the_limit(watch, plane)
        assert (await open_call(client).until_done()).grpc_status == 0
        await endpoint.connections[0].until_gone()


@pytest.mark.parametrize("why", ["age", "removed"])
async def test_h2_17_the_same_of_a_connection_that_leaves_for_another_reason(why: str) -> None:
    connection = {"max_age_ms": 100, "max_age_jitter": 0.0} if why == "age" else {}
    async with (
        raw_server(watched) as endpoint,
        raw_server(watched) as other,
        data_plane([endpoint.address], service=leaving(100, **connection)) as plane,
        raw_client(plane.address) as client,
    ):
        watch = open_call(client, WATCH)
        await watch.until_bytes(10)
        if why == "removed":
            plane.apply_endpoints([other.address])
        await ended_by_the_limit(watch, plane)
        assert (await open_call(client).until_done()).grpc_status == 0


async def test_h2_17_a_call_that_ends_in_time_is_left_alone() -> None:
    async with (
        raw_server(watched) as endpoint,
        data_plane([endpoint.address], service=leaving(60_000)) as plane,
        raw_client(plane.address) as client,
    ):
        watch = open_call(client, WATCH)
        await watch.until_bytes(10)
        await goes_away(endpoint)
        (held,) = endpoint.streams
        held.headers(trailers(0), end_stream=True)
        assert (await watch.until_done()).grpc_status == 0
        await endpoint.connections[0].until_gone()
        assert plane.limit_hits("max_leaving") == 0


@pytest.mark.parametrize("limited", [False, True], ids=["no limit", "limit"])
async def test_h2_17_a_real_server_drains(*, limited: bool) -> None:
    service = leaving(200) if limited else {}
    async with (
        grpc_peer() as draining,
        grpc_peer() as other,
        data_plane([draining.address], service=service) as plane,
        grpc_client(plane.address) as client,
    ):
        watch = client.server_stream("BlockStream")(b"3")
        for number in range(3):
            assert await patiently(watch.read(), "a message") == str(number).encode()
        plane.apply_endpoints([draining.address, other.address])
        stopping = asyncio.create_task(draining.server.stop(grace=60))
        for number in range(20):
            assert await client.unary()(str(number).encode()) == str(number).encode()
        if limited:
            assert await patiently(watch.code(), "the end") == grpc.StatusCode.UNAVAILABLE
            assert "`connection.max_leaving`" in (await watch.details() or "")
            assert plane.limit_hits("max_leaving") == 1
        else:
            draining.release.set()
            assert await patiently(watch.read(), "the end") is grpc.aio.EOF
            assert await watch.code() == grpc.StatusCode.OK
        await patiently(stopping, "the end of the server")
