"""What the access log costs: CPU per call with every call logged to a file, next to none logged.

    .venv/bin/python -m benchmarks.scenarios.access_log [--rounds 10] [--calls 40000]

One sidecar a round, which measures off, on, on, off by reloading its policy: the same process, the
same memory and the same connections, so that what a fresh process draws anew (a few per cent) is in
both. CPU is read from the process's own clock, under the squeezed load of the report; the part of
a measurement with the log ends when its last line is written. The ratio is taken inside a round.
It prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.process import Child, busy_loop, wait_until
from benchmarks.harness.shapes import SQUEEZED_16, WARM_UP
from benchmarks.harness.stats import PairedRatio, Spread, paired_ratio
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, attnroute
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, wait_until_it_answers

ENDPOINTS = 4
BUSY_LOOP_LIMIT_S = 120
WAIT_S = 30.0
TARGET = 1.10
"""The log may cost 10 %."""

LINES, DROPPED = "attnroute_access_log_lines_total", "attnroute_access_log_dropped_total"
KINDS = {"off": "", "on": "access_log: {sample: 100%, output: ./access.json}\n"}
TURNS = ("off", "on", "on", "off")
"""Neither kind always comes first, and a machine that warms up or slows down hits both alike."""


@dataclass(frozen=True)
class Outcome:
    """cpu_us: CPU of a call, by kind, over the rounds. ratio: `on` to `off`, paired by round."""

    calls: int
    cpu_us: dict[str, Spread]
    ratio: PairedRatio
    interval: tuple[float, float]
    is_reached: bool

    @classmethod
    def of(cls, found: dict[str, dict[int, float]], calls: int) -> Outcome:
        """found: CPU seconds of a call by kind and round. Raises BenchmarkError without any."""
        ratio = paired_ratio(found["on"], found["off"])
        if ratio is None:
            raise BenchmarkError("no round used any CPU")
        spreads = {
            kind: Spread.of([one * 1e6 for one in rounds.values()])
            for kind, rounds in found.items()
        }
        return cls(calls, spreads, ratio, ratio.interval, ratio.interval[1] <= TARGET)


class Switched:
    """A sidecar whose log goes on and off."""

    def __init__(self, child: Child, metrics_url: str, policy: Path) -> None:
        self.child = child
        self._url = metrics_url
        self._policy = policy
        self._text = policy.read_text()

    def turn(self, kind: str) -> None:
        """Has a policy with the log on or off in force."""
        text = KINDS[kind] + self._text
        if self._policy.read_text() == text:
            return
        wanted = self.metric("attnroute_policy_generation") + 1
        fresh = self._policy.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._policy)
        self.wait("the new policy", wanted, "attnroute_policy_generation")

    def metric(self, *names: str) -> float:
        """Sum of metrics over all their labels."""
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            page = answer.read().decode()
        starts = tuple(f"{name}{end}" for name in names for end in " {")
        lines = [line for line in page.splitlines() if line.startswith(starts)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait(self, what: str, least: float, *names: str) -> None:
        """Waits until the sum of metrics has come so far."""
        wait_until(
            lambda: self.metric(*names) >= least, what=what, child=self.child, timeout_s=WAIT_S
        )


def measure(place: Place, number: int, calls: int) -> dict[str, float]:
    """One round: CPU seconds of a call by kind."""
    used = dict.fromkeys(KINDS, 0.0)
    made = dict.fromkeys(KINDS, 0)
    with ExitStack() as stack:
        folder = place.folder("access-log", str(number))
        endpoint_folder = place.folder("access-log", str(number), "endpoints")
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        launch = Launch(place.tools, folder, place.proxy_core, tuple(ports))
        peer = attnroute.start(launch, stack)
        wait_until_it_answers(place, peer)
        assert peer.child is not None, "a sidecar is a process"
        bound = json.loads(folder.joinpath("ports.json").read_text())
        url = f"http://{bound['admin']['http']}/metrics"
        sidecar = Switched(peer.child, url, folder / "attnroute.yaml")
        loader = place.loader()
        for kind in KINDS:
            sidecar.turn(kind)
            loader.run(WARM_UP, calls=max(1_000, calls // 10), port=peer.port)
        loop = busy_loop(
            core=place.proxy_core, directory=place.folder("busy-loop"), limit_s=BUSY_LOOP_LIMIT_S
        )
        stack.callback(loop.stop)
        for kind in TURNS:
            sidecar.turn(kind)
            before_it = sidecar.metric(LINES, DROPPED)
            before = peer.child.cpu()
            result = loader.run(SQUEEZED_16, calls=calls, port=peer.port)
            if kind == "on":
                sidecar.wait("every line", before_it + result.calls, LINES, DROPPED)
            used[kind] += peer.child.cpu().since(before).total_s
            made[kind] += result.calls
        if dropped := sidecar.metric(DROPPED):
            raise BenchmarkError(f"{dropped:.0f} lines were dropped, so their cost is not in it")
    return {kind: used[kind] / made[kind] for kind in KINDS}


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 fine, 1 the run failed, 2 bad usage."""
    parser = argparse.ArgumentParser(prog="benchmarks.scenarios.access_log", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="at least 2 (default 10)")
    parser.add_argument("--calls", type=int, default=40_000, help="a turn (default 40000)")
    options = parser.parse_args(argv)
    if options.rounds < 2 or options.calls < 1_000:
        parser.error("`--rounds` must be at least 2 and `--calls` at least 1000")
    found: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="attnroute-access-log-") as scratch:
        place = Place(find_tools(), Path(scratch), proxy_core=0, load_core=1)
        try:
            for number in range(options.rounds):
                for kind, cpu_s in measure(place, number, options.calls).items():
                    found[kind][number] = cpu_s
            outcome = Outcome.of(found, options.calls)
        except BenchmarkError as error:
            print(f"access_log: {error}", file=sys.stderr)
            return 1
    print(json.dumps(asdict(outcome), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
