"""What trusted proxies were measured to get wrong (issue 6), each with the test that shows it here.

| what goes wrong elsewhere | shown by |
|---|---|
| the last window and the trailers of a large answer lost to a slow reader | `test_h2_07_...` |
| one stalled client pins the window of the connection that all share | below |
| a burst sent before SETTINGS are read; what is then refused fails | below |
| reset codes off gRPC's table, CANCEL passed on as another code | `test_h2_10_...`, below |
| calls that were delivered answered with REFUSED_STREAM | below |
| a silent dead endpoint that is never noticed | `test_rs_05_a_silent_endpoint_...` |
| SIGTERM that cuts calls | `test_k8_02_...`, in test_sidecar_drain.py with a real process |
| connections without a byte, or with half a preface, held for ever | below |
| clients that cancel 60 calls taken for attackers | `test_se_02_...` |
| more than 100 headers refused | `test_se_06_...` |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hyperframe.frame import SettingsFrame
from tests.cases.test_rs_05_silent_endpoint import DEAF, keepalive
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import (
    CANCEL,
    INTERNAL_ERROR,
    PREFACE,
    REFUSED_STREAM,
    STREAM_ID_MAX,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    never,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import patiently, until

MIB = 1024 * 1024
CANCELLED, UNAVAILABLE = 1, 14


async def test_stalled_clients_do_not_pin_the_connection_that_all_share() -> None:
    """A hundred calls whose answers nobody takes, on one connection to the endpoint: every byte
    that the sidecar allows is sent, and the neighbour's calls go on over the same connection."""
    body = grpc_message(b"x" * (2 * MIB))

    async def large(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        stream.headers(RESPONSE)
        try:
            await stream.write(body)
        except ConnectionError:
            return
        stream.headers(trailers(0), end_stream=True)

    closed = {SettingsFrame.INITIAL_WINDOW_SIZE: 0}
    async with (
        raw_server(large) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address, settings=closed) as stalled,
        raw_client(plane.address) as neighbour,
    ):
        held = [open_call(stalled) for _ in range(100)]
        for stream in held:
            await stream.until_headers()
        await until(
            lambda: all(stream.send_window <= 0 for stream in endpoint.streams),
            "the end of every window",
        )
        for _ in range(5):
            stream = await open_call(neighbour).until_done()
            assert (stream.grpc_status, len(stream.data)) == (0, len(body)), stream.describe()
        assert len(endpoint.connections) == 1, "they did not share a connection"
        assert not any(stream.done for stream in held)
        stalled.tcp_reset()
        await plane.until_ended(105)


async def test_a_burst_waits_for_the_settings_of_the_endpoint() -> None:
    """Fifty calls at once to an endpoint that has not said yet that it takes five at a time."""
    most = 5
    open_now: dict[int, int] = {}

    async def strict(stream: RawStream) -> None:
        connection = id(stream.connection)
        open_now[connection] = open_now.get(connection, 0) + 1
        if open_now[connection] > most:
            stream.reset(REFUSED_STREAM)
        else:
            await answer()(stream)
        open_now[connection] -= 1

    endpoint = RawServer(strict, greet=False)
    await endpoint.start()
    bounded = {"limits": {"max_connections_per_endpoint": 10, "max_pending": 100}}
    try:
        async with (
            data_plane([endpoint.address], service=bounded) as plane,
            raw_client(plane.address) as client,
        ):
            calls = [open_call(client) for _ in range(most * 10)]
            await until(lambda: endpoint.connections, "the connection")
            assert not endpoint.streams, "a call was sent before the SETTINGS were read"
            greeted = 0
            while not all(stream.done for stream in calls):
                # Connections that are made for the rest are greeted as late.
                for connection in endpoint.connections[greeted:]:
                    connection.settings({SettingsFrame.MAX_CONCURRENT_STREAMS: most})
                    greeted += 1
                await client.next_frame()
            assert [stream.grpc_status for stream in calls] == [0] * len(calls)
            assert not [stream for stream in endpoint.streams if stream.left]
            await plane.until_ended(len(calls), grpc_status="OK")
            assert plane.metrics().value("attnroute_retries_total") == 0
    finally:
        await endpoint.close()


