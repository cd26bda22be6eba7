"""What features are made of: everything a scorer may know of a service at one moment.

The sidecar makes it from its shared table, the trainer from the scrapes it keeps, the simulator
from either; `features.extract` turns it into the matrices of the feature schema. One shape for
serving and training is what keeps the two from drifting apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute.features.table import Array, Estimate, Sums

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """C classes and E endpoints in index order; float64, seconds; NaN where unknown."""

    classes: tuple[str, ...]
    """Canonical strings."""
    endpoints: tuple[str, ...]
    """Addresses."""
    sums: Sums
    """The table's decayed sums, [C, E] and [E]."""
    table: Estimate
    """What the table makes of them: S0, cm, f, r per kind, sbar."""
    fast: Sums
    """The same sums with a shorter memory (6 s)."""
    recent: Sums
    """The same sums of the last window or two alone."""
    utilization: Array
    """[E], mean of the reports of the last window."""
    inflight: Array
    """[E], mean calls in the endpoint, from everybody, over the last window."""
    error_share: Array
    """[E], failures over answers, decayed."""
    age_s: Array
    """[E], since the endpoint entered the set or was restarted; infinite: longer than known."""
    rtt_s: Array
    """[E], 0 before the first measurement."""
    concurrency: Array
    """[E]."""
    zone_match: Array
    """[E], 1 own zone, 0 another, NaN where either is unknown."""
    labels: tuple[Mapping[str, str], ...]
    """[E], of endpoints; empty where unknown."""
    usable: npt.NDArray[np.bool_]
    """[E], healthy, not ejected, not drained."""
