"""The files of a simulation: its figures as JSON, and one self-contained page with plots."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.errors import SimulationError
from attnroute.sim.run import LATENCIES, Figure, Summary, document
from attnroute.sim.scenario import LoadedScenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Files", "require_plotting", "write_report"]

_COLOURS = (
    "#4c72b0", "#c44e52", "#55a868", "#8172b3", "#ccb974",
    "#64b5cd", "#dd8452", "#937860", "#da8bc3", "#8c8c8c",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Files:
    """Where a run left its results."""

    page: Path
    result: Path


def require_plotting() -> None:
    """Raises SimulationError where plots could not be drawn, before anything is run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SimulationError(
            "the page is drawn with `matplotlib`, which is not installed; "
            "run `pip install 'attnroute[demo]'` or leave out `--out`"
        )


def write_report(
    folder: Path, scenario: LoadedScenario, summaries: Sequence[Summary], command: str
) -> Files:
    """Writes `<scenario>.html` and `<scenario>.json`; those of the run before are replaced.

    command: what repeats the run, printed on the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder / f"{scenario.name}.html", folder / f"{scenario.name}.json")
    result = json.dumps(document(scenario, summaries), indent=1)
    files.result.write_text(result + "\n", encoding="utf-8")
    files.page.write_text(_page(scenario, summaries, command), encoding="utf-8")
    return files


def _page(scenario: LoadedScenario, summaries: Sequence[Summary], command: str) -> str:
    def draw_time(axes: Axes) -> None:
        _draw_time(axes, scenario, summaries)

    plots: list[tuple[str, Callable[[Axes], None]]] = [
        ("Latency over time: median and, dashed, p99 of each second", draw_time),
        ("Calls slower than", lambda axes: _draw_tail(axes, summaries)),
        ("Share of calls per endpoint, largest first", lambda axes: _draw_shares(axes, summaries)),
    ]
    sections = "".join(
        f"<h2>{html.escape(title)}</h2><img alt='{html.escape(title)}' "
        f"src='data:image/svg+xml;base64,{_picture(draw)}'>"
        for title, draw in plots
    )
    load = f"{scenario.offered_rps:.0f} calls/s of {scenario.capacity_rps:.0f}"
    overload = " (overload)" if scenario.overload else ""
    name = html.escape(scenario.name)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} tr {{ border-bottom: 1px solid #ddd }}
img {{ width: 100% }} code {{ background: #f3f3f3; padding: .1rem .3rem }}
</style></head><body>
<h1>{name}</h1>
<p>{load}{overload}; {len(summaries[0].outcomes)} seeds. Milliseconds; the range is a 95 % interval
over seeds. Repeat with <code>{html.escape(command)}</code>.</p>
{_table(summaries)}{sections}
</body></html>
"""


def _table(summaries: Sequence[Summary]) -> str:
    head = "".join(f"<th>{key.removesuffix('_ms')}</th>" for key in LATENCIES)
    rows = "".join(
        f"<tr><td>{html.escape(summary.balancer)}</td>"
        + "".join(f"<td>{_cell(summary.figures[key])}</td>" for key in LATENCIES)
        + f"<td>{summary.errors:.2%}</td></tr>"
        for summary in summaries
    )
    return f"<table><tr><th>balancer</th>{head}<th>errors</th></tr>{rows}</table>"


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    margin = "" if figure.margin is None else f" &plusmn; {figure.margin:.1f}"
    return f"{figure.mean:.1f}{margin}"


def _picture(draw: Callable[[Axes], None]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    # The same figures give the same bytes.
    with mpl.rc_context({"svg.hashsalt": "attnroute", "font.size": 9}):
        canvas = Canvas(figsize=(10, 4.2), layout="constrained")
        axes = canvas.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        draw(axes)
        axes.legend(frameon=False, fontsize=8)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _draw_time(axes: Axes, scenario: LoadedScenario, summaries: Sequence[Summary]) -> None:
    for index, summary in enumerate(summaries):
        timelines = [outcome["timeline"] for outcome in summary.outcomes]
        for key, style in (("p50_ms", "-"), ("p99_ms", "--")):
            times, values = _over_seeds(timelines, key)
            label = summary.balancer if style == "-" else None
            axes.plot(times, values, style, color=_colour(index), label=label, linewidth=1)
    for at_s, what in scenario.events:
        axes.axvline(at_s, color="#888", linewidth=0.8, linestyle=":")
        axes.annotate(
            what, (at_s, 1), xycoords=("data", "axes fraction"), fontsize=7, rotation=90, va="top"
        )
    axes.set(xlabel="seconds", ylabel="ms", yscale="log")


def _over_seeds(
    timelines: Sequence[Sequence[dict[str, Any]]], key: str
) -> tuple[list[int], list[float]]:
    """Each second's mean over the seeds that had a call in it."""
    times, values = [], []
    for second in range(max(len(timeline) for timeline in timelines)):
        found = [
            timeline[second][key]
            for timeline in timelines
            if second < len(timeline) and timeline[second][key] is not None
        ]
        if found:
            times.append(second)
            values.append(statistics.fmean(found))
    return times, values


def _draw_tail(axes: Axes, summaries: Sequence[Summary]) -> None:
    for index, summary in enumerate(summaries):
        points: dict[float, list[float]] = {}
        for outcome in summary.outcomes:
            for point in outcome["cdf"]:
                points.setdefault(point["share"], []).append(point["latency_ms"])
        shares = [share for share in points if share < 1]
        axes.plot(
            [statistics.fmean(points[share]) for share in shares],
            [1 - share for share in shares],
            color=_colour(index),
            label=summary.balancer,
        )
    axes.set(xlabel="ms", ylabel="share of the calls", xscale="log", yscale="log")


def _draw_shares(axes: Axes, summaries: Sequence[Summary]) -> None:
    for index, summary in enumerate(summaries):
        shares = sorted(
            (endpoint["share"] for endpoint in summary.outcomes[0]["endpoints"]), reverse=True
        )
        axes.plot(
            range(1, len(shares) + 1),
            [share * 100 for share in shares],
            ".-",
            color=_colour(index),
            label=summary.balancer,
            linewidth=0.8,
        )
    axes.set(xlabel="endpoint", ylabel="% of the calls")
    axes.set_ylim(bottom=0)