@pytest.mark.parametrize("code", [CANCEL, INTERNAL_ERROR])
async def test_cancel_stays_cancel_both_ways(code: int) -> None:
    """Whatever code a client leaves with, its endpoint is told CANCEL, as gRPC says it; an endpoint
    that cancels is CANCELLED for the client, by a status."""

    async def script(stream: RawStream) -> None:
        if stream.value("x-do") == b"cancel":
            await stream.until(lambda: stream.ended, "the request")
            stream.reset(CANCEL)
        else:
            await never(stream)

    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        left = open_call(client)
        (seen,) = await endpoint.until_streams(1)
        left.reset(code)
        await seen.until(lambda: seen.dead, "the reset")
        assert seen.reset_code == CANCEL
        cancelled = await open_call(client, extra=[("x-do", "cancel")]).until_done()
        assert (cancelled.grpc_status, cancelled.reset_code) == (CANCELLED, None)
        await plane.until_ended(2, grpc_status="CANCELLED")


Ending = Callable[[RawServer, DataPlaneHarness], Awaitable[None]]


async def _lost(endpoint: RawServer, _plane: DataPlaneHarness) -> None:
    endpoint.connections[0].tcp_reset()


async def _left(endpoint: RawServer, _plane: DataPlaneHarness) -> None:
    """GOAWAY that takes every call, then gone all the same."""
    endpoint.connections[0].goaway(STREAM_ID_MAX)
    endpoint.connections[0].tcp_reset()


async def _refused_late(endpoint: RawServer, _plane: DataPlaneHarness) -> None:
    for stream in endpoint.streams:
        stream.headers(RESPONSE)
        stream.reset(REFUSED_STREAM)


async def _drained(_endpoint: RawServer, plane: DataPlaneHarness) -> None:
    await plane.drain(linger_ms=0, limit_ms=50)


async def _silent(_endpoint: RawServer, _plane: DataPlaneHarness) -> None:
    """The answer to a PING does not come."""


@pytest.mark.parametrize("ending", [_lost, _left, _refused_late, _drained, _silent])
async def test_a_call_that_was_delivered_is_never_answered_with_refused_stream(
    ending: Ending,
) -> None:
    """A client repeats what was refused, so that would make calls happen twice."""
    watched = keepalive() if ending is _silent else {}
    async with (
        raw_server(never, manners=DEAF) as endpoint,
        data_plane([endpoint.address], service=watched) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client, body=b"write") for _ in range(20)]
        await endpoint.until_streams(len(calls))
        await until(lambda: all(stream.ended for stream in endpoint.streams), "every whole request")
        await ending(endpoint, plane)
        for stream in calls:
            await stream.until_done()
            assert stream.reset_code != REFUSED_STREAM, stream.describe()
            assert stream.grpc_status not in (None, 0), stream.describe()
        assert len(endpoint.streams) == len(calls), "a delivered call was sent again"
        await plane.until_ended(len(calls))


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE[:-1]], ids=["nothing", "half", "all"])
async def test_a_connection_that_never_begins_is_not_held(sent: bytes) -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], timeouts={"handshake_ms": 100}) as plane,
        raw_client(plane.address) as client,
    ):
        idle = [await asyncio.open_connection(*plane.address.split(":")) for _ in range(20)]
        for _, writer in idle:
            writer.write(sent)
        for reader, writer in idle:
            assert await patiently(reader.read(), "its end") == b""
            writer.close()
        refused = "attnroute_listener_refused_total"
        await until(
            lambda: plane.metrics().value(refused, reason="handshake_timeout") == len(idle),
            "their count",
        )
        assert (await open_call(client).until_done()).grpc_status == 0
