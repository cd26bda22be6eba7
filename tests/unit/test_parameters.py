"""Keys of learning reach the code that goes by them, and their defaults are those of the code."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.support.windows import service_window

from attnroute.errors import PolicyError, TrainerFileError
from attnroute.features.split import SplitParameters
from attnroute.features.table import ConcurrencyParameters, TableParameters
from attnroute.parameters import gate_parameters, split_parameters, table_parameters
from attnroute.policy.balancers import Learned
from attnroute.policy.compile import compile_policy
from attnroute.policy.learning import GateKeys, SplitKeys, TableKeys
from attnroute.policy.load import LoadedPolicy, effective_yaml, load_policy
from attnroute.policy.trainer import load_trainer
from attnroute.scoring.guardrail import GateParameters
from attnroute.scoring.service import Layout, ServiceScores

POLICY = """\
listeners: [{{mode: explicit, address: "127.0.0.1:0"}}]
services:
  cart:
    endpoints: {{static: ["10.0.0.1:1", "10.0.0.2:1"]}}
    balancer: {{type: learned, {keys}}}
"""
TABLE = (
    "table: {decay: 4s, first_mean: 50ms, cell_prior: 2, kind_prior: none, endpoint_prior: 1.5, "
    "mean_prior: 7, class_floor: 0.05, cell_floor: 0.2, young_for: 1m, young_calls: 9, "
    "young_factor: 2, concurrency: {windows: 30, min_windows: 3, min_calls: 5, slack: 1.5, "
    "saturated: 0.8, quiet: 0.7}}"
)
GATE = (
    "gate: {min_calls: 10, memory: 0.5, loss_max: 2, gain_max: 0.1, scale: 0.01, "
    "conflict_factor: 3, conflict_traffic: 0.5, conflict_weight: 0.1, conflict_steps: 9}"
)


def load(tmp_path: Path, keys: str) -> LoadedPolicy:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(keys=keys))
    return load_policy(path)


def learned(loaded: LoadedPolicy) -> Learned:
    balancer = loaded.policy.services["cart"].balancer
    assert isinstance(balancer, Learned)
    return balancer


def test_defaults_of_keys_are_those_of_the_code() -> None:
    assert table_parameters(TableKeys()) == TableParameters()
    assert gate_parameters(GateKeys()) == GateParameters()
    assert split_parameters(SplitKeys()) == SplitParameters()
    assert split_parameters(None) is None


def test_every_constant_has_a_key(tmp_path: Path) -> None:
    balancer = learned(load(tmp_path, f"{TABLE}, {GATE}"))
    for changed, default in (
        (table_parameters(balancer.table), TableParameters()),
        (table_parameters(balancer.table).concurrency, ConcurrencyParameters()),
        (gate_parameters(balancer.gate), GateParameters()),
    ):
        same = [
            one.name
            for one in fields(default)
            if getattr(changed, one.name) == getattr(default, one.name)
        ]
        assert same == []


def test_the_keys_stay_on_the_control_side_and_are_shown(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"{TABLE}, {GATE}")
    sent = json.loads(compile_policy(loaded))["services"][0]["balancer"]
    assert not sent.keys() & {"table", "gate"}
    shown = effective_yaml(loaded.policy)
    assert "kind_prior: none" in shown
    (tmp_path / "again.yaml").write_text(shown)
    assert learned(load_policy(tmp_path / "again.yaml")) == learned(loaded)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("table: {kind_prior: 0}", "above 0"),
        ("table: {kind_prior: all}", "or `none`"),
        ("table: {decay: 1ms}", "expected a duration from"),
        ("table: {young_factor: 0.5}", "greater than or equal to 1|at least 1|1 to"),
        ("gate: {memory: 1}", "less than 1|below 1"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        load(tmp_path, keys)
    assert f"{tmp_path / 'policy.yaml'}:5:" in str(caught.value)


def test_the_trainer_has_the_table_and_the_split(tmp_path: Path) -> None:
    path = tmp_path / "trainer.yaml"
    path.write_text("fleet: {table: {decay: 4s}, split: {iterations: 10}}\n")
    exchange = load_trainer(path).file.fleet
    assert table_parameters(exchange.table) == TableParameters(decay_s=4.0)
    assert split_parameters(exchange.split) == SplitParameters(iterations=10)
    path.write_text("fleet: {split: {}}\n")
    assert load_trainer(path).file.fleet.split == SplitKeys()
    path.write_text("fleet: {split: {load_max: 1}}\n")
    with pytest.raises(TrainerFileError, match=r"trainer\.yaml:1:"):
        load_trainer(path)


def test_a_reload_changes_constants_and_keeps_what_was_learned() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    cells = {("/a", "10.0.0.1:1"): (4.0, 0.4), ("/a", "10.0.0.2:1"): (4.0, 0.04)}
    window = service_window(cells)
    layout = Layout(1, 1, window.classes, window.endpoints, (1, 2))
    service.observe(layout, window, np.ones(2, dtype=bool), 40.0)
    before = service.scores(40.0)
    service.follow(TableParameters(cell_prior_calls=0.001, decay_s=1e9), GateParameters(scale=1.0))
    after = service.scores(41.0)
    assert before is not None
    assert after is not None
    # Nothing is leaned on any more, and nothing decays.
    np.testing.assert_allclose(after.table_cost_s[0], [0.1, 0.01], rtol=0.01)
    assert before.table_cost_s[0, 0] < 0.095
    assert service.arbiter.parameters.scale == 1.0


def test_learning_concurrency_otherwise_starts_anew() -> None:
    service = ServiceScores(sidecars=1, now_s=0.0)
    learner = service._learner
    service.follow(TableParameters(decay_s=1.0), GateParameters())
    assert service._learner is learner
    shorter = ConcurrencyParameters(windows=10)
    service.follow(TableParameters(concurrency=shorter), GateParameters())
    assert service._learner.parameters == shorter
    assert timedelta(seconds=10) == TableKeys().decay
