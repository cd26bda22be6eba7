"""SE-01 to SE-07: work is limited whoever makes it, honest clients are not hurt by the limits."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    INTERNAL_ERROR,
    Manners,
    RawConnection,
    RawStream,
)
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    never,
    open_call,
    raw_client,
    raw_server,
    request_fields,
    trailers,
)
from tests.support.wait import until

UNAVAILABLE, RESOURCE_EXHAUSTED = 14, 8
BURST = 50
NO_REFILL = {"per_second": 0, "burst": BURST}
FREE_REPLIES = 100 + 3 * 10
"""What a fresh connection may send unpaid, and what a few calls on it add."""


def _raw(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    """A frame of any kind, known or not."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


async def _is_cut_off(peer: RawConnection, plane: DataPlaneHarness, limit: str) -> None:
    await peer.until_gone()
    # What the peer still sends may make its kernel drop the GOAWAY unread.
    assert {goaway.error_code for goaway in peer.goaways} <= {ENHANCE_YOUR_CALM}
    await until(lambda: plane.limit_hits(limit) == 1, f"the count of `{limit}`")


async def _is_served(client: RawConnection) -> None:
    stream = await open_call(client).until_done()
    assert stream.grpc_status == 0, stream.describe()


async def test_se_02_honest_clients_that_cancel_keep_their_connection() -> None:
    """60 % of the calls are cancelled, and answered too late; 30 % of the rest are reset."""
    waves, calls = 20, 100

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        what = stream.value("x-do")
        if what == b"reset":
            stream.reset(INTERNAL_ERROR)
        elif what == b"answer":
            await answer()(stream)
        else:
            await stream.until(lambda: stream.dead, "the client's reset")
            stream.headers(RESPONSE)
            stream.data_frame(b"\0\0\0\0\4late")
            stream.headers(trailers(0), end_stream=True)

    # Few resets are remembered, so that late answers meet streams that were forgotten.
    limits = {"max_pending_resets": 50}
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], limits=limits) as plane,
        raw_client(plane.address) as client,
    ):
        for wave in range(waves):
            kinds = ["cancel"] * 60 + ["reset"] * 12 + ["answer"] * 28
            streams = [open_call(client, extra=[("x-do", kind)]) for kind in kinds]
            await endpoint.until_streams((wave + 1) * calls)
            for stream in streams[:60]:
                stream.reset(CANCEL)
            for stream in streams[60:]:
                await stream.until_done()
            assert [s.grpc_status for s in streams[60:]] == [13] * 12 + [0] * 28
        await plane.until_ended(waves * calls)
        assert plane.ended(grpc_status="CANCELLED") == waves * 60
        assert not client.goaways
        assert not client.gone
        assert len(endpoint.connections) == 1
        assert not endpoint.connections[0].gone
        hits = plane.metrics().value("attnroute_limit_hits_total")
        assert hits == 0


@pytest.mark.parametrize("how", ["made", "provoked"])
async def test_se_01_resets_of_accepted_calls_are_limited(how: str) -> None:
    """`provoked`: the client makes the sidecar reset them, by windows larger than there are."""
    burst = 15
    limits = {"resets": {"share": 0.5, "per_second": 0, "burst": burst}}
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], limits=limits) as plane,
        raw_client(plane.address) as attacker,
        raw_client(plane.address) as neighbour,
    ):
        await _is_served(neighbour)
        for _ in range(10 * burst):
            stream = open_call(attacker, body=None)
            await until(lambda: len(plane.in_flight()) > 0 or attacker.gone, "the call under way")
            if attacker.gone:
                break
            if how == "provoked":
                most = WindowUpdateFrame(stream.id, window_increment=2**31 - 1)
                attacker.send(most, most)
            else:
                stream.reset(CANCEL)
            await until(lambda: not plane.in_flight() or attacker.gone, "its end")
        await _is_cut_off(attacker, plane, "resets")
        assert burst < len(attacker.streams) <= 3 * burst
        await _is_served(neighbour)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda _: PingFrame(0, opaque_data=b"attnrout").serialize(),
    "pong": lambda _: PingFrame(0, opaque_data=b"attnrout", flags=["ACK"]).serialize(),
    "settings": lambda _: SettingsFrame(0, settings={}).serialize(),
    "priority": lambda _: PriorityFrame(1, depends_on=0, stream_weight=5).serialize(),
    "window_update": lambda _: WindowUpdateFrame(0, window_increment=1).serialize(),
    "unknown": lambda _: _raw(0xFA, b"what is this?"),
    "empty_data": lambda stream_id: DataFrame(stream_id, b"").serialize(),
    "padding_only": lambda stream_id: _raw(0, b"\3\0\0\0", flags=8, stream_id=stream_id),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_floods_of_frames_of_no_use_are_cut_off(flood: str) -> None:
    limits = {"control_frames": NO_REFILL}
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], limits=limits) as plane,
        raw_client(plane.address) as attacker,
        raw_client(plane.address) as neighbour,
    ):
        stream = open_call(attacker, body=None)
        frame = FLOODS[flood](stream.id)
        attacker.send_bytes(frame * (FREE_REPLIES + BURST + 1))
        await _is_cut_off(attacker, plane, "control_frames")
        await _is_served(neighbour)
        await until(lambda: not plane.in_flight(), "in flight back at 0")


