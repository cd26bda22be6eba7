"""Whether memory stays flat under calls to 10,000 methods that nobody asked for.

A sidecar with `learned` before endpoints that answer whatever they are asked, so that every method
could be a request class of its own. Memory is read after each tenth of a million calls; the limit
of classes must have been hit, and hit counts must be on its metrics page. Run it with
`.venv/bin/python -m benchmarks.scenarios.junk_methods`; it prints one JSON document and ends with 1
if memory grew by more than 4 MB between 100,000 and 1,000,000 calls.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY, FRAME, LOAD_TIMEOUT_S, parse_output
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, Peer, attnroute
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, wait_until_it_answers

METHODS = 10_000
STEPS = 10
ENDPOINTS = 4
GROWTH_MAX_BYTES = 4_000_000
_HITS = re.compile(r'^attnroute_limit_hits_total\{limit="max_classes"\} (\d+)', re.MULTILINE)


def load(place: Place, peer: Peer, calls: int) -> None:
    """Make calls over all methods in turn."""
    folder = place.folder("junk-methods")
    methods = folder / "methods.txt"
    lines = (f"http://127.0.0.1:{peer.port}/junk.S{n}/M{n}\n" for n in range(METHODS))
    methods.write_text("".join(lines))
    body = folder / "frame.bin"
    body.write_bytes(FRAME)
    command = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(place.load_core)]
    command += [str(place.tools.h2load), "-t", "1", "-n", str(calls), "-c", "8", "-m", "16"]
    command += ["-d", str(body), "-H", f":authority: {AUTHORITY}", "-i", str(methods)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=5 * LOAD_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"h2load ended with {done.returncode}: {done.stderr[-500:]}")
    result = parse_output(done.stdout)
    if result.failed:
        raise BenchmarkError(f"{result.failed} of {calls} calls failed")


def limit_hits(exposition: str) -> int:
    """How often a class found no place, by the metrics page; 0 where it is not there."""
    found = _HITS.search(exposition)
    return int(found[1]) if found else 0


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    options = parser.parse_args()
    rss_bytes: list[int] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        endpoint_folder = place.folder("junk-methods", "endpoints")
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        launch = Launch(
            place.tools, place.folder("junk-methods", "sidecar"), place.proxy_core, tuple(ports)
        )
        peer = attnroute.start(launch, stack, balancer="{type: learned}")
        assert peer.child is not None, "a sidecar is a process"
        assert peer.metrics is not None, "a sidecar has a metrics page"
        wait_until_it_answers(place, peer)
        for step in range(STEPS):
            load(place, peer, options.calls // STEPS)
            rss_bytes.append(peer.child.rss_bytes())
            print(f"junk methods: tenth {step + 1}: {rss_bytes[-1] / 1e6:.1f} MB", file=sys.stderr)
        hits = limit_hits(peer.metrics())
    growth = rss_bytes[-1] - rss_bytes[0]
    print(json.dumps({"rss_bytes": rss_bytes, "growth_bytes": growth, "limit_hits": hits}))
    if hits == 0:
        raise BenchmarkError("the limit of request classes was never hit: nothing was shown")
    return int(growth > GROWTH_MAX_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
