"""The shapes of load.

`squeezed` shapes share the proxy's core with a busy loop. Without it the load side saturates first
on two cores; a proxy that waits sees small batches and pays more kernel time per call, so that a
plain run flatters slow proxies. Squeezed shapes are for CPU, plain ones for latency.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One shape of load.

    connections, streams: client connections, and calls in flight on each.
    calls_share: its number of calls, as a share of the run's `--calls`.
    """

    name: str
    connections: int
    streams: int
    calls_share: float
    squeezed: bool = False
    latency: bool = False

    @property
    def label(self) -> str:
        """For tables: connections x streams."""
        return f"{self.connections} x {self.streams}"


SQUEEZED_16 = Shape("squeezed-8x16", 8, 16, 1.0, squeezed=True)
SQUEEZED_64 = Shape("squeezed-8x64", 8, 64, 1.0, squeezed=True)
PLAIN_16 = Shape("plain-8x16", 8, 16, 1.0)
PLAIN_1 = Shape("plain-8x1", 8, 1, 0.4)
SINGLE = Shape("single-1x1", 1, 1, 0.1, latency=True)

SHAPES = (SQUEEZED_16, SQUEEZED_64, PLAIN_16, PLAIN_1, SINGLE)
# Before anything is measured: connections made, branches warm, allocators grown.
WARM_UP = Shape("warm-up", 8, 64, 0.1)
