"""Steady load from a process of its own, so that a stalled interpreter cannot slow it down.

`python -m tests.support.loadgen ADDRESS SECONDS RATE` sends unary calls open loop at a fixed rate
and prints one JSON document: when each call was due (seconds since the start), its latency from
then, and its status. The process prints `ready` on stderr before the first call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import grpc
from tests.support.echo_endpoint import ROOT
from tests.support.grpc_peers import GrpcClient, grpc_client


@dataclass(frozen=True)
class Done:
    """One call: due_s since the start, latency_s from then on, status name."""

    due_s: float
    latency_s: float
    status: str


async def _one(client: GrpcClient, started_s: float, due_s: float) -> Done:
    try:
        await client.unary()(b"load", timeout=30)
        status = "OK"
    except grpc.aio.AioRpcError as error:
        status = f"{error.code().name}: {error.details()}"
    return Done(due_s, time.monotonic() - started_s - due_s, status)


async def generate(address: str, seconds: float, rate: float) -> list[Done]:
    """Sends `rate` calls a second for `seconds`, whether or not earlier ones have ended."""
    async with grpc_client(address) as client:
        await client.unary()(b"first")
        print("ready", file=sys.stderr, flush=True)
        started_s = time.monotonic()
        calls = []
        for number in range(int(seconds * rate)):
            due_s = number / rate
            wait_s = started_s + due_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            calls.append(asyncio.create_task(_one(client, started_s, due_s)))
        return await asyncio.gather(*calls)


class LoadProcess:
    """The generator, running."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, address: str, *, seconds: float, rate: float) -> LoadProcess:
        """Starts it and waits for its first answered call."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.loadgen",
            address,
            str(seconds),
            str(rate),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        lines = []
        async for line in process.stderr:
            lines.append(line.decode())
            if line.strip() == b"ready":
                return cls(process)
        raise AssertionError(f"the load generator ended before its first call: {''.join(lines)}")

    async def result(self) -> list[Done]:
        """Waits for its end."""
        output, errors = await self._process.communicate()
        assert self._process.returncode == 0, errors.decode()
        return [Done(**row) for row in json.loads(output)]


def percentile(values: list[float], share: float) -> float:
    """The value at that share of the sorted list."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """The process's main."""
    address, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    done = asyncio.run(generate(address, seconds, rate))
    json.dump([asdict(row) for row in done], sys.stdout)


if __name__ == "__main__":
    main()
