"""RS-13: hedges at the tail that scores predict for this class at this endpoint, else at the
measured one."""

from __future__ import annotations

import json

import numpy as np
from tests.integration.test_request_classes import admitted
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import CANCEL, RawStream
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.routes import hedged

from attnroute.dataplane import classes, replay

OK = 0
PATH = "/test.Raw/Call"
HELD = ("x-hold", "1")


def publish(plane: DataPlaneHarness, *, service_s: float, model: str) -> None:
    """Scores of every class on every endpoint, spread 0.5, for endpoints that do nothing else."""
    given = classes(plane.plane.classes("test"))
    cost_s = np.full((len(given[1]), 2), service_s, np.float32)
    plane.plane.publish_scores(
        "test",
        endpoint_epoch=plane.plane.snapshot("test")[0],
        class_epoch=given[0],
        cost_s=cost_s,
        table_cost_s=cost_s,
        spread=np.full_like(cost_s, 0.5),
        probability=np.full_like(cost_s, 0.5),
        mean_service_s=np.full(2, service_s, np.float32),
        concurrency=np.full(2, 8, np.float32),
        sidecars=1,
        model=model,
    )


def tails(plane: DataPlaneHarness) -> dict[str, int]:
    """Attempts by how the time of a hedge beside them was found."""
    samples = plane.metrics().of("attnroute_hedge_tails_total")
    return {sample.labels["source"]: int(sample.value) for sample in samples if sample.value}


async def script(stream: RawStream) -> None:
    """The first attempt of a held call is never answered."""
    if stream.value("x-hold") and not stream.value("grpc-previous-rpc-attempts"):
        await stream.until(lambda: stream.dead, "the reset")
    else:
        await answer()(stream)


async def test_rs_13_at_the_tail_that_a_model_predicts_before_anything_was_measured() -> None:
    service = {
        **hedged(at={"quantile": 0.95}, max_attempts=2),
        "balancer": {"type": "learned"},
        "request_class": {"message_bytes_buckets": []},
    }
    async with (
        raw_server(script) as one,
        raw_server(script) as other,
        data_plane([one.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["picks"] = {"sample": 1.0}
        plane.apply()
        stream = await open_call(client, PATH).until_done()
        assert stream.grpc_status == OK, stream.describe()
        await admitted(plane, 2)
        assert tails(plane) == {"unknown": 1}

        # The table alone knows means: one answer was measured, and no attempt follows.
        publish(plane, service_s=0.01, model="")
        unknown = open_call(client, PATH, extra=[HELD])
        await client.until(lambda: tails(plane) == {"unknown": 2}, "an attempt without a time")

        # A model that expects 10 ms: another attempt follows, though nothing more was measured.
        publish(plane, service_s=0.01, model="m")
        stream = await open_call(client, PATH, extra=[HELD]).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert tails(plane) == {"unknown": 2, "predicted": 1}
        assert plane.metrics().value("attnroute_hedges_won_total") == 1
        rows = json.loads(plane.plane.recorded_picks("test", 0, 100)[0])
        first, second = rows[-2:]
        assert (second["left_out"], first["left_out"]) == ([first["endpoint"]], [])
        for row in rows:
            assert json.loads(replay(json.dumps(row).encode()))["identical"], row

        # One that expects an hour: the call stays where it is.
        publish(plane, service_s=3_600.0, model="m")
        patient = open_call(client, PATH, extra=[HELD])
        await client.until(lambda: tails(plane).get("predicted") == 2, "an attempt with a time")
        for stream in [await open_call(client, PATH).until_done() for _ in range(10)]:
            assert stream.grpc_status == OK, stream.describe()
        assert not patient.done
        assert not unknown.done
        assert plane.metrics().value("attnroute_hedges_total") == 1
        for held in (patient, unknown):
            held.reset(CANCEL)


async def test_rs_13_without_a_model_the_measured_tail_stands_in() -> None:
    service = {
        **hedged(at={"quantile": 0.95}),
        "balancer": {"type": "learned"},
        "request_class": {"message_bytes_buckets": []},
    }
    async with (
        raw_server(script) as one,
        raw_server(script) as other,
        data_plane([one.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, PATH).until_done()
        assert stream.grpc_status == OK, stream.describe()
        await admitted(plane, 2)
        publish(plane, service_s=3_600.0, model="")
        for _ in range(60):
            stream = await open_call(client, PATH).until_done()
            assert stream.grpc_status == OK, stream.describe()
        won = plane.metrics().value("attnroute_hedges_won_total")
        stream = await open_call(client, PATH, extra=[HELD]).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert tails(plane).get("predicted", 0) == 0
        assert tails(plane)["measured"] >= 1
        assert plane.metrics().value("attnroute_hedges_won_total") == won + 1
