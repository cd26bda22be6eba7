"""The figures of a run: from single measurements to what the tables and plots show.

A figure maps round number to value for one proxy. Added latency is taken against the direct calls
of the same round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness.results import Run, Sample
from benchmarks.harness.shapes import PLAIN_1, PLAIN_16, SINGLE, SQUEEZED_16, SQUEEZED_64
from benchmarks.harness.stats import Spread

DIRECT = "direct"


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    by_round: of a run and a proxy; empty where the run does not have it.
    """

    name: str
    unit: str
    by_round: Callable[[Run, str], dict[int, float]]

    def spread(self, run: Run, peer: str) -> Spread | None:
        """Median and range over the rounds, None where the run does not have it."""
        values = list(self.by_round(run, peer).values())
        return Spread.of(values) if values else None


def _cpu(shape: str) -> Callable[[Run, str], dict[int, float]]:
    def by_round(run: Run, peer: str) -> dict[int, float]:
        return {sample.round: sample.cpu_us_per_call for sample in run.of(peer, shape)}

    return by_round


def _added(
    shape: str, latency: Callable[[Sample], float | None]
) -> Callable[[Run, str], dict[int, float]]:
    def by_round(run: Run, peer: str) -> dict[int, float]:
        direct = {sample.round: latency(sample) for sample in run.of(DIRECT, shape)}
        found = {}
        for sample in run.of(peer, shape):
            base, own = direct.get(sample.round), latency(sample)
            if base is not None and own is not None:
                found[sample.round] = own - base
        return found

    return by_round


def _rss(moment: str) -> Callable[[Run, str], dict[int, float]]:
    def by_round(run: Run, peer: str) -> dict[int, float]:
        return {entry.round: entry.rss_bytes / 1e6 for entry in run.memory_of(peer, moment)}

    return by_round


def _p50(sample: Sample) -> float | None:
    return sample.p50_us


def _p99(sample: Sample) -> float | None:
    return sample.p99_us


CPU_16 = Figure("CPU per call, 8 x 16, squeezed", "us", _cpu(SQUEEZED_16.name))
CPU_64 = Figure("CPU per call, 8 x 64, squeezed", "us", _cpu(SQUEEZED_64.name))
CPU_PLAIN_16 = Figure("CPU per call, 8 x 16, plain", "us", _cpu(PLAIN_16.name))
CPU_PLAIN_1 = Figure("CPU per call, 8 x 1, plain", "us", _cpu(PLAIN_1.name))
ADDED_P50 = Figure("added p50, one call at a time", "us", _added(SINGLE.name, _p50))
ADDED_P99 = Figure("added p99, one call at a time", "us", _added(SINGLE.name, _p99))
RSS_LOADED = Figure("RSS after load, 4 endpoints", "MB", _rss("loaded"))
RSS_IDLE = Figure("RSS idle, 100 endpoints", "MB", _rss("idle-100"))
RSS_TOUCHED = Figure("RSS after calls to 100 endpoints", "MB", _rss("touched-100"))

COMPARED = (CPU_16, CPU_64, CPU_PLAIN_16, CPU_PLAIN_1, ADDED_P50, ADDED_P99, RSS_LOADED)
