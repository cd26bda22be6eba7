"""Large messages pass a real sidecar in bounded memory, and what they took is given back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import Manners
from tests.support.raw_peers import open_call, raw_client
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

MIB = 1024 * 1024
GROWTH_MIB_MAX = 32
"""Windows and send buffers of the streams under way, with room for the allocator; far below the
messages themselves."""


def _memory_mib(pid: int, key: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{key}:\s+(\d+) kB$", text, flags=re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _peak_growth_mib(pid: int, before_mib: float) -> float:
    return _memory_mib(pid, "VmHWM") - before_mib


async def test_h2_47_large_messages_pass_in_bounded_memory(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with grpc_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address, service="test"))
        async with grpc_client(sidecar.address) as client:
            assert await client.unary()(b"x" * MIB) == b"x" * MIB
            before_mib = _memory_mib(sidecar.pid, "VmHWM")
            body = b"0123456789abcdef" * (64 * MIB // 16)
            assert await client.unary()(body) == body
            grown_mib = _peak_growth_mib(sidecar.pid, before_mib)
        assert grown_mib < GROWTH_MIB_MAX, f"64 MiB each way took {grown_mib:.0f} MiB"


async def test_readers_that_do_not_read_cost_bounded_memory(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    """SE-07: 100 streams whose windows stay closed, answers of 10 MB each."""
    async with grpc_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address, service="test"))
        manners = Manners(keep_windows_open=False)
        async with raw_client(sidecar.address, manners=manners) as client:
            before_mib = _memory_mib(sidecar.pid, "VmHWM")
            for _ in range(100):
                open_call(client, "/test.Peer/ServerStream", body=b"100 100000")
            await until(lambda: peer.started == 100, "every call at the endpoint")
            for _ in range(20):  # give what could pile up the time to do so
                await asyncio.sleep(0.05)
            grown_mib = _peak_growth_mib(sidecar.pid, before_mib)
        # 100 streams x (256 KiB window + 256 KiB send buffer) at most; 1,000 MB would be all.
        assert grown_mib < 100, f"100 stalled streams took {grown_mib:.0f} MiB"
        await asyncio.to_thread(
            sidecar.until,
            lambda: sidecar.metric("attnroute_endpoint_inflight") == 0,
            "in flight back at 0",
        )
