"""`prequal` with `probe_source: endpoints`: endpoints are asked for their load between calls."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import RawStream
from tests.support.raw_peers import answer, never, raw_server
from tests.support.wait import until

PROBE = b"/attnroute.probe.v1.Probe/Get"
# No answer is too old, however slow the machine.
PREQUAL = {"type": "prequal", "probe_source": "endpoints", "age_limit_ms": 60_000}
BALANCER = {"balancer": PREQUAL}
CALLS = 30


def probes(plane: DataPlaneHarness, result: str) -> float:
    """How many probes ended so."""
    return plane.metrics().value("attnroute_probes_total", service="test", result=result)


def picks(plane: DataPlaneHarness, reason: str) -> float:
    return plane.metrics().value("attnroute_picks_total", service="test", reason=reason)


async def test_the_less_loaded_endpoint_takes_the_calls() -> None:
    async with grpc_peer() as busy, grpc_peer() as idle:
        servers = {"busy": busy, "idle": idle}
        listeners: list[dict[str, Any]] = [
            {"name": "out", "mode": "service", "address": "127.0.0.1:0", "service": "test"},
            *(
                {
                    "name": name,
                    "mode": "inbound",
                    "address": "127.0.0.1:0",
                    "inbound": {"target": peer.address},
                }
                for name, peer in servers.items()
            ),
        ]
        async with data_plane([], listeners=listeners, service=BALANCER) as plane:
            plane.apply_endpoints([plane.addresses["busy"], plane.addresses["idle"]])
            async with (
                grpc_client(plane.addresses["out"]) as client,
                grpc_client(plane.addresses["busy"]) as others,
            ):
                load = [asyncio.ensure_future(others.unary("Block")(b"x")) for _ in range(5)]
                await until(lambda: busy.started == 5, "the load of others")
                # The first picks have nothing to go by.
                await client.unary()(b"one")
                await until(lambda: probes(plane, "answered") == 2, "both answers")
                before = busy.started
                for _ in range(CALLS):
                    answered = probes(plane, "answered")
                    await client.unary()(b"one")
                    await until(lambda: probes(plane, "answered") > answered + 1, "both answers")  # noqa: B023
                assert busy.started == before, "it has five calls, the other one has none"
                assert picks(plane, "prequal") == CALLS
                busy.release.set()
                await asyncio.gather(*load)
            asked = plane.metrics().of("attnroute_inbound_probes_total")
            assert all(sample.value > CALLS / 2 for sample in asked), asked
            # What was asked between calls is no call.
            assert plane.ended(service="test") == CALLS + 1


async def test_who_knows_no_probes_is_asked_once() -> None:
    async with (
        grpc_peer() as first,
        grpc_peer() as second,
        data_plane([first.address, second.address], service=BALANCER) as plane,
        grpc_client(plane.address) as client,
    ):
        await client.unary()(b"one")
        await until(lambda: probes(plane, "unimplemented") == 2, "both refusals")
        for _ in range(CALLS):
            await client.unary()(b"one")
        # What is known here stands in, at once.
        assert picks(plane, "prequal") >= CALLS - 1
        assert probes(plane, "unimplemented") == 2
        assert probes(plane, "answered") == 0


async def test_who_answers_no_probe_serves_all_the_same() -> None:
    asked = 0

    async def mute(stream: RawStream) -> None:
        nonlocal asked
        if stream.value(":path") == PROBE:
            asked += 1
            await never(stream)
        else:
            await answer(b"ok")(stream)

    balancer = {"balancer": PREQUAL | {"age_limit_ms": 50}}
    async with (
        raw_server(mute) as first,
        raw_server(mute) as second,
        data_plane([first.address, second.address], service=balancer) as plane,
        grpc_client(plane.address) as client,
    ):
        for _ in range(CALLS):
            assert await client.unary()(b"one") == b"ok"
        await until(lambda: probes(plane, "failed") >= 2, "probes that are given up")
        assert asked >= 2
        # One at a time each: an endpoint that hangs gathers no probes.
        assert asked <= probes(plane, "failed") + 2
        assert picks(plane, "prequal") == 0


async def test_other_balancers_ask_nobody() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address], service={"balancer": {"type": "prequal"}}) as plane,
        grpc_client(plane.address) as client,
    ):
        assert await client.unary()(b"one") == b"one"
        status = client.unary("NoSuchMethod")(b"")
        assert await status.code() == grpc.StatusCode.UNIMPLEMENTED
        assert sum(s.value for s in plane.metrics().of("attnroute_probes_total")) == 0
