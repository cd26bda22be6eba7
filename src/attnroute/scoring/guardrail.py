"""What stands between a model and the calls: its gate, checks of its values, and the blend.

A model is judged on windows it has not seen, in every sidecar, against the table: its loss and the
table's on the same calls, before either learns from them. Better than the table and its weight goes
to 1, worse and it goes to 0 within one window. A hold-out would not do: both arms share the queues.
The model's raw output is what is judged, never the blend, so that a weight of 0 can rise again.

Pure functions and one small state; no clock. Formulas and examples: docs/model.md, "Gate".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "Gate",
    "GateParameters",
    "GateStep",
    "blend_costs",
    "blend_probabilities",
    "gate_weight",
    "quasi_loss",
    "repaired_costs",
    "repaired_probabilities",
    "table_probabilities",
]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GateParameters:
    """Constants of the gate."""

    calls_min: float = 50.0
    """Windows are joined until they hold so many calls."""
    memory: float = 0.6
    """Weight of the old value of gd in a step."""
    loss_max: float = -1.0
    gain_max: float = 0.02
    """Bounds of what one step may count: a fault is felt at once, a gain has to be earned."""
    scale: float = 0.002
    """w = sigmoid((gd + scale)/scale)."""
    conflict_factor: float = 4.0
    conflict_traffic: float = 0.2
    """A scorer that differs from the table by more than the factor on more than this share of the
    calls is in conflict."""
    conflict_weight_max: float = 0.2
    """Its weight at most, then."""
    conflict_steps: int = 5
    """Steps in a row with a gain that end it."""


@dataclass(frozen=True)
class GateStep:
    """What one step found."""

    clipped: float
    """The table's loss less the model's on the joined windows, within bounds."""
    calls: float


def quasi_loss(calls: Array, x_s: Array, cost_s: Array) -> float:
    """Gamma quasi-likelihood of the mean, per call, as a loss: sum(x/S + cnt log S)/sum cnt.

    calls, x_s, cost_s: [n], of cells with calls. Not finite where a cost is not positive.
    """
    with np.errstate(all="ignore"):
        terms = x_s / cost_s + calls * np.log(cost_s)
        return float(terms.sum() / calls.sum())


def gate_weight(gd: float, parameters: GateParameters = GateParameters()) -> float:
    """w of a gate value, in [0, 1]."""
    scaled = (gd + parameters.scale) / parameters.scale
    # Either form alone would overflow on one side.
    if scaled >= 0:
        return 1.0 / (1.0 + math.exp(-scaled))
    return math.exp(max(scaled, -700.0)) / (1.0 + math.exp(max(scaled, -700.0)))


class Gate:
    """How far one model is trusted at one service.

    start: gd that shadow reached; 0 where a bundle is found at start and serves at once.
    """

    def __init__(self, start: float = 0.0, parameters: GateParameters = GateParameters()) -> None:
        self.gd = start
        self.steps = 0
        self.parameters = parameters
        self._calls = 0.0
        self._table = 0.0
        self._model = 0.0

    @property
    def weight(self) -> float:
        """w, in [0, 1]."""
        return gate_weight(self.gd, self.parameters)

    def observe(
        self, calls: Array, x_s: Array, table_cost_s: Array, cost_s: Array
    ) -> GateStep | None:
        """Takes in a window before it is learned from; returns the step it completed, if it did.

        calls, x_s: [n], of its cells; table_cost_s, cost_s: [n], S0 and the raw S that were in
        force when the window began.
        """
        p = self.parameters
        seen = calls > 0
        calls, x_s = calls[seen], x_s[seen]
        table_cost_s, cost_s = table_cost_s[seen], cost_s[seen]
        if len(calls) > 0:
            total = float(calls.sum())
            self._calls += total
            self._table += quasi_loss(calls, x_s, table_cost_s) * total
            self._model += quasi_loss(calls, x_s, cost_s) * total
        if self._calls < p.calls_min:
            return None
        gain = (self._table - self._model) / self._calls
        clipped = min(max(gain, p.loss_max), p.gain_max) if math.isfinite(gain) else p.loss_max
        step = GateStep(clipped, self._calls)
        self.gd = p.memory * self.gd + (1.0 - p.memory) * clipped
        self.steps += 1
        self._calls = self._table = self._model = 0.0
        return step


def repaired_costs(cost_s: Array, table_cost_s: Array) -> tuple[Array, int]:
    """S with the table's value wherever it cannot be a time, and how many were replaced."""
    good = np.isfinite(cost_s) & (cost_s > 0)
    return np.where(good, cost_s, table_cost_s), int((~good).sum())


def repaired_probabilities(probability: Array, instead: Array) -> tuple[Array, int]:
    """P, [C, E], with the row of `instead` wherever an entry is not finite or negative, or a row
    has no sum; every row sums to 1. Returns it and how many rows were replaced."""
    with np.errstate(all="ignore"):
        totals = probability.sum(axis=1)
        good = np.isfinite(probability).all(axis=1) & (probability >= 0).all(axis=1)
        good &= np.isfinite(totals) & (totals > 0)
        normal = probability / totals[:, None]
    return np.where(good[:, None], normal, instead), int((~good).sum())


def table_probabilities(rtt_s: Array, table_cost_s: Array, usable: npt.NDArray[np.bool_]) -> Array:
    """P_0 where the fleet says no split: softmax(-1.5 ln(rtt + S0)) over usable endpoints, [C, E].

    rtt_s: [E]; usable: [E]. Where none is usable, over all.
    """
    if table_cost_s.size == 0:
        return np.zeros_like(table_cost_s)
    mask = usable if usable.any() else np.ones_like(usable)
    times_s = np.maximum(rtt_s + table_cost_s, 1e-9)
    # (rtt + S0)^-1.5, over the row's least time so that no row sinks to 0.
    shares = (times_s / times_s.min(axis=1, keepdims=True)) ** -1.5 * mask
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def blend_costs(table_cost_s: Array, costs_s: Sequence[Array], shares: Sequence[Array]) -> Array:
    """S = exp(sum_j a_j ln S_j), the table having what is left of 1.

    costs_s: per scorer, repaired, [C, E]; shares: a_j, [C, E] or a number.
    """
    table_log = np.log(table_cost_s)
    log_s = table_log
    for cost_s, share in zip(costs_s, shares, strict=True):
        log_s = log_s + share * (np.log(cost_s) - table_log)
    return np.asarray(np.exp(log_s))


def blend_probabilities(
    table_probability: Array, probabilities: Sequence[Array], shares: Sequence[Array]
) -> Array:
    """P = sum_j a_j P_j with a_j averaged over endpoints, [C, E]; rows sum to 1.

    probabilities: per scorer, repaired; shares: a_j, [C, E] or a number.
    """
    blended = table_probability
    for probability, share in zip(probabilities, shares, strict=True):
        mean_share = np.mean(np.broadcast_to(share, probability.shape), axis=1, keepdims=True)
        blended = blended + mean_share * (probability - table_probability)
    blended = np.maximum(blended, 0.0)
    return np.asarray(blended / blended.sum(axis=1, keepdims=True))
