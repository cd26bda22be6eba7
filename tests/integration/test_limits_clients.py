"""Limits that concern clients: each holds, is counted, and hurts only who went over it."""

from __future__ import annotations

import asyncio

import pytest
from hyperframe.frame import Frame, RstStreamFrame, SettingsFrame
from tests.support.dataplane import data_plane
from tests.support.raw_h2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    REFUSED_STREAM,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    never,
    open_call,
    raw_client,
    raw_server,
    request_fields,
)
from tests.support.wait import until

RESOURCE_EXHAUSTED, UNAVAILABLE = 8, 14


async def test_header_list_limit_is_that_streams_resource_exhausted() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        many = [(f"k{n}", "v") for n in range(3000)]  # 37 or so bytes each, as RFC 9113 counts
        stream = await open_call(client, extra=many).until_done()
        assert stream.grpc_status == RESOURCE_EXHAUSTED, stream.describe()
        assert "`limits.max_header_list_bytes` is 98304" in stream.grpc_message
        one = await open_call(client, extra=[("large", "v" * 110_000)]).until_done()
        assert one.grpc_status == RESOURCE_EXHAUSTED, one.describe()
        assert not endpoint.streams
        assert plane.limit_hits("max_header_list_bytes") == 2
        assert (await open_call(client).until_done()).grpc_status == 0
        assert not client.goaways
        await plane.until_ended(3)


async def test_far_over_the_header_list_limit_hurts_no_neighbour() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
        raw_client(plane.address) as neighbour,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        limit = client.peer_settings[SettingsFrame.MAX_HEADER_LIST_SIZE]
        assert limit >= 98_304
        # More than is kept of a block that is not complete: it costs the connection.
        stream = await open_call(client, extra=[("large", "v" * 1_000_000)]).until_done()
        assert stream.grpc_status is None, stream.describe()
        await client.until_gone()
        await until(lambda: plane.limit_hits("max_header_list_bytes") == 1, "its count")
        assert (await open_call(neighbour).until_done()).grpc_status == 0
        assert not neighbour.goaways
        assert not [s for s in endpoint.streams if s.value("large")]


async def test_se_06_an_honest_call_with_110_keys_passes() -> None:
    keys = [(f"x-key-{n}", f"value {n}") for n in range(110)]
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client, extra=keys).until_done()).grpc_status == 0
        reached = {k: v for k, v in endpoint.streams[0].blocks[0].fields if k.startswith(b"x-key")}
        assert reached == {k.encode(): v.encode() for k, v in keys}


@pytest.mark.parametrize(
    "fields",
    [[("a", "b")] * 10_000, [("cookie", "a=1")] * 5_000],
    ids=["10,000 one-byte fields", "5,000 crumbs of the dynamic table"],
)
async def test_se_06_many_small_fields_end_that_call_alone(
    fields: list[tuple[str, str]],
) -> None:
    """Some kilobytes on the wire, and with 32 bytes for each field far over the limit; cookies are
    counted before anybody joins them."""
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        running = open_call(client, body=None)
        frames = client.header_frames(3, request_fields("/t.S/M", extra=fields), end_stream=True)
        assert sum(len(frame.serialize()) for frame in frames) < 32 * 1024
        many = client.open_stream()
        client.send(*frames)
        await many.until_done()
        assert many.grpc_status == RESOURCE_EXHAUSTED, many.describe()
        assert "`limits.max_header_list_bytes`" in many.grpc_message
        assert plane.limit_hits("max_header_list_bytes") == 1
        # The same connection, and the same table of fields, serve on.
        running.data_frame(grpc_message(b"x"), end_stream=True)
        assert (await running.until_done()).grpc_status == 0
        few = await open_call(client, extra=fields[:50]).until_done()
        assert few.grpc_status == 0, few.describe()
        assert len(endpoint.streams) == 2
        assert not client.goaways


