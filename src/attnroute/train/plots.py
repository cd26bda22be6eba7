"""Pictures of a training: losses, the gate, and how endpoints are used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from attnroute.train.trainer import Cycle

__all__ = ["draw_cycles", "draw_losses"]


def draw_cycles(cycles: Sequence[Cycle], path: Path) -> None:
    """Loss, gain and gate, and the usage of endpoints, cycle by cycle; a PNG."""
    at = [cycle.number for cycle in cycles]
    figure = Figure(figsize=(8, 8), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    top.plot(at, [cycle.loss for cycle in cycles], color="tab:blue")
    top.set_ylabel("loss")
    middle.plot(at, [cycle.gain for cycle in cycles], color="tab:gray", label="gain, nat a call")
    middle.legend(loc="upper left")
    gate = middle.twinx()
    gate.plot(at, [cycle.gate for cycle in cycles], color="tab:orange", label="gate weight")
    gate.set_ylim(0, 1.05)
    gate.legend(loc="lower right")
    usage = [cycle.health.usage for cycle in cycles]
    size = max((len(one) for one in usage), default=0)
    padded = np.array([[*one, *[np.nan] * (size - len(one))] for one in usage])
    bottom.plot(at, padded, color="tab:green", alpha=0.4, linewidth=0.8)
    for cycle in cycles:
        if cycle.rebalanced:
            bottom.axvline(cycle.number, color="tab:red", alpha=0.3)
    bottom.set_ylabel("usage, even shares")
    bottom.set_xlabel("scrape")
    figure.savefig(path, dpi=120)


def draw_losses(losses: Sequence[float], path: Path) -> None:
    """Loss by step, with its running mean; a PNG."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, color="tab:blue", alpha=0.25, linewidth=0.6)
    width = max(1, len(losses) // 50)
    if len(losses) >= width:
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(width - 1, len(losses)), smooth, color="tab:blue")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.savefig(path, dpi=120)
