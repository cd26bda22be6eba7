"""Calls that the simulator plays in a second on one core: `python -m benchmarks.simulator_speed`.

Prints one line a run: calls, seconds of wall time, calls per second of wall and of CPU time. On a
machine that does other things the two differ; only a quiet one says anything about wall time.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from attnroute.dataplane import simulate
from attnroute.sim.run import parse_balancer
from attnroute.sim.scenario import load_scenario

SCENARIO = Path(__file__).parents[1] / "configs" / "scenarios" / "a-homogeneous.yaml"
RUNS = 5


def main() -> None:
    """Plays world a with `least_request`, one seed after another."""
    scenario = load_scenario(SCENARIO)
    balancer = parse_balancer("least_request")
    for seed in range(RUNS):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        outcome = json.loads(simulate(scenario.compiled, balancer.config, seed))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        # Calls of the warm-up are played, too.
        calls = sum(second["calls"] for second in outcome["timeline"])
        print(
            f"seed {seed}: {calls} calls in {wall_s:.2f} s, "
            f"{calls / wall_s:,.0f} calls/s of wall time, {calls / cpu_s:,.0f} of CPU time"
        )


if __name__ == "__main__":
    main()
