"""Active health checks against real gRPC health servers, and against endpoints that are ill."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_peers import answer_status, never, raw_server
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

from attnroute.admin.client import AdminClient
from attnroute.dataplane import rows

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Many checks a second, and an answer may take as long as it does on a busy machine.
CHECKS = {"interval_ms": 100, "timeout_ms": 60_000}
# Where nobody answers. What has passed once stays healthy although answers may be late.
IMPATIENT = {"timeout_ms": 100, "unhealthy_after": 1_000_000}


@dataclass
class HealthPeer:
    """An endpoint that serves nothing but health."""

    address: str
    health: Any

    async def say(self, status: Any, service: str = "") -> None:
        await self.health.set(service, status)


@contextlib.asynccontextmanager
async def health_peer() -> AsyncIterator[HealthPeer]:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield HealthPeer(f"127.0.0.1:{port}", servicer)
    finally:
        await server.stop(grace=None)


def checked(**settings: object) -> Mapping[str, Any]:
    """Keys of a service with checks that come as fast as they can."""
    return {"grpc_health": {**CHECKS, **settings}}


def results(plane: DataPlaneHarness) -> dict[str, float]:
    samples = plane.metrics().of("attnroute_health_checks_total")
    return {sample.labels["result"]: sample.value for sample in samples if sample.value}


def unhealthy(plane: DataPlaneHarness) -> list[bool]:
    _, data = plane.plane.snapshot("test")
    return [bool(row) for row in rows(data)["unhealthy"]]


async def until_unhealthy(plane: DataPlaneHarness, *wanted: bool) -> None:
    await until(lambda: unhealthy(plane) == list(wanted), f"unhealthy {wanted}")


async def test_an_endpoint_that_says_it_does_not_serve_is_left_alone_until_it_does() -> None:
    async with (
        health_peer() as first,
        health_peer() as second,
        data_plane([first.address, second.address], service=checked()) as plane,
    ):
        await until(lambda: results(plane).get("serving", 0) >= 2, "two passes")
        assert unhealthy(plane) == [False, False]
        await first.say(NOT_SERVING)
        await until_unhealthy(plane, True, False)
        assert plane.metrics().value("attnroute_endpoints_unhealthy") == 1
        assert plane.metrics().value("attnroute_endpoints_usable") == 1
        assert results(plane)["not_serving"] >= 1
        await first.say(SERVING)
        await until_unhealthy(plane, False, False)
        # Checks are no calls.
        assert plane.metrics().value("attnroute_endpoint_picks_total") == 0
        assert plane.ended() == 0


async def test_calls_go_to_healthy_endpoints() -> None:
    async with (
        grpc_peer() as healthy,
        health_peer() as ill,
        data_plane([healthy.address, ill.address], service=checked()) as plane,
        grpc_client(plane.address) as client,
    ):
        await ill.say(NOT_SERVING)
        await until_unhealthy(plane, False, True)
        for _ in range(10):
            assert await client.unary()(b"x") == b"x"
        assert healthy.started == 10


async def test_it_asks_for_the_service_that_is_configured() -> None:
    async with (
        health_peer() as known,
        health_peer() as unknown,
        data_plane([known.address, unknown.address], service=checked(service="shop")) as plane,
    ):
        await known.say(SERVING, "shop")
        await known.say(NOT_SERVING)
        await until_unhealthy(plane, False, True)
        await until(lambda: results(plane).get("serving", 0) >= 1, "a pass")


async def test_silence_is_no_answer_and_a_hung_endpoint_gets_no_calls() -> None:
    async with (
        grpc_peer() as well,
        raw_server(never) as hung,
        data_plane(
            [well.address, hung.address],
            service={"balancer": {"type": "round_robin"}, **checked(**IMPATIENT)},
        ) as plane,
        grpc_client(plane.address) as client,
    ):
        await until(lambda: results(plane).get("unimplemented", 0) >= 1, "the other's check")
        # It never passed, so one failure is enough.
        await until_unhealthy(plane, False, True)
        assert results(plane)["failed"] >= 1
        for _ in range(6):
            assert await client.unary()(b"x") == b"x"
        assert well.started == 6
        # Who gave up waiting says so.
        await until(lambda: any(s.reset_code is not None for s in hung.streams), "a reset")


async def test_an_error_is_no_answer_either() -> None:
    async with (
        raw_server(answer_status(14, "later")) as failing,
        data_plane([failing.address], service=checked()) as plane,
    ):
        await until_unhealthy(plane, True)
        assert set(results(plane)) <= {"failed", "not_connected"}
        # The only endpoint is used all the same.
        assert plane.metrics().value("attnroute_panic") == 1


async def test_checks_at_a_time_are_limited() -> None:
    async with (
        raw_server(never) as first,
        raw_server(never) as second,
        raw_server(never) as third,
        data_plane(
            [first.address, second.address, third.address],
            service=checked(max_checks=1, interval_ms=600_000, timeout_ms=600_000),
        ) as plane,
    ):
        servers = (first, second, third)
        await until(lambda: plane.limit_hits("max_checks") >= 5, "hits of the limit")
        assert sum(len(server.streams) for server in servers) <= 1


async def test_a_policy_without_checks_ends_them() -> None:
    async with (
        health_peer() as first,
        health_peer() as second,
        data_plane([first.address, second.address], service=checked()) as plane,
    ):
        await first.say(NOT_SERVING)
        await until_unhealthy(plane, True, False)
        del plane.config["services"][0]["grpc_health"]
        plane.apply()
        assert unhealthy(plane) == [False, False]
        assert plane.metrics().value("attnroute_endpoints_usable") == 2


async def test_new_endpoints_are_checked_and_those_that_left_are_not() -> None:
    async with (
        health_peer() as first,
        health_peer() as second,
        data_plane([first.address], service=checked()) as plane,
    ):
        await second.say(NOT_SERVING)
        await until(lambda: results(plane).get("serving", 0) >= 1, "a pass")
        plane.apply_endpoints([first.address, second.address])
        await until_unhealthy(plane, False, True)
        plane.apply_endpoints([first.address])
        seen = results(plane).get("not_serving", 0)
        served = results(plane)["serving"]
        await until(lambda: results(plane)["serving"] >= served + 3, "three more passes")
        # One may have been under way.
        assert results(plane)["not_serving"] <= seen + 1


async def test_an_operator_sees_the_state(start_sidecar: Callable[..., Sidecar]) -> None:
    async with health_peer() as ill, grpc_peer() as plain:
        extra = "    health: {grpc: {interval: 100ms, timeout: 1m}}\n"
        sidecar = start_sidecar(minimal_policy(ill.address, plain.address, extra=extra))
        await ill.say(NOT_SERVING)
        await until(lambda: "endpoint is unhealthy" in sidecar.stderr, "the log line")
        line = sidecar.logged("endpoint is unhealthy")
        assert (line["endpoint"], line["service"]) == (ill.address, "cart")
        assert line["level"] == "warn"
        with AdminClient(sidecar.admin) as client:
            states = [endpoint.state for endpoint in client.list_endpoints("cart").endpoints]
        assert states[0] == 5
        await until(lambda: "has no health service" in sidecar.stderr, "the other log line")
        await until(
            lambda: sidecar.metric("attnroute_health_checks_total", result="unimplemented") >= 3,
            "more checks of the endpoint without the health service",
        )
        assert sidecar.stderr.count("has no health service") == 1
        assert states[1] == 1
