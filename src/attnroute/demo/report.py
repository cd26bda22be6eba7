"""The files of a run: a plot, a self-contained page that shows it, and the figures as JSON."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.demo.balancers import MISSING
from attnroute.demo.processes import DemoError
from attnroute.demo.results import TOO_SLOW, Figures, Measured, Point, Results, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 60
_COLOURS = ("#c44e52", "#4c72b0", "#55a868", "#8172b3", "#ccb974", "#64b5cd")


@dataclass(frozen=True, slots=True)
class Files:
    """Where a run left its results."""

    plot: Path
    page: Path
    result: Path

    @classmethod
    def under(cls, folder: Path) -> Files:
        """Names are fixed: a run replaces the one before."""
        return cls(folder / "latency.png", folder / "report.html", folder / "result.json")


def require_plotting() -> None:
    """Raises DemoError where the plot could not be drawn, before anything is started."""
    if importlib.util.find_spec("matplotlib") is None:
        raise DemoError(
            "the demo draws its plot with `matplotlib`, which is not installed; "
            "run `pip install 'attnroute[demo]'`"
        )


def write_report(folder: Path, results: Results, document: dict[str, Any], command: str) -> Files:
    """Writes all files; `document` is what `--json` prints, `command` what repeats the run."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Files.under(folder)
    picture = draw(results)
    files.plot.write_bytes(picture)
    files.page.write_text(_page(results, picture, command), encoding="utf-8")
    files.result.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return files


def draw(results: Results) -> bytes:
    """The plot as PNG: how latency is distributed, and how it moves over the measured time."""
    # Imported here: it takes a good part of a second, which a run has to spare only at its end.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for measured, colour in zip(results.measured.values(), _colours(results), strict=True):
        _draw_distribution(left, measured, colour)
        _draw_timeline(right, measured, colour, results)
    left.set(xscale="log", ylim=(0, 1), xlabel="latency (ms)", ylabel="share of calls")
    left.set_title("how many calls took at most that long")
    right.set(yscale="log", xlabel="measured time of each balancer (s)", ylabel="mean latency (ms)")
    right.set_title("the same calls and weather at the same place")
    for number in range(1, results.plan.rounds):
        right.axvline(number * results.plan.measured_s, color="#999999", linewidth=0.8)
    _mark_swaps(right, results)
    for axis, marks in ((left.xaxis, (1.0, 3.0)), (right.yaxis, (1.0, 2.0, 5.0))):
        axis.set_major_locator(LogLocator(subs=marks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.25)
    if left.lines:
        left.legend(loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _colours(results: Results) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(results.measured))]


def _draw_distribution(axes: Axes, measured: Measured, colour: str) -> None:
    ordered_ms = sorted(1e3 * point.latency_s for point in measured.points)
    if ordered_ms:
        shares = [(rank + 1) / len(ordered_ms) for rank in range(len(ordered_ms))]
        axes.plot(ordered_ms, shares, color=colour, label=measured.balancer.label)


def _draw_timeline(axes: Axes, measured: Measured, colour: str, results: Results) -> None:
    total_s = results.plan.rounds * results.plan.measured_s
    means = binned_means(measured.points, total_s=total_s, bins=_BINS)
    times_s = [total_s * (index + 0.5) / _BINS for index in range(_BINS)]
    axes.plot(times_s, [1e3 * value for value in means], color=colour)


def _mark_swaps(axes: Axes, results: Results) -> None:
    """One line for each version at the moment it began to serve, in whichever sidecar first."""
    marked: set[str] = set()
    for swap in sorted(results.models.swaps, key=lambda swap: swap.at_s):
        if swap.version not in marked:
            marked.add(swap.version)
            axes.axvline(swap.time_s, color="#000000", linewidth=1.2, linestyle="--")
            axes.annotate(
                f" model {swap.version}",
                (swap.time_s, 0.98),
                xycoords=("data", "axes fraction"),
                verticalalignment="top",
            )


