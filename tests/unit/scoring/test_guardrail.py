"""The gate and the blend against known answers, and against every kind of broken output."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnroute.scoring.guardrail import (
    Gate,
    blend_costs,
    blend_probabilities,
    gate_weight,
    quasi_loss,
    repaired_costs,
    repaired_probabilities,
    table_probabilities,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vectors.json"
EXAMPLES = {example["name"]: example for example in json.loads(GOLDEN.read_bytes())["examples"]}


def array(values: Sequence[float | None]) -> Any:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def test_seven_steps() -> None:
    example = EXAMPLES["gate, seven steps"]
    inputs, expected = example["inputs"], example["expected"]
    calls, x_s, table = array(inputs["cnt"]), array(inputs["x"]), array(inputs["S0"])
    gate = Gate(inputs["gd_start"])
    assert gate.weight == pytest.approx(expected["w_start"], abs=1e-6)
    assert quasi_loss(calls, x_s, table) == pytest.approx(expected["QL_S0"], rel=1e-7)
    first = array(inputs["S_per_step"][0])
    assert quasi_loss(calls, x_s, first) == pytest.approx(expected["QL_S_first"], rel=1e-7)
    for raw, wanted in zip(inputs["S_per_step"], expected["steps"], strict=True):
        step = gate.observe(calls, x_s, table, array(raw))
        assert step is not None
        assert gate.weight == pytest.approx(wanted["w"], abs=1e-6)
        if "gd" in wanted:
            assert step.clipped == pytest.approx(wanted["clipped"], abs=1e-6)
            assert gate.gd == pytest.approx(wanted["gd"], abs=1e-6)
    assert gate.steps == 7


def test_joined_windows() -> None:
    example = EXAMPLES["gate, joined windows"]
    inputs = example["inputs"]
    gate = Gate(inputs["gd_start"])
    for window, wanted in zip(inputs["windows"], example["expected"]["after_window"], strict=True):
        step = gate.observe(
            array(window["cnt"]), array(window["x"]), array(inputs["S0"]), array(inputs["S"])
        )
        assert (step is not None) is wanted["step"]
        if step is not None:
            assert step.clipped == pytest.approx(wanted["clipped"], abs=1e-6)
        assert gate.gd == pytest.approx(wanted["gd"], abs=1e-6)
        assert gate.weight == pytest.approx(wanted["w"], abs=1e-6)


def test_joined_windows_count_each_with_its_own_costs() -> None:
    gate, calls = Gate(), array([30])
    assert gate.observe(calls, array([0.3]), array([0.01]), array([0.02])) is None
    step = gate.observe(calls, array([0.9]), array([0.03]), array([0.03]))
    # Only the first window differs: 0.3/0.01 - 0.3/0.02 + 30 ln(1/2) = 15 - 20.79, over 60 calls.
    assert step is not None
    assert step.clipped == pytest.approx((15 + 30 * math.log(0.5)) / 60)
    assert step.calls == 60


def test_the_blend() -> None:
    example = EXAMPLES["blend of S and P"]
    inputs, expected = example["inputs"], example["expected"]
    table = array(inputs["S0"])[None]
    raw = array(inputs["S"])[None]
    usable = np.ones(4, dtype=bool)
    p_0 = table_probabilities(array(inputs["rtt"]), table, usable)
    cost, replaced = repaired_costs(raw, table)
    assert replaced == 1
    np.testing.assert_allclose(p_0[0], expected["P_0"], rtol=1e-6)
    share = np.array(inputs["w"])
    np.testing.assert_allclose(blend_costs(table, [cost], [share])[0], expected["S"], rtol=1e-6)
    blended = blend_probabilities(p_0, [array(inputs["P"])[None]], [share])
    np.testing.assert_allclose(blended[0], expected["P"], rtol=1e-6)


def test_without_scorers_the_table_stands() -> None:
    table = np.array([[0.01, 0.02]])
    np.testing.assert_allclose(blend_costs(table, [], []), table, rtol=1e-12)
    np.testing.assert_allclose(
        blend_probabilities(np.array([[0.25, 0.75]]), [], []), [[0.25, 0.75]]
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_cost_that_is_no_time_is_the_worst_loss_and_never_served(bad: float) -> None:
    gate = Gate(0.02)
    step = gate.observe(array([60]), array([0.6]), array([0.01]), array([bad]))
    assert step is not None
    assert step.clipped == -1.0
    assert gate.weight < 1e-30
    repaired, replaced = repaired_costs(np.array([[bad, 0.02]]), np.array([[0.01, 0.01]]))
    assert replaced == 1
    assert repaired.tolist() == [[0.01, 0.02]]


def test_a_cell_without_calls_does_not_judge() -> None:
    gate = Gate()
    step = gate.observe(
        array([60, 0]), array([0.6, 0]), array([0.01, 0.01]), array([0.01, math.nan])
    )
    assert step is not None
    assert step.clipped == 0.0


def test_a_window_without_calls_changes_nothing() -> None:
    gate = Gate(0.01)
    assert gate.observe(array([]), array([]), array([]), array([])) is None
    assert gate.observe(array([0]), array([0]), array([0.01]), array([math.nan])) is None
    assert gate.gd == 0.01


def test_the_weight_rises_again() -> None:
    gate = Gate()
    gate.observe(array([60]), array([0.6]), array([0.01]), array([math.nan]))
    assert gate.weight < 1e-30
    steps = 0
    while gate.weight < 0.9:
        gate.observe(array([60]), array([0.6]), array([0.012]), array([0.01]))
        steps += 1
        assert steps < 20
    assert steps > 3


def test_the_weight_has_no_overflow() -> None:
    assert gate_weight(-1e9) == pytest.approx(0.0)
    assert gate_weight(1e9) == 1.0
    assert gate_weight(-0.002) == 0.5


@pytest.mark.parametrize(
    "row", [[math.nan, 1.0], [math.inf, 1.0], [-0.1, 1.1], [0.0, 0.0], [1e308, 1e308]]
)
def test_a_broken_row_of_probabilities_is_replaced(row: list[float]) -> None:
    probability = np.array([row, [3.0, 1.0]])
    instead = np.array([[0.5, 0.5], [0.5, 0.5]])
    repaired, replaced = repaired_probabilities(probability, instead)
    assert replaced == 1
    np.testing.assert_allclose(repaired, [[0.5, 0.5], [0.75, 0.25]])


def test_only_usable_endpoints_have_a_probability() -> None:
    costs = np.array([[0.01, 0.02, 0.01]])
    usable = np.array([False, True, True])
    found = table_probabilities(np.zeros(3), costs, usable)
    assert found[0, 0] == 0.0
    assert found.sum() == pytest.approx(1.0)
    assert found[0, 2] / found[0, 1] == pytest.approx(2**1.5)
    none = table_probabilities(np.zeros(3), costs, np.zeros(3, dtype=bool))
    assert none.sum() == pytest.approx(1.0)
    assert (none > 0).all()
