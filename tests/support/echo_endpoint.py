"""A grpcio endpoint in a process of its own: prints its address, ends when its input closes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.grpc_peers import grpc_peer
from tests.support.wait import patience_s

ROOT = Path(__file__).resolve().parents[2]
ECHO = (sys.executable, "-m", "tests.support.echo_endpoint")


@contextlib.contextmanager
def endpoint_process(*command: str) -> Iterator[str]:
    """Runs an endpoint that speaks this protocol, in any language; gives its address."""
    with killable_endpoint(*command) as (address, _):
        yield address


@contextlib.contextmanager
def killable_endpoint(*command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The same with its process, which a test may end."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"], process
    finally:
        process.stdin.close()
        process.wait(patience_s())
        process.stdout.close()


async def serve() -> None:
    """Serves until standard input is closed, so that it never outlives the test."""
    async with grpc_peer() as peer:
        print(json.dumps({"address": peer.address}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
