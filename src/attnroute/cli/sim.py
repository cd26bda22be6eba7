"""`attnroute sim`: what would each balancer do in a world that a scenario file describes?"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from attnroute.cli.tables import make_console

if TYPE_CHECKING:
    from attnroute.sim.run import BalancerSpec, Figure, Result, Summary, Task
    from attnroute.sim.scenario import LoadedScenario

_EPILOG = """\b
Examples:
  attnroute sim configs/scenarios/a-homogeneous.yaml
  attnroute sim world.yaml --balancer least_request,peak_ewma,oracle --seeds 0-9
  attnroute sim world.yaml --balancer least_request:choice_count=all --out out/sim
  attnroute sim world.yaml --balancer learned,learned:fleet=false,oracle
  attnroute sim world.yaml --json | jq '.balancers[] | {balancer, mean_ms, p99_ms}'

\b
Settings of a balancer follow its name, each after a colon. `oracle` knows everything and is the
limit. One seed gives one result; every balancer meets the same calls.
"""


@click.command("sim", epilog=_EPILOG)
@click.argument("scenario_file", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option(
    "--balancer",
    "balancers",
    default="least_request,least_request:choice_count=all,oracle",
    show_default=True,
    metavar="A,B,...",
    help="Balancers to compare.",
)
@click.option("--seeds", default="0-2", show_default=True, metavar="LIST", help="As in `1,3,7-9`.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), help="Processes; by default one per processor."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for an HTML report and the figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    *,
    scenario_file: Path,
    balancers: str,
    seeds: str,
    jobs: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Play a scenario with every balancer and compare them."""
    # Late, so that `--help` does not load the extension.
    from attnroute.sim.report import require_plotting, write_report
    from attnroute.sim.run import Task, document, parse_balancer, parse_seeds, summarise
    from attnroute.sim.scenario import load_scenario

    if out is not None:
        require_plotting()
    specs: list[BalancerSpec] = []
    for text in balancers.split(","):
        spec = parse_balancer(text)
        if spec not in specs:
            specs.append(spec)
    numbers = parse_seeds(seeds)
    scenario = load_scenario(scenario_file)
    tasks = [Task(scenario, spec, seed) for spec in specs for seed in numbers]
    summaries = summarise(_run(tasks, jobs))
    if as_json:
        click.echo(json.dumps(document(scenario, summaries), indent=1))
    else:
        console = make_console()
        console.print(summary_table(scenario, summaries))
        if any(summary.outcomes[0]["events"] for summary in summaries):
            console.print(detection_table(summaries))
    if out is not None:
        repeat = shlex.join(
            ["attnroute", "sim", str(scenario_file), "--balancer", balancers, "--seeds", seeds]
        )
        files = write_report(out, scenario, summaries, repeat)
        click.echo(f"report: {files.page}", err=True)


def _run(tasks: Sequence[Task], jobs: int | None) -> list[Result]:
    from attnroute.sim.run import run_tasks

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=len(tasks))
        return run_tasks(tasks, jobs, lambda _: progress.advance(bar))


def summary_table(scenario: LoadedScenario, summaries: Sequence[Summary]) -> Table:
    """One row a balancer: milliseconds, means over seeds with their 95 % intervals."""
    load = scenario.offered_rps / scenario.capacity_rps
    title = f"{scenario.name}: {scenario.offered_rps:.0f} calls/s, load {load:.2f}"
    if scenario.overload:
        title += " (overload)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("balancer", overflow="fold")
    for heading in ("mean ms", "p50", "p90", "p99", "p99.9", "errors"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            summary.balancer,
            *(_figure(figure) for figure in summary.figures.values()),
            f"{summary.errors * 100:.2f} %",
        )
    return table


def detection_table(summaries: Sequence[Summary]) -> Table:
    """Seconds until picks avoided the endpoints of each event, with the first seed."""
    events = summaries[0].outcomes[0]["events"]
    table = Table(
        title="seconds until picks avoided the endpoints of an event (first seed)",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("balancer", overflow="fold")
    for event in events:
        table.add_column(f"{event['event']} at {event['at_s']:g} s", justify="right")
    for summary in summaries:
        found = [event["detected_s"] for event in summary.outcomes[0]["events"]]
        cells = ["never" if after is None else f"{after:.1f}" for after in found]
        table.add_row(summary.balancer, *cells)
    return table


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    margin = "" if figure.margin is None else f" ±{figure.margin:.1f}"
    return f"{figure.mean:.1f}{margin}"
