"""What a scorer is: something that says how long a call of each class takes on each endpoint.

The table is the reference. Every other scorer is a plug-in: it declares what it is, gets what the
table knows, and returns times and routing probabilities with a confidence. What it returns is
checked, gated and blended by `arbiter`; a scorer that fails costs its own say and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnroute.features.facts import Facts
from attnroute.features.window import Split

__all__ = ["Scored", "Scorer", "ScorerInfo", "ScoringInput"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScorerInfo:
    """What a scorer declares."""

    name: str
    version: str
    """Semantic version."""
    feature_schema: str
    """Hash of the features it was made for; empty if it needs none. Without it `ScoringInput.facts`
    may be missing."""
    expected_latency_s: float
    """How long a scoring run takes."""
    cost_s: float = 0.0
    """CPU time of a scoring run at 100 endpoints and 64 classes; 0: not known."""


@dataclass(frozen=True)
class ScoringInput:
    """What a scorer gets: the table now, C classes and E endpoints in index order."""

    classes: Sequence[str]
    endpoints: Sequence[str]
    table_cost_s: Array
    """S0, [C, E]."""
    calls: Array
    """Decayed calls behind it, [C, E]."""
    mean_service_s: Array
    """[E]."""
    endpoint_factor: Array
    """f, [E]."""
    class_mean_s: Array
    """cm, [C]."""
    rtt_s: Array
    """[E], 0 where unknown."""
    concurrency: Array
    """[E]."""
    usable: npt.NDArray[np.bool_]
    """[E]."""
    split: Split | None = None
    """The fleet's, where it has one."""
    facts: Facts | None = None
    """What features are made of; None unless a scorer declares a feature schema."""


@dataclass(frozen=True)
class Scored:
    """What a scorer returns, raw: [C, E] each."""

    cost_s: Array
    """S: what a call takes without queueing."""
    probability: Array
    """P: routing probability; rows sum to 1."""
    spread: Array
    """Standard deviation of the logarithm of the latency."""
    confidence: Array
    """0 to 1."""


class Scorer(Protocol):
    """A plug-in."""

    @property
    def info(self) -> ScorerInfo:
        """What it is."""
        ...

    def score(self, given: ScoringInput) -> Scored:
        """Times and probabilities for every class and endpoint."""
        ...
