"""The simulator against reality: one scenario, once in virtual time and once on real sockets.

Live, a real sidecar forwards real gRPC calls to endpoints whose workers sleep. What the live path
costs by itself (sockets, the interpreter at both ends, sleeps that end late) is measured with one
call at a time on the idle fleet right before each run, and taken off that run's mean: the rest is
service and queueing, which is what the simulator claims to know.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from tests.support.sidecar import ANY_PORT, Sidecar

from attnroute.demo.endpoint import Endpoint, start_server
from attnroute.demo.load import CHANNEL_OPTIONS, LoadClient
from attnroute.demo.messages import CallHead, LoadSpec, Order, Reply, Sample
from attnroute.demo.world import SERVICE, EndpointModel, RequestClass, World
from attnroute.sim.run import Figure, Task, mean_and_margin, parse_balancer, run_tasks
from attnroute.sim.scenario import LoadedScenario, load_scenario

SCENARIO = Path(__file__).with_name("live.yaml")
RUNS = 5
SEEDS = range(20)
ATTEMPTS = 3
"""Sets of runs until one agrees: a busy machine moves one set of live runs, a wrong model all."""
IDLE_CALLS = 12
IDLE_WORK = 0.25
"""Relative to the mean: long enough to sleep, short enough to ask often."""

BALANCERS = {
    "round_robin": "{type: round_robin}",
    "least_request": "{type: least_request, choice_count: 2}",
    "least_request:choice_count=all": "{type: least_request, choice_count: all}",
}
"""As the simulator takes it, and as a policy does."""


@dataclass(frozen=True)
class Lab:
    """The scenario as the live side needs it."""

    world: World
    calls_per_s: float
    warmup_s: float
    seconds: float


def lab_of(scenario: LoadedScenario) -> Lab:
    """Reads the compiled scenario, so that there is one description of the fleet."""
    compiled = json.loads(scenario.compiled)
    endpoints = tuple(
        EndpointModel(speed=group["speed"], workers=group["workers"])
        for group in compiled["endpoints"]
        for _ in range(group["count"])
    )
    service = compiled["service_time"]
    world = World(
        name=scenario.name,
        summary="",
        endpoints=endpoints,
        classes=(RequestClass("Call", 64, 1.0, 1.0),),
        mean_work_s=service["mean_ms"] / 1e3,
        sigma=service["law"]["lognormal"]["sigma"],
    )
    warmup_s = compiled["warmup_ms"] / 1e3
    seconds = warmup_s + compiled["duration_ms"] / 1e3
    return Lab(world, scenario.offered_rps, warmup_s, seconds)


@asynccontextmanager
async def fleet(world: World) -> AsyncIterator[list[str]]:
    """Real gRPC servers for every endpoint of a world; their addresses."""
    async with AsyncExitStack() as stack:
        addresses = []
        for index in range(len(world.endpoints)):
            server, address = await start_server(Endpoint(world, index, seed=0))
            stack.push_async_callback(server.stop, None)
            addresses.append(address)
        yield addresses


def policy(balancer: str, endpoints: Sequence[str]) -> str:
    listed = ", ".join(endpoints)
    return (
        f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
        f"services: {{{SERVICE}: {{balancer: {balancer}, endpoints: {{static: [{listed}]}}}}}}\n"
    )


async def overhead_ms(lab: Lab, target: str) -> float:
    """Mean time that a call takes on the idle fleet beyond the work it asks for."""
    extra_s = []
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        method = channel.unary_unary(lab.world.classes[0].path)
        for call in range(IDLE_CALLS + 1):
            begun_s = time.monotonic()
            message = CallHead(begun_s, IDLE_WORK, 0).message(lab.world.classes[0].message_bytes)
            reply = Reply.parse(await method(message))
            speed = lab.world.endpoints[reply.endpoint].speed
            asked_s = IDLE_WORK * lab.world.work_s(0, reply.endpoint) / speed
            if call > 0:  # the first one connects
                extra_s.append(time.monotonic() - begun_s - asked_s)
    return statistics.fmean(extra_s) * 1e3


async def run_ms(lab: Lab, target: str, number: int) -> float:
    """Mean latency of one live run, as sent and answered; any failed call fails the test."""
    samples: list[Sample] = []
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    client = LoadClient(
        LoadSpec(lab.world.name, target, seed=number, client=0, timeout_s=30.0),
        lab.world,
        samples.append,
        lambda _, sent: done.set_result(sent),
    )
    try:
        await client.connect()
        start_s = time.monotonic() + 0.05
        client.start(Order(1, number, start_s, lab.seconds, lab.calls_per_s, "measure"))
        sent = await done
    finally:
        await client.close()
    assert len(samples) == sent
    assert not [sample.detail for sample in samples if sample.status != 0]
    measured = [sample for sample in samples if sample.offset_s >= lab.warmup_s]
    return statistics.fmean(sample.latency_s - sample.lateness_s for sample in measured) * 1e3


async def live_ms(lab: Lab, target: str) -> tuple[Figure, list[float]]:
    """Mean latency over RUNS live runs with its 95 % interval, and what was taken off each."""
    runs, overheads = [], []
    for number in range(RUNS):
        overheads.append(await overhead_ms(lab, target))
        runs.append(await run_ms(lab, target, number) - overheads[-1])
    return mean_and_margin(runs), overheads


def simulated(scenario: LoadedScenario) -> dict[str, Figure]:
    """Mean latency over seeds, with its 95 % interval."""
    specs = [parse_balancer(label) for label in BALANCERS]
    results = run_tasks([Task(scenario, spec, seed) for spec in specs for seed in SEEDS], jobs=1)
    return {
        spec.label: mean_and_margin(
            [result.outcome["mean_ms"] for result in results if result.task.balancer == spec]
        )
        for spec in specs
    }


def overlap(one: Figure, other: Figure) -> bool:
    assert one.margin is not None
    assert other.margin is not None
    return abs(one.mean - other.mean) <= one.margin + other.margin


@pytest.fixture(scope="module")
def scenario() -> LoadedScenario:
    return load_scenario(SCENARIO)


@pytest.fixture(scope="module")
def expected(scenario: LoadedScenario) -> dict[str, Figure]:
    return simulated(scenario)


def test_the_scenario_tells_balancers_apart(expected: dict[str, Figure]) -> None:
    # Otherwise agreement below would mean nothing.
    turns, two, everyone = (expected[label] for label in BALANCERS)
    assert not overlap(turns, two)
    assert not overlap(two, everyone)
    assert turns.mean > 1.3 * everyone.mean


@pytest.mark.alone
@pytest.mark.parametrize("label", BALANCERS)
async def test_live_and_simulated_means_agree(
    label: str,
    scenario: LoadedScenario,
    expected: dict[str, Figure],
    start_sidecar: Callable[..., Sidecar],
) -> None:
    lab = lab_of(scenario)
    shown = [f"simulated {expected[label]} ms"]
    async with fleet(lab.world) as addresses:
        sidecar = await asyncio.to_thread(start_sidecar, policy(BALANCERS[label], addresses))
        for _ in range(ATTEMPTS):
            live, overheads = await live_ms(lab, sidecar.address)
            shown.append(f"live {live} ms, taken off {overheads} ms")
            assert live.margin is not None
            # A set too uneven to be evidence agrees with nothing.
            if live.margin < 0.6 * live.mean and overlap(live, expected[label]):
                return
    pytest.fail("; ".join(shown))
