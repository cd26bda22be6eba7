"""Calls while models are swapped, against the same load without.

    python -m benchmarks.scenarios.swap BUNDLE [--swaps 20] [--calls 150000]

A sidecar that balances by `learned` scores by a model while calls run without a pause. In each
round a new version of the bundle is published in its directory, read, made ready and tried by the
sidecar, and promoted. Seconds from the moment at which the sidecar begins to load
until one after the swap are swap seconds, all others control seconds; the calls of each kind are
pooled over all rounds and one p99 of each is compared, with the 95 % interval of a bootstrap over
rounds. No call may fail. The sidecar and its Python share one core: what the control side does in a
swap is felt if anything is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from attnroute import bundle
from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.client import AdminClient
from attnroute.bundle import Bundle
from attnroute.features.schema import schema_hash
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY
from benchmarks.harness.process import Child, wait_until
from benchmarks.harness.shapes import Shape
from benchmarks.harness.stats import quantile
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place

ENDPOINTS = 10
TARGET = 1.10
START_TIMEOUT_S = 60.0
SWAP_TIMEOUT_S = 30.0
BEFORE_S = AFTER_S = 1.0
"""How long a round runs before the new bundle is there; how long a swap is felt after it."""
SHAPE = Shape("swap-4x2", 4, 2, 1.0, latency=True)
PROXY_CORE, LOAD_CORE = 0, 1
BOOTSTRAP_ROUNDS, BOOTSTRAP_SEED = 500, 7

_POLICY = """\
admin: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, allow_changes: true}}
listeners: [{{mode: explicit, address: 127.0.0.1:0}}]
model: {{directory: bundles/swapped, run_limit: 10s, rollout: {{min_interval: 0s}}}}
services:
  {service}:
    authorities: [{service}]
    balancer: {{type: learned}}
    endpoints: {{static: [{endpoints}]}}
"""


@dataclass(frozen=True)
class Outcome:
    """p99_ratio: of the calls in swap seconds to those in control seconds."""

    swaps: int
    calls: int
    failed: int
    swap_calls: int
    longest_swap_s: float
    control_p99_us: float
    swap_p99_us: float
    p99_ratio: float
    interval: tuple[float, float]
    is_reached: bool


@dataclass
class Rounds:
    """Latencies in us of every round, by kind; the nth of both are a pair."""

    control: list[Sequence[float]] = field(default_factory=list)
    swap: list[Sequence[float]] = field(default_factory=list)

    def add(self, calls: Sequence[tuple[float, float]], began_s: float, ended_s: float) -> None:
        """Takes the calls of a round, as (start, latency in us), split by the time of its swap."""
        within = [took for at_s, took in calls if began_s <= at_s <= ended_s]
        others = [took for at_s, took in calls if not began_s <= at_s <= ended_s]
        if not within or not others:
            raise BenchmarkError(
                f"a round has {len(within)} calls in its swap and {len(others)} outside; raise "
                "`--calls`"
            )
        self.swap.append(within)
        self.control.append(others)

    def p99s_us(self, chosen: Sequence[int]) -> tuple[float, float]:
        """Of the pooled calls of some rounds: control, swap."""
        pools = []
        for kind in (self.control, self.swap):
            pooled = sorted(took for number in chosen for took in kind[number])
            pools.append(quantile(pooled, 0.99))
        return pools[0], pools[1]

    def interval(self, rounds: int = BOOTSTRAP_ROUNDS) -> tuple[float, float]:
        """2.5 % and 97.5 % of the ratio over rounds drawn with replacement."""
        draw, numbers = random.Random(BOOTSTRAP_SEED), range(len(self.swap))
        ratios = []
        for _ in range(rounds):
            control_us, swap_us = self.p99s_us(draw.choices(numbers, k=len(numbers)))
            ratios.append(swap_us / control_us)
        ratios.sort()
        return quantile(ratios, 0.025), quantile(ratios, 0.975)


def started_calls(log: Path) -> list[tuple[float, float]]:
    """Start (Unix time) and latency in us of the answered calls of h2load's log."""
    calls = []
    for line in log.read_text().splitlines():
        start_us, status, latency_us = line.split("\t")[:3]
        if status == "200":
            calls.append((float(start_us) / 1e6, float(latency_us)))
    return calls


def _start_sidecar(
    place: Place, folder: Path, ports: Sequence[int], stack: ExitStack
) -> tuple[int, str]:
    listed = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    folder.joinpath("policy.yaml").write_text(_POLICY.format(service=AUTHORITY, endpoints=listed))
    said = folder / "ports.json"
    argv = [str(place.tools.attnroute), "sidecar", "--config", "policy.yaml"]
    argv += ["--ports-file", str(said)]
    child = Child("attnroute", argv, core=place.proxy_core, directory=folder)
    stack.callback(child.stop)
    wait_until(said.exists, what="no ports file", child=child, timeout_s=START_TIMEOUT_S)
    bound = json.loads(said.read_text())
    (address,) = bound["listeners"].values()
    return int(address.rpartition(":")[2]), bound["admin"]["grpc"]


