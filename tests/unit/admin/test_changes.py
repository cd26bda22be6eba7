"""Admin calls that change something: who may, what they may ask for, what they answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from tests.support.wait import patiently, until
from tests.unit.admin.support import World

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError
from attnroute.admin.server import AdminServer

HERE = "policy.yaml:1:8"
ENDPOINT = "10.0.0.1:1"


def pin(**changed: object) -> pb.SetOverrideRequest:
    wanted = {"service": "cart", "endpoint": ENDPOINT, "override": pb.OVERRIDE_PIN, **changed}
    return pb.SetOverrideRequest(**wanted)  # type: ignore[arg-type]


async def endpoint(world: World) -> pb.Endpoint:
    answer = await world.service.list_endpoints(pb.ListEndpointsRequest(service="cart"))
    return answer.endpoints[0]


async def test_an_override_shows_until_it_is_ended() -> None:
    world = World()
    answer = await world.service.set_override(pin(duration=timedelta(seconds=90)))
    assert answer.override.kind == pb.OVERRIDE_PIN
    assert answer.override.expires_at.seconds == 1_700_000_090
    seen = await endpoint(world)
    assert (seen.override, seen.state) == (answer.override, pb.ENDPOINT_STATE_USABLE)
    ended = await world.service.set_override(pin(override=pb.OVERRIDE_NONE))
    assert not ended.HasField("override")
    assert ended.endpoint_epoch > answer.endpoint_epoch
    assert not (await endpoint(world)).HasField("override")


async def test_drain_is_a_state_and_lasts_ten_minutes_unless_told() -> None:
    world = World()
    answer = await world.service.drain(pb.DrainRequest(service="cart", endpoint=ENDPOINT))
    assert answer.override.expires_at.seconds == 1_700_000_600
    assert (await endpoint(world)).state == pb.ENDPOINT_STATE_DRAINED


async def test_drain_waits_for_calls_in_flight() -> None:
    world = World()
    request = pb.DrainRequest(service="cart", endpoint=ENDPOINT, wait=timedelta(seconds=60))
    world.plane.set("cart", 0, in_flight=2)
    draining = asyncio.ensure_future(world.service.drain(request))
    await until(lambda: draining.done() or world.plane.snapshots_taken > 2, "some looks")
    if draining.done():
        pytest.fail(f"did not wait: {draining.result()}")
    world.plane.set("cart", 0, in_flight=0)
    assert (await patiently(draining, "the drain")).in_flight == 0


async def test_drain_says_what_is_left_when_the_wait_is_over() -> None:
    world = World()
    request = pb.DrainRequest(service="cart", endpoint=ENDPOINT, wait=timedelta(seconds=5))
    world.plane.set("cart", 0, in_flight=2)
    draining = asyncio.ensure_future(world.service.drain(request))
    await until(lambda: draining.done() or world.plane.snapshots_taken > 2, "some looks")
    assert not draining.done()
    world.clock.advance(5)
    assert (await patiently(draining, "the drain")).in_flight == 2


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (pin(endpoint=""), grpc.StatusCode.INVALID_ARGUMENT, "`endpoint` is empty"),
        (pin(service="chart"), grpc.StatusCode.NOT_FOUND, "service `chart` is not configured"),
        (pin(endpoint="10.9.9.9:1"), grpc.StatusCode.NOT_FOUND, "has no endpoint `10.9.9.9:1`"),
        (pin(override=0), grpc.StatusCode.INVALID_ARGUMENT, "`override` is 0"),
        (pin(override=77), grpc.StatusCode.INVALID_ARGUMENT, "`override` is 77"),
        (
            pin(duration=timedelta(hours=25)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "`duration` is 90000 s, expected 1 s to 86400 s",
        ),
        (
            pin(duration=timedelta(seconds=-1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "`duration` is -1 s",
        ),
    ],
)
async def test_bad_requests_say_what_was_expected(
    request_: pb.SetOverrideRequest, code: grpc.StatusCode, words: str
) -> None:
    world = World()
    with pytest.raises(RefusalError, match=words) as caught:
        await world.service.set_override(request_)
    assert caught.value.code == code
    assert world.overrides.of("cart") == {}


@pytest.mark.parametrize("allowed", [False, True])
async def test_tcp_takes_changes_only_where_the_policy_says_so(*, allowed: bool) -> None:
    world = World()
    world.control.changes_allowed = allowed
    code = await _status(world, "127.0.0.1:0")
    assert code == (grpc.StatusCode.OK if allowed else grpc.StatusCode.PERMISSION_DENIED)
    assert bool(world.overrides.of("cart")) == allowed


async def test_the_unix_socket_takes_changes(tmp_path: Path) -> None:
    world = World()
    assert await _status(world, f"unix:{tmp_path}/admin.sock") == grpc.StatusCode.OK
    assert world.overrides.of("cart")


async def _status(world: World, address: str) -> grpc.StatusCode:
    server = AdminServer(world.service)
    bound = server.bind(address, HERE)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(bound) as channel:
            call = channel.unary_unary(
                "/attnroute.admin.v1.Admin/SetOverride",
                request_serializer=pb.SetOverrideRequest.SerializeToString,
                response_deserializer=pb.SetOverrideResponse.FromString,
            )(pin())
            code: grpc.StatusCode = await call.code()
            return code
    finally:
        await server.stop()
