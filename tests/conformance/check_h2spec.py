"""h2spec against the listener: every case of RFC 9113 and RFC 7541 that it knows."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.peers import SERVICE, Command
from tests.support.raw_h2 import RawStream
from tests.support.raw_peers import raw_server
from tests.support.sidecar import Sidecar, minimal_policy

pytestmark = pytest.mark.timeout(600)
CASES = 145


async def _page(stream: RawStream) -> None:
    """A whole answer with a body: several cases look at how it is cut into frames."""
    await stream.until(lambda: stream.ended or stream.dead, "the request")
    if not stream.dead:
        stream.headers([(":status", "200"), ("content-type", "text/plain")])
        await stream.write(b"h2spec " * 10)
        stream.data_frame(b"", end_stream=True)


async def test_every_case(
    h2spec: Command, start_sidecar: Callable[..., Sidecar], tmp_path: Path
) -> None:
    async with raw_server(_page) as endpoint:
        policy = minimal_policy(endpoint.address, service=SERVICE)
        policy += '    authorities: ["*"]\n'
        sidecar = start_sidecar(policy)
        host, _, port = sidecar.address.rpartition(":")
        command = [*h2spec, "--host", host, "--port", port, "--timeout", "20"]
        report = ["--junit-report", str(tmp_path / "h2spec.xml")]
        done = await asyncio.to_thread(
            subprocess.run, [*command, *report], capture_output=True, text=True, check=False
        )
        found = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
        assert found is not None, done.stdout + done.stderr
        failures = done.stdout.partition("Failures:")[2]
        assert [int(number) for number in found.groups()] == [CASES, CASES, 0, 0], failures
        # A client that does everything wrong costs neither the endpoint's connection nor others.
        assert len(endpoint.connections) == 1
        assert not endpoint.connections[0].gone
        assert await asyncio.to_thread(sidecar.stop) == 0
