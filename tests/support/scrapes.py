"""Scrapes of a small made-up service whose endpoints differ."""

from __future__ import annotations

import numpy as np

from attnroute.features.table import Cells
from attnroute.features.window import BUCKETS
from attnroute.telemetry.training import BOUNDS_S
from attnroute.train.scrapes import Scrape


def scrape(
    number: int,
    *,
    seed: int = 0,
    classes: int = 6,
    endpoints: int = 6,
    calls: float = 2.0,
    started_s: float = 0.0,
) -> Scrape:
    """The scrape that ends at 5 (number + 1) s. Odd methods are three times slower on the second
    half of the endpoints, even ones on the first; a call takes 20 or 60 ms, exponential."""
    rng = np.random.default_rng((seed, number))
    row, column = (part.ravel() for part in np.indices((classes, endpoints)))
    count = rng.poisson(calls, len(row)).astype(np.float64)
    slow = (row % 2 == 1) == (column >= endpoints // 2)
    mean_s = np.where(slow, 0.06, 0.02)
    times = [rng.exponential(one, int(many)) for one, many in zip(mean_s, count, strict=True)]
    service_s = np.array([one.sum() for one in times])
    buckets = np.zeros((classes, BUCKETS))
    for place, one in zip(row, times, strict=True):
        np.add.at(buckets[place], np.searchsorted(BOUNDS_S, one), 1)
    return Scrape(
        service="shop",
        at_s=5.0 * (number + 1),
        length_s=5.0,
        classes=tuple(f"/shop.Cart/M{one}" for one in range(classes)),
        endpoints=tuple(f"10.0.0.{one}:80" for one in range(endpoints)),
        labels=({"zone": "a"},) * endpoints,
        started_s=np.full(endpoints, started_s),
        rtt_s=np.zeros(endpoints),
        concurrency=np.full(endpoints, 2.0),
        utilization=np.full(endpoints, np.nan),
        inflight=np.full(endpoints, 0.5),
        cells=Cells(row, column, count, service_s, count, service_s, service_s),
        errors=np.zeros(len(row)),
        buckets=buckets,
    )
