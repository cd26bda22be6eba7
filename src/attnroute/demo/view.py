"""What a terminal shows: every view is a pure function of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attnroute.demo.balancers import Balancer
from attnroute.demo.faults import TurnFigures
from attnroute.demo.results import TOO_SLOW, Figures, Results
from attnroute.demo.sidecars import EndpointState
from attnroute.demo.world import EndpointModel, World

NOTHING = "-"
_SHARE_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the live view shows, at one moment."""

    world: World
    balancers: Sequence[Balancer]
    sidecars: int
    current: Balancer
    phase: str
    """What happens now, before the name of a balancer: `measuring` and the like."""
    round_number: int
    rounds: int
    elapsed_s: float
    total_s: float
    figures: Sequence[Figures]
    addresses: Sequence[str]
    states: Mapping[str, EndpointState]
    finished_calls: int
    failed_calls: int
    reloads: int
    lateness_p99_s: float


def render(now: Snapshot) -> RenderableType:
    """The live view."""
    return Group(
        headline(now.world, now.sidecars),
        _progress(now),
        figures_table(now.balancers, now.figures, current=now.current),
        _endpoint_table(now),
        _footer(now),
    )


def headline(world: World, sidecars: int) -> Text:
    """One line about the emulated world."""
    return Text.assemble(
        (f"world `{world.name}`", "bold"),
        f": {world.summary}; {len(world.endpoints)} endpoints, {sidecars} sidecars, "
        f"{world.calls_per_s:.0f} calls/s, {100 * world.load:.0f} % of capacity",
    )


def figures_table(
    balancers: Sequence[Balancer], figures: Sequence[Figures], *, current: Balancer | None = None
) -> Table:
    """Latencies in milliseconds, one row per balancer; `current` is marked."""
    table = Table(title="latency in ms, measured from the scheduled arrival", title_justify="left")
    table.add_column("balancer")
    for name in ("mean", "p50", "p90", "p99", "waiting", "served", "errors", "calls", "to slow"):
        table.add_column(name, justify="right")
    for balancer, row in zip(balancers, figures, strict=True):
        table.add_row(
            balancer.label,
            *map(_number, (row.mean_ms, row.p50_ms, row.p90_ms, row.p99_ms)),
            *map(_number, (row.wait_mean_ms, row.service_mean_ms)),
            str(row.errors),
            str(row.calls),
            _percent(row.slow_share),
            style="bold" if balancer == current else "",
        )
    return table


def closing(results: Results, reloads: int) -> RenderableType:
    """The closing table and what to make of it."""
    balancers, figures = results.balancers, results.figures()
    lines = [
        (
            f"{results.finished_calls} calls, {results.failed_calls} failed, "
            f"{reloads} policy reloads under load"
        ),
        *(f"{count} x {failure}" for failure, count in results.failures.most_common(5)),
    ]
    measured = [(row.mean_ms, index) for index, row in enumerate(figures) if row.mean_ms > 0]
    if measured:
        best_ms, best = min(measured)
        worst_ms, worst = max(measured)
        lines.append(
            f"lowest mean: {balancers[best].label}, "
            f"{best_ms / worst_ms:.2f} of that of {balancers[worst].label}"
        )
    lines.append(results.models.words)
    if not results.kept_up:
        lines.append(f"{TOO_SLOW} (p99 of the delay: {1e3 * results.lateness_p99_s:.1f} ms)")
    turns = results.faults.figures()
    faults = [faults_table(balancers, turns)] if turns else []
    return Group(figures_table(balancers, figures), *faults, *lines)


def faults_table(balancers: Sequence[Balancer], turns: Sequence[TurnFigures]) -> Table:
    """How long each balancer kept sending to endpoints that are ill."""
    title = "an endpoint that fails and one that hangs join: calls they got, and for how long"
    table = Table(title=title, title_justify="left")
    table.add_column("balancer")
    for name in ("fails: calls", "for s", "hangs: calls", "for s", "errors", "of calls"):
        table.add_column(name, justify="right")
    labels = {balancer.key: balancer.label for balancer in balancers}
    for turn in turns:
        cells = []
        for figures in turn.by_fault.values():
            sent = NOTHING if figures.sent_s is None else f"{figures.sent_s:.2f}"
            cells += [str(figures.calls), sent]
        table.add_row(labels[turn.balancer], *cells, str(turn.errors), str(turn.calls))
    return table


def progress_line(balancer: Balancer, row: Figures, *, round_number: int, rounds: int) -> str:
    """One line per slice where no live view can be shown."""
    return (
        f"round {round_number + 1}/{rounds}, {balancer.label}: {row.calls} calls so far, "
        f"mean {_number(row.mean_ms)} ms, p99 {_number(row.p99_ms)} ms, {row.errors} errors"
    )


def describe_endpoint(endpoint: EndpointModel) -> str:
    """What is uneven about it, in a few words."""
    words = [f"{endpoint.speed:g}x speed", f"group {endpoint.group}"]
    if endpoint.weather is not None:
        words.append("noisy neighbour")
    return ", ".join(words)


def _progress(now: Snapshot) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        f"round {now.round_number + 1}/{now.rounds}",
        f"{now.phase} {now.current.label}",
        ProgressBar(total=now.total_s, completed=min(now.elapsed_s, now.total_s), width=30),
        f"{now.elapsed_s:.0f} s of {now.total_s:.0f} s",
    )
    return grid


def _endpoint_table(now: Snapshot) -> Table:
    table = Table(
        title="endpoints, as the sidecars' admin API has them: picks of the last 10 s",
        title_justify="left",
    )
    table.add_column("endpoint")
    table.add_column("emulates")
    table.add_column("share", justify="right")
    table.add_column("")
    table.add_column("in flight", justify="right")
    top = max((state.share or 0.0 for state in now.states.values()), default=0.0)
    for address, endpoint in zip(now.addresses, now.world.endpoints, strict=True):
        state = now.states.get(address)
        share = None if state is None else state.share
        table.add_row(
            address,
            describe_endpoint(endpoint),
            _percent(share),
            ProgressBar(total=top or 1.0, completed=share or 0.0, width=_SHARE_BAR_WIDTH),
            NOTHING if state is None else str(state.in_flight),
        )
    return table


def _footer(now: Snapshot) -> Text:
    late = NOTHING if math.isnan(now.lateness_p99_s) else f"{1e3 * now.lateness_p99_s:.1f} ms"
    return Text.assemble(
        f"{now.finished_calls} calls, ",
        (f"{now.failed_calls} failed", "bold red" if now.failed_calls else ""),
        f", {now.reloads} policy reloads under load, calls sent late by {late} (p99)",
    )


def _number(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"
