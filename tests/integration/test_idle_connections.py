"""Thousands of client connections that do nothing: others are served, memory is given back."""

from __future__ import annotations

import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.raw_h2 import PREFACE
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

CONNECTIONS = 3_000
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
BYTES_EACH_MAX = 64 * 1024
"""Measured 25 to 30 KiB; more is a leak, not noise."""


@contextmanager
def _many_open_files() -> Iterator[int]:
    """How many connections this process can hold, with its limit raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 65_536
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield min(CONNECTIONS, most - 500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", text, flags=re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def test_idle_connections_cost_little_and_hurt_nobody(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    """A third says nothing, a third half a preface, a third has begun HTTP/2."""
    async with raw_server(answer()) as endpoint:
        sidecar = start_sidecar(
            minimal_policy(endpoint.address, service="test", extra="timeouts: {handshake: 1h}\n")
        )
        host, _, port = sidecar.address.rpartition(":")
        open_connections = "attnroute_listener_open_connections"
        with _many_open_files() as count, ExitStack() as stack:
            async with raw_client(sidecar.address) as client:
                assert (await open_call(client).until_done()).grpc_status == 0
                before = _resident_bytes(sidecar.pid)
                for number in range(count):
                    idle = stack.enter_context(socket.create_connection((host, int(port))))
                    idle.sendall((b"", PREFACE[:10], PREFACE + SETTINGS)[number % 3])
                await until(
                    lambda: sidecar.metric(open_connections) == count + 1, "every connection"
                )
                assert (await open_call(client).until_done()).grpc_status == 0
                grown = _resident_bytes(sidecar.pid) - before
                assert grown < count * BYTES_EACH_MAX, f"{grown // count} bytes for each"
                stack.close()
                await until(lambda: sidecar.metric(open_connections) == 1, "their end")
                assert (await open_call(client).until_done()).grpc_status == 0
