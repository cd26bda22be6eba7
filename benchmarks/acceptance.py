"""Does `learned` reach what it must? Writes benchmarks/acceptance.md (`make bench-acceptance`).

Worlds of `configs/scenarios/`, shortened (`benchmarks/worlds.py`; `--full` plays them whole), every
balancer with the same calls, ratios paired by seed with 95 % intervals of their logarithms. A
clause is `met` where its whole interval is within the bound, `open` where only its middle is,
`missed` where not even that. Finished runs are kept in .cache/acceptance and not repeated, as those
of `benchmarks/decisions.py`: an interrupted run goes on where it was, and more seeds cost only
themselves.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnroute.errors import AttnrouteError
from attnroute.sim.run import parse_balancer, parse_seeds
from attnroute.sim.scenario import LoadedScenario, load_scenario
from benchmarks.decisions import (
    FULL_SCAN,
    ORACLE,
    SCENARIOS,
    Figures,
    Paired,
    Store,
    every_run,
    paired,
    play,
)
from benchmarks.worlds import AFTER_EVENT_S, STEADY_S, WARMUP_S, shortened

ROOT = Path(__file__).resolve().parent
LEARNED = "learned"
SILENT = "learned:reports=false"
ALONE = "learned:fleet=false"
TWO_CHOICES = "least_request"
CLASSICS = (
    TWO_CHOICES,
    FULL_SCAN,
    "peak_ewma",
    "c3",
    "prequal:probe_source=endpoints",
    "latency_observation",
)
"""Those of which benchmarks/decisions.md shows one as the best in some world, and the usual ones.
`--classics` names others."""

NOT_WORSE = 1.03
P99_NEAR = 1.10
GAIN = 0.70
SILENT_GAIN = 0.85
COLLAPSE = 1.5
LIKE_THE_BEST = ("a", "b", "d", "e", "f", "g", "h")
BETTER_THAN_THE_BEST = ("c", "i", "j", "k", "m")
NO_COLLAPSE = ("overload", "overload-start", "drift-bursts")


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that must come out in one world."""

    text: str
    world: str
    against: str
    """Whose latency is the base."""
    pair: Paired
    bound: float

    @property
    def verdict(self) -> str:
        """`met`, `open` or `missed`."""
        if self.pair.high <= self.bound:
            return "met"
        return "open" if self.pair.ratio <= self.bound else "missed"


@dataclass(frozen=True, slots=True)
class World:
    """The runs of one scenario: by balancer, one a seed."""

    name: str
    mean_ms: dict[str, list[float]]
    p99_ms: dict[str, list[float]]
    classics: tuple[str, ...]

    @property
    def letter(self) -> str:
        """`a` of `a-homogeneous`, the name of the others."""
        return self.name[0] if self.name[1] == "-" else self.name

    @property
    def best(self) -> str:
        """The classic with the lowest mean."""
        present = [name for name in self.classics if name in self.mean_ms]
        return min(present, key=lambda name: statistics.fmean(self.mean_ms[name]))

    def mean(self, balancer: str, base: str) -> Paired:
        """Ratio of means."""
        return paired(self.mean_ms[balancer], self.mean_ms[base])

    def p99(self, balancer: str, base: str) -> Paired:
        """Ratio of p99s."""
        return paired(self.p99_ms[balancer], self.p99_ms[base])


def world_of(scenario: LoadedScenario, classics: Sequence[str], figures: Figures) -> World:
    """What was measured. A balancer that answered nothing in a run has no figures."""
    means: dict[str, list[float]] = {}
    p99s: dict[str, list[float]] = {}
    for (name, label), runs in figures.items():
        if name == scenario.name and None not in [run["mean_ms"] for run in runs]:
            means[label] = [run["mean_ms"] for run in runs]
            p99s[label] = [run["p99_ms"] for run in runs]
    return World(scenario.name, means, p99s, tuple(classics))


