"""`learned` over real calls: it goes by its scores, and its records compute again."""

from __future__ import annotations

import json

import numpy as np
from tests.integration.test_request_classes import admitted, call, serve
from tests.support.dataplane import data_plane
from tests.support.raw_peers import raw_client, raw_server

from attnroute.dataplane import classes, replay

CALLS = 30


async def test_calls_go_where_their_class_costs_least_and_records_compute_again() -> None:
    async with (
        raw_server(serve) as one,
        raw_server(serve) as other,
        data_plane(
            [one.address, other.address], service={"balancer": {"type": "learned"}}
        ) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["picks"] = {"sample": 1.0}
        plane.apply()
        await client.until_settled()
        await call(client, 10)
        await admitted(plane, 2)
        # For small messages the second endpoint, for all others the first.
        cost_s = np.array([[0.001, 1.0], [1.0, 0.001]], dtype=np.float32)
        plane.plane.publish_scores(
            "test",
            endpoint_epoch=plane.plane.snapshot("test")[0],
            class_epoch=classes(plane.plane.classes("test"))[0],
            cost_s=cost_s,
            table_cost_s=cost_s,
            spread=np.ones_like(cost_s),
            probability=np.full_like(cost_s, 0.5),
            mean_service_s=np.full(2, 0.01, np.float32),
            concurrency=np.ones(2, np.float32),
            sidecars=1,
            model="",
        )
        for _ in range(CALLS):
            await call(client, 10)
        await plane.until_ended(CALLS + 1)
        rows = json.loads(plane.plane.recorded_picks("test", 0, 1_000)[0])
        assert len(rows) >= CALLS
        names = {one.name for one in classes(plane.plane.classes("test"))[1]}
        assert {row["request_class"] for row in rows[-CALLS:]} <= names - {"other"}
        for row in rows:
            assert json.loads(replay(json.dumps(row).encode()))["identical"], row
        assert {row["endpoint"] for row in rows[-CALLS:]} == {other.address}
        question = json.dumps({"method": "/shop.Cart/Get", "message_bytes": 10}).encode()
        answer = json.loads(plane.plane.explain("test", question))
        assert (answer["chosen"], answer["reason"]) == (other.address, "no_reports")
        assert plane.metrics().value("attnroute_score_table_epoch", service="test") == 1
