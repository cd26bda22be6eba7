"""The only importer of the compiled extension: a typed facade with numpy views.

Rust forwards and picks from immutable snapshots; Python publishes them and reads counters through
here. Nothing in this module runs on the path of a call.
"""

from __future__ import annotations

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
    check_balancer,
    check_scenario,
    simulate,
)

__all__ = [
    "ENDPOINT_DTYPE",
    "BindError",
    "ConfigError",
    "DataPlane",
    "DataPlaneError",
    "NotRunningError",
    "Picker",
    "check_balancer",
    "check_scenario",
    "rows",
    "simulate",
]

_ABI_VERSION = 3
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
        ("static_weight", "<f4"),
        ("weight", "<f4"),  # probability the balancer gives it now; sums to 1 over usable ones
    ],
    align=False,
)


def rows(data: bytes) -> npt.NDArray[np.void]:
    """The rows of `DataPlane.snapshot` or `Picker.snapshot`: ENDPOINT_DTYPE[E], read-only."""
    return np.frombuffer(data, dtype=ENDPOINT_DTYPE)
