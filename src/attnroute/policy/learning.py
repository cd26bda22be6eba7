"""Constants of learning, as the policy and the trainer's file write them: those of the table, which
both have, of the gate and of the split. What each means stands in docs/model.md."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from attnroute.policy.fields import Parsed, Strict, duration

__all__ = ["GateKeys", "LearnedConcurrency", "SplitKeys", "TableKeys"]

_MS = timedelta(milliseconds=1)
_S = timedelta(seconds=1)

_PRIOR = "expected a number of calls above 0 and up to 1000000, or `none`"


def _prior(value: object) -> float:
    if value == "none":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise ValueError(_PRIOR)
    return float(value)


def _prior_text(value: float) -> float | str:
    return "none" if math.isinf(value) else value


_PRIOR_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000},
        {"type": "string", "const": "none"},
    ]
}

Calls = Annotated[float, Field(gt=0, le=1e6)]
Prior = Annotated[float, Parsed(_prior, _PRIOR_SCHEMA, _prior_text)]
Part = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[timedelta, duration(100 * _MS, timedelta(hours=1))]
Young = Annotated[timedelta, duration(timedelta(0), timedelta(hours=1))]
Start = Annotated[timedelta, duration(_MS, timedelta(hours=1))]


class LearnedConcurrency(Strict):
    """How the calls that an endpoint works on at a time are learned, where nobody tells them."""

    windows: int = Field(default=120, ge=10, le=3_600, description="Windows that are kept.")
    min_windows: int = Field(
        default=6, ge=1, le=3_600, description="Windows before which 1 is assumed."
    )
    min_calls: Calls = Field(default=20.0, description="Windows are joined until they hold these.")
    slack: float = Field(
        default=1.25,
        ge=1,
        le=10,
        description="Up to so many times the idle latency a window counts as unhurried.",
    )
    saturated: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Reported utilization beyond which a window says nothing.",
    )
    quiet: float = Field(
        default=0.85,
        gt=0,
        le=1,
        description="The same where rates are reported, too: up to there little is waiting.",
    )


class TableKeys(Strict):
    """The table of service times. A sidecar and its trainer each have their own: keep them alike,
    since both decay the same sums."""

    decay: Decay = Field(default=10 * _S, description="Time in which what was measured fades.")
    first_mean: Start = Field(
        default=20 * _MS, description="Mean service time before anything was measured."
    )
    cell_prior: Calls = Field(
        default=8.0,
        description="So many calls' worth a class at an endpoint leans on the class, the endpoint "
        "and the kind.",
    )
    kind_prior: Prior = Field(
        default=2.0,
        description="So many calls' worth the ratio of an endpoint for a kind leans on 1; `none`: "
        "it is 1.",
    )
    endpoint_prior: Prior = Field(
        default=5.0,
        description="So many calls' worth the factor of an endpoint leans on 1; `none`: it is 1.",
    )
    mean_prior: Calls = Field(
        default=5.0,
        description="So many calls' worth the mean of an endpoint leans on the fleet's.",
    )
    class_floor: Part = Field(
        default=0.01, description="Share of the fleet's mean below which no class's mean falls."
    )
    cell_floor: Part = Field(
        default=0.05, description="Share of the class's mean below which no endpoint's time falls."
    )
    young_for: Young = Field(
        default=30 * _S, description="Time for which an endpoint is new at most."
    )
    young_calls: float = Field(
        default=3.0, ge=0, le=1e6, description="Decayed calls from which on it is not new any more."
    )
    young_factor: float = Field(
        default=3.0,
        ge=1,
        le=1_000,
        description="So many times slower a new endpoint is taken to be; 1 switches it off.",
    )
    concurrency: LearnedConcurrency = Field(
        default=LearnedConcurrency(),
        description="How the calls that an endpoint works on at a time are learned.",
    )


class GateKeys(Strict):
    """How far a model is trusted beside the table."""

    min_calls: Calls = Field(default=50.0, description="Windows are joined until they hold these.")
    memory: float = Field(
        default=0.6, ge=0, lt=1, description="Weight of what was before in each step."
    )
    loss_max: float = Field(
        default=1.0, gt=0, le=100, description="Loss that one step may count at most, in nats."
    )
    gain_max: float = Field(
        default=0.02, gt=0, le=100, description="Gain that one step may count at most."
    )
    scale: float = Field(
        default=0.002, gt=0, le=100, description="Gain over which the weight goes up."
    )
    conflict_factor: float = Field(
        default=4.0, gt=1, le=1_000, description="Times that a scorer may differ from the table."
    )
    conflict_traffic: Part = Field(
        default=0.2, description="Share of the calls for which it may differ by more."
    )
    conflict_weight: Part = Field(default=0.2, description="Weight at most of one in conflict.")
    conflict_steps: int = Field(
        default=5, ge=1, le=1_000, description="Steps with a gain that end a conflict."
    )


class SplitKeys(Strict):
    """How the calls of the fleet are best shared out; solved each second for every service."""

    iterations: int = Field(default=60, ge=1, le=10_000, description="Of the solver.")
    start: float = Field(
        default=0.9,
        ge=0,
        lt=1,
        description="Share of the last solution that is begun with; the rest is uniform.",
    )
    step: float = Field(default=0.6, gt=0, le=10, description="Of the first iteration.")
    step_halves: float = Field(
        default=10.0, gt=0, le=10_000, description="Iterations after which a step is half as long."
    )
    exponent_max: float = Field(
        default=2.0, gt=0, le=20, description="Change of a logarithm in one iteration at most."
    )
    load_max: float = Field(
        default=0.97, gt=0, lt=1, description="Busy share beyond which a queue grows no more."
    )
    queue_weight: float = Field(default=0.6, ge=0, le=1_000, description="Of calls that wait.")
