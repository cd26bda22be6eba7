"""Looks at a source: calls of a fleet whose endpoints suit some methods better than others."""

from __future__ import annotations

import numpy as np

from attnroute.telemetry.increases import Increases
from attnroute.train.messages import Look

__all__ = ["look", "looks"]

SPAN_S = 5.0


def look(number: int, *, service: str = "cart", endpoints: int = 4, methods: int = 3) -> Look:
    """The n-th look, the same each time it is asked for."""
    rng = np.random.default_rng((7, number))
    cells = {}
    addresses = [f"10.0.0.{place}:1" for place in range(endpoints)]
    for method in range(methods):
        for place, address in enumerate(addresses):
            calls = float(rng.integers(5, 20))
            service_s = 0.01 * (3.0 if method % 2 == place % 2 else 1.0)
            latency_s = calls * service_s * rng.uniform(0.95, 1.05)
            cells[service, f"/{service}/M{method};bytes=..1024", address] = np.array(
                [latency_s, calls, 0.0, 0.0, latency_s, 0.0]
            )
    info = {(service, address): ("", "", "") for address in addresses}
    increases = Increases(cells=cells, info=info, pages=1, span_s=SPAN_S)
    return Look(1_700_000_000.0 + SPAN_S * number, increases)


def looks(first: int, end: int) -> list[Look]:
    """Looks from one number up to another."""
    return [look(number) for number in range(first, end)]
