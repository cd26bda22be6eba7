"""What the access log costs: CPU per call with every call logged to a file, next to none logged.

Both sidecars run in every round, in turn first, each alone on its core with fresh endpoints, under
the squeezed load of the report. Run it with
`.venv/bin/python -m benchmarks.scenarios.access_log --rounds 5`; it prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.harness.process import busy_loop
from benchmarks.harness.shapes import SQUEEZED_16, WARM_UP
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, attnroute
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, wait_until_it_answers

ENDPOINTS = 4
BUSY_LOOP_LIMIT_S = 60
KINDS = {"off": "", "on": "access_log: {sample: 100%, output: ./access.json}\n"}


def measure(place: Place, kind: str, number: int, calls: int) -> float:
    """CPU seconds per call of one sidecar."""
    with ExitStack() as stack:
        folder = place.folder("access-log", str(number), kind)
        endpoint_folder = place.folder("access-log", str(number), kind, "endpoints")
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        launch = Launch(place.tools, folder, place.proxy_core, tuple(ports))
        peer = attnroute.start(launch, stack, extra=KINDS[kind])
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
        return peer.child.cpu().since(before).total_s / result.calls


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40_000)
    options = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as directory:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        for number in range(options.rounds):
            order = list(KINDS) if number % 2 == 0 else list(reversed(KINDS))
            for kind in order:
                found[kind].append(measure(place, kind, number, options.calls) * 1e6)
    ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
    print(json.dumps({"cpu_us_per_call": found, "ratio_median": median(ratios), "ratios": ratios}))


if __name__ == "__main__":
    main()
