"""What a model has to pass, and what is watched while it trains.

Routing health: probabilities that collapse onto few endpoints answer well until their queues grow.
Watched are the usage of endpoints relative to an even share (smallest, standard deviation) and the
entropy of P. A collapse that lasts calls for the split that `features.split` solves.

Promotion: a candidate replaces what serves only if it has won on scrapes that it had not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnroute.features.table import Array

__all__ = [
    "CandidateLimits",
    "Health",
    "HealthLimits",
    "HealthWatch",
    "refusal",
]


@dataclass(frozen=True)
class HealthLimits:
    """When a routing has collapsed, and for how long it must last."""

    usage_min: float = 0.01
    """Of the least used endpoint, in even shares."""
    usage_deviation_max: float = 3.0
    """Of the usage, in even shares."""
    entropy_min: float = 0.3
    """Of P, mean over classes by their calls, in ln of the number of endpoints."""
    scrapes: int = 5


@dataclass(frozen=True)
class Health:
    """How a routing spreads, in even shares and shares of the largest entropy."""

    usage_min: float
    usage_deviation: float
    entropy: float
    usage: tuple[float, ...] = ()
    """[E]."""

    @classmethod
    def of(cls, probability: Array, rate: Array) -> Health:
        """probability: P, [C, E]; rate: [C], calls a second."""
        size = probability.shape[1]
        total = float(rate.sum())
        if size < 2 or total <= 0:
            return cls(1.0, 0.0, 1.0, (1.0,) * size)
        weight = rate / total
        usage = (weight[:, None] * probability).sum(axis=0) * size
        each = -(probability * np.log(np.maximum(probability, 1e-12))).sum(axis=1)
        return cls(
            usage_min=float(usage.min()),
            usage_deviation=float(usage.std()),
            entropy=float((weight * each).sum() / np.log(size)),
            usage=tuple(usage.tolist()),
        )

    def collapsed(self, limits: HealthLimits) -> bool:
        """Whether it is beyond a limit."""
        return (
            self.usage_min < limits.usage_min
            or self.usage_deviation > limits.usage_deviation_max
            or self.entropy < limits.entropy_min
        )


class HealthWatch:
    """Counts scrapes in a row beyond the limits."""

    def __init__(self, limits: HealthLimits) -> None:
        self.limits = limits
        self.sustained = 0

    def observe(self, health: Health) -> bool:
        """Whether the routing has to be balanced again."""
        self.sustained = self.sustained + 1 if health.collapsed(self.limits) else 0
        return self.sustained >= self.limits.scrapes


@dataclass(frozen=True)
class CandidateLimits:
    """What a model needs before it is published."""

    scrapes_min: int = 3
    """Of the last ones, each won or not lost by more than `loss_max`."""
    gain_min: float = 0.0
    """Mean over them, nats a call."""
    loss_max: float = 0.01


def refusal(
    gains: Sequence[float],
    parity: float,
    health: Health,
    limits: CandidateLimits,
    health_limits: HealthLimits,
) -> str:
    """Why a candidate is not published; empty if it is.

    gains: QL(S0) - QL(S) of the scrapes so far, each before it was trained on, newest last.
    """
    last = [gain for gain in gains if np.isfinite(gain)][-limits.scrapes_min :]
    if len(last) < limits.scrapes_min:
        return f"it was judged on {len(last)} scrapes, at least {limits.scrapes_min} are needed"
    if min(last) < -limits.loss_max:
        return f"it lost {-min(last):.4f} a call on a scrape, at most {limits.loss_max}"
    mean = float(np.mean(last))
    if mean < limits.gain_min:
        return f"it gains {mean:.5f} a call over the table, at least {limits.gain_min}"
    if not parity <= 1e-5:
        return f"its graphs are {parity:.1e} away from torch, at most 1e-05"
    if health.collapsed(health_limits):
        return "its routing has collapsed onto few endpoints"
    return ""
