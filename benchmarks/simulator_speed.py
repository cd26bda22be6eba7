"""Calls that the simulator plays in a second on one core: `python -m benchmarks.simulator_speed`.

Prints one line a run: calls, seconds of wall time, calls per second of wall and of CPU time. On a
machine that does other things the two differ; only a quiet one says anything about wall time.

`learned` as argument plays world a with that balancer: each second the windows of every sidecar are
taken and scores published, made up once, so that what is measured is the simulator and the picker,
and not what Python computes scores with.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnroute.dataplane import Simulation, classes, simulate
from attnroute.sim.run import parse_balancer
from attnroute.sim.scenario import LoadedScenario, load_scenario

SCENARIO = Path(__file__).parents[1] / "configs" / "scenarios" / "a-homogeneous.yaml"
RUNS = 5
SECOND_NS = 1_000_000_000


def play(scenario: LoadedScenario, name: str, seed: int) -> dict[str, Any]:
    """One run; its outcome."""
    balancer = parse_balancer(name)
    if balancer.learning is None:
        outcome: dict[str, Any] = json.loads(simulate(scenario.compiled, balancer.config, seed))
        return outcome
    simulation = Simulation(scenario.compiled, balancer.config, seed)
    sidecars = json.loads(scenario.compiled)["sidecars"]["count"]
    now_ns = SECOND_NS
    while simulation.run_until(now_ns):
        for sidecar in range(sidecars):
            publish(simulation, sidecar, sidecars)
        now_ns += SECOND_NS
    result: dict[str, Any] = json.loads(simulation.finish())
    return result


def publish(simulation: Simulation, sidecar: int, sidecars: int) -> None:
    """Takes a window and publishes 20 ms for every class on every endpoint."""
    endpoint_epoch, class_epoch, *_ = simulation.take_window(sidecar)
    _, known = classes(simulation.classes(sidecar))
    endpoints = len(json.loads(simulation.endpoints(sidecar)[1]))
    cost_s = np.full((len(known), endpoints), 0.02, dtype=np.float32)
    each = np.ones(endpoints, dtype=np.float32)
    simulation.publish_scores(
        sidecar,
        endpoint_epoch=endpoint_epoch,
        class_epoch=class_epoch,
        cost_s=cost_s,
        table_cost_s=cost_s,
        spread=cost_s,
        probability=np.full_like(cost_s, 1 / endpoints),
        mean_service_s=each * np.float32(0.02),
        concurrency=each,
        sidecars=sidecars,
        model="",
    )


def main() -> None:
    """Plays world a, one seed after another."""
    scenario = load_scenario(SCENARIO)
    name = sys.argv[1] if len(sys.argv) > 1 else "least_request"
    for seed in range(RUNS):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        outcome = play(scenario, name, seed)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        # Calls of the warm-up are played, too.
        calls = sum(second["calls"] for second in outcome["timeline"])
        print(
            f"seed {seed}: {calls} calls in {wall_s:.2f} s, "
            f"{calls / wall_s:,.0f} calls/s of wall time, {calls / cpu_s:,.0f} of CPU time"
        )


if __name__ == "__main__":
    main()
