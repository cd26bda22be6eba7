"""The demo from start to end: the composition root.

Endpoints first, then the sidecars, then the load; the slices of the plan one after the other; then
each balancer with endpoints that are ill; and everything down again in the opposite order, whatever
happened. Load processes measure; this process
only switches policies, collects samples and draws, so that drawing cannot disturb a measurement.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live

from attnroute.demo import faults
from attnroute.demo.balancers import BALANCERS, LEARNED, Balancer
from attnroute.demo.messages import EndpointSpec, LoadSpec, Order, Sample, encode_spec
from attnroute.demo.models import Registry, default_bundle
from attnroute.demo.plan import BRIDGE_LOAD, Plan, Slice, make_plan
from attnroute.demo.processes import Child, Children, DemoError
from attnroute.demo.results import Results
from attnroute.demo.sidecars import (
    PATIENCE_S,
    EndpointState,
    PolicyFile,
    Sidecar,
    endpoint_states,
    start_sidecar,
    start_trainer,
)
from attnroute.demo.verdict import shortfalls
from attnroute.demo.view import Snapshot, progress_line, render
from attnroute.demo.world import World
from attnroute.errors import AdminError

_T = TypeVar("_T")

SIDECARS = 2

CALL_TIMEOUT_S = 15.0
"""Far beyond any latency of a sound run: a call that meets it is a failure to explain."""

_STOP_GRACE_S = 10.0
_ORDER_LEAD_S = 0.05
_VIEW_PERIOD_S = 0.5
_ADMIN_PERIOD_S = 1.0


@dataclass(frozen=True)
class Endpoint:
    """A running endpoint process."""

    spec: EndpointSpec
    child: Child
    address: str


@dataclass(frozen=True)
class Outcome:
    """What a run leaves to be reported."""

    results: Results
    reloads: int
    complaints: tuple[str, ...]
    """Processes that did not stop as they should."""

    @property
    def clean(self) -> bool:
        """No call failed and everything stopped by itself."""
        return not self.results.failed_calls and not self.complaints

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Where `learned` did not beat what it has to."""
        return shortfalls(self.results)


async def run_demo(world: World, *, seconds: float, seed: int, console: Console) -> Outcome:
    """Runs everything; views go to `console`. Raises DemoError if a process fails."""
    plan = make_plan(seconds, BALANCERS)
    with tempfile.TemporaryDirectory(prefix="attnroute-demo-") as name:
        folder = Path(name)
        children = Children(folder)
        try:
            work = _start_and_play(children, folder, world, plan, seed, console)
            run = await children.guard(work)
        except BaseException:
            await children.stop(grace_s=_STOP_GRACE_S)
            raise
        complaints = await children.stop(grace_s=_STOP_GRACE_S)
    return Outcome(run.results, run.reloads, tuple(complaints))


async def _start_and_play(
    children: Children, folder: Path, world: World, plan: Plan, seed: int, console: Console
) -> Run:
    console.print(f"starting {len(world.endpoints)} endpoints, {SIDECARS} sidecars and a trainer")
    count = len(world.endpoints)
    specs = [EndpointSpec(world.name, index, seed) for index in range(count)]
    for index, fault in enumerate(faults.FAULTS):
        specs.append(EndpointSpec(world.name, count + index, seed, fault))
    endpoints = await start_endpoints(children, specs)
    addresses = [endpoint.address for endpoint in endpoints]
    source = default_bundle()
    registry = None if source is None else Registry(folder / "models", source)
    trainer = await start_trainer(children, folder, registry)
    policy = PolicyFile(
        folder / "policy.yaml",
        addresses[:count],
        trainer,
        addresses[count:],
        models=registry is not None,
    )
    policy.write(plan.slices[0].balancer)
    async with _sidecars(children, policy.path) as sidecars:
        clients = await start_load(children, world, seed, sidecars)
        run = Run(world, plan, policy, sidecars, clients, addresses[:count], console, registry)
        await run.play(endpoints[count:])
    return run


async def start_endpoints(children: Children, specs: Sequence[EndpointSpec]) -> list[Endpoint]:
    """One process each, in that order."""

    async def start(spec: EndpointSpec) -> Endpoint:
        child = await children.start(f"endpoint {spec.index}", "attnroute.demo.endpoint")
        child.send(encode_spec(spec))
        return Endpoint(spec, child, (await child.line())["address"])

    return await _patiently(map(start, specs), "endpoints")


async def start_load(
    children: Children, world: World, seed: int, sidecars: Sequence[Sidecar]
) -> list[Child]:
    """One load process beside each sidecar, connected."""

    async def start(number: int, sidecar: Sidecar) -> Child:
        child = await children.start(f"load {number}", "attnroute.demo.load")
        spec = LoadSpec(world.name, sidecar.listener, seed, number, CALL_TIMEOUT_S)
        child.send(encode_spec(spec))
        await child.line()
        return child

    return await _patiently((start(*pair) for pair in enumerate(sidecars)), "load processes")


