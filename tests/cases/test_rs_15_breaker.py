"""RS-15: what is full refuses at once or lets calls wait, and says so."""

from __future__ import annotations

import contextlib

import pytest
from hyperframe.frame import SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import CANCEL, RawStream, grpc_message
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
from tests.support.wait import until

RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED = 8, 14, 4
PATIENT = {"when_full": "queue", "max_time_ms": 60_000}


def waiting(plane: DataPlaneHarness) -> float:
    return plane.metrics().value("attnroute_requests_waiting")


async def until_reset(stream: RawStream) -> None:
    await stream.until(lambda: stream.dead, "its reset")
    assert stream.reset_code == CANCEL


def finish(stream: RawStream) -> None:
    stream.headers([*RESPONSE, *trailers(0)], end_stream=True)


async def test_rs_15_six_slow_calls_at_a_limit_of_three() -> None:
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service={"limits": {"max_inflight": 3}}) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(6)]
        await endpoint.until_streams(3)
        for refused in calls[3:]:
            await refused.until_done()
            assert refused.grpc_status == UNAVAILABLE, refused.describe()
            assert "`limits.max_inflight` is reached" in refused.grpc_message
        assert not any(held.done for held in calls[:3])
        assert len(endpoint.streams) == 3
        assert plane.limit_hits("max_inflight") == 3
        # What the sidecar refused says nothing about the endpoint.
        assert plane.metrics().value("attnroute_endpoint_requests_total") == 0
        for held in calls[:3]:
            held.reset(CANCEL)
        await plane.until_ended(6)
        calls = [open_call(client)]
        await endpoint.until_streams(4)
        calls[0].reset(CANCEL)


async def test_rs_15_a_full_endpoint_is_left_out_while_another_has_room() -> None:
    limits = {"max_inflight_per_endpoint": 2}
    # The rule alone would send nearly everything to the first.
    service = {"limits": limits, "balancer": {"type": "random"}}
    async with (
        raw_server(never) as first,
        raw_server(never) as second,
        data_plane([(first.address, 1000.0), (second.address, 1.0)], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(6)]
        for refused in calls[4:]:
            await refused.until_done()
            assert refused.grpc_status == UNAVAILABLE, refused.describe()
            assert "`limits.max_inflight_per_endpoint` is reached" in refused.grpc_message
        await first.until_streams(2)
        await second.until_streams(2)
        assert (len(first.streams), len(second.streams)) == (2, 2)
        assert plane.limit_hits("max_inflight_per_endpoint") == 2
        client.tcp_reset()
        await plane.until_ended(6)


@pytest.mark.parametrize("limit", ["max_inflight", "max_inflight_per_endpoint"])
async def test_rs_15_calls_wait_in_line_where_the_policy_says_so(limit: str) -> None:
    service = {"limits": {limit: 2}, "waiting": PATIENT}
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client, body=f"{number}".encode()) for number in range(8)]
        await until(lambda: waiting(plane) == 6, "six calls that wait")
        assert plane.limit_hits(limit) >= 1
        for served in range(8):
            await endpoint.until_streams(min(served + 2, 8))
            stream = endpoint.streams[served]
            # First come, first served.
            await stream.until_bytes(len(grpc_message(b"0")))
            assert stream.data == grpc_message(f"{served}".encode())
            unanswered = [s for s in endpoint.streams if not s.connection.gone]
            assert len(unanswered) - served <= 2, "more in flight than the limit"
            finish(stream)
            assert (await calls[served].until_done()).grpc_status == 0
        await plane.until_ended(8, grpc_status="OK")
        assert waiting(plane) == 0