def binned_means(points: Sequence[Point], *, total_s: float, bins: int) -> list[float]:
    """Mean latency in seconds of each of `bins` equal parts of the time; NaN where none is."""
    parts: list[list[float]] = [[] for _ in range(bins)]
    for point in points:
        index = min(bins - 1, int(point.time_s / total_s * bins))
        parts[index].append(point.latency_s)
    return [mean(part) for part in parts]


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.8rem; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; }
.alarm { color: #c22; font-weight: bold; }
"""


def _page(results: Results, picture: bytes, command: str) -> str:
    world, plan = results.world, results.plan
    image = base64.b64encode(picture).decode()
    rows = "\n".join(
        _row(measured.balancer.label, figures)
        for measured, figures in zip(results.measured.values(), results.figures(), strict=True)
    )
    missing = "".join(f"<li>{html.escape(text)}</li>" for text in MISSING)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>attnroute demo: {html.escape(world.name)}</title>
<style>{_STYLE}</style>
<h1>attnroute demo: world {html.escape(world.name)}</h1>
<p>{html.escape(world.summary.capitalize())}: {len(world.endpoints)} endpoints behind two
sidecars, {world.calls_per_s:.0f} calls/s, which is {100 * world.load:.0f} % of what the fleet can
serve. {plan.rounds} rounds, {plan.measured_s:.1f} s measured for each balancer in each round; every
balancer met the same calls and the same weather. Latency counts from the scheduled arrival.</p>
<table>
<tr><th>balancer</th><th>mean ms</th><th>p50 ms</th><th>p90 ms</th><th>p99 ms</th>
<th>waiting ms</th><th>served ms</th><th>errors</th><th>calls</th><th>to slow</th></tr>
{rows}
</table>
{_verdict(results)}
{_faults(results)}
<p><img alt="latency of every balancer" src="data:image/png;base64,{image}"></p>
<h2>Still missing in this version</h2>
<ul>{missing}</ul>
<p>Repeat this run with <code>{html.escape(command)}</code>.</p>
</html>
"""


def _row(label: str, row: Figures) -> str:
    share = "-" if row.slow_share is None else f"{100 * row.slow_share:.1f} %"
    latencies = (
        *(row.mean_ms, row.p50_ms, row.p90_ms, row.p99_ms),
        *(row.wait_mean_ms, row.service_mean_ms),
    )
    cells = [
        html.escape(label),
        *("-" if math.isnan(value) else f"{value:.1f}" for value in latencies),
        str(row.errors),
        str(row.calls),
        share,
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _faults(results: Results) -> str:
    turns = results.faults.figures()
    if not turns:
        return ""
    labels = {balancer.key: balancer.label for balancer in results.balancers}
    rows = []
    for turn in turns:
        cells = [html.escape(labels[turn.balancer])]
        for figures in turn.by_fault.values():
            cells.append(str(figures.calls))
            cells.append("-" if figures.sent_s is None else f"{figures.sent_s:.2f}")
        cells += [str(turn.errors), str(turn.calls)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return (
        "<h2>Endpoints that are ill</h2>\n"
        "<p>At the end two endpoints join each balancer's fleet, one that fails every call and one "
        "that never answers: how many calls they got until outlier detection ejected them, and for "
        "how long.</p>\n<table>\n<tr><th>balancer</th><th>fails: calls</th><th>for s</th>"
        "<th>hangs: calls</th><th>for s</th><th>errors</th><th>of calls</th></tr>\n"
        + "\n".join(rows)
        + "\n</table>"
    )


def _verdict(results: Results) -> str:
    text = (
        f"<p>{results.finished_calls} calls in all, {results.failed_calls} failed; "
        f"99 % were sent at most {1e3 * results.lateness_p99_s:.1f} ms late.</p>"
    )
    text += f"<p>{html.escape(results.models.words)}.</p>"
    if not results.kept_up:
        text += f'<p class="alarm">{html.escape(TOO_SLOW)}</p>'
    return text
