"""RS-14: whatever way a call ends, it is counted out exactly once."""

from __future__ import annotations

import asyncio
import random

from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    REFUSED_STREAM,
    RawConnection,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    answer_status,
    connect,
    open_call,
    raw_server,
    trailers,
)
from tests.support.wait import patience_s, until

CALLS = 10_000
AT_ONCE = 200
SEED = 14


async def _endpoint(stream: RawStream) -> None:
    """Ends each call as the request's path says."""
    how = (stream.value(":path") or b"").rsplit(b"/", 1)[-1].decode()
    if how == "normal":
        await answer(b"x" * 100)(stream)
    elif how == "status":
        await answer_status(14, "no")(stream)
    elif how == "reset":
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        stream.reset(random.choice([NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL]))
    elif how == "reset_late":
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"x"))
        stream.reset(INTERNAL_ERROR)
    elif how == "early":
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"x"))
        stream.headers(trailers(0), end_stream=True)
    elif how == "truncate":
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        stream.headers(RESPONSE)
        stream.data_frame(b"\0\0\0\0\x09x", end_stream=True)
    elif how == "goaway":
        stream.connection.goaway(max(stream.connection.streams))
        await answer(b"x")(stream)
    elif how == "drop":
        stream.connection.tcp_reset()
    elif how == "headers_only":
        stream.headers(RESPONSE)
        await stream.until(lambda: stream.dead, "the client's reset")
    else:  # silent
        await stream.until(lambda: stream.dead, "the client's reset")


WAYS = ["normal", "status", "reset", "reset_late", "early", "truncate", "goaway"]


async def _call(client: RawConnection, chance: random.Random) -> None:
    """One call that ends in a way of either side's choosing."""
    way = chance.choices(
        ["endpoint", "reset_before", "reset_after", "deadline", "at_once", "drop"],
        [60, 12, 12, 12, 3, 1],
    )[0]
    if way == "endpoint":
        open_call(client, f"/t.S/{chance.choice(WAYS)}", body=b"x" * chance.randrange(2000))
    elif way == "drop":
        open_call(client, "/t.S/drop", extra=[("grpc-timeout", "5S")])
    elif way == "reset_before":
        stream = open_call(client, "/t.S/silent", body=None)
        await asyncio.sleep(chance.random() * 0.02)
        stream.reset(CANCEL)
    elif way == "reset_after":
        stream = open_call(client, "/t.S/headers_only")
        await stream.until(lambda: stream.blocks or stream.done, "headers")
        if not stream.done:
            stream.reset(CANCEL)
    elif way == "deadline":
        timeout = f"{chance.randrange(1, 50)}m"
        open_call(client, "/t.S/silent", extra=[("grpc-timeout", timeout)])
    else:
        open_call(client, "/t.S/silent").reset(CANCEL)


async def _load(plane: DataPlaneHarness, endpoints: list[RawServer], calls: int) -> None:
    chance = random.Random(SEED)
    made = 0
    while made < calls:
        clients = [await connect(plane.address) for _ in range(4)]
        batch = min(AT_ONCE * 4, calls - made)
        await asyncio.gather(*(_call(clients[n % 4], chance) for n in range(batch)))
        made += batch
        for client in clients[:2]:  # two wait for their calls, two vanish with theirs under way
            await client.until_settled()
        for client in clients[2:]:
            client.tcp_reset()
        for client in clients:
            await client.close()
        for endpoint in endpoints:
            endpoint.forget_gone()


async def test_rs_14_in_flight_count_never_leaks() -> None:
    random.seed(SEED)
    async with (
        raw_server(_endpoint) as first,
        raw_server(_endpoint) as second,
        raw_server(_endpoint) as third,
        data_plane(
            [first.address, second.address, third.address],
            limits={"max_pending_resets": 100_000},
        ) as plane,
    ):
        await asyncio.wait_for(
            _load(plane, [first, second, third], CALLS), timeout=10 * patience_s()
        )
        await until(lambda: not plane.in_flight(), "every in-flight gauge back at 0")
        counted = plane.ended()
        # A stream that was reset before the sidecar accepted it never was a call.
        assert CALLS * 0.8 <= counted <= CALLS, plane.statuses()
        assert set(plane.statuses()) >= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
        assert plane.metrics().value("attnroute_requests_accepted_total") in (0, counted)


async def test_rs_14_stop_with_calls_in_flight() -> None:
    async with (
        raw_server(_endpoint) as endpoint,
        data_plane([endpoint.address], settles=False) as plane,
    ):
        client = await connect(plane.address)
        for way in ("silent", "headers_only") * 20:
            open_call(client, f"/t.S/{way}")
        await endpoint.until_streams(40)
        await plane.stop()
        await client.until_gone()
        assert not plane.in_flight()
        await client.close()