async def test_rs_15_a_line_has_a_limit_and_an_end() -> None:
    service = {
        "limits": {"max_inflight": 1, "max_waiting": 2},
        "waiting": {"when_full": "queue", "max_time_ms": 300},
    }
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        await endpoint.until_streams(1)
        calls = [open_call(client) for _ in range(3)]
        over = await calls[2].until_done()
        assert over.grpc_status == UNAVAILABLE
        assert "`limits.max_waiting` is reached" in over.grpc_message
        assert plane.limit_hits("max_waiting") == 1
        for late in calls[:2]:
            await late.until_done()
            assert late.grpc_status == UNAVAILABLE, late.describe()
            assert "`limits.max_inflight` is reached" in late.grpc_message
            assert "waited 300 ms, `waiting.max_time`" in late.grpc_message
        held.reset(CANCEL)
        await plane.until_ended(4)
        assert waiting(plane) == 0


async def test_rs_15_who_waits_ends_with_its_deadline_or_its_client() -> None:
    service = {"limits": {"max_inflight": 1}, "waiting": PATIENT}
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        await endpoint.until_streams(1)
        short = await open_call(client, extra=[("grpc-timeout", "100m")]).until_done()
        assert short.grpc_status == DEADLINE_EXCEEDED, short.describe()
        leaves, stays = open_call(client), open_call(client, body=b"stays")
        await until(lambda: waiting(plane) == 2, "two calls that wait")
        leaves.reset(CANCEL)
        await until(lambda: waiting(plane) == 1, "the end of the one that left")
        finish(endpoint.streams[0])
        await held.until_done()
        await endpoint.until_streams(2)
        finish(endpoint.streams[1])
        assert (await stays.until_done()).grpc_status == 0
        await plane.until_ended(4)
        assert plane.statuses() == {"OK": 2, "CANCELLED": 1, "DEADLINE_EXCEEDED": 1}


READY = {"waiting": {"for_ready": True, "max_time_ms": 60_000}}


