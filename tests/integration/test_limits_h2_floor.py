"""Guards of the HTTP/2 library's floor: floods of small frames that honest gRPC makes.

Older versions of the library close a whole connection for about a hundred unread small DATA
frames, which unary gRPC answers are. One connection on each side carries everything here, and
nothing may be reset.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.support.dataplane import data_plane
from tests.support.raw_h2 import Manners, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    open_call,
    raw_client,
    raw_server,
    trailers,
)

UNARY_CALLS = 1_000
STREAMS = 500
MESSAGES = 60
MESSAGE = grpc_message(b"x" * 20)


async def test_a_thousand_concurrent_unary_calls_with_small_replies() -> None:
    arrived = asyncio.Event()
    waiting = 0

    async def together(stream: RawStream) -> None:
        nonlocal waiting
        await stream.until(lambda: stream.ended, "the request")
        waiting += 1
        if waiting == UNARY_CALLS:
            arrived.set()
        await arrived.wait()
        stream.headers(RESPONSE)
        stream.data_frame(MESSAGE)
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(together) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        calls = [open_call(client) for _ in range(UNARY_CALLS)]
        await client.until_settled()
        for stream in calls:
            assert stream.grpc_status == 0, stream.describe()
            assert stream.data == MESSAGE
        assert len(endpoint.connections) == 1
        assert not client.goaways
        assert not endpoint.connections[0].goaways
        await plane.until_ended(UNARY_CALLS, grpc_status="OK")


@pytest.mark.parametrize("slow", ["windows", "socket"])
async def test_five_hundred_streams_of_small_messages_with_a_slow_reader(slow: str) -> None:
    """`windows`: the reader grants them late. `socket`: it does not even read its socket."""

    async def dust(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        for _ in range(MESSAGES):
            await stream.write(MESSAGE)
        stream.headers(trailers(0), end_stream=True)

    manners = Manners(keep_windows_open=False)
    async with (
        raw_server(dust) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address, manners=manners) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        if slow == "socket":
            client.pause_reading()
        calls = [open_call(client) for _ in range(STREAMS)]
        await endpoint.until_streams(STREAMS)
        if slow == "windows":
            await client.until(
                lambda: sum(s.bytes_received for s in calls) >= 65_535, "the first window"
            )
        else:
            (connection,) = endpoint.connections
            connection.ping()
            await connection.until_pongs(1)
            client.resume_reading()
        given_back = 0
        while not all(stream.done for stream in calls):
            received = sum(stream.bytes_received for stream in calls)
            if received > given_back:
                client.open_window(received - given_back)
                given_back = received
            await client.next_frame()
        for stream in calls:
            assert stream.grpc_status == 0, stream.describe()[:800]
            assert stream.data == MESSAGE * MESSAGES
        assert len(endpoint.connections) == 1
        assert not client.goaways
        assert not endpoint.connections[0].goaways
        await plane.until_ended(STREAMS, grpc_status="OK")
