"""The turns with endpoints that are ill: what counts for whom, and what a table says."""

from __future__ import annotations

from dataclasses import replace

import grpc
import grpc.aio
import pytest
from tests.support.wait import patiently, until

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.endpoint import start_server
from attnroute.demo.faults import FaultFigures, FaultResults, FaultyEndpoint, turn_s
from attnroute.demo.messages import CallHead, Sample
from attnroute.demo.plan import make_plan
from attnroute.demo.results import Results
from attnroute.demo.world import WORLDS

GOOD = Sample(40, 0.0, 0.0, 0.1, 0, 3, 0.0, 0.1)
FAILED = replace(GOOD, status=14, endpoint=-1)


def test_calls_are_counted_for_the_balancer_whose_turn_it_is() -> None:
    faults = FaultResults(BALANCERS)
    faults.begin(BALANCERS[1], 40, 100.0)
    faults.begin(BALANCERS[0], 41, 200.0)
    assert [faults.owns(sample) for sample in (GOOD, FAILED, FAILED)] == [True] * 3
    assert faults.owns(replace(GOOD, order=41))
    assert not faults.owns(replace(GOOD, order=42))
    for at_s in (101.5, 100.25, 103.0):
        faults.reached("fails", 100.0, at_s)
    faults.reached("hangs", 100.0, 102.0)
    faults.reached("hangs", 300.0, 302.0)
    first, second = faults.figures()
    assert (first.balancer, first.calls, first.errors) == (BALANCERS[0].key, 1, 0)
    assert first.by_fault == {"fails": FaultFigures(0, None), "hangs": FaultFigures(0, None)}
    assert (second.balancer, second.calls, second.errors) == (BALANCERS[1].key, 3, 2)
    assert second.by_fault == {"fails": FaultFigures(3, 2.75), "hangs": FaultFigures(1, 0.0)}
    assert second.document() == {
        "balancer": BALANCERS[1].key,
        "calls": 3,
        "errors": 2,
        "fails": {"calls": 3, "sent_s": 2.75},
        "hangs": {"calls": 1, "sent_s": 0.0},
    }


def test_failures_of_a_turn_are_no_failures_of_the_run() -> None:
    results = Results(WORLDS["mixed"], make_plan(90.0, BALANCERS), BALANCERS)
    results.faults.begin(BALANCERS[0], 40, 100.0)
    results.add([FAILED, replace(FAILED, order=39)])
    assert (results.finished_calls, results.failed_calls) == (2, 1)


def test_a_turn_is_long_enough_for_calls_that_hang() -> None:
    assert [turn_s(slice_s) for slice_s in (0.1, 8.0, 100.0)] == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_an_endpoint_that_is_ill_says_which_call_came_when(fault: str) -> None:
    came: list[tuple[float, float]] = []
    ill = FaultyEndpoint(fault, lambda *call: came.append(call), now_s=lambda: 7.5)
    server, address = await start_server(ill)
    async with grpc.aio.insecure_channel(address) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        method = channel.unary_unary("/demo.Shop/Any")
        call = method(CallHead(3.25, 1.0, 0).message(64))
        await until(lambda: came, "the call at the endpoint")
        assert came == [(3.25, 7.5)]
        if fault == "hangs":
            assert not call.done()
            call.cancel()
        else:
            assert await patiently(call.code(), "a status") is grpc.StatusCode.UNAVAILABLE
    await server.stop(grace=0)
