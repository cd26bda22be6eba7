"""Windows of a service, written short."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from attnroute.features.table import Attribution, Cells, attribute
from attnroute.features.window import BUCKETS, ServiceWindow

CellSums = tuple[float, float]
"""Calls, and seconds of service of all of them."""


def service_window(
    cells: Mapping[tuple[str, str], CellSums],
    *,
    started_s: Mapping[str, float] | None = None,
    rtt_s: Mapping[str, float] | None = None,
    concurrency: Mapping[str, float] | None = None,
    inflight: float = 0.0,
    extra_endpoints: Sequence[str] = (),
) -> ServiceWindow:
    """A window of a second. cells: by class and endpoint; latency is service plus rtt.

    inflight: mean number in flight at every endpoint, as estimated at the picks.
    """
    classes = tuple(dict.fromkeys(request_class for request_class, _ in cells))
    endpoints = tuple(dict.fromkeys([*(endpoint for _, endpoint in cells), *extra_endpoints]))
    rtts = np.array([(rtt_s or {}).get(endpoint, math.nan) for endpoint in endpoints])
    calls = np.array([sums[0] for sums in cells.values()], dtype=float)
    service_s = np.array([sums[1] for sums in cells.values()], dtype=float)
    at = np.array([endpoints.index(endpoint) for _, endpoint in cells], dtype=np.intp)
    zero, none = np.zeros(len(endpoints)), np.zeros(len(cells))
    ended = zero.copy()
    np.add.at(ended, at, calls)
    return ServiceWindow(
        length_s=1.0,
        classes=classes,
        endpoints=endpoints,
        started_s=np.array([(started_s or {}).get(endpoint, 0.0) for endpoint in endpoints]),
        rtt_s=rtts,
        concurrency=np.array([(concurrency or {}).get(one, math.nan) for one in endpoints]),
        utilization=zero,
        utilization_reports=zero,
        rps=zero,
        reports=zero,
        reported_inflight=zero,
        ended=ended,
        inflight_estimate=ended * inflight,
        cells=Cells(
            request_class=np.array([classes.index(one) for one, _ in cells], dtype=np.intp),
            endpoint=at,
            calls=calls,
            latency_s=service_s + calls * np.where(np.isfinite(rtts), rtts, 0.0)[at],
            service_samples=none,
            service_s=none,
            estimated_s=service_s,
        ),
        errors=none,
        buckets=np.zeros((len(cells), BUCKETS), dtype=np.uint32),
    )


def attributed(window: ServiceWindow) -> Attribution:
    """Its service times."""
    return attribute(window.cells, window.seen(window.concurrency))
