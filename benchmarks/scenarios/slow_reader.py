"""One client that takes a stream of 200 MB slowly: what memory it costs, and what its neighbours
feel of it.

The stream and the neighbours' small calls go through one sidecar to one endpoint, over the same
connection. In every round the neighbours are measured without the reader, with it, and without it
again; the reader takes its 200 MB over 10 s. Run it with
`.venv/bin/python -m benchmarks.scenarios.slow_reader --rounds 5`; it prints one JSON document and
ends with 1 if memory grew by 32 MB or the neighbours' p99 is above twice as long beyond what the
rounds can show.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY, FRAME, Exchange
from benchmarks.harness.process import Child
from benchmarks.harness.shapes import Shape
from benchmarks.harness.stats import Spread, paired_ratio
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Peer
from benchmarks.peers.files import SUFFIX
from benchmarks.scenarios import Place
from benchmarks.scenarios.held_memory import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    WINDOW_UPDATE,
    Reader,
    connect,
    frame,
    request,
)
from benchmarks.scenarios.throughput import Kind, start

READER_BYTES = 200_000_000
READER_SECONDS = 10.0
LOOK_INTERVAL_S = 0.05
GROWTH_MAX_BYTES = 32_000_000
P99_RATIO_MAX = 2.0
NEIGHBOURS = Shape("neighbours", 2, 4, 1.0, latency=True)
LARGE = "large"


@dataclass
class Slow:
    """A reader in a thread of its own, which keeps to its pace until all is read."""

    peer: Peer
    child: Child
    length: int
    seconds: float
    peak_bytes: int = 0
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.peak_bytes = self.child.rss_bytes()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                self._read(stack)
        except (OSError, BenchmarkError) as error:
            self.error = error

    def _read(self, stack: ExitStack) -> None:
        connection = connect(self.peer, stack)
        head = request(f"/{LARGE}.{SUFFIX}")
        connection.sendall(frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, FRAME))
        reader, taken, started_s = Reader(connection), 0, time.monotonic()
        looked_s = started_s
        while taken < self.length:
            kind, _, _, payload = reader.frame()
            if kind != DATA or not payload:
                continue
            taken += len(payload)
            more = len(payload).to_bytes(4, "big")
            now_s = time.monotonic()
            if now_s - looked_s > LOOK_INTERVAL_S:
                self.peak_bytes = max(self.peak_bytes, self.child.rss_bytes())
                looked_s = now_s
            ahead_s = started_s + self.seconds * taken / self.length - now_s
            if ahead_s > LOOK_INTERVAL_S:
                time.sleep(ahead_s)
            connection.sendall(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, 1, more))


@dataclass(frozen=True)
class Round:
    """Medians of the loads of one round, and by how much memory grew."""

    without_p99_us: float
    with_p99_us: float
    growth_bytes: int


def neighbours(place: Place, peer: Peer, small: Exchange, calls: int) -> float:
    """The p99 of one load, in us."""
    result = place.loader().run(NEIGHBOURS, calls=calls, port=peer.port, exchange=small)
    if result.failed:
        raise BenchmarkError(f"{result.failed} of {calls} calls beside the reader failed")
    return result.latency_us(0.99)


def measure(place: Place, htdocs: Path, number: int, options: argparse.Namespace) -> Round:
    """One round with a fresh sidecar."""
    with ExitStack() as stack:
        peer = start("attnroute", place, htdocs, number, stack)
        assert peer.child is not None, "a sidecar is a process"
        path = htdocs / f"small.{SUFFIX}"
        small = Exchange(f"/{path.name}", path, len(FRAME))
        without = [neighbours(place, peer, small, options.calls) for _ in range(3)][1:]
        before = peer.child.rss_bytes()
        reader = Slow(peer, peer.child, options.bytes, options.seconds)
        beside = []
        while reader.thread.is_alive():
            p99_us = neighbours(place, peer, small, options.calls)
            if reader.thread.is_alive():
                beside.append(p99_us)
        if reader.error is not None:
            raise BenchmarkError(f"the reader did not get all of its bytes: {reader.error}")
        if not beside:
            raise BenchmarkError("no load ended beside the reader; give it more --seconds")
        without += [neighbours(place, peer, small, options.calls) for _ in range(2)]
        return Round(median(without), median(beside), reader.peak_bytes - before)


def misses(growth_bytes: float, ratio_mean: float, resolution: float) -> bool:
    """Whether a target is missed beyond what the rounds can show."""
    spread = 0.0 if math.isnan(resolution) else resolution
    return growth_bytes >= GROWTH_MAX_BYTES or ratio_mean - spread > P99_RATIO_MAX


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4_000, help="neighbours' calls of a load")
    parser.add_argument("--bytes", type=int, default=READER_BYTES, help="of the reader")
    parser.add_argument("--seconds", type=float, default=READER_SECONDS, help="of the reader")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnroute-slow-reader-") as directory:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        htdocs = place.folder("htdocs")
        Kind(LARGE, options.bytes - 5, 1, 1, 1).write(htdocs / f"{LARGE}.{SUFFIX}")
        (htdocs / f"small.{SUFFIX}").write_bytes(FRAME)
        rounds = [measure(place, htdocs, number, options) for number in range(options.rounds)]
    without = {number: one.without_p99_us for number, one in enumerate(rounds)}
    beside = {number: one.with_p99_us for number, one in enumerate(rounds)}
    ratio = paired_ratio(beside, without)
    assert ratio is not None, "latencies are above 0"
    growth = Spread.of([one.growth_bytes for one in rounds])
    found = {
        "authority": AUTHORITY,
        "growth_bytes": asdict(growth),
        "p99_us_without": asdict(Spread.of(list(without.values()))),
        "p99_us_with": asdict(Spread.of(list(beside.values()))),
        "p99_ratio": asdict(ratio),
    }
    print(json.dumps(found))
    return int(misses(growth.high, ratio.mean, ratio.resolution))


if __name__ == "__main__":
    raise SystemExit(main())