def clauses_of(world: World) -> list[Clause]:
    """Everything that must come out in a world; what counts over worlds comes later."""
    found: list[Clause] = []

    def add(
        text: str, of: str, against: str, bound: float, ratio: Callable[[str, str], Paired]
    ) -> None:
        if of in world.mean_ms and against in world.mean_ms:
            found.append(Clause(text, world.name, against, ratio(of, against), bound))

    for of, how in ((LEARNED, ""), (SILENT, "without reports, ")):
        for peer in (TWO_CHOICES, FULL_SCAN):
            text = f"{how}not worse than `{peer}`"
            add(f"{text}: mean", of, peer, NOT_WORSE, world.mean)
            add(f"{text}: p99", of, peer, NOT_WORSE, world.p99)
    if world.letter in LIKE_THE_BEST:
        add("not worse than the best classic: mean", LEARNED, world.best, NOT_WORSE, world.mean)
        add("p99 within 10 % of the best classic", LEARNED, world.best, P99_NEAR, world.p99)
    if world.letter in BETTER_THAN_THE_BEST:
        text = "mean at least 30 % below the best classic"
        add(text, LEARNED, world.best, GAIN, world.mean)
    if world.name in NO_COLLAPSE:
        text = "no collapse: mean within 1.5 of the oracle's"
        add(text, LEARNED, ORACLE, COLLAPSE, world.mean)
    return found


def page(worlds: Sequence[World], seeds: Sequence[int], command: str, how: str) -> str:
    """The whole page."""
    clauses = [clause for world in worlds for clause in clauses_of(world)]
    lines = [
        "# What learned routing must reach",
        "",
        (
            f"Generated by `{command}`; {len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), {how}. "
            "Means and 99th percentiles of latency in the simulator (`docs/simulator.md`); *ratio* "
            "is the geometric mean over seeds of the ratio of one seed's figures, in brackets its "
            "95 % interval. A clause is *met* where the whole interval is within the bound, *open* "
            "where only its middle is, *missed* where not even that."
        ),
        "",
        "## Verdicts",
        "",
        *_verdicts(worlds, clauses),
        "",
        "## Clauses that are not met",
        "",
        *_unmet(clauses),
        "",
        "## Worlds",
        "",
        *_worlds(worlds),
    ]
    return "\n".join(lines) + "\n"


def _verdicts(worlds: Sequence[World], clauses: Sequence[Clause]) -> list[str]:
    lines = ["| clause | bound | worlds | met | open | missed |", "|---|---|---|---|---|---|"]
    for text in dict.fromkeys(clause.text for clause in clauses):
        same = [clause for clause in clauses if clause.text == text]
        counts = [sum(one.verdict == word for one in same) for word in ("met", "open", "missed")]
        cells = " | ".join(str(count) for count in counts)
        lines.append(f"| {text} | {same[0].bound:.2f} | {len(same)} | {cells} |")
    silent = [
        world.mean(SILENT, FULL_SCAN).ratio
        for world in worlds
        if SILENT in world.mean_ms and FULL_SCAN in world.mean_ms
    ]
    if silent:
        good = sum(ratio <= SILENT_GAIN for ratio in silent)
        cells = "1 | 0 | 0" if 2 * good >= len(silent) else "0 | 0 | 1"
        lines.append(
            "| without reports, mean at least 15 % below `least_request` over all endpoints in "
            f"half of the worlds: in {good} of {len(silent)} | {SILENT_GAIN:.2f} | - | {cells} |"
        )
    return lines


def _unmet(clauses: Sequence[Clause]) -> list[str]:
    unmet = [clause for clause in clauses if clause.verdict != "met"]
    if not unmet:
        return ["None."]
    lines = ["| world | clause | against | ratio | bound | |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.world} | {one.text} | `{one.against}` | {_ratio(one.pair)} | "
        f"{one.bound:.2f} | {one.verdict} |"
        for one in sorted(unmet, key=lambda one: (one.verdict, one.world, one.text))
    ]
    return lines


def _worlds(worlds: Sequence[World]) -> list[str]:
    columns = (LEARNED, ALONE, SILENT, TWO_CHOICES, FULL_SCAN)
    titles = " | ".join(f"`{name}`" for name in columns)
    lines = [
        "Milliseconds, mean / p99, mean over seeds; *best* is the classic with the lowest mean.",
        "",
        f"| world | {titles} | best | oracle | `learned` over best | over oracle |",
        "|---|" + "---|" * (len(columns) + 4),
    ]
    for world in worlds:
        cells = [_figures(world, name) for name in columns]
        best = world.best
        cells += [f"`{best}` {_figures(world, best)}", _figures(world, ORACLE)]
        for base in (best, ORACLE):
            known = LEARNED in world.mean_ms and base in world.mean_ms
            cells.append(_ratio(world.mean(LEARNED, base)) if known else "-")
        lines.append(f"| {world.name} | " + " | ".join(cells) + " |")
    return lines


