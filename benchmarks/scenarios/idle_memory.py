"""Memory of each proxy with 100 endpoints: idle, and after calls reached all of them."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.results import MemorySample
from benchmarks.harness.shapes import PLAIN_16
from benchmarks.peers import Launch
from benchmarks.peers.endpoint import start_endpoints
from benchmarks.scenarios import Place, start_peer

ENDPOINTS = 100
# Long enough for start-up garbage to go and for periodic work to have run.
SETTLE_S = 2.0
# Two random choices of 100 miss one endpoint in 20,000 calls with a chance below 1e-80.
CALLS = 20_000


def measure(place: Place, peer_name: str, number: int) -> tuple[MemorySample, ...]:
    """Start `peer_name` with 100 endpoints, read its memory idle and after load."""
    with ExitStack() as stack:
        folder = place.folder("idle-memory", str(number), peer_name)
        endpoint_folder = folder / "endpoints"
        endpoint_folder.mkdir()
        launch = Launch(place.tools, endpoint_folder, place.load_core, ())
        _, ports = start_endpoints(launch, stack, count=ENDPOINTS)
        peer = start_peer(peer_name, place, folder, tuple(ports), stack)
        if peer.child is None:
            raise BenchmarkError(f"`{peer_name}` has no process whose memory could be read")
        time.sleep(SETTLE_S)
        idle = peer.child.rss_bytes()
        result = place.loader().run(PLAIN_16, calls=CALLS, port=peer.port)
        if result.failed > CALLS // 100:
            raise BenchmarkError(f"{result.failed} of {CALLS} calls through `{peer_name}` failed")
        touched = peer.child.rss_bytes()
    return (
        MemorySample(number, peer_name, "idle-100", idle),
        MemorySample(number, peer_name, "touched-100", touched),
    )
