"""Bytes per second of large messages through each proxy: 1 MiB and 64 MiB, up and down, unary and
as a stream of small ones.

Every round starts every proxy anew over one fresh endpoint, alone on its core, and runs all kinds;
the order turns from round to round. `plain` is what users get, `squeezed` shares the proxy's core
with a busy loop, so that the proxy is what limits the load. Run it with
`.venv/bin/python -m benchmarks.scenarios.throughput --rounds 5`; it prints one JSON document and
ends with 1 if a ratio to the best peer is below 0.9 beyond what the rounds can show.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY, FRAME, Exchange
from benchmarks.harness.process import Child, busy_loop, wait_until
from benchmarks.harness.shapes import Shape
from benchmarks.harness.stats import Spread, paired_ratio
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, Peer
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.files import SUFFIX, start_file_endpoint
from benchmarks.scenarios import START_TIMEOUT_S, Place
from benchmarks.scenarios.forward import BUSY_LOOP_LIMIT_S, DIRECT, turned

MIB = 1 << 20
STREAM_MESSAGE_BYTES = 16 * 1024
# Least share of the best peer's throughput.
TARGET = 0.9
OWN = "attnroute"


@dataclass(frozen=True)
class Kind:
    """One kind of call: messages of one size, and how many make a call."""

    name: str
    message_bytes: int
    messages: int
    connections: int
    streams: int

    @property
    def body_bytes(self) -> int:
        """Length of the body, prefixes included."""
        return self.messages * (5 + self.message_bytes)

    def write(self, path: Path) -> None:
        """Write a body of this kind."""
        message = b"\0" + self.message_bytes.to_bytes(4, "big") + bytes(self.message_bytes)
        path.write_bytes(message * self.messages)


KINDS = (
    Kind("unary-1MiB", MIB, 1, 4, 4),
    Kind("unary-64MiB", 64 * MIB, 1, 2, 1),
    Kind("stream-64MiB", STREAM_MESSAGE_BYTES, 64 * MIB // STREAM_MESSAGE_BYTES, 2, 1),
)
WAYS = ("up", "down")
LOADS = ("plain", "squeezed")


def bodies(directory: Path) -> Path:
    """Write every body, and the small message for the other way; returns the folder."""
    directory.mkdir()
    for kind in KINDS:
        kind.write(directory / f"{kind.name}.{SUFFIX}")
    (directory / f"small.{SUFFIX}").write_bytes(FRAME)
    return directory


def exchange(htdocs: Path, kind: Kind, way: str) -> Exchange:
    """The large body goes one way, a small message the other."""
    large, small = htdocs / f"{kind.name}.{SUFFIX}", htdocs / f"small.{SUFFIX}"
    if way == "up":
        return Exchange(f"/{small.name}", large, len(FRAME))
    return Exchange(f"/{large.name}", small, kind.body_bytes)


@dataclass(frozen=True)
class Sample:
    """One load through one proxy: bytes of bodies per second, and its CPU seconds per GiB."""

    round: int
    peer: str
    what: str
    bytes_per_s: float
    cpu_s_per_gib: float


def measure_load(
    place: Place, peer: Peer, kind: Kind, exchange_: Exchange, bytes_wanted: int
) -> tuple[float, float]:
    """Bytes per second and CPU seconds per GiB of one load."""
    calls = max(kind.connections * kind.streams, math.ceil(bytes_wanted / kind.body_bytes))
    shape = Shape(kind.name, kind.connections, kind.streams, 1.0)
    before_s = peer.child.cpu().total_s if peer.child else 0.0
    result = place.loader().run(shape, calls=calls, port=peer.port, exchange=exchange_)
    after_s = peer.child.cpu().total_s if peer.child else 0.0
    if result.failed:
        raise BenchmarkError(f"`{peer.name}` failed {result.failed} of {calls} calls: {kind.name}")
    moved = calls * kind.body_bytes
    return moved / result.wall_s, (after_s - before_s) / (moved / (1 << 30))


def measure_peer(
    place: Place, htdocs: Path, peer: Peer, number: int, options: argparse.Namespace
) -> Iterator[Sample]:
    """Every kind, both ways, under both loads."""
    for load in options.loads:
        if load == "squeezed" and peer.child is None:
            continue
        for kind in KINDS:
            for way in WAYS:
                what = f"{kind.name}-{way}-{load}"
                if options.only and options.only not in what:
                    continue
                with ExitStack() as stack:
                    if load == "squeezed":
                        folder = place.folder("busy-loop")
                        loop = busy_loop(
                            core=place.proxy_core, directory=folder, limit_s=BUSY_LOOP_LIMIT_S
                        )
                        stack.callback(loop.stop)
                    found = measure_load(
                        place, peer, kind, exchange(htdocs, kind, way), options.mib * MIB
                    )
                yield Sample(number, peer.name, what, *found)


def start(name: str, place: Place, htdocs: Path, number: int, stack: ExitStack) -> Peer:
    """A fresh endpoint and a fresh proxy before it, once a call came through."""
    folder = place.folder("throughput", str(number), name)
    launch = Launch(place.tools, place.folder("throughput", str(number), name, "endpoint"), 1, ())
    endpoint, port = start_file_endpoint(launch, stack, htdocs)
    peer = PEERS[name](Launch(place.tools, folder, place.proxy_core, (port,)), stack)
    small = htdocs / f"small.{SUFFIX}"
    probe = Exchange(f"/{small.name}", small, len(FRAME))
    child: Child = peer.child or endpoint

    def answers() -> bool:
        try:
            shape = Shape("probe", 1, 1, 0.0)
            return place.loader().run(shape, calls=1, port=peer.port, exchange=probe).failed == 0
        except BenchmarkError:
            return False

    wait_until(answers, what="no call came back", child=child, timeout_s=START_TIMEOUT_S)
    return peer


def summary(samples: list[Sample], names: list[str]) -> dict[str, object]:
    """By kind: each proxy's spread in MB/s, the best peer, and the paired ratio to it."""
    rates: dict[str, dict[str, dict[int, float]]] = {}
    costs: dict[str, dict[str, list[float]]] = {}
    for one in samples:
        rates.setdefault(one.what, {}).setdefault(one.peer, {})[one.round] = one.bytes_per_s / 1e6
        costs.setdefault(one.what, {}).setdefault(one.peer, []).append(one.cpu_s_per_gib)
    found: dict[str, object] = {}
    for what, by_peer in rates.items():
        spreads = {name: Spread.of(list(by_peer[name].values())) for name in by_peer}
        peers = [name for name in names if name in spreads and name not in (OWN, DIRECT)]
        best = max(peers, key=lambda name: spreads[name].median) if peers else None
        ratio = paired_ratio(by_peer[OWN], by_peer[best]) if best and OWN in by_peer else None
        found[what] = {
            "mb_per_s": {name: asdict(spread) for name, spread in spreads.items()},
            "cpu_s_per_gib": {
                name: asdict(Spread.of(values)) for name, values in costs[what].items()
            },
            "best_peer": best,
            "ratio": asdict(ratio) if ratio else None,
        }
    return found


def is_short(entry: object) -> bool:
    """Whether a ratio is below the target even at the upper end of its 95 % interval."""
    assert isinstance(entry, dict)
    ratio = entry["ratio"]
    if ratio is None or math.isnan(ratio["resolution"]):
        return False
    return bool(ratio["mean"] + ratio["resolution"] < TARGET)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256, help="MiB of each load (default 256)")
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="only these")
    parser.add_argument("--load", action="append", choices=LOADS, dest="loads", help="only these")
    parser.add_argument("--only", help="only loads with this in their name")
    options = parser.parse_args()
    options.loads = options.loads or list(LOADS)
    names = [name for name in PEERS if not options.peer or name in options.peer]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="attnroute-throughput-") as directory:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        htdocs = bodies(Path(directory) / "htdocs")
        for number in range(options.rounds):
            for name in turned(names, number):
                print(f"throughput: round {number + 1}: {name}", file=sys.stderr)
                with ExitStack() as stack:
                    peer = start(name, place, htdocs, number, stack)
                    samples.extend(measure_peer(place, htdocs, peer, number, options))
    found = summary(samples, names)
    print(json.dumps({"authority": AUTHORITY, "throughput": found}))
    return int(any(is_short(entry) for entry in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
