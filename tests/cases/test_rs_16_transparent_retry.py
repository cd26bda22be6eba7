"""RS-16, RS-18, H2-10, H2-15: what was provably not processed is sent again, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hyperframe.frame import RstStreamFrame, SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    REFUSED_STREAM,
    WINDOW_MAX,
    Handler,
    RawConnection,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    answer_status,
    never,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import until

UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED = 14, 1, 4


def refuse(code: int = REFUSED_STREAM, *, after_body: bool = True) -> Handler:
    """The script of an endpoint that resets every call."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended or stream.dead or not after_body, "the request")
        if not stream.dead:
            stream.reset(code)

    return script


def retries(plane: DataPlaneHarness, reason: str) -> int:
    return int(plane.metrics().value("attnroute_retries_total", reason=reason))


def failures(plane: DataPlaneHarness, endpoint: RawServer) -> dict[str, int]:
    """Attempts of an endpoint by status."""
    samples = plane.metrics().of("attnroute_endpoint_requests_total", endpoint=endpoint.address)
    return {s.labels["grpc_status"]: int(s.value) for s in samples if s.value}


async def test_rs_16_an_endpoint_that_refuses_everything_is_not_asked_for_ever() -> None:
    async with (
        raw_server(refuse()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, body=b"ask").until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        assert not [s for s in client.seen if isinstance(s.frame, RstStreamFrame)]
        # The call, one repetition at once, and two after a pause.
        assert [s.data for s in endpoint.streams] == [grpc_message(b"ask")] * 4
        assert retries(plane, "refused") == 3
        await plane.until_ended(1, grpc_status="UNAVAILABLE")


async def test_rs_16_one_of_three_refuses_and_no_call_fails() -> None:
    async with (
        raw_server(refuse()) as refusing,
        raw_server(answer(b"a")) as first,
        raw_server(answer(b"b")) as second,
        data_plane([refusing.address, first.address, second.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(30):
            stream = await open_call(client, body=b"x" * 100).until_done()
            assert stream.grpc_status == 0, stream.describe()
        # Another endpoint is preferred: no call went to the one that refused it twice.
        assert len(refusing.streams) == retries(plane, "refused") > 0
        assert len(first.streams) + len(second.streams) == 30
        await plane.until_ended(30, grpc_status="OK")
        assert failures(plane, refusing) == {"UNAVAILABLE": len(refusing.streams)}
        assert failures(plane, first) == {"OK": len(first.streams)}


async def test_h2_10_refused_is_the_only_reset_that_is_repeated() -> None:
    for code in (NO_ERROR, INTERNAL_ERROR, CANCEL, 11):
        async with (
            raw_server(refuse(code)) as endpoint,
            data_plane([endpoint.address]) as plane,
            raw_client(plane.address) as client,
        ):
            stream = await open_call(client).until_done()
            assert stream.grpc_status not in (0, None)
            assert len(endpoint.streams) == 1, f"reset code {code} was repeated"


async def test_rs_16_the_whole_request_is_sent_again() -> None:
    """Refused in the middle of an upload: body, metadata and the rest that had not come yet."""
    body = bytes(range(256)) * 120
    async with (
        raw_server(refuse(after_body=False)) as refusing,
        raw_server(answer(b"done")) as endpoint,
        data_plane([(refusing.address, 1.0)]) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        extra = [("x-bin-bin", b"AAEC"), ("x-two", b"1"), ("x-two", b"2")]
        stream = open_call(client, body=None, extra=extra)
        first = grpc_message(body)
        await stream.write(first[:10_000])
        await refusing.until_streams(1)
        plane.apply_endpoints([(refusing.address, 1.0), (endpoint.address, 1.0)])
        await endpoint.until_streams(1)
        await stream.write(first[10_000:] + grpc_message(b"last"), end_stream=True)
        await stream.until_done()
        assert (stream.grpc_status, stream.data) == (0, grpc_message(b"done")), stream.describe()
        (taken,) = endpoint.streams
        assert taken.data == first + grpc_message(b"last")
        assert taken.blocks[0].all("x-two") == [b"1", b"2"]
        assert taken.value("x-bin-bin") == b"AAEC"
        assert plane.metrics().value("attnroute_request_bytes_total") == taken.bytes_received
        await plane.until_ended(1, grpc_status="OK")


@pytest.mark.parametrize("kept", [20_000, 0])
async def test_rs_16_a_request_longer_than_what_is_kept_is_not_sent_again(kept: int) -> None:
    async with (
        raw_server(refuse()) as endpoint,
        data_plane([endpoint.address], service={"limits": {"max_replay_bytes": kept}}) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        stream = open_call(client, body=None)
        await stream.write(grpc_message(b"x" * 20_000), end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert len(endpoint.streams) == 1
        # What costs a call its other try is counted; where nothing is kept there was none.
        assert plane.limit_hits("max_replay_bytes") == (kept > 0)
        small = await open_call(client, body=b"x").until_done()
        assert small.grpc_status == UNAVAILABLE
        assert len(endpoint.streams) == (5 if kept else 2)


async def test_rs_16_the_deadline_ends_a_call_between_two_tries() -> None:
    """A second try waits at an endpoint that says nothing, for what is left of the time."""
    async with (
        raw_server(refuse()) as refusing,
        raw_server(never) as silent,
        data_plane([(refusing.address, 1.0), (silent.address, 1e-6)]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "700m")]).until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED, stream.describe()
        (at_silent,) = silent.streams
        left = at_silent.value("grpc-timeout")
        assert left is not None
        unit = {b"u": 1, b"m": 1_000, b"n": 0.001}[left[-1:]]
        assert 0 < int(left[:-1]) * unit <= 700_000, left
        await at_silent.until(lambda: at_silent.dead, "its reset")
        assert at_silent.reset_code == CANCEL
        await plane.until_ended(1, grpc_status="DEADLINE_EXCEEDED")


async def test_rs_16_a_client_that_leaves_between_two_tries_is_gone() -> None:
    async with (
        raw_server(refuse()) as refusing,
        raw_server(never) as silent,
        data_plane([(refusing.address, 1.0), (silent.address, 1e-6)]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        (at_silent,) = await silent.until_streams(1)
        stream.reset(CANCEL)
        await at_silent.until(lambda: at_silent.dead, "its reset")
        assert at_silent.reset_code == CANCEL
        await plane.until_ended(1, grpc_status="CANCELLED")
        assert failures(plane, refusing) == {"UNAVAILABLE": 1}
        assert failures(plane, silent) == {"CANCELLED": 1}


async def test_rs_16_a_refusal_after_headers_is_not_repeated() -> None:
    async def begun(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        stream.reset(REFUSED_STREAM)

    async with (
        raw_server(begun) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert len(stream.blocks) == 2
        assert len(endpoint.streams) == 1


async def close_tcp(stream: RawStream) -> None:
    await stream.until(lambda: stream.ended, "the request")
    stream.connection.tcp_reset()


WRITES = {
    "closes": (close_tcp, 1),
    "internal error": (refuse(INTERNAL_ERROR), 1),
    "trailers-only": (answer_status(UNAVAILABLE), 1),
}


@pytest.mark.parametrize("how", WRITES)
async def test_rs_18_what_may_have_been_processed_happens_once(how: str) -> None:
    script, expected = WRITES[how]
    async with (
        raw_server(script) as endpoint,
        raw_server(script) as other,
        data_plane([endpoint.address, other.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for count in range(1, 6):
            stream = await open_call(client, body=b"add 1").until_done()
            assert stream.grpc_status not in (0, None), stream.describe()
            await plane.until_ended(count)
            assert len(endpoint.streams) + len(other.streams) == count * expected
        assert not plane.metrics().value("attnroute_retries_total")


async def test_rs_18_refused_connections_cost_nothing_and_nothing_happens_twice() -> None:
    async with raw_server(answer()) as endpoint, raw_server(answer()) as closed:
        closed.stop_listening()
        async with (
            data_plane([closed.address, endpoint.address]) as plane,
            raw_client(plane.address) as client,
        ):
            for _ in range(10):
                assert (await open_call(client).until_done()).grpc_status == 0
            assert len(endpoint.streams) == 10
            assert not closed.streams


async def until_stalled(plane: DataPlaneHarness, client: RawConnection) -> None:
    """Returns when an upload moves no more, while the data plane and the client go on."""
    passed, rounds, pongs = 0.0, 0, 0
    while rounds < 30:
        client.ping()
        pongs += 1
        await client.until_pongs(pongs)
        before, passed = passed, plane.metrics().value("attnroute_request_bytes_total")
        rounds = rounds + 1 if passed == before > 0 else 0


async def test_rs_18_what_never_left_is_sent_again() -> None:
    """An upload fills every buffer up to an endpoint that does not read; behind it a call waits
    to be written when the connection is lost."""
    settings = {SettingsFrame.INITIAL_WINDOW_SIZE: WINDOW_MAX}
    async with (
        raw_server(never, settings=settings) as stuck,
        raw_server(answer(b"done")) as other,
        data_plane([stuck.address]) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until(lambda: client.peer_settings, "SETTINGS")
        upload = open_call(client, body=None)
        (at_stuck,) = await stuck.until_streams(1)
        connection = at_stuck.connection
        connection.open_window(WINDOW_MAX - 65_535)
        connection.ping()
        await connection.until_pongs(1)
        connection.pause_reading()
        writing = asyncio.ensure_future(upload.write(b"x" * (64 << 20)))
        await until_stalled(plane, client)
        behind = [open_call(client, body=f"write {n}".encode()) for n in range(3)]
        await until(lambda: plane.metrics().value("attnroute_endpoint_inflight") == 4, "the calls")
        plane.apply_endpoints([stuck.address, other.address])
        connection.tcp_reset()
        for stream in behind:
            assert (await stream.until_done()).grpc_status == 0, stream.describe()
        assert (await upload.until_done()).grpc_status == UNAVAILABLE
        assert retries(plane, "unsent") == 3
        with contextlib.suppress(ConnectionError):
            await writing
        await plane.until_ended(4)


async def test_h2_15_streams_above_the_goaway_are_sent_elsewhere() -> None:
    async with (
        raw_server(never) as leaving,
        raw_server(answer()) as staying,
        data_plane([leaving.address]) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client, body=f"write {n}".encode()) for n in range(5)]
        await leaving.until_streams(5)
        plane.apply_endpoints([leaving.address, staying.address])
        connection = leaving.connections[0]
        ids = sorted(connection.streams)
        leaving.stop_listening()
        connection.goaway(ids[2], NO_ERROR)
        for number in ids[:3]:
            assert not connection.streams[number].dead
            connection.streams[number].headers([*RESPONSE, *trailers(0)], end_stream=True)
        for stream in calls:
            assert (await stream.until_done()).grpc_status == 0, stream.describe()
        sent = [s.data for s in staying.streams]
        assert sorted(sent) == sorted(connection.streams[i].data for i in ids[3:])
        assert retries(plane, "leaving") == 2
        await plane.until_ended(5, grpc_status="OK")
        # Who leaves in good order has done nothing wrong.
        assert failures(plane, leaving) == {"OK": 3, "UNAVAILABLE": 2}
        samples = plane.metrics().of("attnroute_endpoint_ejections_total")
        assert not sum(s.value for s in samples)


async def test_h2_15_streams_up_to_the_goaway_are_not_sent_twice() -> None:
    """The endpoint goes away with calls it has taken and does not answer them."""
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(3)]
        await endpoint.until_streams(3)
        connection = endpoint.connections[0]
        connection.goaway(max(connection.streams), NO_ERROR)
        connection.end_writing()
        for stream in calls:
            assert (await stream.until_done()).grpc_status == UNAVAILABLE, stream.describe()
        assert len(endpoint.streams) == 3
        await plane.until_ended(3, grpc_status="UNAVAILABLE")


async def test_a_refused_burst_is_served() -> None:
    """A burst that an endpoint with few streams refuses in part: no call fails."""

    async def few(stream: RawStream) -> None:
        busy = [s for s in stream.connection.streams.values() if not s.left and not answered(s)]
        if len(busy) > 20:
            stream.reset(REFUSED_STREAM)
            return
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        if not stream.dead:
            stream.headers([*RESPONSE, *trailers(0)], end_stream=True)
            done.add(stream)

    done: set[RawStream] = set()
    answered = done.__contains__
    async with (
        raw_server(few) as first,
        raw_server(answer()) as second,
        data_plane([first.address, second.address]) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(100)]
        for stream in calls:
            assert (await stream.until_done()).grpc_status == 0, stream.describe()
        await plane.until_ended(100, grpc_status="OK")
        await until(lambda: not plane.in_flight(), "the end of every attempt")
        assert len(first.streams) + len(second.streams) == 100 + retries(plane, "refused")
