"""Every balancer in every world: writes benchmarks/decisions.md (`make bench-decisions`).

All balancers meet the same calls with the same work, so that differences are paired by seed. Each
finished run is kept in .cache/decisions/ and not repeated while its scenario, balancer and seed are
the same and the balancer does the same as then in a short world with everything in it (`canary`):
a build that changes no result repeats nothing, and an interrupted run goes on where it was.
`--fresh` repeats all of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnroute.errors import AttnrouteError
from attnroute.sim.run import (
    BalancerSpec,
    Result,
    Task,
    mean_and_margin,
    parse_balancer,
    parse_seeds,
    play_task,
    run_tasks,
)
from attnroute.sim.scenario import LoadedScenario, load_scenario

ROOT = Path(__file__).resolve().parent
SCENARIOS = ROOT.parent / "configs" / "scenarios"
CANARY = ROOT / "decisions-canary.yaml"
FULL_SCAN = "least_request:choice_count=all"
ORACLE = "oracle"
BALANCERS = (
    "random",
    "round_robin",
    "weighted_round_robin",
    "least_request",
    FULL_SCAN,
    "peak_ewma",
    "c3",
    "prequal",
    "prequal:probe_source=endpoints",
    "latency_observation",
    "ring_hash",
    "maglev",
    "learned",
    "learned:fleet=false",
    "learned:reports=false",
    ORACLE,
)
# Within this, a paired ratio is a tie whatever its interval says: nobody would notice.
TIE = 0.01


@dataclass(frozen=True, slots=True)
class Paired:
    """A balancer against the full scan, over seeds."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`win`: lower latency for sure."""
        if self.high < 1 - TIE:
            return "win"
        return "loss" if self.low > 1 + TIE else "tie"


def paired(values: Sequence[float], base: Sequence[float]) -> Paired:
    """Geometric mean of the ratios of one seed each, with its 95 % interval."""
    logs = [math.log(value / other) for value, other in zip(values, base, strict=True)]
    figure = mean_and_margin(logs)
    margin = math.inf if figure.margin is None else figure.margin
    return Paired(
        math.exp(figure.mean), math.exp(figure.mean - margin), math.exp(figure.mean + margin)
    )


def canary(balancer: BalancerSpec) -> bytes:
    """All that a balancer does in a short world in which everything happens: what tells two
    versions of the simulator or of the picker apart, if anything tells them apart."""
    return json.dumps(play_task(Task(load_scenario(CANARY), balancer, seed=0))).encode()


