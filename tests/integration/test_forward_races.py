"""Endpoints, services and listeners that go while calls wait for them, and endpoints whose
connections do not last."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hyperframe.frame import SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import NO_ERROR, RawConnection, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    connect,
    never,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import until

UNAVAILABLE = 14
LATER = [("grpc-timeout", "1H")]


async def _held(stream: RawStream) -> None:
    stream.headers(RESPONSE)
    await stream.until(lambda: stream.dead, "the end of a held stream")


def _finish(stream: RawStream) -> None:
    stream.headers(trailers(0), end_stream=True)


@contextlib.asynccontextmanager
async def _silent() -> AsyncIterator[RawServer]:
    """An endpoint that accepts connections and never sends its SETTINGS."""
    server = await RawServer(never, greet=False).start()
    try:
        yield server
    finally:
        await server.close()


async def _until_waiting(server: RawServer) -> None:
    await until(lambda: server.connections, "a connection that is waited for")


async def _no_new_connection(server: RawServer, after_s: float) -> None:
    """Long enough for a dialler with these settings to have dialled several times."""
    for connection in server.connections:
        await connection.until_gone()
    count = len(server.connections)
    await asyncio.sleep(after_s)
    assert len(server.connections) == count, "an endpoint that left is still dialled"


QUICK = {"connect_timeout_ms": 200, "backoff_base_ms": 20, "backoff_max_ms": 50}


async def test_a_call_that_waits_for_a_removed_service_ends_and_nothing_dials_on() -> None:
    async with (
        raw_server(answer()) as first,
        _silent() as gone,
        data_plane({"test": [first.address], "late": [gone.address]}) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["services"][1]["connection"] = QUICK | {"connect_timeout_ms": 5_000}
        plane.apply()
        waiting = open_call(client, authority="late", extra=LATER)
        await _until_waiting(gone)
        del plane.config["services"][1]
        plane.apply()
        await waiting.until_done()
        assert waiting.grpc_status == UNAVAILABLE, waiting.describe()
        assert (await open_call(client).until_done()).grpc_status == 0
        for connection in list(gone.connections):
            connection.tcp_reset()
        await _no_new_connection(gone, 0.5)


async def test_a_call_that_waits_for_a_removed_endpoint_goes_to_another_one() -> None:
    async with (
        raw_server(answer()) as stays,
        _silent() as gone,
        data_plane(
            [gone.address], service={"connection": QUICK | {"connect_timeout_ms": 5_000}}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        waiting = [open_call(client, extra=LATER) for _ in range(10)]
        await _until_waiting(gone)
        plane.apply_endpoints([stays.address])
        for stream in waiting:
            await stream.until_done()
            assert stream.grpc_status == 0, stream.describe()
        for connection in list(gone.connections):
            connection.tcp_reset()
        await _no_new_connection(gone, 0.5)


async def test_a_call_outwaits_any_number_of_changes() -> None:
    async with (
        raw_server(answer()) as good,
        contextlib.AsyncExitStack() as stack,
        data_plane({"test": []}) as plane,
        raw_client(plane.address) as client,
    ):
        silent = [await stack.enter_async_context(_silent()) for _ in range(8)]
        waiting = None
        for server in silent:
            plane.apply_endpoints([server.address])
            waiting = waiting or open_call(client, extra=LATER)
            await _until_waiting(server)
        plane.apply_endpoints([good.address])
        assert waiting is not None
        assert (await waiting.until_done()).grpc_status == 0, waiting.describe()
        await plane.until_ended(1, grpc_status="OK")


async def test_leaving_connections_with_long_streams_take_no_place() -> None:
    """An endpoint that renews its connections (a maximal age) while long streams stay on the old
    ones: however often, it takes calls."""
    async with (
        raw_server(_held) as endpoint,
        data_plane(
            [endpoint.address], service={"limits": {"max_connections_per_endpoint": 2}}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        held = []
        for turn in range(6):
            held.append(open_call(client, extra=LATER))
            await held[-1].until_headers()
            assert not held[-1].done, held[-1].describe()
            connection = endpoint.connections[-1]
            assert len(endpoint.connections) == turn + 1
            connection.goaway(max(connection.streams), NO_ERROR)
            connection.ping()
            await connection.until_pongs(1)
        for stream in endpoint.streams:
            _finish(stream)
        for stream in held:
            assert (await stream.until_done()).grpc_status == 0, stream.describe()
        assert plane.limit_hits("max_connections_per_endpoint") == 0
        await plane.until_ended(6, grpc_status="OK")


async def test_a_full_connection_that_leaves_takes_no_place() -> None:
    async with (
        raw_server(_held, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 1}) as endpoint,
        data_plane(
            [endpoint.address], service={"limits": {"max_connections_per_endpoint": 1}}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        old = open_call(client)
        await old.until_headers()
        (first,) = endpoint.connections
        first.goaway(max(first.streams), NO_ERROR)
        first.ping()
        await first.until_pongs(1)
        new = open_call(client, extra=LATER)
        await new.until_headers()
        assert not new.done, new.describe()
        for stream in endpoint.streams:
            _finish(stream)
        for call in (old, new):
            assert (await call.until_done()).grpc_status == 0
        await plane.until_ended(2, grpc_status="OK")


async def test_an_endpoint_that_leaves_right_after_its_settings_is_backed_off() -> None:
    """GOAWAY and FIN behind the SETTINGS: no storm of dials, no call without an end."""
    server = RawServer(never, greet=False)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = RawConnection(reader, writer, handler=never)
        server.connections.append(connection)
        connection.settings({})
        connection.goaway(0, NO_ERROR)
        connection.start()
        connection.end_writing()
        await connection.until_gone()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    quick = {"connection": {"backoff_base_ms": 200, "backoff_max_ms": 400}}
    async with (
        raw_server(answer()) as good,
        data_plane([address], service=quick) as plane,
        raw_client(plane.address) as client,
    ):
        began_s = time.monotonic()
        stream = await open_call(client, extra=LATER).until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        assert address in stream.grpc_message
        await asyncio.sleep(2)
        dials = len(server.connections)
        # 80 % of 0.2, 0.32 and then 0.4 s between two of them.
        assert dials <= 3 + (time.monotonic() - began_s) / 0.32, f"{dials} dials"
        plane.apply_endpoints([address, good.address])
        for _ in range(40):
            stream = await open_call(client, extra=LATER).until_done()
            assert stream.grpc_status == 0, stream.describe()
    listening.close()
    await listening.wait_closed()
    for connection in server.connections:
        await connection.close()


async def test_an_endpoint_that_takes_no_second_connection_is_used_again() -> None:
    one = {SettingsFrame.MAX_CONCURRENT_STREAMS: 1}
    async with (
        raw_server(_held, settings=one) as small,
        raw_server(answer()) as large,
        data_plane(
            [small.address, (large.address, 0.0)],
            service={"connection": {"backoff_base_ms": 20, "backoff_max_ms": 50}},
        ) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        await held.until_headers()
        small.refuse_connections = True
        plane.apply_endpoints([small.address, (large.address, 1e-3)])
        others = [await open_call(client, extra=LATER).until_done() for _ in range(5)]
        assert [stream.grpc_status for stream in others] == [0] * 5
        small.streams[0].headers(trailers(0), end_stream=True)
        assert (await held.until_done()).grpc_status == 0
        again = None
        end_s = time.monotonic() + 10
        while len(small.streams) < 2 and time.monotonic() < end_s:
            again = open_call(client, extra=LATER)
            await again.until_headers()
            await asyncio.sleep(0.01)
        assert len(small.streams) == 2, "an endpoint with an open, idle connection gets no calls"
        assert again is not None
        again.reset()


async def test_a_call_that_waits_at_the_end_of_a_drain_is_answered() -> None:
    async with (
        _silent() as silent,
        data_plane(
            [silent.address], service={"connection": {"connect_timeout_ms": 60_000}}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        waiting = open_call(client, extra=LATER)
        await _until_waiting(silent)
        began_s = time.thread_time()
        cpu_s = time.process_time()
        assert not await plane.drain(linger_ms=50, limit_ms=300)
        await waiting.until_done()
        assert waiting.grpc_status == UNAVAILABLE, waiting.describe()
        assert "shutting down" in waiting.grpc_message
        assert time.process_time() - cpu_s < 0.4 + (time.thread_time() - began_s)
        await plane.until_ended(1, grpc_status="UNAVAILABLE")


@contextlib.contextmanager
def _free_port() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield f"127.0.0.1:{port}"


async def _check_listener_changes(plane: DataPlaneHarness, address: str) -> None:
    async with raw_client(address) as client:
        assert (await open_call(client).until_done()).data == grpc_message(b"test")
        plane.config["listeners"][0] = {
            "name": "renamed",
            "mode": "service",
            "service": "other",
            "address": address,
        }
        plane.apply()
        assert plane.plane.bound() == {"renamed": address}
        # Of connections that are open, too: clients keep them for days.
        assert (await open_call(client).until_done()).data == grpc_message(b"other")
        async with raw_client(address) as fresh:
            assert (await open_call(fresh).until_done()).data == grpc_message(b"other")


async def test_a_listener_changes_at_its_address() -> None:
    with _free_port() as address:
        listeners = [{"name": "first", "mode": "explicit", "address": address}]
        async with (
            raw_server(answer(b"test")) as test,
            raw_server(answer(b"other")) as other,
            data_plane(
                {"test": [test.address], "other": [other.address]}, listeners=listeners
            ) as plane,
        ):
            await _check_listener_changes(plane, address)


async def test_a_listener_changes_at_its_unix_socket(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    listeners = [{"name": "first", "mode": "explicit", "address": address}]
    async with (
        raw_server(answer(b"test")) as test,
        raw_server(answer(b"other")) as other,
        data_plane(
            {"test": [test.address], "other": [other.address]}, listeners=listeners
        ) as plane,
    ):
        await _check_listener_changes(plane, address)
    assert not (tmp_path / "s").exists()


async def test_listeners_swap_their_addresses() -> None:
    with _free_port() as one, _free_port() as two:
        listeners = [
            {"name": "a", "mode": "service", "service": "test", "address": one},
            {"name": "b", "mode": "service", "service": "other", "address": two},
        ]
        async with (
            raw_server(answer(b"test")) as test,
            raw_server(answer(b"other")) as other,
            data_plane(
                {"test": [test.address], "other": [other.address]}, listeners=listeners
            ) as plane,
        ):
            first, second = plane.config["listeners"]
            first["address"], second["address"] = two, one
            plane.apply()
            assert plane.plane.bound() == {"a": two, "b": one}
            async with raw_client(two) as client:
                assert (await open_call(client).until_done()).data == grpc_message(b"test")


async def test_a_listener_leaves_at_once_and_comes_back_at_once(tmp_path: Path) -> None:
    with _free_port() as address:
        extra = [
            {"name": "tcp", "mode": "explicit", "address": address},
            {"name": "unix", "mode": "explicit", "address": f"unix:{tmp_path / 's'}"},
        ]
        async with (
            raw_server(answer()) as endpoint,
            data_plane([endpoint.address], threads=2) as plane,
        ):
            own = list(plane.config["listeners"])
            for _ in range(20):
                plane.config["listeners"] = [*own, *extra]
                plane.apply()
                for listener in extra:
                    async with raw_client(listener["address"]) as client:
                        assert (await open_call(client).until_done()).grpc_status == 0
                plane.config["listeners"] = own
                plane.apply()
                with pytest.raises(ConnectionRefusedError):
                    await connect(address)
                with pytest.raises(FileNotFoundError):
                    await connect(extra[1]["address"])
            metrics = plane.metrics()
            assert metrics.value("attnroute_listener_accept_errors_total") == 0


async def test_the_socket_file_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listeners = [{"name": "u", "mode": "explicit", "address": f"unix:{path}"}]
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], listeners=listeners) as plane,
    ):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            await plane.stop()
            assert path.is_socket(), "the file of another process was removed"


async def test_a_drain_waits_for_calls_of_removed_services_and_listeners() -> None:
    finish = asyncio.Event()

    async def until_told(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await finish.wait()
        _finish(stream)

    listeners = [
        {"name": "a", "mode": "explicit", "address": "127.0.0.1:0"},
        {"name": "b", "mode": "service", "service": "late", "address": "127.0.0.1:0"},
    ]
    async with (
        raw_server(answer()) as first,
        raw_server(until_told) as late,
        data_plane({"test": [first.address], "late": [late.address]}, listeners=listeners) as plane,
        raw_client(plane.addresses["b"]) as client,
    ):
        running = open_call(client)
        await running.until_headers()
        del plane.config["services"][1], plane.config["listeners"][1]
        plane.apply()
        draining = asyncio.create_task(plane.drain(linger_ms=0, limit_ms=20_000))
        await client.until(lambda: client.goaways, "GOAWAY")
        assert not draining.done(), "the drain did not wait for the call"
        finish.set()
        assert (await running.until_done()).grpc_status == 0, running.describe()
        assert await draining


async def test_an_address_that_left_twice_has_one_series() -> None:
    async with (
        raw_server(_held) as server,
        raw_server(answer()) as other,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        held = []
        for _ in range(2):
            plane.apply_endpoints([server.address])
            held.append(open_call(client))
            await held[-1].until_headers()
            plane.apply_endpoints([other.address])
        metrics = plane.metrics()
        for name in ("attnroute_endpoint_inflight", "attnroute_endpoint_connections"):
            assert len(metrics.of(name, endpoint=server.address)) <= 1, name
        for stream in server.streams:
            _finish(stream)
        for call in held:
            assert (await call.until_done()).grpc_status == 0


async def test_a_reload_changes_how_a_lost_endpoint_is_dialled() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane(
            [endpoint.address],
            service={"connection": {"backoff_base_ms": 60_000, "backoff_max_ms": 60_000}},
        ) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client).until_done()).grpc_status == 0
        plane.config["services"][0]["connection"] = QUICK
        plane.apply()
        endpoint.refuse_connections = True
        endpoint.connections[0].tcp_reset()
        # Three dials, which the settings of the first connection would leave an hour apart.
        await until(lambda: len(endpoint.connections) >= 4, "dials with the new settings")
