"""`attnroute demo`: balancers side by side on real calls."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from attnroute.demo.plan import SECONDS_DEFAULT, SECONDS_MAX, SECONDS_MIN
from attnroute.demo.world import WORLDS, World

if TYPE_CHECKING:
    from attnroute.demo.report import Files
    from attnroute.demo.run import Outcome

_EPILOG = """\b
Examples:
  attnroute demo
  attnroute demo --seconds 30 --world affinity
  attnroute demo --json | jq '.balancers[] | {balancer, mean_ms, p99_ms}'
"""


@click.command("demo", epilog=_EPILOG)
@click.option(
    "--seconds",
    type=click.FloatRange(SECONDS_MIN, SECONDS_MAX),
    default=SECONDS_DEFAULT,
    show_default=True,
    envvar="DEMO_SECONDS",
    show_envvar=True,
    help="Time under load; start, report and a part with ill endpoints come on top.",
)
@click.option(
    "--world",
    "world_name",
    type=click.Choice(sorted(WORLDS)),
    default="mixed",
    show_default=True,
    help="What the endpoints emulate.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Folder of the plot, the page and the figures; those of the run before are replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the closing table as JSON.")
def command(*, seconds: float, world_name: str, seed: int, out: Path, as_json: bool) -> None:
    """Compare balancers on real calls, on this machine.

    Starts a fleet of gRPC endpoints of uneven speed, two sidecars and a trainer, sends open-loop
    load through them while the balancer changes by policy reload. At the end an endpoint that fails
    and one that hangs join the fleet of each balancer. Leaves a table, a plot and a page. Ends with
    0 only if no call failed and `learned` beat round_robin and least_request (all).
    """
    # Late, so that `--help` does not load gRPC.
    from attnroute.demo.report import require_plotting, write_report

    require_plotting()
    world = WORLDS[world_name]
    repeat = f"attnroute demo --world {world_name} --seconds {seconds:g} --seed {seed}"
    outcome = _run(world, seconds=seconds, seed=seed)
    document = {
        "command": repeat,
        "seed": seed,
        **outcome.results.document(),
        "reloads": outcome.reloads,
        "complaints": list(outcome.complaints),
        "shortfalls": list(outcome.shortfalls),
    }
    files = write_report(out, outcome.results, document, repeat)
    if as_json:
        _print_json(document, files)
    else:
        _print_table(outcome, files)
    for complaint in (*outcome.complaints, *outcome.shortfalls):
        click.echo(complaint, err=True)
    sys.exit(0 if outcome.clean and not outcome.shortfalls else 1)


def _run(world: World, *, seconds: float, seed: int) -> Outcome:
    from attnroute.demo.run import run_demo

    console = Console(stderr=True)
    # A TERM ends the demo as Ctrl-C does: in order, with nothing left behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return asyncio.run(run_demo(world, seconds=seconds, seed=seed, console=console))


def _print_json(document: dict[str, Any], files: Files) -> None:
    from attnroute.demo.balancers import MISSING

    paths = {"plot": str(files.plot), "page": str(files.page), "result": str(files.result)}
    click.echo(json.dumps({**document, "missing": list(MISSING), "files": paths}, indent=2))


def _print_table(outcome: Outcome, files: Files) -> None:
    from attnroute.cli.tables import make_console
    from attnroute.demo.balancers import MISSING
    from attnroute.demo.run import SIDECARS
    from attnroute.demo.view import closing, headline

    console = make_console()
    console.print(headline(outcome.results.world, SIDECARS))
    console.print(closing(outcome.results, outcome.reloads))
    console.print("Still missing in this version:")
    for text in MISSING:
        console.print(f"- {text}", highlight=False)
    for name, path in (("plot", files.plot), ("page", files.page), ("figures", files.result)):
        console.print(f"{name}: {path}", soft_wrap=True, highlight=False)
