"""Facts of a small made-up service, for tests of features and models."""

from __future__ import annotations

import numpy as np

from attnroute.features.facts import Facts
from attnroute.features.table import Sums, estimate, kinds_of

CLASSES = (
    "/shop.Cart/Get;bytes=..1024",
    "/shop.Cart/Get;bytes=1024..16384",
    "/shop.Cart/Add;bytes=unknown;x-tier=gold",
    "other",
)


def facts(
    classes: tuple[str, ...] = CLASSES, endpoints: int = 5, *, seed: int = 0, calls: float = 20.0
) -> Facts:
    """Random sums of so many calls a cell; everything else known, but for utilization of one."""
    rng = np.random.default_rng(seed)
    den = rng.poisson(calls, (len(classes), endpoints)).astype(np.float64)
    num_s = den * rng.uniform(0.005, 0.04, den.shape)
    sums = Sums(num_s, den, num_s.sum(axis=0), den.sum(axis=0))

    def part(share: float) -> Sums:
        return Sums(num_s * share, den * share, sums.busy_s * share, sums.calls * share)

    utilization = rng.uniform(0.1, 0.9, endpoints)
    utilization[:1] = np.nan
    return Facts(
        classes=classes,
        endpoints=tuple(f"10.0.0.{index}:80" for index in range(endpoints)),
        sums=sums,
        table=estimate(sums, kinds_of(classes), np.zeros(endpoints, dtype=bool), 0.02),
        fast=part(0.6),
        recent=part(0.15),
        utilization=utilization,
        inflight=rng.uniform(0, 4, endpoints),
        error_share=np.zeros(endpoints),
        age_s=rng.uniform(0, 500, endpoints),
        rtt_s=rng.uniform(0, 0.002, endpoints),
        concurrency=np.full(endpoints, 2.0),
        zone_match=np.full(endpoints, np.nan),
        labels=tuple({"zone": f"z{index % 2}", "disk": "ssd"} for index in range(endpoints)),
        usable=np.ones(endpoints, dtype=bool),
    )
