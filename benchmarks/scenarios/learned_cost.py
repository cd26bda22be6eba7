"""What `learned` costs: CPU per call of a sidecar with it, next to one with `least_request` over
all endpoints.

Both sidecars run in every round, in turn first, each alone on its core with fresh endpoints, under
the squeezed load of the report. `learned` tells calls apart by method and message size, takes a
window and publishes scores each second, as it does everywhere; what Python spends on that counts.
Run it with `.venv/bin/python -m benchmarks.scenarios.learned_cost --rounds 7`; it prints one JSON
document and ends with 1 if the ratio is above 1.05 beyond what the rounds can show.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.process import busy_loop
from benchmarks.harness.shapes import SQUEEZED_16, WARM_UP
from benchmarks.harness.stats import PairedRatio, Spread, paired_ratio
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, attnroute
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, wait_until_it_answers
from benchmarks.scenarios.forward import BUSY_LOOP_LIMIT_S, turned

ENDPOINTS = 10
# Most that the ratio may be.
TARGET = 1.05
BALANCERS = {
    "least_request": "{type: least_request, choice_count: all}",
    "learned": "{type: learned}",
}


def measure(place: Place, name: str, number: int, calls: int) -> float:
    """CPU seconds per call of one sidecar."""
    with ExitStack() as stack:
        folder = place.folder("learned-cost", str(number), name)
        endpoint_folder = place.folder("learned-cost", str(number), name, "endpoints")
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        launch = Launch(place.tools, folder, place.proxy_core, tuple(ports))
        peer = attnroute.start(launch, stack, balancer=BALANCERS[name])
        wait_until_it_answers(place, peer)
        assert peer.child is not None, "a sidecar is a process"
        loader = place.loader()
        loader.run(WARM_UP, calls=max(1_000, calls // 10), port=peer.port)
        loop = busy_loop(
            core=place.proxy_core, directory=place.folder("busy-loop"), limit_s=BUSY_LOOP_LIMIT_S
        )
        stack.callback(loop.stop)
        before = peer.child.cpu()
        result = loader.run(SQUEEZED_16, calls=calls, port=peer.port)
        if result.failed:
            raise BenchmarkError(f"`{name}` failed {result.failed} of {calls} calls")
        return peer.child.cpu().since(before).total_s / result.calls


def is_above(ratio: PairedRatio) -> bool:
    """Whether even the lower end of its 95 % interval is above the target."""
    return not math.isnan(ratio.resolution) and ratio.mean - ratio.resolution > TARGET


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=40_000)
    options = parser.parse_args()
    found: dict[str, dict[int, float]] = {name: {} for name in BALANCERS}
    with tempfile.TemporaryDirectory() as directory:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        for number in range(options.rounds):
            for name in turned(list(BALANCERS), number):
                found[name][number] = measure(place, name, number, options.calls) * 1e6
    ratio = paired_ratio(found["learned"], found["least_request"])
    assert ratio is not None, "CPU per call is above 0"
    spreads = {name: asdict(Spread.of(list(by.values()))) for name, by in found.items()}
    print(json.dumps({"cpu_us_per_call": spreads, "ratio": asdict(ratio), "target": TARGET}))
    return int(is_above(ratio))


if __name__ == "__main__":
    raise SystemExit(main())