async def test_floods_of_an_endpoint_cost_its_connection_and_no_more() -> None:
    async def flood(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        if stream.value("x-do") == b"flood":
            ping = PingFrame(0, opaque_data=b"attnrout").serialize()
            stream.connection.send_bytes(ping * (FREE_REPLIES + BURST + 1))
            await never(stream)
        else:
            await answer()(stream)

    async with (
        raw_server(flood) as endpoint,
        data_plane([endpoint.address], limits={"control_frames": NO_REFILL}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("x-do", "flood")]).until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        await endpoint.connections[0].until_gone()
        await until(lambda: plane.limit_hits("control_frames") == 1, "its count")
        await _is_served(client)
        assert not client.goaways


async def test_pings_and_window_updates_that_answer_data_cost_nothing() -> None:
    """As grpc-go measures bandwidth: a ping for every piece of data, on top of window updates."""
    pieces = 2_000

    async def many(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        for _ in range(pieces):
            await stream.write(b"\0\0\0\0\1x")
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(many) as endpoint,
        data_plane([endpoint.address], limits={"control_frames": NO_REFILL}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == 0, stream.describe()[:500]
        for _ in range(len(stream.chunks)):
            client.ping()
        await client.until_pongs(len(stream.chunks))
        assert len(stream.chunks) == pieces
        assert not client.goaways
        assert plane.limit_hits("control_frames") == 0


def _continuations(stream_id: int, size: int) -> bytes:
    """Some CONTINUATION frames of that size that do not end the block."""
    payload = b"\0\x01a\x01v" * (size // 5)
    return ContinuationFrame(stream_id, payload).serialize() * 20


async def _send_until_gone(peer: RawConnection, data: bytes) -> None:
    while not peer.gone:
        peer.send_bytes(data)
        await peer.drain()
        await asyncio.sleep(0)  # a peer that takes all it is sent gives nobody else a turn


@pytest.mark.parametrize("size", [16_380, 0])
async def test_se_05_endless_header_blocks_of_a_client(size: int) -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as attacker,
        raw_client(plane.address) as neighbour,
    ):
        await attacker.until(lambda: attacker.peer_settings, "SETTINGS")
        first = attacker.header_frames(1, request_fields("/t.S/M"))[0]
        first.flags.discard("END_HEADERS")
        attacker.send(first)
        await _send_until_gone(attacker, _continuations(1, size))
        await _is_cut_off(attacker, plane, "max_header_list_bytes")
        await _is_served(neighbour)
        assert len(endpoint.streams) == 1


@pytest.mark.parametrize("begun", ["head", "payload", "block"])
async def test_se_05_header_blocks_that_never_come_whole(begun: str) -> None:
    """The head of the frame says more than comes, or another frame should follow."""
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], timeouts={"header_block_ms": 200}) as plane,
        raw_client(plane.address) as attacker,
        raw_client(plane.address) as neighbour,
    ):
        await attacker.until(lambda: attacker.peer_settings, "SETTINGS")
        frame = attacker.header_frames(1, request_fields("/t.S/M"))[0]
        whole = frame.serialize()
        if begun == "block":
            frame.flags.discard("END_HEADERS")
            attacker.send(frame)
        else:
            attacker.send_bytes(whole[:9] if begun == "head" else whole[:-1])
        await _is_cut_off(attacker, plane, "header_block")
        await _is_served(neighbour)
        assert len(endpoint.streams) == 1


@pytest.mark.parametrize("how", ["large", "empty", "slow"])
async def test_se_05_endless_header_blocks_of_an_endpoint(how: str) -> None:
    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        connection = stream.connection
        if stream.value("x-do") != b"flood":
            return await answer()(stream)
        connection.send(HeadersFrame(stream.id, b"\x88"))
        if how != "slow":
            size = 16_380 if how == "large" else 0
            await _send_until_gone(connection, _continuations(stream.id, size))
        return None

    timeouts = {"header_block_ms": 200} if how == "slow" else {}
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], timeouts=timeouts) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("x-do", "flood")]).until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        limit = "header_block" if how == "slow" else "max_header_list_bytes"
        await until(lambda: plane.limit_hits(limit) == 1, "its count")
        await _is_served(client)


