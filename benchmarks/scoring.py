"""One scoring run of a bundle: `python -m benchmarks.scoring [BUNDLE]`.

By default with 100 endpoints and 64 request classes of which half the endpoints changed since the
run before, in CPU time of the thread that runs it: features, encodings of what changed, and the
scores of all pairs. Also how long the bundle takes to be made and tried, and what it adds to the
memory of a process. Without a bundle, the newest of models/default.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from attnroute import bundle
from attnroute.features.facts import Facts
from attnroute.features.schema import schema_hash
from attnroute.features.table import Sums, estimate, kinds_of
from attnroute.scoring.attention import AttentionScorer, Model, Scale
from attnroute.scoring.base import ScoringInput

ROOT = Path(__file__).resolve().parent.parent


def rss_mb() -> float:
    """Memory of this process that is in use, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def some_facts(classes: int, endpoints: int, seed: int) -> Facts:
    """Facts of a service under load."""
    rng = np.random.default_rng(seed)
    names = tuple(f"/bench.Shop/M{number // 3};bytes={number % 3}..9" for number in range(classes))
    den = rng.poisson(20.0, (classes, endpoints)).astype(np.float64)
    num_s = den * rng.uniform(0.005, 0.04, den.shape)
    sums = Sums(num_s, den, num_s.sum(axis=0), den.sum(axis=0))
    return Facts(
        classes=names,
        endpoints=tuple(f"10.0.{number // 250}.{number % 250}:80" for number in range(endpoints)),
        sums=sums,
        table=estimate(sums, kinds_of(names), np.zeros(endpoints, dtype=bool), 0.02),
        fast=Sums(num_s * 0.6, den * 0.6, sums.busy_s * 0.6, sums.calls * 0.6),
        recent=Sums(num_s * 0.1, den * 0.1, sums.busy_s * 0.1, sums.calls * 0.1),
        utilization=rng.uniform(0.1, 0.9, endpoints),
        inflight=rng.uniform(0.0, 4.0, endpoints),
        error_share=np.zeros(endpoints),
        age_s=np.full(endpoints, np.inf),
        rtt_s=rng.uniform(0.0, 0.002, endpoints),
        concurrency=np.full(endpoints, 2.0),
        zone_match=np.full(endpoints, np.nan),
        labels=tuple({"zone": f"z{number % 3}"} for number in range(endpoints)),
        usable=np.ones(endpoints, dtype=bool),
    )


def half_changed(known: Facts, seed: int) -> Facts:
    """The same with other calls in flight at every second endpoint."""
    rng = np.random.default_rng(seed)
    inflight = known.inflight.copy()
    inflight[::2] = rng.uniform(0.0, 40.0, len(inflight[::2]))
    return replace(known, inflight=inflight)


def given(known: Facts) -> ScoringInput:
    """What a scorer gets."""
    table = known.table
    return ScoringInput(
        classes=known.classes, endpoints=known.endpoints, table_cost_s=table.cost_s,
        calls=known.sums.den, mean_service_s=table.mean_service_s,
        endpoint_factor=table.endpoint_factor, class_mean_s=table.class_mean_s,
        rtt_s=known.rtt_s, concurrency=known.concurrency, usable=known.usable, facts=known,
    )  # fmt: skip


def newest() -> Path:
    """The bundle that is shipped."""
    versions = sorted((ROOT / "models" / "default").glob("*/manifest.json"))
    if not versions:
        raise SystemExit("models/default holds no bundle; name one")
    return versions[-1].parent


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--classes", type=int, default=64)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    path = options.bundle or newest()
    before_mb = rss_mb()
    began_s = time.process_time()
    model = Model(bundle.read(path, expected_schema=schema_hash()), int8=options.int8)
    model.time_runs(Scale(options.classes, options.endpoints))
    made_s = time.process_time() - began_s
    scorer = AttentionScorer(model)
    known = some_facts(options.classes, options.endpoints, 0)
    scorer.score(given(known))
    taken_ms = []
    for number in range(options.runs):
        known = half_changed(known, number)
        asked = given(known)
        began_s = time.thread_time()
        scorer.score(asked)
        taken_ms.append((time.thread_time() - began_s) * 1e3)
    taken_ms.sort()
    table = scorer.endpoints
    print(
        f"{path}: {options.endpoints} endpoints x {options.classes} classes, {model.flavour}: "
        f"{taken_ms[len(taken_ms) // 2]:.2f} ms of CPU a run (median of {options.runs}; "
        f"{taken_ms[0]:.2f} to {taken_ms[-1]:.2f}); "
        f"{table.misses / (options.runs + 1):.0f} rows encoded a run"
    )
    print(
        f"made and tried in {made_s * 1e3:.0f} ms of CPU; {rss_mb() - before_mb:.0f} MiB more "
        f"memory, onnxruntime included ({rss_mb():.0f} MiB in all)"
    )


if __name__ == "__main__":
    main()
