"""No balancer that learns from latency or probes may give up capacity that is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnroute.dataplane import simulate
from attnroute.sim.run import parse_balancer
from attnroute.sim.scenario import load_scenario

SCENARIOS = Path(__file__).parents[2] / "configs" / "scenarios"
FULL_SCAN = "least_request:choice_count=all"

CASES = [
    # (scenario, sidecars, balancer, bound of the mean against the full scan)
    *(
        ("three-endpoints", 2, f"prequal:probe_source={source}:hot_quantile={quantile}", 1.5)
        for source in ("reports", "endpoints")
        for quantile in (0, 0.84)
    ),
    ("a-homogeneous", 10, "prequal", 1.7),
    ("a-homogeneous", 10, "prequal:probe_source=endpoints", 1.05),
    ("a-homogeneous", 10, "prequal:probe_source=endpoints:hot_quantile=0.84", 1.8),
    ("a-homogeneous", 1, "latency_observation", 1.6),
    ("a-homogeneous", 10, "latency_observation", 1.2),
    ("three-endpoints", 2, "latency_observation", 1.5),
]


def mean_ms(directory: Path, name: str, sidecars: int, balancer: str) -> float:
    """Over 20 s after 20 s, of one seed: a collapse shows within seconds."""
    text = (SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8")
    for key, value in {"sidecars": sidecars, "warmup": "20s", "duration": "20s"}.items():
        text, found = re.subn(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
        assert found == 1, key
    file = directory / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    scenario = load_scenario(file)
    outcome = json.loads(simulate(scenario.compiled, parse_balancer(balancer).config, 1))
    return float(outcome["mean_ms"])


@pytest.mark.parametrize(("scenario", "sidecars", "balancer", "bound"), CASES)
def test_no_collapse(
    tmp_path: Path, scenario: str, sidecars: int, balancer: str, bound: float
) -> None:
    best = mean_ms(tmp_path, scenario, sidecars, FULL_SCAN)
    assert mean_ms(tmp_path, scenario, sidecars, balancer) <= bound * best