async def test_a_call_waits_for_the_first_endpoint() -> None:
    async with (
        raw_server(answer(b"late")) as endpoint,
        data_plane([], service=READY) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await until(lambda: waiting(plane) == 1, "a call that waits")
        plane.apply_endpoints([endpoint.address])
        assert (await stream.until_done()).grpc_status == 0, stream.describe()
        await plane.until_ended(1, grpc_status="OK")


async def test_a_call_waits_until_somebody_can_be_connected_to() -> None:
    async with raw_server(answer(b"late")) as endpoint:
        endpoint.stop_listening()
        address = endpoint.address
        async with (
            data_plane([address], service=READY) as plane,
            raw_client(plane.address) as client,
        ):
            stream = open_call(client)
            await until(lambda: waiting(plane) == 1, "a call that waits")
            again = RawServer(answer(b"late"))
            await again.start(port=int(address.rpartition(":")[2]))
            assert (await stream.until_done()).grpc_status == 0, stream.describe()
            await plane.until_ended(1, grpc_status="OK")
            await again.close()


async def test_a_route_says_whether_its_calls_wait() -> None:
    routes = [
        {"match": {"path_prefix": "/patient/"}, "wait_for_ready": True},
        {"match": {"path_prefix": "/hasty/"}, "wait_for_ready": False},
    ]
    for for_ready in (False, True):
        service = {"routes": routes, "waiting": {"for_ready": for_ready}}
        async with data_plane([], service=service) as plane, raw_client(plane.address) as client:
            patient = open_call(client, "/patient/Call", extra=[("grpc-timeout", "150m")])
            hasty = await open_call(client, "/hasty/Call").until_done()
            assert hasty.grpc_status == UNAVAILABLE
            assert (await patient.until_done()).grpc_status == DEADLINE_EXCEEDED
            other = open_call(client, extra=[("grpc-timeout", "150m")])
            expected = DEADLINE_EXCEEDED if for_ready else UNAVAILABLE
            assert (await other.until_done()).grpc_status == expected
            await plane.until_ended(3)


async def test_a_drain_ends_calls_that_wait() -> None:
    service = {"waiting": {"for_ready": True}}
    async with data_plane([], service=service) as plane, raw_client(plane.address) as client:
        stream = open_call(client)
        await until(lambda: waiting(plane) == 1, "a call that waits")
        await plane.drain(linger_ms=0, limit_ms=50)
        await stream.until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        assert "`drain.limit` is over" in stream.grpc_message
        await plane.until_ended(1)


async def test_the_connections_of_a_service_have_a_limit() -> None:
    """The second endpoint gets no connection, and the call goes to the one that has."""
    service = {
        "limits": {"max_open_connections": 1, "max_connections_per_endpoint": 1},
        "balancer": {"type": "round_robin"},
    }
    one = {SettingsFrame.MAX_CONCURRENT_STREAMS: 1}
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane([first.address, second.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(6):
            assert (await open_call(client).until_done()).grpc_status == 0
        assert len(first.connections) + len(second.connections) == 1
        assert plane.limit_hits("max_open_connections") >= 2
        await plane.until_ended(6, grpc_status="OK")
    service = {"limits": {"max_open_connections": 1}}
    async with (
        raw_server(never, settings=one) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        held = open_call(client)
        await endpoint.until_streams(1)
        refused = await open_call(client).until_done()
        assert refused.grpc_status == UNAVAILABLE
        assert "`limits.max_open_connections` is reached" in refused.grpc_message
        held.reset(CANCEL)
        await plane.until_ended(2)


async def test_h2_47_a_request_message_over_the_limit() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], service={"limits": {"max_message_bytes": 1_000}}) as plane,
        raw_client(plane.address) as client,
    ):
        fits = await open_call(client, body=b"x" * 1_000).until_done()
        assert fits.grpc_status == 0
        over = await open_call(client, body=b"x" * 1_001).until_done()
        assert over.grpc_status == RESOURCE_EXHAUSTED, over.describe()
        assert "message of 1001 bytes, `limits.max_message_bytes` is 1000" in over.grpc_message
        assert plane.limit_hits("max_message_bytes") == 1
        # A length that lies is found with its prefix.
        lies = open_call(client, body=None)
        lies.data_frame(b"\0\x7f\xff\xff\xff", end_stream=False)
        assert (await lies.until_done()).grpc_status == RESOURCE_EXHAUSTED
        second = open_call(client, body=None)
        second.data_frame(grpc_message(b"y" * 900) + grpc_message(b"z" * 2_000))
        assert (await second.until_done()).grpc_status == RESOURCE_EXHAUSTED
        await plane.until_ended(4)
        for stream in endpoint.streams[1:]:
            await until_reset(stream)
        samples = plane.metrics().of("attnroute_endpoint_requests_total")
        assert sum(s.value for s in samples if s.labels["grpc_status"] == "UNAVAILABLE") == 0


async def test_h2_47_an_answer_message_over_the_limit() -> None:
    async def split(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"ok"))
        long = grpc_message(b"x" * 1_001)
        for part in (long[:3], long[3:]):
            stream.data_frame(part)
            stream.connection.ping()
        with contextlib.suppress(AssertionError):
            await stream.until(lambda: stream.dead, "its reset")

    limits = {"limits": {"max_message_bytes": 1_000}}
    async with (
        raw_server(answer(b"x" * 1_001)) as endpoint,
        data_plane([endpoint.address], service=limits) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert (stream.grpc_status, stream.data) == (RESOURCE_EXHAUSTED, b""), stream.describe()
        assert plane.limit_hits("max_message_bytes") == 1
        await plane.until_ended(1, grpc_status="RESOURCE_EXHAUSTED")
    async with (
        raw_server(split) as endpoint,
        data_plane([endpoint.address], service=limits) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        # Trailers in the middle of a message would leave clients waiting: ENHANCE_YOUR_CALM is
        # what they read as RESOURCE_EXHAUSTED.
        assert stream.grpc_status == RESOURCE_EXHAUSTED or stream.reset_code == 11
        assert stream.data.startswith(grpc_message(b"ok"))
        await plane.until_ended(1, grpc_status="RESOURCE_EXHAUSTED")