async def _patiently(starting: Iterable[Coroutine[Any, Any, _T]], what: str) -> list[_T]:
    """Results in order. Nothing is left starting when this returns or raises."""
    tasks = [asyncio.create_task(start) for start in starting]
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*tasks)
    except TimeoutError:
        raise DemoError(f"the {what} were not ready within {PATIENCE_S:g} s") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _sidecars(children: Children, policy: Path) -> AsyncIterator[list[Sidecar]]:
    sidecars = await _patiently(
        (start_sidecar(children, number, policy) for number in range(SIDECARS)), "sidecars"
    )
    try:
        yield sidecars
    finally:
        for sidecar in sidecars:
            sidecar.close()


class Run:
    """The part of a run in which calls flow."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        policy: PolicyFile,
        sidecars: Sequence[Sidecar],
        clients: Sequence[Child],
        addresses: Sequence[str],
        console: Console,
        registry: Registry | None = None,
    ) -> None:
        self._registry = registry
        self._asks_models = registry is not None
        self._learned_s: list[float] = []
        """When measuring `learned` began, by round; monotonic."""
        self.results = Results(world, plan, BALANCERS)
        self.reloads = 0
        self._in_force = ""
        self._world, self._plan, self._policy = world, plan, policy
        self._sidecars, self._clients, self._addresses = sidecars, clients, addresses
        self._console = console
        self._finished: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        self._open: dict[int, set[str]] = {}
        self._closed = asyncio.Condition()
        self._states: dict[str, EndpointState] = {}
        self._slice = plan.slices[0]
        self._phase = "starting"
        self._begun_s = time.monotonic()

    async def play(self, ill: Sequence[Endpoint]) -> None:
        """Plays everything. Raises DemoError as soon as a policy is refused or a call is lost.

        ill: the endpoints that say when a call reached them.
        """
        playing = asyncio.create_task(self._play_all())
        beside = [
            asyncio.create_task(self._poll_admin()),
            *(asyncio.create_task(self._collect_fault(endpoint)) for endpoint in ill),
            *(asyncio.create_task(self._collect(client)) for client in self._clients),
        ]
        if self._console.is_terminal:
            beside.append(asyncio.create_task(self._show()))
        try:
            await asyncio.wait((playing, *beside), return_when=asyncio.FIRST_COMPLETED)
            # Whatever ended beside the slices ended with an error.
            for task in (*beside, playing):
                if task.done():
                    task.result()
        finally:
            for task in (playing, *beside):
                task.cancel()
            await asyncio.gather(playing, *beside, return_exceptions=True)

    async def _play_all(self) -> None:
        await self._play_slices()
        await self._ask_models()
        # What gates make of endpoints that fail is no part of the comparison.
        self._asks_models = False
        await self._play_faults()
        if self._registry is not None:
            self.results.models.stable = await asyncio.to_thread(self._registry.stable)

    async def _play_faults(self) -> None:
        """Each balancer meets the endpoints that are ill, which come and go by reload under load:
        what joins again is a new endpoint, of which no sidecar knows anything."""
        count = len(self._plan.slices)
        seconds = faults.turn_s(self._plan.bridge_s + self._plan.loaded_s)
        for turn, balancer in enumerate(BALANCERS):
            await self._switch(balancer)
            self._phase, self._slice = "ill endpoints with", replace(self._slice, balancer=balancer)
            number, start_s = 2 * count + turn, time.monotonic() + _ORDER_LEAD_S
            self.results.faults.begin(balancer, number, start_s)
            self._order(
                number=number,
                slice_=self._slice,
                start_s=start_s,
                seconds=math.inf,
                load=faults.LOAD,
                purpose="faults",
                timeout_s=faults.CALL_TIMEOUT_S,
            )
            await self._switch(balancer, with_ill=True)
            await asyncio.sleep(seconds)
            await self._switch(balancer)
        # An order of no time ends the last one.
        self._order(
            number=2 * count + len(BALANCERS),
            slice_=self._slice,
            start_s=time.monotonic(),
            seconds=0.0,
            load=faults.LOAD,
            purpose="end",
        )
        for number in list(self._open):
            await self._until_closed(number)

    async def _play_slices(self) -> None:
        self._begun_s = end_s = time.monotonic()
        before: Slice | None = None
        for slice_ in self._plan.slices:
            self._phase, self._slice = "switching to", slice_
            if self._registry is not None and slice_.number == self._plan.swap_number:
                await asyncio.to_thread(self._registry.publish)
                self.results.models.published = self._registry.version
            self._order_bridge(slice_, end_s)
            await self._switch(slice_.balancer)
            if before is not None:
                await self._until_closed(before.number)
                self._report_progress(before)
            await _sleep_until(end_s + self._plan.bridge_s)
            end_s = await self._play_slice(slice_)
            before = slice_
        self._phase = "finishing"
        for number in list(self._open):
            await self._until_closed(number)
        self._report_progress(self._slice)

    def _order_bridge(self, slice_: Slice, start_s: float) -> None:
        self._order(
            number=len(self._plan.slices) + slice_.number,
            slice_=slice_,
            start_s=start_s,
            seconds=math.inf,
            load=BRIDGE_LOAD,
            purpose=f"bridge {slice_.number}",
        )

    async def _play_slice(self, slice_: Slice) -> float:
        """Returns when the slice's last call was due, in monotonic seconds."""
        start_s = time.monotonic() + _ORDER_LEAD_S
        seconds = self._plan.loaded_s
        self._order(
            number=slice_.number,
            slice_=slice_,
            start_s=start_s,
            seconds=seconds,
            load=1.0,
            purpose="slice",
        )
        self._phase = "settling"
        await _sleep_until(start_s + self._plan.settle_s)
        self._phase = "measuring"
        if slice_.balancer.key == LEARNED:
            self._learned_s.append(start_s + self._plan.settle_s)
        await _sleep_until(start_s + seconds)
        return start_s + seconds

    def _order(
        self,
        *,
        number: int,
        slice_: Slice,
        start_s: float,
        seconds: float,
        load: float,
        purpose: str,
        timeout_s: float | None = None,
    ) -> None:
        calls_per_s = load * self._world.calls_per_s / len(self._clients)
        round_number = slice_.round_number
        order = Order(number, round_number, start_s, seconds, calls_per_s, purpose, timeout_s)
        self._open[number] = {client.name for client in self._clients}
        for client in self._clients:
            client.send(encode_spec(order))

    async def _switch(self, balancer: Balancer, *, with_ill: bool = False) -> None:
        sha256 = self._policy.write(balancer, with_ill=with_ill)
        await asyncio.gather(*(sidecar.wait_in_force(sha256) for sidecar in self._sidecars))
        # The first policy is what the sidecars began with.
        if self._in_force not in ("", sha256):
            self.reloads += len(self._sidecars)
        self._in_force = sha256

    async def _until_closed(self, number: int) -> None:
        """Waits for the last answer of an order. Raises DemoError if a call has none."""
        async with self._closed:
            await self._closed.wait_for(lambda: not self._open.get(number))
        self._open.pop(number, None)
        if self._finished[number] != self._sent[number]:
            raise DemoError(
                f"{self._sent[number]} calls were sent in order {number} and "
                f"{self._finished[number]} came to an end"
            )

    async def _collect(self, client: Child) -> None:
        while True:
            message = await client.line()
            if "samples" in message:
                samples = [Sample(*row) for row in message["samples"]]
                self._finished.update(sample.order for sample in samples)
                self.results.add(samples)
                continue
            number = message["done"]
            self._sent[number] += message["sent"]
            async with self._closed:
                self._open[number].discard(client.name)
                self._closed.notify_all()

    async def _collect_fault(self, endpoint: Endpoint) -> None:
        fault = endpoint.spec.fault
        while True:
            message = await endpoint.child.line()
            self.results.faults.reached(fault, message["start_s"], message["at_s"])

    async def _poll_admin(self) -> None:
        while True:
            self._states = await endpoint_states(self._sidecars)
            await self._ask_models()
            await asyncio.sleep(_ADMIN_PERIOD_S)

    async def _ask_models(self) -> None:
        """What serves in the sidecars; nothing while one does not answer."""
        if not self._asks_models:
            return
        with contextlib.suppress(AdminError):
            answers = await asyncio.gather(*(sidecar.model() for sidecar in self._sidecars))
            for number, answer in enumerate(answers):
                self.results.models.take(number, answer, self._measured_s)

    def _measured_s(self, at_s: float) -> float:
        """How much of `learned` was measured by that monotonic time."""
        return sum(min(max(0.0, at_s - one), self._plan.measured_s) for one in self._learned_s)

    async def _show(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(render(self._snapshot()), refresh=True)
                await asyncio.sleep(_VIEW_PERIOD_S)

    def _report_progress(self, slice_: Slice) -> None:
        if self._console.is_terminal:
            return
        line = progress_line(
            slice_.balancer,
            self.results.measured[slice_.balancer.key].figures(self._world),
            round_number=slice_.round_number,
            rounds=self._plan.rounds,
        )
        self._console.print(line, soft_wrap=True, highlight=False)

    def _snapshot(self) -> Snapshot:
        plan = self._plan
        slice_s = plan.bridge_s + plan.loaded_s
        return Snapshot(
            world=self._world,
            balancers=BALANCERS,
            sidecars=len(self._sidecars),
            current=self._slice.balancer,
            phase=self._phase,
            round_number=self._slice.round_number,
            rounds=plan.rounds,
            elapsed_s=time.monotonic() - self._begun_s,
            total_s=slice_s * len(plan.slices),
            figures=self.results.figures(),
            addresses=self._addresses,
            states=self._states,
            finished_calls=self.results.finished_calls,
            failed_calls=self.results.failed_calls,
            reloads=self.reloads,
            lateness_p99_s=self.results.lateness_p99_s,
        )


async def _sleep_until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.monotonic()))
