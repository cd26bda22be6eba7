"""Cases H2-06 to H2-47 about streams: half-close, tails, leaving, quiet and large ones."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest
from hyperframe.frame import SettingsFrame
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import CANCEL, NO_ERROR, Manners, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import until

MIB = 1024 * 1024


async def test_h2_06_half_close_leaves_the_answer_open() -> None:
    go_on = asyncio.Event()

    async def long_answer(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.until(lambda: stream.ended, "the half-close")
        for number in range(5):
            await go_on.wait()
            go_on.clear()
            await stream.write(grpc_message(b"%d" % number))
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(long_answer) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        for number in range(5):
            go_on.set()
            await stream.until_bytes(6 * (number + 1))
        await stream.until_done()
        assert stream.grpc_status == 0
        assert stream.data == b"".join(grpc_message(b"%d" % n) for n in range(5))
        await plane.until_ended(1, grpc_status="OK")


async def test_h2_06_early_trailers_come_before_the_reset() -> None:
    async def early(stream: RawStream) -> None:
        await stream.until_bytes(6)
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"enough"))
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(early) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, body=None)
        stream.data_frame(grpc_message(b"1"))
        await stream.until(lambda: stream.ended, "the answer's end while the request is open")
        await stream.until(lambda: stream.reset_code is not None, "the reset of the request")
        assert (stream.grpc_status, stream.reset_code) == (0, NO_ERROR), stream.describe()
        assert stream.data == grpc_message(b"enough")
        stream.data_frame(grpc_message(b"2"))
        stream.data_frame(grpc_message(b"3"), end_stream=True)
        neighbour = await open_call(client, body=b"2").until_done()
        assert neighbour.grpc_status == 0, "frames after the end hurt the connection"
        await plane.until_ended(2, grpc_status="OK")


async def test_h2_06_half_close_between_real_peers() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        call = client.bidi("BidiEarly")()
        await call.write(b"only")
        assert await call.read() == b"only"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await plane.until_ended(1, grpc_status="OK")


@pytest.mark.timeout(240)
async def test_h2_07_tail_of_a_large_stream_survives_a_slow_reader() -> None:
    body = grpc_message(b"x" * (4 * MIB - 5))

    async def at_once(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.write(body)
        stream.headers(trailers(0), end_stream=True)

    async def run(plane_address: str) -> None:
        small = {SettingsFrame.INITIAL_WINDOW_SIZE: 16_384}
        manners = Manners(keep_windows_open=False)
        async with raw_client(plane_address, settings=small, manners=manners) as client:
            stream = open_call(client, body=None)  # the request stays open all the while
            stream.data_frame(grpc_message(b"ask"))
            given_back = 0
            while not stream.ended:
                await stream.until_more_than(given_back)
                assert not stream.dead or stream.ended, stream.describe()
                more, given_back = stream.bytes_received - given_back, stream.bytes_received
                if more and not stream.ended:
                    client.open_window(more)
                    stream.open_window(more)
            assert stream.grpc_status == 0, stream.describe()
            assert len(stream.data) == len(body)

    async with raw_server(at_once) as endpoint, data_plane([endpoint.address]) as plane:
        for _ in range(RUNS_OF_H2_07 // 8):
            await asyncio.gather(*(run(plane.address) for _ in range(8)))
        await plane.until_ended(RUNS_OF_H2_07, grpc_status="OK")


RUNS_OF_H2_07 = 200


@pytest.mark.parametrize("how", ["reset", "vanish"])
async def test_h2_33_client_leaves_an_endless_stream(how: str) -> None:
    async def endless(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        while not stream.dead:
            await stream.write(grpc_message(b"tick" * 100))
            await asyncio.sleep(0.001)

    async with (
        raw_server(endless) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await stream.until_bytes(3 * 405)
        if how == "reset":
            stream.reset(CANCEL)
        else:
            client.tcp_reset()
        (at_endpoint,) = endpoint.streams
        await at_endpoint.until(lambda: at_endpoint.reset_code is not None, "CANCEL")
        assert at_endpoint.reset_code == CANCEL
        await plane.until_ended(1, grpc_status="CANCELLED")
        assert not endpoint.connections[0].gone
        assert len(endpoint.connections) == 1


async def test_h2_33_cancellation_between_real_peers_both_ways() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        call = client.server_stream("BlockStream")(b"3")
        assert [await call.read() for _ in range(3)] == [b"0", b"1", b"2"]
        assert call.cancel()
        waiting = asyncio.create_task(_result(client.unary("Block")(b"x")))
        await plane.until_ended(1, grpc_status="CANCELLED")
        await until(lambda: peer.started == 2, "the second call at the endpoint")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await plane.until_ended(2, grpc_status="CANCELLED")
        await until(lambda: peer.cancelled == 2, "both cancellations at the endpoint")


async def _result(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    return await call


async def test_h2_33_client_leaves_while_it_waits_for_a_connection() -> None:
    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(swallow, "127.0.0.1", 0)
    address = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    async with data_plane([address]) as plane, raw_client(plane.address) as client:
        stream = open_call(client)
        await until(lambda: writers, "the sidecar's connect")
        stream.reset(CANCEL)
        await plane.until_ended(1, grpc_status="CANCELLED")
    mute.close()
    for writer in writers:
        writer.close()


async def test_h2_42_nothing_is_collected_before_sending() -> None:
    """Each step waits for the step before on the other side, so that a batch would hang."""
    steps = asyncio.Queue[bytes]()

    async def step_by_step(stream: RawStream) -> None:
        assert await steps.get() == b"headers"
        stream.headers(RESPONSE)
        for number in range(5):
            assert await steps.get() == b"message"
            await stream.write(grpc_message(b"%d" % number * 512))
        assert await steps.get() == b"trailers"
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(step_by_step) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, body=None)
        await endpoint.until_streams(1)
        (at_endpoint,) = endpoint.streams
        for number in range(5):
            stream.data_frame(grpc_message(b"up"))
            await at_endpoint.until_bytes(7 * (number + 1))
        steps.put_nowait(b"headers")
        await stream.until_headers()
        for number in range(5):
            steps.put_nowait(b"message")
            await stream.until_bytes(517 * (number + 1))
        assert not stream.ended
        steps.put_nowait(b"trailers")
        stream.data_frame(b"", end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0


async def test_h2_46_quiet_streams_live_and_pings_stay_hop_by_hop() -> None:
    async def quiet(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.until_bytes(7)
        await stream.write(grpc_message(b"late"))
        await stream.until(lambda: stream.ended, "the half-close")
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(quiet) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, body=None)
        await stream.until_headers()
        for number in range(4):
            await asyncio.sleep(0.5)  # the silence is what this test is about
            client.ping(b"quiet%03d" % number)
            await client.until_pongs(number + 1)
        assert not stream.done
        stream.data_frame(grpc_message(b"up"))
        await stream.until_bytes(9)
        stream.data_frame(b"", end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0
        assert b"quiet" not in b"".join(endpoint.connections[0].pings)


@pytest.mark.parametrize("mib", [5, 64])
async def test_h2_47_large_messages_pass_both_ways(mib: int) -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        body = bytes(range(256)) * (mib * 4096)
        assert await client.unary()(body) == body
        passed = plane.metrics()
        assert passed.value("attnroute_request_bytes_total") == len(body) + 5
        assert passed.value("attnroute_response_bytes_total") == len(body) + 5
        await plane.until_ended(1, grpc_status="OK")


async def test_h2_47_a_false_length_prefix_passes_as_bytes() -> None:
    false = struct.pack(">BI", 0, 2**31) + b"small"

    async def lie(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        assert stream.data == false
        stream.headers(RESPONSE)
        await stream.write(false)
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(lie) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, body=None)
        stream.data_frame(false, end_stream=True)
        await stream.until_done()
        assert (stream.grpc_status, stream.data) == (0, false)


async def test_back_pressure_reaches_the_endpoint() -> None:
    """A client that opens no window stops the endpoint: what lies between is bounded."""
    written = 0

    async def flood(stream: RawStream) -> None:
        nonlocal written
        stream.headers(RESPONSE)
        for _ in range(512):
            await stream.write(grpc_message(b"x" * (16_384 - 5)))
            written += 16_384
        stream.headers(trailers(0), end_stream=True)

    window = 65_536
    limits = {"stream_window_bytes": window, "max_send_buffer_bytes": window}
    manners = Manners(keep_windows_open=False)
    async with (
        raw_server(flood) as endpoint,
        data_plane([endpoint.address], limits=limits) as plane,
        raw_client(plane.address, manners=manners) as client,
    ):
        stream = open_call(client)
        await stream.until_bytes(65_535)
        (at_endpoint,) = endpoint.streams
        await at_endpoint.until(lambda: at_endpoint.send_window <= 0, "the endpoint's stop")
        # The client's window, the sidecar's receive window and what its send buffer may hold.
        assert written <= 65_535 + 2 * window + 16_384, f"{written} bytes were taken"
        client.manners.keep_windows_open = True
        client.open_window(2 * MIB)
        stream.open_window(2 * MIB)
        await stream.until_done()
        assert (stream.grpc_status, len(stream.data)) == (0, 512 * 16_384)


async def test_back_pressure_reaches_the_client() -> None:
    """An endpoint that does not read stops the client."""
    window = 65_536
    limits = {"stream_window_bytes": window, "max_send_buffer_bytes": window}
    manners = Manners(keep_windows_open=False)
    async with (
        raw_server(answer(), manners=manners) as endpoint,
        data_plane([endpoint.address], limits=limits) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, body=None)
        await client.until(lambda: client.peer_settings, "the sidecar's SETTINGS")
        upload = asyncio.create_task(stream.write(b"\0\0\x80\0\0" + b"x" * 8 * MIB))
        await endpoint.until_streams(1)
        (at_endpoint,) = endpoint.streams
        await at_endpoint.until_bytes(65_535)
        await stream.until(lambda: stream.send_window <= 0, "the client's stop")
        assert not upload.done()
        stream.reset()
        client.tcp_reset()
        with pytest.raises(ConnectionError):
            await upload
        await plane.until_ended(1, grpc_status="CANCELLED")
