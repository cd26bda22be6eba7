"""H2-47: one message of a gibibyte each way passes, and the sidecar holds next to nothing of it."""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.raw_h2 import RawConnection, RawStream
from tests.support.raw_peers import (
    RESPONSE,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.sidecar import Sidecar, minimal_policy

pytestmark = pytest.mark.timeout(900)

BYTES = 1 << 30
PREFIX = struct.pack(">BI", 0, BYTES)
GROWTH_MIB_MAX = 64


def _forgets(connection: RawConnection, stream: RawStream) -> None:
    """Lets peers, which remember every frame for a test, keep the last few of this one."""
    connection.seen = deque(connection.seen, maxlen=10)  # type: ignore[assignment]
    stream.chunks = deque(stream.chunks, maxlen=10)  # type: ignore[assignment]


async def _send(stream: RawStream) -> None:
    await stream.write(PREFIX)
    # Zeros cost no memory until they are read, piece by piece.
    await stream.write(memoryview(bytes(BYTES)), end_stream=False)  # type: ignore[arg-type]


async def _received(stream: RawStream) -> None:
    """Waits for the end, as long as bytes come: patience is for silence."""
    while not stream.done:
        await stream.until_more_than(stream.bytes_received)


def _peak_mib(pid: int) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


async def test_a_message_of_a_gibibyte_each_way(start_sidecar: Callable[..., Sidecar]) -> None:
    async def script(stream: RawStream) -> None:
        _forgets(stream.connection, stream)
        await _received(stream)
        stream.headers(RESPONSE)
        await _send(stream)
        stream.headers(trailers(0), end_stream=True)

    async with raw_server(script) as endpoint:
        sidecar = start_sidecar(minimal_policy(endpoint.address, service="test"))
        async with raw_client(sidecar.address) as client:
            before_mib = _peak_mib(sidecar.pid)
            stream = open_call(client, body=None)
            _forgets(client, stream)
            await _send(stream)
            stream.data_frame(b"", end_stream=True)
            await _received(stream)
            assert stream.grpc_status == 0, stream.describe()[:1_000]
            assert stream.bytes_received == len(PREFIX) + BYTES
            assert endpoint.streams[0].bytes_received == len(PREFIX) + BYTES
            grown_mib = _peak_mib(sidecar.pid) - before_mib
        print(f"1 GiB each way: {grown_mib:.0f} MiB more at most")
        assert grown_mib < GROWTH_MIB_MAX
