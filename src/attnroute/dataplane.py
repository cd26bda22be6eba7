"""The only importer of the compiled extension: a typed facade with numpy views.

Rust forwards and picks from immutable snapshots; Python publishes them and reads counters through
here. Nothing in this module runs on the path of a call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnroute import _dataplane
from attnroute._dataplane import (
    BindError,
    ConfigError,
    DataPlane,
    DataPlaneError,
    NotRunningError,
    Picker,
    Simulation,
    StaleEpochError,
    check_balancer,
    check_scenario,
    replay,
    simulate,
)

__all__ = [
    "ENDPOINT_DTYPE",
    "WINDOW_CELL_DTYPE",
    "WINDOW_ENDPOINT_DTYPE",
    "BindError",
    "ConfigError",
    "DataPlane",
    "DataPlaneError",
    "NotRunningError",
    "Picker",
    "RequestClass",
    "Simulation",
    "StaleEpochError",
    "Window",
    "check_balancer",
    "check_scenario",
    "classes",
    "replay",
    "rows",
    "simulate",
    "window",
]

_ABI_VERSION = 5
if _dataplane.ABI_VERSION != _ABI_VERSION:
    raise ImportError(
        f"the extension has boundary version {_dataplane.ABI_VERSION}, this package needs "
        f"{_ABI_VERSION}; reinstall attnroute"
    )

ENDPOINT_DTYPE: np.dtype[Any] = np.dtype(
    [
        ("id", "<u8"),  # unique in the process, never reused
        ("picks", "<u8"),  # calls this endpoint was picked for, ever
        ("successes", "<u8"),  # finished attempts that were no failure (algorithms: "Failure")
        ("failures", "<u8"),
        ("latency_ns", "<u8"),  # sum over successes
        ("in_flight", "<u4"),
        ("connections", "<u4"),
        ("usable", "<u4"),  # 1: takes calls now; 0: weight 0, connects fail, or not well
        ("failing", "<u4"),  # 1: the last connect failed
        ("ejected", "<u4"),  # 1: outlier detection keeps calls from it
        ("unhealthy", "<u4"),  # 1: health checks keep calls from it
        ("standby", "<u4"),  # 1: well, but another priority takes the calls
        ("static_weight", "<f4"),
        ("weight", "<f4"),  # probability the balancer gives it now; sums to 1 over usable ones
    ],
    align=False,
)


WINDOW_CELL_DTYPE: np.dtype[Any] = np.dtype(
    [
        ("class", "<u4"),  # index in the class epoch of the window
        ("endpoint", "<u4"),  # index in its endpoint epoch
        ("calls", "<u4"),  # successes (algorithms: "Failure"); cancelled calls count nowhere
        ("errors", "<u4"),  # failures
        ("service_samples", "<u4"),  # successes whose answer reported a service time
        ("reserved", "<u4"),
        ("latency_s", "<f8"),  # sum over successes: request headers to end of answer
        ("service_s", "<f8"),  # sum of reported service times
        ("estimated_s", "<f8"),  # sum of service times estimated from latency and calls in flight
        ("buckets", "<u4", (30,)),  # latency of successes: up to 100 us * 1.6^j, the last: above
    ],
    align=False,
)
"""A (class, endpoint) in which calls ended within a window."""

WINDOW_ENDPOINT_DTYPE: np.dtype[Any] = np.dtype(
    [
        ("id", "<u8"),  # unique in the process, never reused
        ("started_s", "<f8"),  # Unix time of its start, as reported; 0: unknown
        ("inflight_s", "<f8"),  # own calls in flight, integrated over time
        ("calls", "<u4"),  # calls that ended, failures included, cancelled ones not
        ("reports", "<u4"),  # load reports with calls in flight
        ("reported_inflight", "<f8"),  # sum of those calls
        ("rps", "<f8"),  # sum of reported calls/s
        ("utilization", "<f8"),  # sum of reported application_utilization
        ("utilization_reports", "<u4"),  # reports that had one
        ("inflight_estimate", "<f8"),  # calls in flight as estimated at the picks of `calls`, sum
        ("concurrency", "<f4"),  # last reported; NaN: never
        ("rtt_s", "<f4"),  # shortest time on the way of late; NaN: unknown
        ("usable", "<u4"),  # 1: takes calls now
        ("ejected", "<u4"),  # 1: outlier detection keeps calls from it
    ],
    align=False,
)
"""An endpoint, in index order; sums are those of the window."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A request class; its index is its place in the list."""

    name: str
    """`/shop.Cart/Get;bytes=1024..16384;x-tier=gold`; the first of a list is `other`."""
    kind: str
    """The same without the size."""
    kind_index: int
    size_bytes: float | None
    """Geometric middle of the bucket; None where sizes are unknown."""


@dataclass(frozen=True, slots=True)
class Window:
    """What calls added up to between two takes, E endpoints."""

    endpoint_epoch: int
    class_epoch: int
    length_s: float
    endpoints: npt.NDArray[np.void]
    """WINDOW_ENDPOINT_DTYPE[E]."""
    cells: npt.NDArray[np.void]
    """WINDOW_CELL_DTYPE[n], those in which calls ended."""


def window(taken: tuple[int, int, int, bytes, bytes]) -> Window:
    """What `DataPlane.take_window` or `Picker.take_window` gave, read-only."""
    endpoint_epoch, class_epoch, length_ns, endpoints, cells = taken
    return Window(
        endpoint_epoch=endpoint_epoch,
        class_epoch=class_epoch,
        length_s=length_ns * 1e-9,
        endpoints=np.frombuffer(endpoints, dtype=WINDOW_ENDPOINT_DTYPE),
        cells=np.frombuffer(cells, dtype=WINDOW_CELL_DTYPE),
    )


def classes(listed: tuple[int, bytes]) -> tuple[int, list[RequestClass]]:
    """The class epoch and the list that `DataPlane.classes` or `Picker.classes` gave."""
    epoch, rows = listed
    return epoch, [
        RequestClass(row["class"], row["kind"], row["kind_index"], row["size_bytes"])
        for row in json.loads(rows)
    ]


def rows(data: bytes) -> npt.NDArray[np.void]:
    """The rows of `DataPlane.snapshot` or `Picker.snapshot`: ENDPOINT_DTYPE[E], read-only."""
    return np.frombuffer(data, dtype=ENDPOINT_DTYPE)
