"""RS-05: an endpoint that fails fast, or says nothing, is ejected, and calls go to the others."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import grpc_client
from tests.support.raw_h2 import Handler
from tests.support.raw_peers import (
    RawServer,
    answer,
    answer_status,
    never,
    open_call,
    raw_client,
    raw_server,
)
from tests.support.wait import until

OUTLIER = {"consecutive_errors": 5}
BY_LATENCY = ("peak_ewma", "c3", "latency_observation", "learned")
OTHERS = ("least_request", "round_robin", "random", "weighted_round_robin", "prequal")
BALANCERS = (*OTHERS, *BY_LATENCY)
CLIENTS = 6
CALLS = 40


def ejected(plane: DataPlaneHarness) -> float:
    return plane.metrics().value("attnroute_endpoints_ejected")


@pytest.mark.parametrize(
    "script", [answer_status(14, "no"), answer(code=13)], ids=["trailers-only", "trailers"]
)
@pytest.mark.parametrize("balancer", BALANCERS)
async def test_rs_05_a_fast_black_hole_costs_at_most_ten_calls(
    script: Handler, balancer: str
) -> None:
    service = {"outlier_detection": OUTLIER, "balancer": {"type": balancer}}
    async with (
        raw_server(script) as hole,
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane([hole.address, first.address, second.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        failed = 0

        async def caller() -> None:
            nonlocal failed
            for _ in range(CALLS):
                stream = await open_call(client).until_done()
                failed += stream.grpc_status != 0

        await asyncio.gather(*(caller() for _ in range(CLIENTS)))
        # Who goes by latency charges a failure with a second, and may have turned away before.
        assert ejected(plane) == 1 or (balancer in BY_LATENCY and failed < 5)
        assert 1 <= failed <= 10
        assert failed == len(hole.streams)
        reasons = plane.metrics().of("attnroute_endpoint_ejections_total")
        by_reason = {s.labels["reason"]: s.value for s in reasons if s.value}
        assert by_reason == ({"consecutive_errors": 1} if ejected(plane) else {})


async def silent_until_ejected(hole: RawServer, timeout_ms: int) -> None:
    """Real clients with a deadline; those placed at the silent endpoint end by it."""
    service = {"balancer": {"type": "round_robin"}, "outlier_detection": OUTLIER}
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane([hole.address, first.address, second.address], service=service) as plane,
        grpc_client(plane.address) as client,
    ):
        failed = 0
        while not ejected(plane):
            call = client.unary()(b"x", timeout=timeout_ms / 1000)
            code = await call.code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
            failed += code is not grpc.StatusCode.OK
            # The client ends its call first; the data plane counts it a moment later.
            await until(lambda: not plane.in_flight(), "the end of the call")
            assert failed <= 5
        assert failed == 5
        for _ in range(12):
            await client.unary()(b"x", timeout=60)
        assert len(hole.streams) == 5


async def test_rs_05_silence_counts_also_when_the_client_gives_up_first() -> None:
    async with raw_server(never) as hole:
        await silent_until_ejected(hole, timeout_ms=200)


async def test_rs_05_a_call_that_is_cancelled_early_says_nothing() -> None:
    service = {"outlier_detection": {"consecutive_errors": 1}}
    async with (
        raw_server(never) as first,
        raw_server(never) as second,
        data_plane([first.address, second.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        for count in range(1, 7):
            stream = open_call(client, extra=[("grpc-timeout", "60S")])
            seen = lambda wanted=count: len(first.streams) + len(second.streams) == wanted  # noqa: E731
            await until(seen, "the call at an endpoint")
            stream.reset(8)
        await until(lambda: not plane.in_flight(), "the end of every call")
        assert ejected(plane) == 0