def _until(client: AdminClient, version: str, *stages: int) -> float:
    """Waits until a version is at one of those stages; returns the Unix time."""
    ends_s = time.monotonic() + SWAP_TIMEOUT_S
    while time.monotonic() < ends_s:
        found = [one for one in client.get_model().history if one.version == version]
        if any(one.stage in stages for one in found):
            return time.time()
        if any(one.stage == pb.MODEL_STAGE_REFUSED for one in found):
            raise BenchmarkError(f"the sidecar refused {version}: {found[0].reason}")
        time.sleep(0.01)
    raise BenchmarkError(f"the sidecar did not load {version} in {SWAP_TIMEOUT_S:g} s")


def _publish(folder: Path, made: Bundle, version: str) -> None:
    manifest = dataclasses.replace(made.manifest, name="swapped", version=version)
    bundle.write(folder / "bundles", dataclasses.replace(made, manifest=manifest))


def _swap(client: AdminClient, folder: Path, made: Bundle, version: str) -> tuple[float, float]:
    """Publishes a version and has it serve; when that began and ended, Unix time."""
    _publish(folder, made, version)
    begun = (pb.MODEL_STAGE_LOADING, pb.MODEL_STAGE_SHADOW)
    began_s = _until(client, version, *begun) - 0.05
    _until(client, version, pb.MODEL_STAGE_SHADOW)
    client.set_model(pb.MODEL_ACTION_PROMOTE, version)
    return began_s, time.time()


def measure(place: Place, made: Bundle, *, swaps: int, calls: int) -> Outcome:
    """`swaps` rounds of `calls` calls each. Raises BenchmarkError if one fails."""
    found, failed, longest_s, answered = Rounds(), 0, 0.0, 0
    with ExitStack() as stack:
        launch = Launch(place.tools, place.folder("endpoints"), place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        folder = place.folder("sidecar")
        _publish(folder, made, "1.0.0")
        port, admin = _start_sidecar(place, folder, ports, stack)
        client = stack.enter_context(AdminClient(admin))
        _until(client, "1.0.0", pb.MODEL_STAGE_SERVING)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        loader = place.loader()
        loader.run(SHAPE, calls=calls, port=port)
        for number in range(1, swaps + 1):
            load = pool.submit(loader.run, SHAPE, calls=calls, port=port)
            time.sleep(BEFORE_S)
            began_s, ended_s = _swap(client, folder, made, f"1.{number}.0")
            failed += load.result().failed
            longest_s = max(longest_s, ended_s - began_s)
            log = loader.directory / "calls.log"
            found.add(started_calls(log), began_s, ended_s + AFTER_S)
            answered += len(found.swap[-1])
        if client.get_model().serving.version != f"1.{swaps}.0":
            raise BenchmarkError("the last version does not serve")
    control_us, swap_us = found.p99s_us(range(swaps))
    return Outcome(
        swaps=swaps,
        calls=calls * swaps,
        failed=failed,
        swap_calls=answered,
        longest_swap_s=round(longest_s, 3),
        control_p99_us=control_us,
        swap_p99_us=swap_us,
        p99_ratio=round(swap_us / control_us, 3),
        interval=found.interval(),
        is_reached=failed == 0 and swap_us / control_us <= TARGET,
    )


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 fine, 1 the run failed or a call did, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="benchmarks.scenarios.swap", description=__doc__)
    parser.add_argument("bundle", type=Path, help="directory of the bundle that is swapped")
    parser.add_argument("--swaps", type=int, default=20, help="rounds (default 20)")
    parser.add_argument("--calls", type=int, default=150_000, help="a round (default 150000)")
    given = parser.parse_args(argv)
    if given.swaps < 1 or given.calls < 100:
        parser.error("`--swaps` must be at least 1 and `--calls` at least 100")
    made = bundle.read(given.bundle, expected_schema=schema_hash())
    with tempfile.TemporaryDirectory(prefix="attnroute-swap-") as scratch:
        place = Place(find_tools(), Path(scratch), PROXY_CORE, LOAD_CORE)
        try:
            outcome = measure(place, made, swaps=given.swaps, calls=given.calls)
        except BenchmarkError as error:
            print(f"swap: {error}", file=sys.stderr)
            return 1
    print(json.dumps(asdict(outcome), indent=2))
    return 0 if outcome.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
