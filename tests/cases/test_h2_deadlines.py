"""Cases H2-12, H2-34, H2-36: one deadline per call, enforced here and told to the endpoint."""

from __future__ import annotations

import asyncio
import re
import time

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import CANCEL, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    never,
    open_call,
    raw_client,
    raw_server,
)

UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
OK, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 0, 4, 13, 14


def seconds(value: bytes | None) -> float:
    """A `grpc-timeout` in seconds; fails for a malformed one."""
    match = re.fullmatch(r"([0-9]{1,8})([HMSmun])", (value or b"").decode())
    assert match, f"malformed grpc-timeout {value!r}"
    return int(match[1]) * UNIT_S[match[2]]


def _own(stream: RawStream) -> bool:
    """HTTP 200, Trailers-Only, `application/grpc`, and it says who speaks."""
    block = stream.blocks[0]
    return (
        len(stream.blocks) == 1
        and block.end_stream
        and block.get(":status") == b"200"
        and block.get("content-type") == b"application/grpc"
        and stream.grpc_message.startswith("attnroute: ")
    )


async def test_h2_12_local_faults_have_codes_of_their_own() -> None:
    async with (
        raw_server(never) as silent,
        raw_server(never) as gone,
        data_plane({"test": [silent.address], "refused": [gone.address], "empty": []}) as plane,
        raw_client(plane.address) as client,
    ):
        await gone.close()
        late = await open_call(client, extra=[("grpc-timeout", "200m")]).until_done()
        assert (late.grpc_status, _own(late)) == (DEADLINE_EXCEEDED, True), late.describe()
        refused = await open_call(client, authority="refused").until_done()
        assert (refused.grpc_status, _own(refused)) == (UNAVAILABLE, True), refused.describe()
        empty = await open_call(client, authority="empty").until_done()
        assert (empty.grpc_status, _own(empty)) == (UNAVAILABLE, True), empty.describe()
        assert "`empty`" in empty.grpc_message
        (at_endpoint,) = silent.streams
        await at_endpoint.until_done()
        assert at_endpoint.reset_code == CANCEL, "the endpoint goes on with a call that is over"
        await plane.until_ended(3)


async def test_h2_34_the_deadline_travels_as_remaining_time() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for given in ("5S", "1H", "2M", "5000m", "99999999u", "99999999n", "30S"):
            stream = await open_call(client, extra=[("grpc-timeout", given)]).until_done()
            assert stream.grpc_status == OK, stream.describe()
            reached = endpoint.streams[-1].blocks[0].all("grpc-timeout")
            assert len(reached) == 1
            assert 0 < seconds(reached[0]) <= seconds(given.encode())
            assert seconds(reached[0]) > 0.5 * seconds(given.encode()) - 1
        await open_call(client).until_done()
        assert endpoint.streams[-1].value("grpc-timeout") is None, "a deadline out of nothing"


async def test_h2_34_the_routes_timeout_is_an_upper_bound() -> None:
    routes = [
        {"match": {"path": "/t.S/Short"}, "timeout_ms": 300},
        {"match": {"path_prefix": "/t.S/"}, "timeout_ms": 60_000},
    ]
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service={"routes": routes}) as plane,
        raw_client(plane.address) as client,
    ):
        short = open_call(client, "/t.S/Short", extra=[("grpc-timeout", "40S")])
        await short.until_done()
        assert short.grpc_status == DEADLINE_EXCEEDED, short.describe()
        assert seconds(endpoint.streams[0].value("grpc-timeout")) <= 0.3
        other = open_call(client, "/t.S/Other")
        own = open_call(client, "/t.S/Other", extra=[("grpc-timeout", "7S")])
        await endpoint.until_streams(3)
        assert 50 < seconds(endpoint.streams[1].value("grpc-timeout")) <= 60
        assert 5 < seconds(endpoint.streams[2].value("grpc-timeout")) <= 7
        other.reset()
        own.reset()


