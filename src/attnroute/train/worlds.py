"""Simulated worlds to train on: what sidecars would have scraped there, second by second.

Random services: how many sidecars, endpoints, methods, how long calls take, who is good at what,
who is slow, new or failing. None of them is one of `configs/scenarios/`, which evaluate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnroute.features.table import Cells
from attnroute.features.window import BUCKETS
from attnroute.scoring.windows import TakenWindow
from attnroute.sim.learning import Learning, play_learned
from attnroute.sim.scenario import load_scenario
from attnroute.train.scrapes import Scrape

__all__ = ["Recorder", "play_world", "put_together", "random_world", "write_world"]

_LEARNED = json.dumps({"type": "learned"}).encode()


@dataclass
class Recorder:
    """Puts the windows of all sidecars together, interval by interval. interval_s: of scrapes."""

    interval_s: float
    scrapes: list[Scrape] = field(default_factory=list)
    _pending: list[TakenWindow] = field(default_factory=list)
    _until_s: float = 0.0

    def __call__(self, now_s: float, taken: TakenWindow) -> None:
        """attnroute.sim.learning.Watch."""
        if self._until_s <= 0:
            self._until_s = self.interval_s
        while now_s > self._until_s + 1e-9:
            self.close()
        self._pending.append(taken)

    def close(self) -> None:
        """Ends the interval."""
        if self._pending:
            self.scrapes.append(put_together(self._pending, self._until_s, self.interval_s))
        self._pending = []
        self._until_s += self.interval_s


def put_together(windows: list[TakenWindow], at_s: float, length_s: float) -> Scrape:
    """Windows of one interval as the scrape that shows them."""
    last = windows[-1]
    classes = list(dict.fromkeys(name for one in windows for name in one.window.classes))
    endpoints = last.window.endpoints
    rows = {name: row for row, name in enumerate(classes)}
    columns = {name: column for column, name in enumerate(endpoints)}
    size = len(endpoints)
    cells: dict[str, list[Any]] = {}
    errors, buckets = [], np.zeros((len(classes), BUCKETS))
    inflight, started, busy, reports = (np.zeros(size) for _ in range(4))
    rtt, concurrency = np.full(size, np.inf), np.full(size, np.nan)
    for one in windows:
        window = one.window
        row = np.array([rows[name] for name in window.classes], dtype=np.intp)
        column = np.array([columns.get(name, -1) for name in window.endpoints], dtype=np.intp)
        here = column >= 0
        at = column[here]
        np.add.at(inflight, at, one.inflight_s[here] / length_s)
        started[at] = np.maximum(started[at], window.started_s[here])
        rtt[at] = np.fmin(rtt[at], window.rtt_s[here])
        known = window.concurrency[here]
        concurrency[at] = np.where(np.isfinite(known) & (known > 0), known, concurrency[at])
        np.add.at(busy, at, np.nan_to_num(window.utilization[here]))
        np.add.at(reports, at, window.utilization_reports[here])
        keep = column[window.cells.endpoint] >= 0
        kept = window.cells.only(keep)
        # The places are those of this window's own lists.
        for name in Cells.__dataclass_fields__:
            cells.setdefault(name, []).append(getattr(kept, name))
        cells["request_class"][-1] = row[kept.request_class]
        cells["endpoint"][-1] = column[kept.endpoint]
        errors.append(window.errors[keep])
        np.add.at(buckets, row[kept.request_class], window.buckets[keep])
    return Scrape(
        service="simulated",
        at_s=at_s,
        length_s=length_s,
        classes=tuple(classes),
        endpoints=tuple(endpoints),
        labels=last.attributes,
        started_s=started,
        rtt_s=np.where(np.isfinite(rtt), rtt, np.nan),
        concurrency=concurrency,
        utilization=np.where(reports > 0, busy / np.where(reports > 0, reports, 1), np.nan),
        inflight=inflight,
        cells=Cells(**{name: np.concatenate(parts) for name, parts in cells.items()}),
        errors=np.concatenate(errors),
        buckets=buckets,
    )


def random_world(seed: int, duration_s: float) -> dict[str, Any]:
    """A scenario as its file has it."""
    rng = np.random.default_rng((seed, 20))

    def pick(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    endpoints, methods = int(rng.integers(8, 48)), int(rng.integers(2, 17))
    groups = int(rng.integers(2, 9))
    mean_ms = float(np.exp(rng.uniform(np.log(10), np.log(150))))
    sigma = round(float(rng.uniform(0.3, 1.2)), 2)
    law = pick({"lognormal": {"sigma": sigma}}, {"lognormal": {"sigma": 0.8}}, {"exponential": {}})
    service: dict[str, Any] = {"mean": f"{mean_ms:.1f}ms", **law}
    if rng.random() < 0.75:
        service["affinity"] = {
            "groups": groups,
            "factor": round(float(rng.uniform(1.5, 5)), 2),
            "every": pick(1, 1, 1, 2),
        }
    fast = int(rng.integers(1, endpoints))
    parts: list[dict[str, Any]] = [{"name": "a", "count": endpoints, "workers": pick(1, 2, 2, 4)}]
    if rng.random() < 0.4:
        speed = round(float(rng.uniform(1.3, 3)), 2)
        parts = [
            {"name": "a", "count": endpoints - fast, "workers": 2},
            {"name": "b", "count": fast, "workers": 2, "speed": speed},
        ]
    late = f"{duration_s * 0.6:.0f}s"
    events: list[dict[str, Any]] = []
    if "affinity" in service and rng.random() < 0.4:
        events.append({"at": late, "affinity_shift": {}})
    if rng.random() < 0.4:
        cold = {"speed": 0.2, "for": "20s"}
        more = {"count": max(1, endpoints // 5), "group": "a", "cold": cold}
        events.append({"at": f"{duration_s * 0.4:.0f}s", "add": more})
    if rng.random() < 0.3:
        slow = {"endpoints": {"every": 4}, "speed": 0.3, "for": "15s"}
        events.append({"at": late, "slow": slow})
    return {
        "sidecars": int(rng.integers(2, 9)),
        "endpoints": parts,
        "request_classes": {
            "methods": methods,
            "message_sizes": [
                {"name": "s", "popularity": 3, "cost": 0.5},
                {"name": "l", "popularity": 1, "cost": 2},
            ][: pick(1, 2, 2)],
        },
        "service_time": service,
        "network": {"rtt": "300us"},
        # Often far from full: that is where pairs are seen rarely.
        "load": {"fraction": round(float(pick(rng.uniform(0.05, 0.3), rng.uniform(0.3, 0.85))), 3)},
        "events": events,
        "warmup": "1s",
        "duration": f"{duration_s:.0f}s",
    }


def play_world(path: Path, seed: int, interval_s: float, *, reports: bool = True) -> list[Scrape]:
    """What is scraped in a scenario while the table alone routes."""
    recorder = Recorder(interval_s)
    scenario = load_scenario(path)
    play_learned(scenario.compiled, _LEARNED, seed, Learning(reports=reports), recorder)
    recorder.close()
    return recorder.scrapes


def write_world(path: Path, seed: int, duration_s: float) -> Path:
    """Writes a random world as a scenario file."""
    path.write_text(json.dumps(random_world(seed, duration_s)), encoding="utf-8")
    return path
