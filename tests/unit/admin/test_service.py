"""Answers and refusals of the admin API, without a transport."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from tests.support.wait import patiently, until
from tests.unit.admin.support import World

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError


async def test_list_services_counts_usable_and_in_flight() -> None:
    world = World()
    world.plane.set("cart", 0, in_flight=3)
    world.plane.set("cart", 1, in_flight=4, usable=0, failing=1)
    world.control.known[1] = replace(world.control.known[1], source_error="no such file")
    answer = await world.service.list_services(pb.ListServicesRequest())
    cart, empty = answer.services
    assert (cart.name, list(cart.authorities)) == ("cart", ["cart", "cart:*"])
    assert (cart.endpoints, cart.usable_endpoints, cart.in_flight) == (2, 1, 7)
    assert (cart.balancer, cart.source, cart.endpoint_epoch) == ("least_request", "static", 1)
    assert (empty.endpoints, empty.source_error) == (0, "no such file")


async def test_list_endpoints_gives_state_and_mean_latency() -> None:
    world = World()
    world.plane.set("cart", 0, picks=10, successes=4, failures=2, latency_ns=20_000_000)
    world.plane.set("cart", 1, failing=1, usable=0)
    answer = await world.service.list_endpoints(pb.ListEndpointsRequest(service="cart"))
    first, second = answer.endpoints
    assert first.address == "10.0.0.1:1"
    assert first.state == pb.ENDPOINT_STATE_USABLE
    assert (first.picks_total, first.successes_total, first.failures_total) == (10, 4, 2)
    assert first.mean_latency_s == pytest.approx(0.005)
    assert second.state == pb.ENDPOINT_STATE_CONNECT_FAILING
    assert second.mean_latency_s == 0


async def test_weight_zero_is_a_state_of_its_own() -> None:
    world = World()
    world.plane.set("cart", 0, static_weight=0, usable=0, failing=1)
    answer = await world.service.list_endpoints(pb.ListEndpointsRequest(service="cart"))
    assert answer.endpoints[0].state == pb.ENDPOINT_STATE_WEIGHT_ZERO


async def test_weights_with_and_without_shares() -> None:
    world = World()
    request = pb.GetWeightsRequest(service="cart")
    before = await world.service.get_weights(request)
    assert [row.HasField("share") for row in before.classes[0].endpoints] == [False, False]
    world.plane.set("cart", 0, picks=30, weight=0.9)
    world.plane.set("cart", 1, picks=10, weight=0.1, in_flight=2)
    after = await world.service.get_weights(request)
    rows = after.classes[0].endpoints
    assert after.classes[0].request_class == "*"
    assert [row.share for row in rows] == [0.75, 0.25]
    assert [row.weight for row in rows] == pytest.approx([0.9, 0.1])
    assert rows[1].in_flight == 2
    assert after.read_at.seconds == 1_700_000_000


@pytest.mark.parametrize("request_class", ["", "*"])
async def test_a_classic_balancer_has_one_class(request_class: str) -> None:
    request = pb.GetWeightsRequest(service="cart", request_class=request_class)
    answer = await World().service.get_weights(request)
    assert [weights.request_class for weights in answer.classes] == ["*"]


async def test_another_class_is_not_found() -> None:
    request = pb.GetWeightsRequest(service="cart", request_class="/shop.Cart/Add")
    with pytest.raises(RefusalError, match="no request class") as caught:
        await World().service.get_weights(request)
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


async def test_an_unknown_service_is_not_found_and_names_the_configured_ones() -> None:
    with pytest.raises(RefusalError) as caught:
        await World().service.get_weights(pb.GetWeightsRequest(service="chart"))
    refusal = caught.value
    assert refusal.code == grpc.StatusCode.NOT_FOUND
    assert refusal.message == (
        "attnroute: service `chart` is not configured; configured are: cart, empty"
    )
    (info,) = refusal.details
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("SERVICE_NOT_FOUND", "attnroute")
    assert info.metadata["configured"] == "cart, empty"


async def test_an_empty_service_names_the_field() -> None:
    with pytest.raises(RefusalError) as caught:
        await World().service.list_endpoints(pb.ListEndpointsRequest())
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    (bad,) = caught.value.details
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert bad.field_violations[0].field == "service"


async def test_config_carries_why_the_newest_file_is_not_in_force() -> None:
    world = World()
    world.control.in_force = replace(world.control.in_force, rejected="policy.yaml:3:1: odd")
    answer = await world.service.get_config(pb.GetConfigRequest())
    assert answer.generation == 3
    assert answer.rejected == "policy.yaml:3:1: odd"
    assert (answer.applied_at.seconds, answer.applied_at.nanos) == (1_700_000_000, 250_000_000)


def watch(world: World, interval_ms: int = 100) -> aclosing:  # type: ignore[type-arg]
    request = pb.WatchWeightsRequest(service="cart", min_interval_ms=interval_ms)
    return aclosing(world.service.watch_weights(request))


async def test_watch_gives_the_state_at_once_and_then_each_change() -> None:
    world = World()
    async with watch(world) as answers:
        first = await patiently(anext(answers), "the first message")
        waiting = asyncio.ensure_future(anext(answers))
        await until(lambda: world.plane.snapshots_taken >= 4, "looks without a change")
        assert not waiting.done()
        world.plane.set("cart", 0, weight=0.8)
        second = await patiently(waiting, "the change")
    assert first.classes[0].endpoints[0].weight == pytest.approx(0.5)
    assert second.classes[0].endpoints[0].weight == pytest.approx(0.8)


async def test_watch_does_not_report_counters_alone() -> None:
    world = World()
    async with watch(world) as answers:
        await patiently(anext(answers), "the first message")
        waiting = asyncio.ensure_future(anext(answers))
        seen = world.plane.snapshots_taken
        world.plane.set("cart", 0, picks=99, in_flight=9)
        await until(lambda: world.plane.snapshots_taken >= seen + 3, "looks without a change")
        assert not waiting.done()
        world.plane.add("cart", "10.0.0.9:1")
        answer = await patiently(waiting, "the new set")
    assert [row.address for row in answer.classes[0].endpoints] == ["10.0.0.9:1"]


async def test_a_watcher_that_stalls_sees_only_the_newest_state() -> None:
    world = World()
    async with watch(world) as answers:
        await patiently(anext(answers), "the first message")
        looked = world.plane.snapshots_taken
        for step in range(1000):
            world.plane.set("cart", 0, weight=step / 1000)
        # Nothing was read or queued for it meanwhile.
        assert world.plane.snapshots_taken == looked
        answer = await patiently(anext(answers), "the newest state")
    assert answer.classes[0].endpoints[0].weight == pytest.approx(0.999)


async def test_watches_are_limited_and_free_their_slot() -> None:
    world = World(watches_max=1)
    async with watch(world) as first:
        await patiently(anext(first), "the first message")
        assert world.service.watches == 1
        async with watch(world) as second:
            with pytest.raises(RefusalError) as caught:
                await anext(second)
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert world.hits == ["admin_watches"]
    assert world.service.watches == 0
    async with watch(world) as third:
        await patiently(anext(third), "a message after the slot was freed")


async def test_a_service_that_goes_ends_its_watch() -> None:
    world = World()
    async with watch(world) as answers:
        await patiently(anext(answers), "the first message")
        del world.control.known[0]
        with pytest.raises(RefusalError) as caught:
            await patiently(anext(answers), "the end")
    assert caught.value.code == grpc.StatusCode.NOT_FOUND


async def test_close_ends_watches_without_waiting_for_their_interval() -> None:
    world = World()
    async with watch(world, interval_ms=3_600_000) as answers:
        await patiently(anext(answers), "the first message")
        waiting = asyncio.ensure_future(anext(answers))
        looked = world.plane.snapshots_taken
        world.plane.set("cart", 0, weight=0.7)
        world.service.close()
        with pytest.raises(RefusalError, match="is stopping") as caught:
            await patiently(waiting, "the end")
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert world.plane.snapshots_taken == looked


async def test_too_short_an_interval_is_refused() -> None:
    async with watch(World(), interval_ms=99) as answers:
        with pytest.raises(RefusalError, match="expected 100 or more") as caught:
            await anext(answers)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


LEARNED = {
    "table_epoch": 7,
    "table_age_s": 0.25,
    "model": "",
    "reason": "table",
    "classes": [
        {
            "request_class": name,
            "weights": weights,
            "predicted_s": [0.125, 0.5],
            "spread": spread,
        }
        for name, weights, spread in (
            ("other", [0.5, 0.5], []),
            ("/shop.Cart/Add;bytes=..1024", [0.875, 0.125], [0.25, 0.75]),
        )
    ],
}


async def test_learned_weights_stand_by_class_with_what_is_expected() -> None:
    world = World()
    world.plane.scores["cart"] = LEARNED
    answer = await world.service.get_weights(pb.GetWeightsRequest(service="cart"))
    assert (answer.table_epoch, answer.table_age_s, answer.reason) == (7, 0.25, "table")
    other, add = answer.classes
    assert (other.request_class, add.request_class) == ("other", "/shop.Cart/Add;bytes=..1024")
    assert [row.weight for row in add.endpoints] == [0.875, 0.125]
    assert [row.predicted_latency_s for row in add.endpoints] == [0.125, 0.5]
    assert [row.spread for row in add.endpoints] == [0.25, 0.75]
    assert not other.endpoints[0].HasField("spread")
    assert [row.address for row in add.endpoints] == ["10.0.0.1:1", "10.0.0.2:1"]


async def test_one_class_may_be_asked_for_and_an_unknown_one_names_the_others() -> None:
    world = World()
    world.plane.scores["cart"] = LEARNED
    request = pb.GetWeightsRequest(service="cart", request_class="other")
    answer = await world.service.get_weights(request)
    assert [weights.request_class for weights in answer.classes] == ["other"]
    request.request_class = "/shop.Cart/Drop;bytes=..1024"
    with pytest.raises(RefusalError) as refusal:
        await world.service.get_weights(request)
    assert refusal.value.code is grpc.StatusCode.NOT_FOUND
    assert "knows `other`, `/shop.Cart/Add;bytes=..1024`" in refusal.value.message


async def test_while_the_fallback_picks_its_weights_stand_for_every_class() -> None:
    world = World()
    world.plane.scores["cart"] = {**LEARNED, "classes": [], "reason": "fallback_expired"}
    answer = await world.service.get_weights(pb.GetWeightsRequest(service="cart"))
    assert [weights.request_class for weights in answer.classes] == ["*"]
    assert answer.reason == "fallback_expired"
    assert not answer.classes[0].endpoints[0].HasField("predicted_latency_s")