@pytest.mark.parametrize("kind", ["headers", "trailers", "trailers_only", "message"])
@pytest.mark.parametrize("size", [100_000, 150_000, 700_000])
async def test_se_05_large_header_blocks_of_an_endpoint_end_that_call_alone(
    size: int, kind: str
) -> None:
    large = ("x-large", "v" * size)

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        if stream.value("x-do") == b"wait":
            await stream.until(lambda: len(endpoint.streams) > 1, "the other call")
            await endpoint.streams[1].until(lambda: endpoint.streams[1].left, "its answer")
            return await answer()(stream)
        if kind == "trailers_only":
            stream.headers([*RESPONSE, *trailers(5, "why", [large])], end_stream=True)
        elif kind == "headers":
            stream.headers([*RESPONSE, (b"x-large", large[1].encode())])
        else:
            stream.headers(RESPONSE)
            message, extra = ("m" * size, []) if kind == "message" else ("why", [large])
            stream.headers(trailers(5, message, extra), end_stream=True)
        stream.left = True
        return None

    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        neighbour = open_call(client, extra=[("x-do", "wait")])
        await endpoint.until_streams(1)
        stream = await open_call(client).until_done()
        if kind == "headers":
            assert stream.grpc_status == RESOURCE_EXHAUSTED, stream.describe()[:300]
            assert "`limits.max_header_list_bytes` is 98304" in stream.grpc_message
        else:
            expected = (5, "" if kind == "message" else "why")
            assert (stream.grpc_status, stream.grpc_message) == expected, stream.describe()[:300]
        assert stream.value("x-large") is None
        await neighbour.until_done()
        assert neighbour.grpc_status == 0, neighbour.describe()
        assert len(endpoint.connections) == 1
        assert plane.limit_hits("max_header_list_bytes") == 1


async def test_se_07_dust_reaches_the_endpoint_whole() -> None:
    """1-byte DATA with 255 bytes of padding: more frames than the windows hold of it."""
    count = 2_000
    message = b"\0" + struct.pack(">I", count - 5) + bytes(count - 5)
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        stream = open_call(client, body=None)
        for at in range(count):
            await stream.until(
                lambda: min(stream.send_window, client.send_window) >= 257 or stream.dead,
                "window",
            )
            stream.data_frame(message[at : at + 1], padding=255, end_stream=at + 1 == count)
        await stream.until_done()
        assert stream.grpc_status == 0, stream.describe()
        assert endpoint.streams[0].data == message
        assert not client.goaways


@pytest.mark.parametrize("taken", [0, 3])
async def test_se_07_answers_that_nobody_takes_end(taken: int) -> None:
    """Windows that never open end their call, not the connection, and not quiet streams."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        if stream.value("x-do") == b"quiet":
            stream.headers(RESPONSE)
            await never(stream)
        await answer()(stream)

    closed = {SettingsFrame.INITIAL_WINDOW_SIZE: taken}
    manners = Manners(keep_windows_open=False)
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], timeouts={"stalled_stream_ms": 100}) as plane,
        raw_client(plane.address, settings=closed, manners=manners) as client,
    ):
        quiet = open_call(client, extra=[("x-do", "quiet")])
        stream = open_call(client)
        await stream.until(lambda: stream.done, "the end of the call")
        if taken:  # a message that was cut short must not look complete
            # The code that gRPC reads as RESOURCE_EXHAUSTED.
            assert (stream.reset_code, stream.bytes_received) == (ENHANCE_YOUR_CALM, taken)
        else:
            assert stream.grpc_status == RESOURCE_EXHAUSTED, stream.describe()
            assert "`timeouts.stalled_stream`" in stream.grpc_message
        assert plane.limit_hits("stalled_stream") == 1
        await plane.until_ended(1, grpc_status="RESOURCE_EXHAUSTED")
        assert not client.goaways
        assert not quiet.done
        quiet.reset(CANCEL)


async def test_se_01_resets_do_not_outlive_what_they_reset() -> None:
    """No attempt starts for a call that was reset before it was accepted."""
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await _is_served(client)
        frames: list[Frame] = []
        for stream_id in range(3, 203, 2):
            frames += client.header_frames(stream_id, request_fields("/t.S/M"))
            frames.append(RstStreamFrame(stream_id, error_code=CANCEL))
        client.send(*frames)
        client.ping()
        await client.until_pongs(1)
        await until(lambda: not plane.in_flight(), "in flight back at 0")
        assert len(endpoint.streams) == 1
        assert not client.goaways