async def test_stream_limit_is_announced_enforced_and_counted() -> None:
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], limits={"max_streams_per_connection": 5}) as plane,
        raw_client(plane.address) as client,
        raw_client(plane.address) as neighbour,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        assert client.peer_settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 5
        held = [open_call(client) for _ in range(5)]
        await endpoint.until_streams(5)
        over = await open_call(client).until_done()
        assert over.reset_code == REFUSED_STREAM, over.describe()
        assert plane.limit_hits("max_streams_per_connection") >= 1
        extra = open_call(neighbour)
        await endpoint.until_streams(6)
        assert not any(stream.done for stream in [*held, extra])
        assert not client.goaways
        held[0].reset(CANCEL)
        await plane.until_ended(1)
        open_call(client)
        await endpoint.until_streams(7)


async def test_connection_limit_is_enforced_and_counted() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], limits={"max_connections": 2}) as plane,
        raw_client(plane.address) as first,
    ):
        async with raw_client(plane.address) as second:
            for client in (first, second):
                assert (await open_call(client).until_done()).grpc_status == 0
            async with raw_client(plane.address) as over:
                await over.until_gone()
            await until(lambda: plane.limit_hits("max_connections") == 1, "its count")
            assert (await open_call(first).until_done()).grpc_status == 0

        async def admitted() -> bool:
            async with raw_client(plane.address) as again:
                return (await open_call(again).until_done()).grpc_status == 0

        for _ in range(100):
            if await admitted():
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("a place that came free was not used")


async def test_pending_limit_refuses_at_once_and_says_so() -> None:
    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(swallow, "127.0.0.1", 0)
    address = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    service = {"limits": {"max_pending": 3}, "connection": {"connect_timeout_ms": 60_000}}
    async with data_plane([address], service=service) as plane:
        async with raw_client(plane.address) as client:
            waiting = [open_call(client) for _ in range(3)]
            over = await open_call(client).until_done()
            assert over.grpc_status == UNAVAILABLE, over.describe()
            assert "`limits.max_pending` is reached" in over.grpc_message
            assert plane.limit_hits("max_pending") == 1
            assert not any(stream.done for stream in waiting)
        await plane.until_ended(4)
    mute.close()
    for writer in writers:
        writer.close()


async def test_connect_timeout_is_unavailable() -> None:
    """An endpoint that accepts and says nothing is none: its SETTINGS are waited for, not long."""

    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(swallow, "127.0.0.1", 0)
    address = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    service = {"connection": {"connect_timeout_ms": 200}}
    async with (
        data_plane([address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == 14, stream.describe()
        assert f"`{address}`" in stream.grpc_message
    mute.close()
    for writer in writers:
        writer.close()


async def test_se_01_rapid_reset_is_cut_off_and_hurts_no_neighbour() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], limits={"max_pending_resets": 50}) as plane,
        raw_client(plane.address) as attacker,
        raw_client(plane.address) as neighbour,
    ):
        await attacker.until(lambda: attacker.peer_settings, "SETTINGS")
        burst: list[Frame] = []
        for stream_id in range(1, 2001, 2):
            burst += attacker.header_frames(stream_id, request_fields("/t.S/M"))
            burst.append(RstStreamFrame(stream_id, error_code=CANCEL))
        attacker.send(*burst)  # in one piece, so that resets are read before calls are accepted
        await attacker.until_gone()
        # What the attacker still sends may make its kernel drop the GOAWAY unread.
        assert {goaway.error_code for goaway in attacker.goaways} <= {ENHANCE_YOUR_CALM}
        await until(lambda: plane.limit_hits("max_pending_resets") == 1, "its count")
        stream = await open_call(neighbour).until_done()
        assert stream.grpc_status == 0, stream.describe()
        await until(lambda: not plane.in_flight(), "in flight back at 0")


async def test_headers_only_floods_of_metadata_reach_the_endpoint_whole() -> None:
    """Between 16 KiB (what many peers cut) and the limit nothing is lost on either side."""

    async def mirror(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        large = stream.value("x-large") or b""
        stream.headers([*RESPONSE, (b"x-large", large)])
        stream.headers([(b"grpc-status", b"0"), (b"x-tail", large)], end_stream=True)

    async with (
        raw_server(mirror) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        value = "v" * 60_000
        stream = await open_call(client, extra=[("x-large", value)]).until_done()
        assert stream.grpc_status == 0, stream.describe()[:500]
        assert stream.value("x-large") == stream.value("x-tail") == value.encode()
