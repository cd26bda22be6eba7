"""ListPicks and WatchPicks, without a transport."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from tests.support.wait import patiently, until
from tests.unit.admin.support import World

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError
from attnroute.cli.tables import pick_document, pick_line


def row(method: str = "/shop.Cart/Add", **changed: Any) -> dict[str, Any]:
    candidate = {"address": "10.0.0.1:1", "in_flight": 3, "static_weight": 1.0, "weight": 0.25}
    return {
        "at_ns": 1_700_000_000_000_000_005,
        "picked_ns": 77,
        "service": "cart",
        "method": method,
        "request_class": "/shop.Cart/Add",
        "key": None,
        "endpoint": "10.0.0.2:1",
        "runner_up": "10.0.0.1:1",
        "reason": "least_request",
        "endpoint_epoch": 4,
        "rng_key": 2**64 - 1,
        "rng_counter": 9,
        "candidates": [candidate],
        "candidates_total": 2,
        "left_out": ["10.0.0.9:1"],
        "left_out_total": 3,
        **changed,
    }


def watch(world: World, **wanted: int) -> aclosing:  # type: ignore[type-arg]
    return aclosing(world.service.watch_picks(pb.WatchPicksRequest(service="cart", **wanted)))


async def test_a_pick_tells_what_it_saw() -> None:
    world = World()
    world.plane.picks["cart"] = [row()]
    answer = await world.service.list_picks(pb.ListPicksRequest(service="cart"))
    (pick,) = answer.picks
    assert (pick.endpoint, pick.runner_up, pick.reason) == (
        "10.0.0.2:1",
        "10.0.0.1:1",
        "least_request",
    )
    assert (pick.time.seconds, pick.time.nanos) == (1_700_000_000, 5)
    assert (pick.rng_key, pick.rng_counter, pick.endpoint_epoch) == (2**64 - 1, 9, 4)
    assert (pick.candidates[0].in_flight, pick.candidates[0].weight) == (3, 0.25)
    assert (list(pick.left_out), pick.left_out_total) == (["10.0.0.9:1"], 3)
    assert pick_line(pick).endswith(", without 10.0.0.9:1, 2 more")
    assert pick_document(pick)["left_out"] == ["10.0.0.9:1"]
    assert not pick.HasField("key")
    assert (answer.number, pick.number) == (1, 1)
    assert pick.request_class == "/shop.Cart/Add"


async def test_a_pick_without_a_second_or_classes_and_with_a_key() -> None:
    world = World()
    world.plane.picks["cart"] = [row(runner_up=None, key=0, request_class=None)]
    answer = await world.service.list_picks(pb.ListPicksRequest(service="cart"))
    assert answer.picks[0].runner_up == ""
    assert answer.picks[0].HasField("key")
    assert answer.picks[0].request_class == "*"


async def test_the_last_twenty_unless_told() -> None:
    world = World()
    world.plane.picks["cart"] = [row(f"/{number}") for number in range(50)]
    answer = await world.service.list_picks(pb.ListPicksRequest(service="cart"))
    assert [pick.method for pick in answer.picks] == [f"/{number}" for number in range(30, 50)]
    answer = await world.service.list_picks(pb.ListPicksRequest(service="cart", last=1))
    assert [pick.method for pick in answer.picks] == ["/49"]


async def test_bad_requests_are_refused() -> None:
    world = World()
    with pytest.raises(RefusalError, match="expected 1 to 1000") as caught:
        await world.service.list_picks(pb.ListPicksRequest(service="cart", last=1001))
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(RefusalError, match="not configured"):
        await world.service.list_picks(pb.ListPicksRequest(service="chart"))


async def test_a_watch_begins_with_the_next_pick_or_after_a_number() -> None:
    world = World()
    world.plane.picks["cart"] = [row("/a"), row("/b")]
    async with watch(world, after=1) as resumed:
        assert (await patiently(anext(resumed), "the second")).method == "/b"
    async with watch(world) as fresh:
        waiting = asyncio.ensure_future(anext(fresh))
        await until(lambda: world.service.watches == 1, "the watch")
        world.plane.picks["cart"].append(row("/c"))
        assert (await patiently(waiting, "the third")).method == "/c"


async def test_a_watcher_that_stalls_holds_nothing_and_sees_the_gap() -> None:
    world = World()
    async with watch(world, after=0) as picks:
        world.plane.picks["cart"] = [row()]
        first = await patiently(anext(picks), "the first")
        world.plane.picks["cart"] += [row() for _ in range(10_000)]
        second = await patiently(anext(picks), "the next that is kept")
    assert (first.number, second.number) == (1, 9_002)


async def test_watches_of_picks_count_as_watches() -> None:
    world = World(watches_max=1)
    async with watch(world, after=0) as picks:
        world.plane.picks["cart"] = [row()]
        await patiently(anext(picks), "the first")
        async with watch(world) as second:
            with pytest.raises(RefusalError, match="1 watches are open"):
                await anext(second)
    assert world.service.watches == 0


async def test_close_ends_a_watch() -> None:
    world = World()
    async with watch(world) as picks:
        waiting = asyncio.ensure_future(anext(picks))
        await until(lambda: world.service.watches == 1, "the watch")
        world.service.close()
        with pytest.raises(RefusalError, match="is stopping"):
            await patiently(waiting, "the end")
