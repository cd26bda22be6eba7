"""Thousands of client connections that do nothing: others are served, memory is bounded and given
back, and one more than may be is refused and counted."""

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

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
BYTES_EACH_MAX = 64 * 1024
"""Measured 25 to 30 KiB; more is a leak, not noise."""

SPARE_FILES = 500
OPEN = "attnroute_listener_open_connections"


@contextmanager
def _many_open_files(count: int) -> Iterator[None]:
    """Raises the limit of this process, and of the sidecar that it starts, as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, count + SPARE_FILES)
    assert most >= count + SPARE_FILES, (
        f"{count} connections need {count + SPARE_FILES} open files, the hard limit is {hard}: "
        "raise it (`ulimit -Hn`)"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", text, flags=re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def idle_connections(count: int, start_sidecar: Callable[..., Sidecar]) -> None:
    """A third says nothing, a third half a preface, a third has begun HTTP/2."""
    policy = f"timeouts: {{handshake: 1h}}\nlimits: {{max_connections: {count + 1}}}\n"
    async with raw_server(answer()) as endpoint:
        with _many_open_files(count), ExitStack() as stack:
            sidecar = start_sidecar(minimal_policy(endpoint.address, service="test", extra=policy))
            host, _, port = sidecar.address.rpartition(":")

            def idle(number: int) -> socket.socket:
                made = stack.enter_context(socket.create_connection((host, int(port))))
                made.sendall((b"", PREFACE[:10], PREFACE + SETTINGS)[number % 3])
                return made

            async with raw_client(sidecar.address) as client:
                assert (await open_call(client).until_done()).grpc_status == 0
                before = _resident_bytes(sidecar.pid)
                for number in range(count):
                    idle(number)
                await until(lambda: sidecar.metric(OPEN) == count + 1, "every connection")
                assert (await open_call(client).until_done()).grpc_status == 0
                grown = _resident_bytes(sidecar.pid) - before
                assert grown < count * BYTES_EACH_MAX, f"{grown // count} bytes for each"
                print(f"{count} idle connections: {grown // count} bytes for each")
                # One more than may be, and those who are there are served all the same.
                idle(0)
                await until(
                    lambda: sidecar.metric("attnroute_limit_hits_total", limit="max_connections"),
                    "the count of the limit",
                )
                assert sidecar.metric(OPEN) <= count + 1
                assert (await open_call(client).until_done()).grpc_status == 0
                stack.close()
                await until(lambda: sidecar.metric(OPEN) == 1, "their end")
                assert (await open_call(client).until_done()).grpc_status == 0
