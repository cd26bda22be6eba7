"""CPU per call and added latency of each proxy, over the same four endpoints.

Every round starts every proxy anew, alone on its core, warms it up and runs all shapes; the order
turns from round to round. A fresh process each time also draws its memory layout anew, which moves
CPU per call by a few per cent and would otherwise pass for a property of the proxy.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.machine import CoreTime
from benchmarks.harness.process import Child, CpuTime, busy_loop, wait_until
from benchmarks.harness.results import MemorySample, Sample
from benchmarks.harness.shapes import WARM_UP, Shape
from benchmarks.peers import Launch, Peer
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, start_peer

ENDPOINTS = 4
# CPU seconds after which a busy loop ends by itself; a squeezed load takes a few.
BUSY_LOOP_LIMIT_S = 60
COUNT_TIMEOUT_S = 10.0
# `direct` has no core to squeeze: its plain shapes say what the load side can give.
DIRECT = "direct"


@dataclass(frozen=True)
class Round:
    """One round: the proxies in their order, the shapes, and what to tell about progress."""

    number: int
    peers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    calls: int
    tell: Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What one proxy gave in one round."""

    samples: tuple[Sample, ...]
    memory: tuple[MemorySample, ...]
    config: str


def turned(peers: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of round `number`: turned by one every second round, backwards in the others, so
    that no proxy always runs first or always behind the same one."""
    shift = number // 2 % len(peers)
    order = (*peers[shift:], *peers[:shift])
    return order if number % 2 == 0 else order[::-1]


def run_round(place: Place, plan: Round) -> dict[str, Measured]:
    """Measure every proxy of the plan once."""
    measured: dict[str, Measured] = {}
    for name in turned(plan.peers, plan.number):
        plan.tell(name)
        with ExitStack() as stack:
            folder = place.folder("forward", str(plan.number), name)
            endpoint_folder = folder / "endpoints"
            endpoint_folder.mkdir()
            launch = Launch(place.tools, endpoint_folder, place.load_core, ())
            endpoints, ports = start_endpoints(launch, stack, count=ENDPOINTS)
            peer = start_peer(name, place, folder, tuple(ports), stack)
            measured[name] = _measure_peer(place, plan, peer, endpoints)
    return measured


def _measure_peer(place: Place, plan: Round, peer: Peer, endpoints: Child) -> Measured:
    counted_before = _count_of_probes(peer)
    warm_up = max(1000, round(plan.calls * WARM_UP.calls_share))
    sent = place.loader().run(WARM_UP, calls=warm_up, port=peer.port).calls
    samples = []
    for shape in plan.shapes:
        if peer.name == DIRECT and shape.squeezed:
            continue
        sample = _measure_shape(place, plan, peer, endpoints, shape)
        sent += sample.calls
        samples.append(sample)
    memory: tuple[MemorySample, ...] = ()
    if peer.child is not None:
        rss_bytes = peer.child.rss_bytes()
        memory = (MemorySample(plan.number, peer.name, "loaded", rss_bytes),)
    if peer.child is not None and peer.calls_counted is not None:
        _check_count(peer.child, peer.calls_counted, counted_before + sent)
    return Measured(tuple(samples), memory, peer.config)


def _count_of_probes(peer: Peer) -> int:
    """Calls counted so far. The probe that found the proxy ready may still be on its way there."""
    counted = peer.calls_counted
    if peer.child is None or counted is None:
        return 0
    what = "its metrics did not count the call that came back"
    wait_until(lambda: counted() > 0, what=what, child=peer.child, timeout_s=COUNT_TIMEOUT_S)
    return counted()


def _check_count(child: Child, counted: Callable[[], int], expected: int) -> None:
    """The sidecar's own metrics must know every call: proof that they were on while measured."""
    wait_until(
        lambda: counted() >= expected,
        what=f"its metrics counted {counted()} calls of the {expected} that were made",
        child=child,
        timeout_s=COUNT_TIMEOUT_S,
    )
    if (found := counted()) != expected:
        raise BenchmarkError(f"`{child.name}` counted {found} calls, {expected} were made")


def _measure_shape(place: Place, plan: Round, peer: Peer, endpoints: Child, shape: Shape) -> Sample:
    calls = max(100, round(plan.calls * shape.calls_share))
    with ExitStack() as stack:
        own = [endpoints]
        if shape.squeezed:
            folder = place.folder("busy-loop")
            loop = busy_loop(core=place.proxy_core, directory=folder, limit_s=BUSY_LOOP_LIMIT_S)
            stack.callback(loop.stop)
            own.append(loop)
        before = _Reading.take(peer.child, own)
        result = place.loader().run(shape, calls=calls, port=peer.port)
        after = _Reading.take(peer.child, own)
    for child in [*own, *([peer.child] if peer.child else [])]:
        if not shape.squeezed or child.name != "busy-loop":
            child.check_alive()
    used = after.peer.since(before.peer)
    cores_s = 2 * (after.wall_s - before.wall_s)
    return Sample(
        round=plan.number,
        peer=peer.name,
        shape=shape.name,
        calls=result.calls,
        failed=result.failed,
        wall_s=round(result.wall_s, 6),
        cpu_s=round(used.total_s, 6),
        user_s=round(used.user_s, 2),
        kernel_s=round(used.kernel_s, 2),
        p50_us=result.latency_us(0.50) if shape.latency and result.latencies_us else None,
        p99_us=result.latency_us(0.99) if shape.latency and result.latencies_us else None,
        foreign_share=round(max(0.0, after.foreign_s - before.foreign_s) / cores_s, 3),
        stolen_share=round((after.cores.stolen_s - before.cores.stolen_s) / cores_s, 3),
    )


@dataclass(frozen=True)
class _Reading:
    """Clocks before or after a load."""

    wall_s: float
    peer: CpuTime
    cores: CoreTime
    own_s: float

    @classmethod
    def take(cls, peer: Child | None, own: Sequence[Child]) -> _Reading:
        used = peer.cpu() if peer else CpuTime(0.0, 0.0, 0.0)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = used.total_s + ended.ru_utime + ended.ru_stime + time.process_time()
        own_s += sum(child.cpu().total_s for child in own)
        return cls(time.monotonic(), used, CoreTime.now(), own_s)

    @property
    def foreign_s(self) -> float:
        """Busy time of the cores that nothing of ours accounts for."""
        return self.cores.busy_s - self.own_s
