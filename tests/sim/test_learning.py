"""`learned` in virtual time: it learns, alone and with others, and what breaks on the way."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from tests.support.models import write_small

from attnroute.errors import SimulationError
from attnroute.sim.learning import Learning
from attnroute.sim.run import Task, parse_balancer, play_task
from attnroute.sim.scenario import LoadedScenario, load_scenario

FULL_SCAN = "least_request:choice_count=all"

WORLD = """\
sidecars: 2
endpoints: [{count: 8, workers: 2}]
request_classes: {methods: 4, message_sizes: [{name: small, cost: 0.5}, {name: large, cost: 2}]}
service_time:
  mean: 20ms
  lognormal: {sigma: 0.8}
  affinity: {groups: 4, factor: 6}
network: {rtt: 300us}
"""


def world(folder: Path, rest: str) -> LoadedScenario:
    file = folder / "world.yaml"
    file.write_text(WORLD + rest, encoding="utf-8")
    return load_scenario(file)


def play(scenario: LoadedScenario, balancer: str, seed: int = 0) -> dict[str, Any]:
    return play_task(Task(scenario, parse_balancer(balancer), seed))


def mean_ms(scenario: LoadedScenario, balancer: str, seeds: int = 3) -> float:
    return statistics.fmean(play(scenario, balancer, seed)["mean_ms"] for seed in range(seeds))


def test_it_learns_who_is_good_at_what(tmp_path: Path) -> None:
    scenario = world(tmp_path, "load: {fraction: 0.8}\nwarmup: 20s\nduration: 20s\n")
    blind = mean_ms(scenario, FULL_SCAN)
    # Measured: 0.18 to 0.22; the oracle has 0.17.
    for balancer in ("learned", "learned:fleet=false", "learned:reports=false"):
        assert mean_ms(scenario, balancer) < 0.5 * blind, balancer


def test_it_does_not_collapse_from_an_empty_table_at_overload(tmp_path: Path) -> None:
    rest = "load: {fraction: 1.1}\nallow_overload: true\nwarmup: 10s\nduration: 20s\n"
    scenario = world(tmp_path, rest)
    assert mean_ms(scenario, "learned") < 2 * mean_ms(scenario, "oracle")
    assert mean_ms(scenario, FULL_SCAN) > 5 * mean_ms(scenario, "oracle")


def test_one_seed_is_one_result(tmp_path: Path) -> None:
    scenario = world(tmp_path, "load: {fraction: 0.7}\nwarmup: 1s\nduration: 5s\n")
    first = play(scenario, "learned", 5)
    assert first == play(scenario, "learned", 5)
    assert first["learning"] == {
        "concurrency_min": 1.0, "concurrency_max": 1.0, "model_weight": None,
    }  # fmt: skip
    assert first["picks"] != play(scenario, "learned", 6)["picks"]
    assert first["picks"] != play(scenario, "learned:fleet=false", 5)["picks"]
    assert first["picks"] != play(scenario, "learned:reports=false", 5)["picks"]


def test_sidecars_go_on_without_a_trainer_and_find_it_again(tmp_path: Path) -> None:
    rest = "load: {fraction: 0.8}\nwarmup: 15s\nduration: 25s\n"
    down = "events: [{at: 15s, trainer_down: {for: 10s}}]\n"
    steady = mean_ms(world(tmp_path, rest), "learned")
    scenario = world(tmp_path, rest + down)
    assert mean_ms(scenario, "learned") < 1.3 * steady
    outcome = play(scenario, "learned")
    assert outcome["errors"] == 0
    # The picks differ only from the moment at which the trainer goes.
    assert outcome["picks"] != play(world(tmp_path, rest), "learned")["picks"]


@pytest.mark.parametrize("fault", ["random", "permuted", "inverted", "nan", "collapsing"])
def test_a_model_that_lies_is_not_believed_for_long(tmp_path: Path, fault: str) -> None:
    rest = "load: {fraction: 0.8}\nwarmup: 15s\nduration: 15s\n"
    honest = play(world(tmp_path, rest), "learned:model=true")
    # No better and no worse than the table: where a gate starts.
    assert honest["learning"]["model_weight"] == pytest.approx(0.731, abs=1e-3)
    lying = world(tmp_path, rest + f"events: [{{at: 15s, model_fault: {{fault: {fault}}}}}]\n")
    outcome = play(lying, "learned:model=true")
    assert outcome["learning"]["model_weight"] < 0.05
    assert outcome["mean_ms"] < 1.3 * honest["mean_ms"]


def test_a_bundle_scores_beside_the_table_and_is_gated(tmp_path: Path) -> None:
    rest = "load: {fraction: 0.8}\nwarmup: 10s\nduration: 10s\n"
    table = play(world(tmp_path, rest), "learned")
    same = play(world(tmp_path, rest), f"learned:model={write_small(tmp_path)}")
    assert same["picks"] == table["picks"]
    assert same["learning"]["model_weight"] == pytest.approx(0.731, abs=1e-3)
    # One that says that endpoints are equal, where they differ by a factor of 6.
    wrong = play(
        world(tmp_path, rest), f"learned:model={write_small(tmp_path, '1.0.1', gain=-1.0)}"
    )
    assert wrong["learning"]["model_weight"] < 0.05
    lying = world(tmp_path, rest + "events: [{at: 5s, model_fault: {fault: inverted}}]\n")
    outcome = play(lying, f"learned:model={tmp_path / 'default' / '1.0.0'}")
    assert outcome["learning"]["model_weight"] < 0.05
    with pytest.raises(SimulationError, match=r"`model`: `.*` holds no `manifest.json`"):
        parse_balancer(f"learned:model={tmp_path}")


def test_settings_of_the_learning_are_checked() -> None:
    spec = parse_balancer("learned:fleet=false:model=true:overload_split=true")
    assert spec.learning == Learning(fleet=False, reports=True, model=True)
    assert json.loads(spec.config)["overload_split"] is True
    with pytest.raises(SimulationError, match="`fleet`: found `maybe`, expected `true` or `false`"):
        parse_balancer("learned:fleet=maybe")
    with pytest.raises(SimulationError, match="it has no setting `fleet`"):
        parse_balancer("least_request:fleet=false")