class Store:
    """Finished runs, one file each. fresh: those of before do not count."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._fresh = fresh
        self._canaries: dict[BalancerSpec, bytes] = {}

    def _path(self, task: Task) -> Path:
        if task.balancer not in self._canaries:
            self._canaries[task.balancer] = canary(task.balancer)
        balancer = task.balancer.config + repr(task.balancer.learning).encode()
        parts = (self._canaries[task.balancer], task.scenario.compiled, balancer)
        key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
        return self._folder / f"{task.scenario.name}-{task.seed}-{key}.json"

    def get(self, task: Task) -> dict[str, Any] | None:
        """The figures of a run that is done."""
        if self._fresh:
            return None
        try:
            found: dict[str, Any] = json.loads(self._path(task).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def put(self, result: Result) -> dict[str, Any]:
        """Keeps what the page needs of a run."""
        outcome = result.outcome
        figures = {key: outcome[key] for key in ("mean_ms", "p99_ms", "calls", "errors", "events")}
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(result.task)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(figures), encoding="utf-8")
        part.replace(path)
        return figures


Figures = dict[tuple[str, str], list[dict[str, Any]]]
"""Runs by scenario and balancer, in the order of seeds."""


def play(tasks: Sequence[Task], store: Store, jobs: int | None) -> Figures:
    """Every task, from the store or now, with a line of progress on stderr."""
    known = {task: store.get(task) for task in tasks}
    # The longest first, so that no process is left with one at the end.
    missing = sorted(
        (task for task, figures in known.items() if figures is None),
        key=lambda task: -task.scenario.offered_rps,
    )
    began, finished = time.monotonic(), 0

    def done(result: Result) -> None:
        nonlocal finished
        finished += 1
        known[result.task] = store.put(result)
        left = (time.monotonic() - began) / finished * (len(missing) - finished)
        end = "\n" if finished == len(missing) or not sys.stderr.isatty() else "\r"
        if sys.stderr.isatty() or finished % 50 == 0 or finished == len(missing):
            text = f"decisions: {finished} of {len(missing)} runs, about {left:4.0f} s left "
            print(text, end=end, file=sys.stderr, flush=True)

    if missing:
        run_tasks(missing, jobs, done)
    figures: Figures = {}
    for task in tasks:
        found = known[task]
        assert found is not None
        figures.setdefault((task.scenario.name, task.balancer.label), []).append(found)
    return figures


def values(runs: Sequence[dict[str, Any]], key: str) -> list[float] | None:
    """The figure of each run; None if one of them answered nothing."""
    found = [run[key] for run in runs]
    return None if None in found else found


def page(
    scenarios: Sequence[LoadedScenario],
    balancers: Sequence[BalancerSpec],
    seeds: Sequence[int],
    figures: Figures,
    note: str,
) -> str:
    """The whole page."""
    labels = [balancer.label for balancer in balancers]
    absent = [name for name in BALANCERS if name not in labels]
    if absent:
        note += " Not in this run: " + ", ".join(f"`{name}`" for name in absent) + "."
    lines = [
        "# Decisions",
        "",
        (
            "What each balancer does in each world of `configs/scenarios/`, in the simulator "
            "(`docs/simulator.md`), with the picker of production. Generated by `make "
            f"bench-decisions`; {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}). {note}"
        ),
        "",
        (
            "Milliseconds, mean over seeds. *vs scan*: mean latency over that of "
            f"`{FULL_SCAN}`, paired by seed, with its 95 % interval; *win* and *loss* where the "
            f"interval lies beyond {TIE:.0%}. *vs oracle*: over the oracle's mean. Failed calls "
            "are in no latency unless they ran into the deadline; their share stands beside it. "
            "Outlier detection is at work where the scenario says so."
        ),
        "",
        *_overview(scenarios, labels, figures),
    ]
    for scenario in scenarios:
        lines += _world(scenario, labels, figures)
    return "\n".join(lines) + "\n"


def _overview(
    scenarios: Sequence[LoadedScenario], labels: Sequence[str], figures: Figures
) -> list[str]:
    lines = [
        "## Over all worlds",
        "",
        (
            "| balancer | win / tie / loss vs scan: mean | p99 | worlds without a figure | "
            "geometric mean of ratio to oracle |"
        ),
        "|---|---|---|---|---|",
    ]
    for label in labels:
        cells, missing = [], 0
        for key in ("mean_ms", "p99_ms"):
            counts = {"win": 0, "tie": 0, "loss": 0}
            missing = 0
            for scenario in scenarios:
                own = values(figures[scenario.name, label], key)
                base = values(figures[scenario.name, FULL_SCAN], key)
                if own is None or base is None:
                    missing += 1
                else:
                    counts[paired(own, base).verdict] += 1
            cells.append(" / ".join(str(count) for count in counts.values()))
        ratios = [
            math.log(statistics.fmean(own) / statistics.fmean(best))
            for scenario in scenarios
            if (own := values(figures[scenario.name, label], "mean_ms"))
            and (best := values(figures[scenario.name, ORACLE], "mean_ms"))
        ]
        limit = f"{math.exp(statistics.fmean(ratios)):.2f}" if ratios else "-"
        lines.append(f"| `{label}` | {cells[0]} | {cells[1]} | {missing} | {limit} |")
    return [*lines, ""]


def _world(scenario: LoadedScenario, labels: Sequence[str], figures: Figures) -> list[str]:
    load = scenario.offered_rps / scenario.capacity_rps
    watched = next(run["events"] for run in figures[scenario.name, labels[0]])
    detected = "".join(f" {event['event']} noticed after s |" for event in watched)
    lines = [
        f"## {scenario.name}",
        "",
        f"{scenario.offered_rps:.0f} calls/s, load {load:.2f}.",
        "",
        f"| balancer | mean | p99 | failed | vs scan |  | vs oracle |{detected}",
        "|---|---|---|---|---|---|---|" + "---|" * len(watched),
    ]
    base = values(figures[scenario.name, FULL_SCAN], "mean_ms")
    best = values(figures[scenario.name, ORACLE], "mean_ms")
    for label in labels:
        runs = figures[scenario.name, label]
        mean, p99 = values(runs, "mean_ms"), values(runs, "p99_ms")
        failed = sum(run["errors"] for run in runs) / max(1, sum(run["calls"] for run in runs))
        cells = ["-"] * 5
        if mean and p99:
            cells[0], cells[1] = f"{statistics.fmean(mean):.1f}", f"{statistics.fmean(p99):.0f}"
        if mean and base and label != FULL_SCAN:
            pair = paired(mean, base)
            cells[2] = f"{pair.ratio:.2f} ({pair.low:.2f} to {pair.high:.2f})"
            cells[3] = pair.verdict
        if mean and best:
            cells[4] = f"{statistics.fmean(mean) / statistics.fmean(best):.2f}"
        noticed = "".join(f" {_noticed(runs, index)} |" for index in range(len(watched)))
        share = "0" if failed == 0 else f"{failed:.2%}"
        lines.append(
            f"| `{label}` | {cells[0]} | {cells[1]} | {share} | {cells[2]} | {cells[3]} | "
            f"{cells[4]} |{noticed}"
        )
    return [*lines, ""]


def _noticed(runs: Sequence[dict[str, Any]], index: int) -> str:
    """Median over seeds; `never` if most of them did not."""
    found = [run["events"][index]["detected_s"] for run in runs]
    median = statistics.median(math.inf if after is None else after for after in found)
    return "never" if math.isinf(median) else f"{median:.1f}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="two seeds, a few worlds")
    parser.add_argument("--seeds", default=None, help="as in `0-4`")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are there")
    parser.add_argument("--balancer", default=",".join(BALANCERS), help="names, with commas")
    parser.add_argument("--jobs", type=int, default=None, help="processes")
    parser.add_argument("--page", type=Path, default=None, help="where the page goes")
    parser.add_argument("scenarios", nargs="*", type=Path, help="scenario files; default all")
    return parser.parse_args()


def every_run(
    scenarios: Sequence[LoadedScenario], balancers: Sequence[BalancerSpec], seeds: Sequence[int]
) -> list[Task]:
    """Every balancer in every scenario with every seed."""
    return [
        Task(scenario, balancer, seed)
        for scenario in scenarios
        for balancer in balancers
        for seed in seeds
    ]


def main() -> int:
    """Plays and writes."""
    options = arguments()
    files = options.scenarios or sorted(SCENARIOS.glob("*.yaml"))
    if options.quick and not options.scenarios:
        files = [file for file in files if file.stem[:2] in ("a-", "b-", "c-", "g-")]
    try:
        seeds = parse_seeds(options.seeds or ("0-1" if options.quick else "0-2"))
        names = list(dict.fromkeys([*options.balancer.split(","), FULL_SCAN, ORACLE]))
        balancers = [parse_balancer(name) for name in names]
        scenarios = [load_scenario(file) for file in files]
        tasks = every_run(scenarios, balancers, seeds)
        store = Store(ROOT.parent / ".cache" / "decisions", fresh=options.fresh)
        figures = play(tasks, store, options.jobs)
    except AttnrouteError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    note = f"On {platform.machine()}."
    default = ROOT.parent / "out" / "decisions.md" if options.quick else ROOT / "decisions.md"
    target: Path = options.page or default
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(scenarios, balancers, seeds, figures, note), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
