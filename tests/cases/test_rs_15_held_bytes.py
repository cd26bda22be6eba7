"""RS-15: what calls hold because one side does not take it has a limit, which refuses or queues."""

from __future__ import annotations

from typing import Any

import pytest
from hyperframe.frame import SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import CANCEL, Manners, RawConnection, RawStream, grpc_message
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
from tests.support.routes import retried
from tests.support.wait import until

UNAVAILABLE = 14
WINDOW = 16_384
CLOSED = {SettingsFrame.INITIAL_WINDOW_SIZE: 0}
DEAF = Manners(keep_windows_open=False)


def held(plane: DataPlaneHarness) -> float:
    return plane.metrics().value("attnroute_held_bytes")


async def stuck(plane: DataPlaneHarness, client: RawConnection, count: int) -> list[RawStream]:
    """Calls whose answers the client does not take."""
    calls = [open_call(client) for _ in range(count)]
    await until(lambda: held(plane) == count * WINDOW, f"{count} stuck answers")
    return calls


@pytest.mark.parametrize("limit", ["max_held_bytes", "max_held_bytes_per_endpoint"])
async def test_rs_15_answers_that_nobody_takes_fill_a_limit(limit: str) -> None:
    async with (
        raw_server(answer(b"x" * 100_000)) as endpoint,
        data_plane(
            [endpoint.address],
            limits={"stream_window_bytes": WINDOW},
            service={"limits": {limit: 3 * WINDOW}},
        ) as plane,
        raw_client(plane.address, settings=CLOSED, manners=DEAF) as deaf,
        raw_client(plane.address) as reader,
    ):
        calls = await stuck(plane, deaf, 3)
        refused = await open_call(reader).until_done()
        assert refused.grpc_status == UNAVAILABLE, refused.describe()
        assert f"`limits.{limit}` of {3 * WINDOW} is reached" in refused.grpc_message
        assert plane.limit_hits(limit) == 1
        assert len(endpoint.streams) == 3
        # Back-pressure holds those that are stuck: no more than a window of each was read.
        assert all(stream.send_window == 0 for stream in endpoint.streams)
        calls[0].reset(CANCEL)
        await until(lambda: held(plane) == 2 * WINDOW, "room")
        # Room for one: the answers that somebody takes come whole.
        for _ in range(3):
            served = await open_call(reader).until_done()
            assert (served.grpc_status, len(served.data)) == (0, 100_005)
        for call in calls[1:]:
            call.open_window(200_000)
        deaf.open_window(400_000)
        for call in calls[1:]:
            assert (await call.until_done()).grpc_status == 0
        await until(lambda: held(plane) == 0, "nothing that is held")


async def test_rs_15_requests_that_an_endpoint_does_not_take_fill_it_too() -> None:
    async with (
        raw_server(never, settings=CLOSED, manners=DEAF) as deaf,
        data_plane(
            [deaf.address],
            limits={"stream_window_bytes": WINDOW},
            service={"limits": {"max_held_bytes": 2 * WINDOW}},
        ) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client, body=b"x" * 1_000) for _ in range(2)]
        await until(lambda: held(plane) == 2 * WINDOW, "both requests")
        assert (await open_call(client).until_done()).grpc_status == UNAVAILABLE
        for call in calls:
            call.reset(CANCEL)
        await until(lambda: held(plane) == 0, "nothing that is held")
        assert len(deaf.streams) == 2


async def test_rs_15_a_full_endpoint_is_left_out_and_a_retry_counts() -> None:
    service: dict[str, Any] = {
        **retried(max_attempts=2, on=["UNAVAILABLE"]),
        "limits": {"max_held_bytes_per_endpoint": WINDOW},
        "balancer": {"type": "random"},
    }
    async with (
        raw_server(never, settings=CLOSED, manners=DEAF) as deaf,
        raw_server(answer()) as other,
        data_plane(
            [(deaf.address, 1_000.0), (other.address, 1.0)],
            limits={"stream_window_bytes": WINDOW},
            service=service,
        ) as plane,
        raw_client(plane.address) as client,
    ):
        calls: list[RawStream] = []
        while held(plane) == 0:
            calls.append(open_call(client))
            await until(lambda: deaf.streams or all(c.done for c in calls), "its endpoint")
            await until(lambda: held(plane) or all(c.done for c in calls), "a stuck request")
        # The rule alone would send nearly everything to the first.
        for _ in range(5):
            assert (await open_call(client).until_done()).grpc_status == 0
        assert len(deaf.streams) == 1
        assert plane.limit_hits("max_held_bytes_per_endpoint") == 0
        calls[-1].reset(CANCEL)
        await until(lambda: held(plane) == 0, "nothing that is held")


async def test_rs_15_calls_wait_for_room_where_the_policy_says_so() -> None:
    service = {
        "limits": {"max_held_bytes": WINDOW},
        "waiting": {"when_full": "queue", "max_time_ms": 60_000},
    }
    async with (
        raw_server(answer(b"x" * 1_000)) as endpoint,
        data_plane(
            [endpoint.address], limits={"stream_window_bytes": WINDOW}, service=service
        ) as plane,
        raw_client(plane.address, settings=CLOSED, manners=DEAF) as deaf,
        raw_client(plane.address) as reader,
    ):
        (call,) = await stuck(plane, deaf, 1)
        waits = open_call(reader)
        waiting = lambda: plane.metrics().value("attnroute_requests_waiting") == 1  # noqa: E731
        await until(waiting, "a call that waits")
        assert len(endpoint.streams) == 1
        call.open_window(2_000)
        assert (await call.until_done()).grpc_status == 0
        assert (await waits.until_done()).grpc_status == 0


async def test_rs_15_calls_that_end_hold_nothing() -> None:
    """Answers of many windows to somebody who reads, far above the limit, one after the other."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"x" * 300_000))
        stream.headers(trailers(0), end_stream=True)

    async def whole(endpoint: RawServer, plane: DataPlaneHarness) -> None:
        async with raw_client(plane.address) as client:
            for _ in range(4):
                served = await open_call(client).until_done()
                assert (served.grpc_status, len(served.data)) == (0, 300_005)
        assert len(endpoint.streams) == 4
        assert held(plane) == 0

    limits = {"stream_window_bytes": WINDOW}
    service = {"limits": {"max_held_bytes": 1_024}}
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], limits=limits, service=service) as plane,
    ):
        await whole(endpoint, plane)
