"""Latency while endpoints come and go, against the same load without.

    .venv/bin/python -m benchmarks.scenarios.churn [--intervals 20] [--calls 60000]

Intervals of both kinds take turns, so that the machine's moods hit both alike; their calls are
pooled by kind and one p99 of each is compared. How far the ratio can be trusted says its bootstrap
interval: pairs of intervals are drawn again, since calls of one interval share its moods.

Every 0.6 s ten of the twenty endpoints are replaced by the other ten through a file that the
sidecar follows: 1,000 endpoints a minute, and as many leave. That is the hardest form of such a
rate: connections to half of the set are new.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY
from benchmarks.harness.process import Child, wait_until
from benchmarks.harness.shapes import Shape
from benchmarks.harness.stats import quantile
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place

ENDPOINTS = 20
HALF = ENDPOINTS // 2
CHANGE_INTERVAL_S = 0.6
START_TIMEOUT_S = 30.0
TARGET = 1.10
BOOTSTRAP_ROUNDS = 200
BOOTSTRAP_SEED = 20_240_501
SHAPE = Shape("churn-4x2", 4, 2, 1.0, latency=True)
PROXY_CORE, LOAD_CORE = 0, 1

_POLICY = f"""\
admin: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0}}
listeners: [{{mode: explicit, address: 127.0.0.1:0}}]
services:
  {AUTHORITY}: {{authorities: [{AUTHORITY}], endpoints: {{file: endpoints.yaml, refresh: 100ms}}}}
"""


@dataclass(frozen=True)
class Outcome:
    """p99_ratio: of the calls while endpoints changed to those while they did not, with the 95 %
    interval of its bootstrap."""

    intervals: int
    calls: int
    failed: int
    changes_per_minute: float
    quiet_p99_us: float
    churning_p99_us: float
    p99_ratio: float
    interval: tuple[float, float]
    is_reached: bool


@dataclass
class Intervals:
    """Latencies in us of every interval, by kind; the nth of both are a pair."""

    quiet: list[Sequence[float]] = field(default_factory=list)
    churning: list[Sequence[float]] = field(default_factory=list)

    def p99s_us(self, chosen: Sequence[int]) -> tuple[float, float]:
        """Of the pooled calls of some pairs: quiet, churning."""
        return (
            _p99([self.quiet[pair] for pair in chosen]),
            _p99([self.churning[pair] for pair in chosen]),
        )

    def interval(self, rounds: int = BOOTSTRAP_ROUNDS) -> tuple[float, float]:
        """2.5 % and 97.5 % of the ratio over pairs drawn with replacement."""
        draw = random.Random(BOOTSTRAP_SEED)
        pairs = range(len(self.quiet))
        ratios = []
        for _ in range(rounds):
            quiet_us, churning_us = self.p99s_us(draw.choices(pairs, k=len(pairs)))
            ratios.append(churning_us / quiet_us)
        ratios.sort()
        return quantile(ratios, 0.025), quantile(ratios, 0.975)


class Members:
    """The file of endpoints; every set is half of them and differs from the one before."""

    def __init__(self, path: Path, ports: Sequence[int]) -> None:
        self._path = path
        self._ports = ports
        self._turn = 0
        self.written = 0
        self.write()

    def write(self) -> None:
        """The other half."""
        first = self._turn % 2 * HALF
        lines = [f"  - 127.0.0.1:{port}\n" for port in self._ports[first : first + HALF]]
        fresh = self._path.with_suffix(".new")
        fresh.write_text("endpoints:\n" + "".join(lines))
        fresh.replace(self._path)
        self._turn += 1
        self.written += 1

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Replaces the set at once, and at its interval while the block runs."""
        stop = threading.Event()

        def change() -> None:
            self.write()
            while not stop.wait(CHANGE_INTERVAL_S):
                self.write()

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _p99(pools: Sequence[Sequence[float]]) -> float:
    # The nearest rank, as everywhere; a million calls need no whole order.
    pooled = np.concatenate([np.asarray(pool) for pool in pools])
    rank = math.ceil(0.99 * len(pooled)) - 1
    return float(np.partition(pooled, rank)[rank])


def _start_sidecar(place: Place, folder: Path, stack: ExitStack) -> int:
    folder.joinpath("policy.yaml").write_text(_POLICY)
    ports = folder / "ports.json"
    argv = [str(place.tools.attnroute), "sidecar", "--config", "policy.yaml"]
    argv += ["--ports-file", str(ports)]
    child = Child("attnroute", argv, core=place.proxy_core, directory=folder)
    stack.callback(child.stop)
    wait_until(ports.exists, what="no ports file", child=child, timeout_s=START_TIMEOUT_S)
    (address,) = json.loads(ports.read_text())["listeners"].values()
    return int(address.rpartition(":")[2])


def measure(place: Place, *, intervals: int, calls: int) -> Outcome:
    """`intervals` of each kind with `calls` calls each. Raises BenchmarkError if one fails."""
    found = Intervals()
    failed, churned_s = 0, 0.0
    with ExitStack() as stack:
        endpoint_folder, folder = place.folder("endpoints"), place.folder("sidecar")
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        members = Members(folder / "endpoints.yaml", ports)
        port = _start_sidecar(place, folder, stack)
        loader = place.loader()
        loader.run(SHAPE, calls=calls, port=port)
        written_before = members.written
        for number in range(2 * intervals):
            # Quiet, churning, churning, quiet: neither kind always follows the other.
            if number % 4 in (0, 3):
                result, pool = loader.run(SHAPE, calls=calls, port=port), found.quiet
            else:
                with members.changing():
                    result, pool = loader.run(SHAPE, calls=calls, port=port), found.churning
                churned_s += result.wall_s
            failed += result.failed
            pool.append(result.latencies_us)
        written = members.written - written_before
    quiet_us, churning_us = found.p99s_us(range(intervals))
    ratio = churning_us / quiet_us
    return Outcome(
        intervals=intervals,
        calls=calls,
        failed=failed,
        changes_per_minute=round(written * HALF / churned_s * 60),
        quiet_p99_us=quiet_us,
        churning_p99_us=churning_us,
        p99_ratio=round(ratio, 3),
        interval=found.interval(),
        is_reached=failed == 0 and ratio <= TARGET,
    )


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 fine, 1 the run failed or a call did, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="benchmarks.scenarios.churn", description=__doc__)
    parser.add_argument("--intervals", type=int, default=20, help="of each kind (default 20)")
    parser.add_argument("--calls", type=int, default=60_000, help="an interval (default 60000)")
    given = parser.parse_args(argv)
    if given.intervals < 1 or given.calls < 100:
        parser.error("`--intervals` must be at least 1 and `--calls` at least 100")
    with tempfile.TemporaryDirectory(prefix="attnroute-churn-") as scratch:
        place = Place(find_tools(), Path(scratch), PROXY_CORE, LOAD_CORE)
        try:
            outcome = measure(place, intervals=given.intervals, calls=given.calls)
        except BenchmarkError as error:
            print(f"churn: {error}", file=sys.stderr)
            return 1
    print(json.dumps(asdict(outcome), indent=2))
    return 0 if outcome.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
