"""Explain: the answer of the extension in the words of the admin API."""

from __future__ import annotations

import copy
from typing import Any

import grpc
import pytest
from tests.unit.admin.support import World

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError

READ = {"own": 2.0, "report_age_s": 0.25, "rtt_s": 0.001, "cost_s": 0.125}
READ |= {"mean_service_s": 0.0625, "concurrency": 4.0, "utilization": 0.5}
TERMS = {"calls": 3.5, "latency_s": 0.1875, "ratio": 1.5, "kind_ratio": 2.0, "errors": 0.03125}
TERMS |= {"service_s": 0.25, "wait_s": 0.09375, "utilization_s": 0.015625, "queue_s": 0.0078125}
TERMS |= {"class_queue_s": 0.5, "error_s": 0.75, "cost_s": 1.0, "weighted_s": 0.5}


def row(address: str, **changed: float) -> dict[str, Any]:
    """An endpoint as the extension gives it."""
    terms = {name: changed.get(name, value) for name, value in TERMS.items()}
    read = {name: changed.get(name, value) for name, value in READ.items()}
    return {"endpoint": address, "read": read, "terms": terms, "spread": 0.25, "probability": 0.75}


ANSWER: dict[str, Any] = {
    "service": "cart",
    "request_class": "/shop.Cart/Get;bytes=..1024",
    "kind": "/shop.Cart/Get",
    "balancer": "learned",
    "reason": "table",
    "endpoint_epoch": 3,
    "class_epoch": 2,
    "sidecars": 4,
    "table_epoch": 9,
    "table_age_s": 0.5,
    "model": "",
    "chosen": "10.0.0.1:1",
    "runner_up": "10.0.0.2:1",
    "margin_s": 0.125,
    "full_scan": True,
    "factors": {},
    "endpoints": [row("10.0.0.1:1"), row("10.0.0.2:1", weighted_s=0.625, report_age_s=1e9)],
}


async def explain(world: World, **request: Any) -> pb.ExplainResponse:
    asked = {"service": "cart", "method": "/shop.Cart/Get", **request}
    return await world.service.explain(pb.ExplainRequest(**asked))


@pytest.fixture
def world() -> World:
    world = World()
    world.plane.explanation = copy.deepcopy(ANSWER)
    return world


async def test_every_term_of_the_extension_is_in_the_message(world: World) -> None:
    answer = await explain(world, message_bytes=700, headers={"X-Tier": "gold"})
    asked = {"method": "/shop.Cart/Get", "message_bytes": 700, "headers": {"x-tier": "gold"}}
    assert world.plane.asked == [("cart", asked)]
    chosen = (answer.chosen, answer.runner_up, answer.reason)
    assert chosen == ("10.0.0.1:1", "10.0.0.2:1", "table")
    assert (answer.margin, answer.table_age_s, answer.table_epoch) == (0.25, 0.5, 9)
    assert answer.full_scan
    first, second = answer.endpoints
    assert (first.cost_s, second.cost_s, first.weight, first.in_flight) == (0.5, 0.625, 0.75, 2)
    terms = first.terms
    assert (terms.rtt_s, terms.predicted_s, terms.spread) == (0.001, 0.125, 0.25)
    assert (terms.mean_service_s, terms.concurrency, terms.expected_s) == (0.0625, 4.0, 0.1875)
    assert (terms.in_flight_own, terms.in_flight_others, terms.in_flight) == (2.0, 1.5, 3.5)
    assert (terms.report_age_s, terms.ratio, terms.ratio_of_kind) == (0.25, 1.5, 2.0)
    assert (terms.utilization, terms.errors) == (0.5, 0.03125)
    assert (terms.cost_rtt_s, terms.cost_service_s, terms.cost_queue_s) == (0.001, 0.25, 0.09375)
    assert (terms.cost_utilization_s, terms.cost_congestion_s) == (0.015625, 0.0078125)
    assert (terms.cost_class_congestion_s, terms.cost_error_s) == (0.5, 0.75)
    assert not second.terms.HasField("report_age_s")
    assert answer.read_at.seconds == int(world.clock.wall_s())


async def test_a_size_that_is_not_known_is_not_zero(world: World) -> None:
    await explain(world)
    assert world.plane.asked[0][1]["message_bytes"] is None


async def test_who_is_left_out_is_named_with_the_reason(world: World) -> None:
    del world.plane.explanation["endpoints"][1]
    world.plane.explanation.update(runner_up=None, margin_s=None)
    answer = await explain(world)
    assert [endpoint.usable for endpoint in answer.endpoints] == [True, False]
    assert answer.endpoints[1].why_not == "left out by the rules"
    assert not answer.HasField("margin")
    world.plane.set("cart", 1, ejected=1, usable=0)
    assert (await explain(world)).endpoints[1].why_not == "ejected"


async def test_a_classic_balancer_has_weights_and_no_terms(world: World) -> None:
    for endpoint in world.plane.explanation["endpoints"]:
        for name in ("read", "terms", "spread"):
            del endpoint[name]
    for name in ("table_epoch", "table_age_s", "model", "full_scan", "factors"):
        del world.plane.explanation[name]
    world.plane.explanation["margin_s"] = None
    answer = await explain(world)
    assert [endpoint.weight for endpoint in answer.endpoints] == [0.75, 0.75]
    assert not answer.endpoints[0].HasField("terms")
    assert not answer.HasField("margin")
    assert not answer.HasField("table_age_s")


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"method": "Get"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"method": "/Get"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"method": "/a/" + "b" * 9_000}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"headers": {f"x-{n}": "" for n in range(101)}}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"service": "nobody"}, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_what_cannot_be_explained_is_refused(
    world: World, request_fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    with pytest.raises(RefusalError) as refusal:
        await explain(world, **request_fields)
    assert refusal.value.code is code
    assert not world.plane.asked
