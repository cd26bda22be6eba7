"""One run from the command line to the result file and the report."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.harness import page, publish
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import MESSAGE
from benchmarks.harness.machine import Machine, commit
from benchmarks.harness.results import FORMAT, MemorySample, Method, Run, Sample, write_run
from benchmarks.harness.shapes import SHAPES, Shape
from benchmarks.harness.tools import ROOT, find_tools
from benchmarks.peers.catalog import PEERS
from benchmarks.scenarios import Place, forward, idle_memory

RESULTS = publish.RESULTS
PARTIAL_RESULTS = ROOT / "out" / "benchmarks"
ROUNDS = 7
CALLS = 40_000
QUICK_ROUNDS = 2
QUICK_CALLS = 10_000
MEMORY_ROUNDS = 3
PROXY_CORE, LOAD_CORE = 0, 1


@dataclass(frozen=True)
class Options:
    """What the command line asked for; `complete` runs make the published report."""

    rounds: int
    calls: int
    peers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    memory: bool
    out: Path

    @property
    def complete(self) -> bool:
        """Whether every figure of the report is in the run, with its usual weight."""
        full = self.rounds >= ROUNDS and self.calls >= CALLS and self.memory
        return full and self.peers == tuple(PEERS) and self.shapes == SHAPES


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; argparse ends the process with 2 if it cannot."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Measure attnroute next to direct calls, Envoy, HAProxy and nginx.",
        epilog="example: benchmarks/run.py --quick --only attnroute --only envoy",
    )
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--quick", action="store_true", help="a first look, under 90 s")
    parser.add_argument("--rounds", type=_positive, help=f"rounds (default {ROUNDS})")
    parser.add_argument("--calls", type=_positive, help=f"calls per shape (default {CALLS})")
    parser.add_argument("--only", action="append", choices=list(PEERS), help="only these proxies")
    parser.add_argument("--shape", action="append", choices=names, help="only these shapes")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory scenario")
    parser.add_argument("--out", type=Path, help="folder of the result file")
    given = parser.parse_args(argv)
    options = Options(
        rounds=given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS),
        calls=given.calls or (QUICK_CALLS if given.quick else CALLS),
        peers=tuple(name for name in PEERS if not given.only or name in given.only),
        shapes=tuple(shape for shape in SHAPES if not given.shape or shape.name in given.shape),
        memory=not given.no_memory,
        out=given.out or PARTIAL_RESULTS,
    )
    if options.complete and given.out is None:
        return replace(options, out=RESULTS)
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number above 0")
    return value


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 fine, 1 the run failed, 2 bad usage, 130 interrupted."""
    options = parse_options(argv)
    # SIGINT too: a shell that starts this in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        run = measure(options, command=" ".join(["benchmarks/run.py", *argv]))
    except BenchmarkError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted, every child was ended, nothing was written", file=sys.stderr)
        return 130
    stamp = run.started.replace("-", "").replace(":", "").removesuffix("Z")
    path = options.out / f"{stamp}-{run.commit.rstrip('+')}.json"
    write_run(run, path)
    print(f"bench: wrote {_relative(path)}", file=sys.stderr)
    if path.parent == RESULTS:
        publish.publish(path, publish.BENCHMARKS)
    else:
        print(page.render(run, result_name=path.name))
    return 0


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Both signals end a run through the stacks that stop every child; only the first
    counts, so that an impatient second one cannot leave a child behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def measure(options: Options, *, command: str) -> Run:
    """Run every round; children never outlive this call."""
    if not {PROXY_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise BenchmarkError("the proxy and the load need a core each; found fewer than two")
    tools = find_tools()
    began = time.monotonic()
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    samples: list[Sample] = []
    memory: list[MemorySample] = []
    configs: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="attnroute-bench-") as scratch:
        place = Place(tools, Path(scratch), PROXY_CORE, LOAD_CORE)
        for number in range(options.rounds):
            plan = _plan(options, number)
            for name, measured in forward.run_round(place, plan).items():
                samples.extend(measured.samples)
                memory.extend(measured.memory)
                configs[name] = measured.config
        memory.extend(_idle_memory(place, options))
    return Run(
        format=FORMAT,
        started=started,
        duration_s=round(time.monotonic() - began, 1),
        commit=commit(),
        command=command,
        machine=Machine.here(),
        versions=tools.versions(),
        method=_method(options),
        configs={name: text for name, text in configs.items() if text},
        samples=tuple(samples),
        memory=tuple(memory),
    )


def _plan(options: Options, number: int) -> forward.Round:
    def tell(peer: str) -> None:
        print(f"bench: round {number + 1} of {options.rounds}: {peer}", file=sys.stderr)

    return forward.Round(number, options.peers, options.shapes, options.calls, tell)


def _idle_memory(place: Place, options: Options) -> list[MemorySample]:
    found: list[MemorySample] = []
    if not options.memory:
        return found
    for number in range(MEMORY_ROUNDS if options.rounds >= ROUNDS else 1):
        for name in options.peers:
            if name != forward.DIRECT:
                print(f"bench: memory with 100 endpoints: {name}", file=sys.stderr)
                found.extend(idle_memory.measure(place, name, number))
    return found


def _method(options: Options) -> Method:
    return Method(
        rounds=options.rounds,
        calls=options.calls,
        peers=options.peers,
        shapes=tuple(shape.name for shape in options.shapes),
        endpoints=forward.ENDPOINTS,
        message_bytes=len(MESSAGE),
        proxy_core=PROXY_CORE,
        load_core=LOAD_CORE,
        complete=options.complete,
    )
