"""A second scorer that lies on request, to see whether the gate notices.

It says what a real model says, or without one what the table says, which is as good as the table
and never better; until an event `model_fault` turns that into one of the ways in which models go
wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnroute.scoring.arbiter import TABLE_SPREAD
from attnroute.scoring.base import Scored, Scorer, ScorerInfo, ScoringInput
from attnroute.scoring.guardrail import table_probabilities

__all__ = ["FaultyModel"]

Array = npt.NDArray[np.float64]

COLLAPSE_FACTOR = 50.0
COLLAPSED = 2
"""Endpoints that a collapsing model takes for so much faster than they are."""


class FaultyModel:
    """fault: `random`, `permuted`, `inverted`, `nan`, `collapsing`; None: none. model: what it says
    without a fault; None: the table's times."""

    def __init__(self, seed: int, sidecar: int, model: Scorer | None = None) -> None:
        self.fault: str | None = None
        self._rng = np.random.default_rng((seed, sidecar))
        self._model = model

    @property
    def info(self) -> ScorerInfo:
        """What it is."""
        if self._model is not None:
            return self._model.info
        return ScorerInfo(name="echo", version="1.0.0", feature_schema="", expected_latency_s=1e-4)

    def score(self, given: ScoringInput) -> Scored:
        """What the model says, or what the fault makes of it."""
        if self._model is not None:
            said = self._model.score(given)
            if self.fault is None:
                return said
        else:
            shape = given.table_cost_s.shape
            said = Scored(
                given.table_cost_s, np.zeros(shape), np.full(shape, TABLE_SPREAD), np.ones(shape)
            )
        cost_s = self._distorted(said.cost_s)
        with np.errstate(all="ignore"):
            probability = table_probabilities(given.rtt_s, cost_s, given.usable)
        return Scored(cost_s, probability, said.spread, said.confidence)

    def _distorted(self, cost_s: Array) -> Array:
        if self.fault == "random":
            return cost_s * np.exp(self._rng.normal(0.0, 2.0, cost_s.shape))
        if self.fault == "permuted":
            return cost_s[:, self._rng.permutation(cost_s.shape[1])]
        if self.fault == "inverted":
            middle_s: Array = np.exp(np.mean(np.log(cost_s), axis=1, keepdims=True))
            return middle_s * middle_s / cost_s
        if self.fault == "nan":
            return np.full_like(cost_s, np.nan)
        if self.fault == "collapsing":
            distorted = cost_s.copy()
            distorted[:, :COLLAPSED] /= COLLAPSE_FACTOR
            return distorted
        return cost_s