def _figures(world: World, name: str) -> str:
    if name not in world.mean_ms:
        return "-"
    mean, p99 = statistics.fmean(world.mean_ms[name]), statistics.fmean(world.p99_ms[name])
    return f"{mean:.1f} / {p99:.0f}"


def _ratio(pair: Paired) -> str:
    return f"{pair.ratio:.3f} ({pair.low:.3f} to {pair.high:.3f})"


def document(worlds: Sequence[World], seeds: Sequence[int], how: str) -> str:
    """The same as JSON: every clause, and the figures that it rests on."""
    clauses = [clause for world in worlds for clause in clauses_of(world)]
    content = {
        "seeds": list(seeds),
        "runs": how,
        "clauses": [
            {
                "clause": one.text,
                "world": one.world,
                "against": one.against,
                "ratio": one.pair.ratio,
                "low": one.pair.low,
                "high": one.pair.high if math.isfinite(one.pair.high) else None,
                "bound": one.bound,
                "verdict": one.verdict,
            }
            for one in clauses
        ],
        "worlds": {
            world.name: {"mean_ms": world.mean_ms, "p99_ms": world.p99_ms} for world in worlds
        },
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--worlds", default=None, help="as in `a,c,bursts`; default all")
    parser.add_argument("--seeds", default="0-9", help="as in `0-9`; fresh ones prove more")
    parser.add_argument("--learned", default=f"{LEARNED},{SILENT},{ALONE}", help="with commas")
    parser.add_argument("--classics", default=",".join(CLASSICS), help="with commas")
    parser.add_argument("--full", action="store_true", help="worlds at their whole length")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that are there")
    parser.add_argument("--jobs", type=int, default=None, help="processes")
    parser.add_argument("--page", type=Path, default=ROOT / "acceptance.md")
    return parser.parse_args()


def chosen(names: str | None) -> list[Path]:
    """Scenario files by letter or name; a thousand endpoints only when asked for, as 3 s of them
    say little of what is learned."""
    files = sorted(SCENARIOS.glob("*.yaml"))
    if names is None:
        return [file for file in files if file.stem != "thousand-endpoints"]
    wanted = names.split(",")
    found = [file for file in files if file.stem in wanted or file.stem.split("-")[0] in wanted]
    known = {name for file in found for name in (file.stem, file.stem.split("-")[0])}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise AttnrouteError(f"--worlds: there is no scenario `{missing[0]}` in {SCENARIOS}")
    return found


def main() -> int:
    """Plays and writes; the exit code tells only whether it could."""
    options = arguments()
    try:
        seeds = parse_seeds(options.seeds)
        classics = options.classics.split(",")
        names = [*options.learned.split(","), *classics, ORACLE]
        balancers = [parse_balancer(name) for name in dict.fromkeys(names)]
        scenarios = [load_scenario(file) for file in chosen(options.worlds)]
        if not options.full:
            scenarios = [shortened(scenario) for scenario in scenarios]
        tasks = every_run(scenarios, balancers, seeds)
        store = Store(ROOT.parent / ".cache" / "acceptance", fresh=options.fresh)
        figures = play(tasks, store, options.jobs)
    except AttnrouteError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    how = (
        "worlds at their whole length"
        if options.full
        else f"worlds shortened to {WARMUP_S:.0f} s of warm-up and at least {STEADY_S:.0f} s "
        f"measured, {AFTER_EVENT_S:.0f} s after the last event (the whole length is another run)"
    )
    worlds = [world_of(scenario, classics, figures) for scenario in scenarios]
    target: Path = options.page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(worlds, seeds, "make bench-acceptance", how), encoding="utf-8")
    target.with_suffix(".json").write_text(document(worlds, seeds, how), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
