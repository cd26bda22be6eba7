"""How many heads: decision quality and scoring time of 1 to 16; writes benchmarks/heads.md.

Each network is made from the same worlds with the same draws, and judged on worlds that none has
seen: gain over the table in nats a call, and the share of calls' classes whose fastest endpoint by
the network is within 5 % of the fastest that the next scrape showed. Time: a run of `score.onnx`
for 48 classes on 100 endpoints on one thread, median and P90.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from attnroute.bundle import GRAPHS
from attnroute.model.export import export_graphs, graph_runner, random_inputs
from attnroute.model.network import Router, RouterConfig
from attnroute.train.pretrain import PretrainConfig, World, gain_over, load_worlds, pretrain
from attnroute.train.trainer import inputs_of

ROOT = Path(__file__).resolve().parent
HEADS = (1, 2, 4, 8, 16)
CLASSES, ENDPOINTS = 48, 100
SHOWN_CALLS = 3
"""A cell of the next scrape counts as having shown its time from so many calls on."""


def right_choices(router: Router, worlds: list[World]) -> float:
    """Share of (scrape, class) whose fastest endpoint by S, among those that showed their time, is
    within 5 % of the fastest shown."""
    right = total = 0
    for world in worlds:
        for sample in world.samples:
            with torch.no_grad():
                cost_s = router(**inputs_of(sample)).cost_s.numpy()
            shown = sample.calls >= SHOWN_CALLS
            times_s = np.where(shown, sample.x_s / np.maximum(sample.calls, 1), np.inf)
            rows = np.flatnonzero(shown.sum(axis=1) >= 2)
            chosen = np.where(shown, cost_s, np.inf)[rows].argmin(axis=1)
            right += int((times_s[rows, chosen] <= 1.05 * times_s[rows].min(axis=1)).sum())
            total += len(rows)
    return right / max(1, total)


def run_times_ms(router: Router, runs: int) -> tuple[float, float]:
    """Median and P90 of one scoring run."""
    score = graph_runner(export_graphs(router)["score.onnx"])
    inputs = random_inputs(CLASSES, ENDPOINTS, seed=1, masked="none")
    with torch.no_grad():
        key, value = router.encode_endpoints(torch.from_numpy(inputs["endpoint"]))
        query = router.encode_classes(torch.from_numpy(inputs["request_class"]))
    known = {**inputs, "key": key.numpy(), "value": value.numpy(), "query": query.numpy()}
    feed = {name: known[name] for name in GRAPHS["score.onnx"][0]}
    taken = []
    for _ in range(runs + 10):
        began = time.perf_counter()
        score(feed)
        taken.append(1e3 * (time.perf_counter() - began))
    taken = taken[10:]
    return statistics.median(taken), sorted(taken)[int(0.9 * len(taken))]


def main() -> int:
    """Trains, measures, writes."""
    defaults = PretrainConfig()
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--heads", default=",".join(map(str, HEADS)))
    parser.add_argument("--worlds", type=int, default=defaults.worlds)
    parser.add_argument("--seconds", type=float, default=defaults.duration_s)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--runs", type=int, default=200, help="scoring runs that are timed")
    parser.add_argument("--cache", type=Path, default=ROOT.parent / ".cache" / "worlds")
    parser.add_argument("--page", type=Path, default=ROOT / "heads.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = PretrainConfig(worlds=options.worlds, duration_s=options.seconds, steps=options.steps)
    worlds = load_worlds(options.cache, config)
    held = [one for one in worlds if one.seed % config.held_out == config.held_out - 1]
    table = right_choices(Router(), held)
    rows = []
    for heads in map(int, options.heads.split(",")):
        router, _ = pretrain(worlds, replace(config, heads=heads))
        gain = statistics.fmean(gain_over(router, held).values())
        right = right_choices(router, held)
        size = sum(value.numel() for value in router.parameters())
        middle, high = run_times_ms(router, options.runs)
        rows.append(f"| {heads} | {size} | {gain:.4f} | {right:.1%} | {middle:.2f} | {high:.2f} |")
        print(rows[-1], file=sys.stderr)
    text = [
        "# Heads",
        "",
        (
            f"Trained on {len(worlds) - len(held)} random worlds, {config.steps} steps, and judged "
            f"on {len(held)} others (`python -m benchmarks.heads --worlds {config.worlds} "
            f"--steps {config.steps}`). *Gain*: nats a call over the table. *Right*: classes "
            f"whose fastest endpoint it names, within 5 %; the table {table:.1%}. *Run*: one "
            f"scoring of {CLASSES} classes on {ENDPOINTS} endpoints, one thread. The default is "
            f"{RouterConfig().heads}."
        ),
        "",
        "| heads | numbers | gain | right | run, median ms | P90 ms |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    options.page.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