EXPIRED_OR_MALFORMED = {
    "0S": DEADLINE_EXCEEDED,
    "0n": DEADLINE_EXCEEDED,
    "00000000H": DEADLINE_EXCEEDED,
    "123456789S": INTERNAL,
    "10 S": INTERNAL,
    "-1S": INTERNAL,
    "5x": INTERNAL,
    "S": INTERNAL,
    "5": INTERNAL,
    "": INTERNAL,
    "1.5S": INTERNAL,
    "5s": INTERNAL,
}


async def test_h2_36_grpc_timeout_corner_cases() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for value, expected in EXPIRED_OR_MALFORMED.items():
            stream = await open_call(client, extra=[("grpc-timeout", value)]).until_done()
            where = f"`{value}`: {stream.describe()}"
            assert (stream.grpc_status, _own(stream)) == (expected, True), where
            if expected == INTERNAL:
                assert f"`grpc-timeout: {value}`" in stream.grpc_message, where
        two = [("grpc-timeout", "5S"), ("grpc-timeout", "6S")]
        stream = await open_call(client, extra=two).until_done()
        assert (stream.grpc_status, _own(stream)) == (INTERNAL, True), stream.describe()
        assert not endpoint.streams, "a call without a valid deadline reached the endpoint"
        for value in ("1H", "99999999H", "00000005S"):
            stream = await open_call(client, extra=[("grpc-timeout", value)]).until_done()
            assert stream.grpc_status == OK, f"`{value}`: {stream.describe()}"
            reached = seconds(endpoint.streams[-1].value("grpc-timeout"))
            assert 0 < reached <= seconds(value.encode())
        await plane.until_ended(len(EXPIRED_OR_MALFORMED) + 1 + 3)


@pytest.mark.parametrize("kind", ["unary", "client_stream", "server_stream", "bidi"])
async def test_deadlines_hold_for_all_method_kinds(kind: str) -> None:
    async def one_message_then_silence(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"first"))
        await never(stream)

    async with (
        raw_server(one_message_then_silence) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        started_s = time.monotonic()
        upload = kind in ("client_stream", "bidi")
        stream = open_call(
            client, extra=[("grpc-timeout", "300m")], body=None if upload else b"ask"
        )
        if upload:
            stream.data_frame(grpc_message(b"more to come"))
        await stream.until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED, stream.describe()
        assert stream.data == grpc_message(b"first")
        assert time.monotonic() - started_s >= 0.3, "it ended before its deadline"
        (at_endpoint,) = endpoint.streams
        await at_endpoint.until_done()
        await at_endpoint.until(lambda: at_endpoint.reset_code == CANCEL, "CANCEL")
        await plane.until_ended(1, grpc_status="DEADLINE_EXCEEDED")
        assert len(endpoint.connections) == 1
        assert not endpoint.connections[0].gone


async def test_an_endpoint_that_gives_up_at_the_deadline_first() -> None:
    """Servers of gRPC reset with CANCEL then: what ended the call is its deadline all the same."""

    async def gives_up(stream: RawStream) -> None:
        await asyncio.sleep(seconds(stream.value("grpc-timeout")))
        stream.reset(CANCEL)

    async with (
        raw_server(gives_up) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(20):
            stream = await open_call(client, extra=[("grpc-timeout", "20m")]).until_done()
            assert stream.grpc_status == DEADLINE_EXCEEDED, stream.describe()


async def test_deadlines_between_real_peers() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        assert await client.unary()(b"x", timeout=30) == b"x"
        remaining = peer.time_remaining_s[-1]
        assert remaining is not None
        # What was sent is held exactly above; gRPC's client rounds 30 s up to a tenth of a second,
        # and its server adds it to a clock of its own.
        assert 20 < remaining < 31
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.unary("Block")(b"x", timeout=0.3)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await plane.until_ended(2)
