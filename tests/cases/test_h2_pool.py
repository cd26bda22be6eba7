"""Cases H2-15 to H2-23: connections that leave, stream limits of the peer and our own.

Repeating calls that a leaving connection did not process is another matter; here nothing that
counts on it is asserted.
"""

from __future__ import annotations

import asyncio

from hyperframe.frame import SettingsFrame
from tests.support.dataplane import data_plane
from tests.support.raw_h2 import (
    NO_ERROR,
    REFUSED_STREAM,
    STREAM_ID_MAX,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import until

RESOURCE_EXHAUSTED, UNAVAILABLE = 8, 14


async def _held(stream: RawStream) -> None:
    """Headers at once; the end when the test says so by resetting or by `finish`."""
    stream.headers(RESPONSE)
    await stream.until(lambda: stream.dead, "the end of a held stream")


def _finish(stream: RawStream) -> None:
    stream.headers(trailers(0), end_stream=True)


async def test_h2_15_streams_below_the_goaway_finish_and_new_ones_go_elsewhere() -> None:
    async with (
        raw_server(_held) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        old = [open_call(client) for _ in range(3)]
        await endpoint.until_streams(3)
        first = endpoint.connections[0]
        first.goaway(max(first.streams), NO_ERROR)
        new = open_call(client)
        await endpoint.until_streams(4)
        assert len(endpoint.connections) == 2, "a new stream went to a connection that leaves"
        assert len(first.streams) == 3
        for connection in endpoint.connections:
            for stream in connection.streams.values():
                _finish(stream)
        for stream in [*old, new]:
            await stream.until_done()
            assert stream.grpc_status == 0, stream.describe()
        await first.until_gone()  # what has left and is empty is closed
        await plane.until_ended(4, grpc_status="OK")


async def test_h2_15_the_first_goaway_of_a_pair_ends_nothing() -> None:
    async with (
        raw_server(_held) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        old = [open_call(client) for _ in range(3)]
        await endpoint.until_streams(3)
        first = endpoint.connections[0]
        first.goaway(STREAM_ID_MAX, NO_ERROR)
        first.ping(b"goaway01")
        await first.until_pongs(1)
        assert not any(stream.dead for stream in first.streams.values())
        first.goaway(max(first.streams), NO_ERROR)
        # Known to the sidecar before the next call: what crosses the GOAWAY is another test.
        first.ping(b"goaway02")
        await first.until_pongs(2)
        new = open_call(client)
        await endpoint.until_streams(4)
        for stream in endpoint.streams:
            _finish(stream)
        for stream in [*old, new]:
            await stream.until_done()
            assert stream.grpc_status == 0, stream.describe()
        assert len(endpoint.connections) == 2
        await plane.until_ended(4, grpc_status="OK")


async def test_h2_15_other_endpoints_take_over_at_once() -> None:
    async with (
        raw_server(_held) as leaving,
        raw_server(answer()) as staying,
        data_plane([leaving.address, staying.address]) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        while not leaving.streams:  # least_request: the next call goes to whoever has none
            assert (await open_call(client).until_headers()) is not None
        leaving.stop_listening()
        leaving.connections[0].goaway(STREAM_ID_MAX)
        leaving.connections[0].goaway(max(leaving.connections[0].streams))
        leaving.connections[0].ping()
        await leaving.connections[0].until_pongs(1)
        for _ in range(50):
            stream = await open_call(client).until_done()
            assert stream.grpc_status == 0, stream.describe()
        (at_endpoint,) = leaving.streams
        assert not at_endpoint.dead
        _finish(at_endpoint)
        assert (await held.until_done()).grpc_status == 0


async def test_h2_16_calls_behind_a_leaving_connection_end_soon() -> None:
    one_stream = {SettingsFrame.MAX_CONCURRENT_STREAMS: 1}
    bounded = {"limits": {"max_connections_per_endpoint": 1}}
    async with (
        raw_server(_held, settings=one_stream) as endpoint,
        data_plane([endpoint.address], service=bounded) as plane,
        raw_client(plane.address) as client,
    ):
        running = open_call(client)
        await endpoint.until_streams(1)
        queued = [open_call(client, extra=[("grpc-timeout", "1H")]) for _ in range(5)]
        first = endpoint.connections[0]
        first.goaway(max(first.streams), NO_ERROR)

        def settled() -> list[RawStream]:
            return [stream for stream in queued if stream.done or stream.blocks]

        # One place came free with the new connection, if the old one still counts not even that.
        await client.until(lambda: len(settled()) >= 4, "the queued calls, before their deadline")
        assert len(first.streams) == 1, "a new stream on a leaving connection"
        for stream in settled():
            if stream.done:
                assert stream.grpc_status in (UNAVAILABLE, RESOURCE_EXHAUSTED), stream.describe()
        _finish(next(iter(first.streams.values())))
        assert (await running.until_done()).grpc_status == 0
        for stream in queued:
            stream.reset()
        await plane.until_ended(6)
        late = open_call(client)
        assert (await late.until_headers()).get("grpc-status") is None, "it did not recover"
        late.reset()


async def test_h2_18_second_connection_at_the_peers_stream_limit() -> None:
    hundred = {SettingsFrame.MAX_CONCURRENT_STREAMS: 100}
    async with (
        raw_server(_held, settings=hundred) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await open_call(client).until_headers()  # the endpoint's SETTINGS are known
        idle = [open_call(client) for _ in range(149)]
        for stream in idle:
            await stream.until_headers()
        last = open_call(client)
        await last.until_headers()
        counts = [len(connection.streams) for connection in endpoint.connections]
        assert sum(counts) == 151
        assert len(counts) == 2
        assert max(counts) <= 100
        client.tcp_reset()
        await plane.until_ended(151, grpc_status="CANCELLED")


async def test_h2_18_at_the_bound_the_call_fails_fast() -> None:
    ten = {SettingsFrame.MAX_CONCURRENT_STREAMS: 10}
    bounded = {"limits": {"max_connections_per_endpoint": 2}}
    async with (
        raw_server(_held, settings=ten) as endpoint,
        data_plane([endpoint.address], service=bounded) as plane,
        raw_client(plane.address) as client,
    ):
        held = []
        for _ in range(20):
            held.append(open_call(client))
            await held[-1].until_headers()
        assert len(endpoint.connections) == 2
        refused = await open_call(client, extra=[("grpc-timeout", "1H")]).until_done()
        assert refused.grpc_status in (UNAVAILABLE, RESOURCE_EXHAUSTED), refused.describe()
        assert "max_connections_per_endpoint" in refused.grpc_message
        assert plane.limit_hits("max_connections_per_endpoint") == 1
        assert len(endpoint.connections) == 2
        _finish(endpoint.streams[0])
        await held[0].until_done()
        await until(lambda: plane.ended() == 2, "the first held call's end")
        again = open_call(client)
        await again.until_headers()
        assert not again.ended, "a place that came free was not used"
        client.tcp_reset()
        await plane.until_ended(22)


async def test_a_lowered_stream_limit_is_respected() -> None:
    """SETTINGS may change at any time; what runs goes on, new streams find room elsewhere."""
    async with (
        raw_server(_held, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 100}) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(5):
            await open_call(client).until_headers()
        first = endpoint.connections[0]
        first.settings({SettingsFrame.MAX_CONCURRENT_STREAMS: 2})
        first.ping(b"lowered!")
        await first.until_pongs(1)
        await open_call(client).until_headers()
        assert len(first.streams) == 5
        assert len(endpoint.connections) == 2
        client.tcp_reset()
        await plane.until_ended(6, grpc_status="CANCELLED")


async def test_h2_21_uploads_share_small_connection_windows() -> None:
    """10 streams to a connection whose window is 64 KiB for all: every upload goes on."""
    ten = {SettingsFrame.MAX_CONCURRENT_STREAMS: 10}
    bounded = {"limits": {"max_connections_per_endpoint": 10}}
    async with (
        raw_server(answer(), settings=ten) as endpoint,
        data_plane([endpoint.address], service=bounded) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        bodies = [b"x" * (10_000 + 900 * number) for number in range(100)]
        calls = [open_call(client, body=None) for _ in bodies]
        uploads = [
            stream.write(grpc_message(body), end_stream=True)
            for stream, body in zip(calls, bodies, strict=True)
        ]
        await asyncio.gather(*uploads)
        for stream in calls:
            await stream.until_done()
            assert stream.grpc_status == 0, stream.describe()
        assert sorted(s.bytes_received - 5 for s in endpoint.streams) == [len(b) for b in bodies]
        assert max(len(c.streams) for c in endpoint.connections) <= 100
        await plane.until_ended(100, grpc_status="OK")


async def test_h2_23_own_stream_limit_does_not_stop_frame_reading() -> None:
    body = grpc_message(b"x" * 2_000_000)

    async def download(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.write(body)
        _finish(stream)

    async with (
        raw_server(download) as endpoint,
        data_plane([endpoint.address], limits={"max_streams_per_connection": 1}) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        stream = open_call(client)
        await stream.until_bytes(1)
        second = open_call(client)
        client.ping()
        await client.until_pongs(1)
        await second.until_done()
        assert second.reset_code == REFUSED_STREAM, second.describe()
        await stream.until_done()
        assert (stream.grpc_status, stream.data) == (0, body)
        assert (await open_call(client).until_done()).grpc_status == 0
        await plane.until_ended(2, grpc_status="OK")
