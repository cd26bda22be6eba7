"""One window of a service by name, as a sidecar measures it and the fleet exchange carries it.

Sums over about a second, only of what changed. Nothing in it is an epoch or an index of another
process: cells point into the window's own lists of classes and endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attnroute.features.table import Array, Cells, EndpointWindow, Index

__all__ = ["BUCKETS", "FleetState", "ServiceWindow", "Split"]

BUCKETS = 30
"""Latency buckets of a cell: bounds 100 us * 1.6^j, the last one without bound."""


@dataclass(frozen=True)
class ServiceWindow:
    """What a service did in a window. Per endpoint float64[E], per cell [n]."""

    length_s: float
    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    """Addresses, `ip:port`."""
    started_s: Array
    """Incarnations: Unix start times as reported, 0 where unknown."""
    rtt_s: Array
    """NaN before the first measurement."""
    concurrency: Array
    """As reported, NaN where not."""
    utilization: Array
    """Sum over the reports that carry it."""
    utilization_reports: Array
    rps: Array
    """Sum over reports."""
    reports: Array
    reported_inflight: Array
    """Sum over reports of the calls in the endpoint, the reporting one excluded."""
    ended: Array
    """Calls that ended with an answer, failures included."""
    inflight_estimate: Array
    """Sum over them of the calls in the endpoint as assumed at their picks."""
    cells: Cells
    errors: Array
    """[n]: failures."""
    buckets: npt.NDArray[np.uint32]
    """[n, BUCKETS]: successes by latency."""

    @cached_property
    def filled(self) -> tuple[Index, npt.NDArray[np.uint32]]:
        """Buckets that are not empty: places in the flattened `buckets`, and their calls. Few of
        all are, so whoever adds them up or sends them goes by these."""
        flat = self.buckets.reshape(-1)
        places = np.flatnonzero(flat)
        return places, flat[places]

    def sound(self) -> tuple[ServiceWindow, int]:
        """The window without cells whose numbers cannot be true, and how many those were."""
        keep = self.cells.sound()
        if keep.all():
            return self, 0
        kept = replace(
            self, cells=self.cells.only(keep), errors=self.errors[keep], buckets=self.buckets[keep]
        )
        return kept, int((~keep).sum())

    def seen(self, concurrency: Array) -> EndpointWindow:
        """What rules (a) to (c) go by. concurrency: [E], the policy's or the reported one."""
        carried = self.utilization_reports > 0
        # A report may lack the utilization: its mean stands for those that do.
        scale = np.where(carried, self.reports / np.where(carried, self.utilization_reports, 1), 0)
        utilization = np.where(carried, self.utilization * scale, np.nan)
        return EndpointWindow(self.rtt_s, concurrency, utilization, self.rps)

    def load(self) -> Array:
        """[6, E]: what learning concurrency goes by. Sum of calls in flight at an endpoint by
        reports, the reporting one included; the number of answers that is over; the same sum
        without the reporting one; sum and number of utilizations, and sum of the rates that stand
        beside them, weighted alike. Without reports the calls in flight are those estimated at
        picks, in both sums."""
        reported = self.reports > 0
        met = np.where(reported, self.reported_inflight, self.inflight_estimate)
        weight = np.where(reported, self.reports, self.ended)
        carried = reported & (self.utilization_reports > 0)
        mean = self.utilization / np.where(carried, self.utilization_reports, 1.0)
        told = np.where(carried, weight, 0.0)
        busy = np.where(carried, mean * weight, 0.0)
        # A rate that only some reports carry would be too low beside the utilization.
        rate = np.where(carried, self.rps, 0.0)
        whole = met + np.where(reported, weight, 0.0)
        return np.stack((whole, weight, met, busy, told, rate))


@dataclass(frozen=True)
class Split:
    """Routing probabilities for one zone, solved for the whole fleet."""

    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    probability: Array
    """[C, E]; rows sum to 1."""


@dataclass(frozen=True)
class FleetState:
    """What the trainer says of a service: decayed sums of the whole fleet, or what changed.

    Cells point into the message's own lists; per endpoint float64[E], per cell [n].
    """

    trainer: bytes
    """Id of the trainer process."""
    sequence: int
    """From 1 in each stream, without gaps."""
    full: bool
    sidecars: int
    watermark: int
    """The receiver's last window that is in the sums; 0: none."""
    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    started_s: Array
    busy_s: Array
    calls: Array
    rtt_s: Array
    """NaN where unknown."""
    concurrency: Array
    """NaN where unknown."""
    cell_class: Index
    cell_endpoint: Index
    cell_s: Array
    cell_calls: Array
    split: Split | None = None
    """For the receiver's zone, where the trainer solves one."""
