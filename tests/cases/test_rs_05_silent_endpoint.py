"""RS-05, H2-21, H2-30: an endpoint that is gone without a word is found; pings are few."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from typing import Any

from hyperframe.frame import SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.echo_endpoint import ECHO, ROOT
from tests.support.grpc_peers import path
from tests.support.raw_h2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    WINDOW_MAX,
    Manners,
    RawStream,
)
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    never,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import until

UNAVAILABLE = 14
DEAF = Manners(answer_pings=False)


def keepalive(interval_ms: int = 100, timeout_ms: int = 100) -> dict[str, Any]:
    return {"connection": {"keepalive": {"interval_ms": interval_ms, "timeout_ms": timeout_ms}}}


def silences(plane: DataPlaneHarness) -> float:
    return plane.metrics().value("attnroute_endpoint_silences_total")


async def test_rs_05_a_silent_endpoint_is_found_and_its_calls_end() -> None:
    async with (
        raw_server(never, manners=DEAF) as silent,
        data_plane([silent.address], service=keepalive()) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(20)]
        for stream in calls:
            await stream.until_done()
            assert stream.grpc_status == UNAVAILABLE, stream.describe()
            assert "did not answer a PING" in stream.grpc_message
        first = silent.connections[0]
        await first.until_gone()
        assert len(first.pings) == 1
        assert silences(plane) == 1
        assert len(silent.streams) == 20, "a call that may have been processed was repeated"
        await plane.until_ended(20, grpc_status="UNAVAILABLE")


async def test_rs_05_an_endpoint_that_answers_pings_keeps_slow_calls() -> None:
    async with (
        raw_server(never) as slow,
        raw_server(never, manners=DEAF) as silent,
        data_plane([slow.address, silent.address], service=keepalive()) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(2)]
        await until(lambda: silences(plane) == 1, "the end of the silent one")
        await until(lambda: len(slow.connections[0].pings) == 2, "pings of the slow one")
        (held,) = slow.streams
        held.headers([*RESPONSE, *trailers(0)], end_stream=True)
        ends = {(await stream.until_done()).grpc_status for stream in calls}
        assert ends == {0, UNAVAILABLE}
        assert len(slow.connections) == 1
        await plane.until_ended(2)


async def test_h2_30_an_idle_connection_is_left_alone() -> None:
    """Two endpoints; while one is asked twice about a call that it has, the idle one is not."""
    async with (
        raw_server(answer()) as idle,
        raw_server(never) as busy,
        data_plane({"idle": [idle.address], "busy": [busy.address]}) as plane,
    ):
        for service in plane.config["services"]:
            service.update(keepalive(interval_ms=150, timeout_ms=60_000))
        plane.apply()
        async with raw_client(plane.address) as client:
            done = await open_call(client, authority="idle").until_done()
            assert done.grpc_status == 0
            held = open_call(client, authority="busy")
            await busy.until_streams(1)
            await until(lambda: len(busy.connections[0].pings) == 2, "two pings")
            assert idle.connections[0].pings == []
            held.reset(CANCEL)
            await plane.until_ended(2)


async def test_h2_30_an_endpoint_that_objects_costs_no_call() -> None:
    async def object_once(stream: RawStream) -> None:
        connection = stream.connection
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        if connection is endpoint.connections[0]:
            connection.goaway(0, ENHANCE_YOUR_CALM, b"too_many_pings")
            connection.end_writing()
        elif not stream.dead:
            stream.headers([*RESPONSE, *trailers(0)], end_stream=True)

    async with (
        raw_server(object_once) as endpoint,
        data_plane([endpoint.address], service=keepalive(interval_ms=60_000)) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, body=b"write").until_done()
        assert stream.grpc_status == 0, stream.describe()
        assert plane.metrics().value("attnroute_retries_total", reason="leaving") == 1
        await plane.until_ended(1, grpc_status="OK")


async def test_keepalive_can_be_switched_off() -> None:
    off = keepalive(interval_ms=0)
    async with (
        raw_server(never, manners=DEAF) as silent,
        raw_server(never, manners=DEAF) as watched,
        data_plane({"off": [silent.address], "on": [watched.address]}, service=off) as plane,
    ):
        plane.config["services"][1].update(keepalive())
        plane.apply()
        async with raw_client(plane.address) as client:
            kept = open_call(client, authority="off")
            await silent.until_streams(1)
            lost = open_call(client, authority="on")
            assert (await lost.until_done()).grpc_status == UNAVAILABLE
            assert silent.connections[0].pings == []
            assert not kept.done
            kept.reset(CANCEL)
            await plane.until_ended(2)


async def test_h2_21_a_connection_that_takes_nothing_more_is_given_up() -> None:
    """Uploads fill the window of an endpoint that has stopped reading; the others go on."""
    settings = {SettingsFrame.INITIAL_WINDOW_SIZE: WINDOW_MAX}
    service = {"balancer": {"type": "round_robin"}} | keepalive(interval_ms=300, timeout_ms=300)
    async with (
        raw_server(never, settings=settings) as stuck,
        raw_server(answer()) as other,
        data_plane([stuck.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        uploads = []
        while not stuck.streams:
            uploads.append(open_call(client, body=None))
            await until(lambda: len(stuck.streams) + len(other.streams) == len(uploads), "a call")
        stuck.connections[0].pause_reading()
        writes = [
            asyncio.ensure_future(stream.write(b"x" * 1_000_000, end_stream=True))
            for stream in uploads
        ]
        for stream in uploads:
            await stream.until_done()
        ends = {stream.grpc_status for stream in uploads}
        assert UNAVAILABLE in ends
        assert ends <= {0, UNAVAILABLE}
        assert silences(plane) == 1
        for write in writes:
            with contextlib.suppress(ConnectionError):
                await write
        await plane.until_ended(len(uploads))


async def test_connections_are_replaced_when_they_are_old() -> None:
    service = {"connection": {"max_age_ms": 200, "max_age_jitter": 0.5}}
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        await endpoint.until_streams(1)
        first = endpoint.connections[0]
        await until(lambda: len(endpoint.connections) >= 2, "another connection")
        count = 1
        while not any(connection.streams for connection in endpoint.connections[1:]):
            open_call(client)
            count += 1
            await endpoint.until_streams(count)
        # What runs on the old one goes on.
        first.streams[min(first.streams)].headers([*RESPONSE, *trailers(0)], end_stream=True)
        assert (await held.until_done()).grpc_status == 0, held.describe()
        client.tcp_reset()
        await plane.until_ended(count)
        # Nobody dials any more when the endpoint closes.
        plane.apply_endpoints([])
        await until(lambda: all(c.gone for c in endpoint.connections), "the last connection")


def unary_process() -> subprocess.Popen[str]:
    return subprocess.Popen(
        ECHO, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def test_a_killed_endpoint_leaves_no_call_without_a_status() -> None:
    process = await asyncio.to_thread(unary_process)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = json.loads(await asyncio.to_thread(process.stdout.readline))["address"]
        async with (
            raw_server(answer()) as other,
            data_plane([address]) as plane,
            raw_client(plane.address) as client,
        ):
            # Not half-closed, so the endpoint waits for the rest.
            calls = [open_call(client, path("Unary"), body=None) for _ in range(100)]
            await until(lambda: sum(plane.in_flight().values()) == 200, "a hundred calls")
            client.ping()
            await client.until_pongs(1)
            process.send_signal(signal.SIGKILL)
            for stream in calls:
                await stream.until_done()
                assert stream.grpc_status == UNAVAILABLE, stream.describe()
            plane.apply_endpoints([address, other.address])
            assert (await open_call(client).until_done()).grpc_status == 0
            await plane.until_ended(101)
            assert plane.statuses() == {"OK": 1, "UNAVAILABLE": 100}
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        await asyncio.to_thread(process.wait)
