"""LB-06, LB-16: endpoints that take no calls, and endpoints that come late."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.dataplane import Endpoint, data_plane
from tests.support.raw_peers import RawServer, answer, open_call, raw_client, raw_server
from tests.support.wait import patience_s

from attnroute.dataplane import ConfigError

BALANCERS = [
    {"type": "round_robin"},
    {"type": "least_request", "choice_count": "all"},
    {"type": "least_request", "choice_count": {"draws": 2}},
    {"type": "random"},
    {"type": "weighted_round_robin"},
    {"type": "ring_hash"},
    {"type": "maglev"},
]
# They may send every call that is alone to the one endpoint that they know.
BY_LATENCY = [
    {"type": "peak_ewma"},
    {"type": "c3"},
    {"type": "prequal"},
    {"type": "latency_observation"},
]


@pytest.mark.parametrize("balancer", BALANCERS + BY_LATENCY)
async def test_lb_06_weight_zero_takes_no_new_calls(balancer: dict[str, object]) -> None:
    async with (
        raw_server(answer()) as idle,
        raw_server(answer()) as busy,
        raw_server(answer()) as unset,
        data_plane(
            [(idle.address, 0.0), (busy.address, 1.0), unset.address],
            service={"balancer": balancer},
        ) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(40):
            assert (await open_call(client).until_done()).grpc_status == 0
        counts = [len(server.streams) for server in (idle, busy, unset)]
        assert counts[0] == 0
        if balancer in BALANCERS:
            assert min(counts[1:]) >= 8, counts


@pytest.mark.parametrize("balancer", BALANCERS + BY_LATENCY)
async def test_lb_06_all_zero_is_unavailable_and_says_why(balancer: dict[str, object]) -> None:
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane(
            [(first.address, 0.0), (second.address, 0.0)], service={"balancer": balancer}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == 14
        assert "weight" in stream.grpc_message
        assert "`test`" in stream.grpc_message
        plane.apply_endpoints([(first.address, 0.0), (second.address, 0.5)])
        assert (await open_call(client).until_done()).grpc_status == 0
        assert (len(first.streams), len(second.streams)) == (0, 1)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e30])
async def test_lb_06_impossible_weights_are_refused_and_the_old_set_stays(weight: float) -> None:
    async with (
        raw_server(answer()) as server,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        with pytest.raises(ConfigError):
            plane.apply_endpoints([(server.address, weight)])
        assert (await open_call(client).until_done()).grpc_status == 0


async def test_lb_06_many_light_endpoints_and_extremes_share_fairly() -> None:
    async with (
        raw_server(answer()) as heavy,
        raw_server(answer()) as light,
        raw_server(answer()) as tiny,
        data_plane(
            [(heavy.address, 1e6), (light.address, 1e6), (tiny.address, 1e-6)],
            service={"balancer": {"type": "round_robin"}},
        ) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(100):
            assert (await open_call(client).until_done()).grpc_status == 0
        assert abs(len(heavy.streams) - len(light.streams)) <= 2
        assert len(tiny.streams) <= 1


async def test_lb_16_late_start_of_the_endpoint() -> None:
    async with raw_server(answer()) as reserved:
        address = reserved.address
    port = int(address.rpartition(":")[2])
    async with data_plane([address]) as plane, raw_client(plane.address) as client:
        refused_until_s = time.monotonic() + 2
        while time.monotonic() < refused_until_s:
            began_s = time.monotonic()
            stream = await open_call(client, extra=[("grpc-timeout", "1H")]).until_done()
            assert stream.grpc_status == 14, stream.describe()
            assert time.monotonic() - began_s < patience_s(), "UNAVAILABLE came late"
            assert f"`{address}`" in stream.grpc_message
            await asyncio.sleep(0.1)
        late = await RawServer(answer()).start(port=port)
        ready_s = time.monotonic()
        while (await open_call(client).until_done()).grpc_status != 0:
            assert time.monotonic() - ready_s < patience_s(), "it never came back"
            await asyncio.sleep(0.02)
        # Back-off is at most 1 s with 20 % jitter (its schedule is tested in Rust); without a cap
        # the next try would be minutes away. The rest is a slow machine.
        assert time.monotonic() - ready_s < 1.2 + 10
        await late.close()


async def test_lb_16_recovery_of_one_of_several() -> None:
    """Endpoints that refuse connections cost no call while another one is there."""
    async with raw_server(answer()) as gone, raw_server(answer()) as good:
        members: list[Endpoint] = [gone.address, good.address]
        async with data_plane(members) as plane, raw_client(plane.address) as client:
            await gone.close()
            for _ in range(60):
                stream = await open_call(client).until_done()
                assert stream.grpc_status == 0, stream.describe()
            assert len(good.streams) == 60
