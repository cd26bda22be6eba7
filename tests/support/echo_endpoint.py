"""A grpcio endpoint in a process of its own: prints its address, ends when its input closes."""

from __future__ import annotations

import asyncio
import json
import sys

from tests.support.grpc_peers import grpc_peer


async def serve() -> None:
    """Serves until standard input is closed, so that it never outlives the test."""
    async with grpc_peer() as peer:
        print(json.dumps({"address": peer.address}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
