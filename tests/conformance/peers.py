"""What every foreign peer is held to: the same outcome through a sidecar as without one."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any, TypeAlias

from tests.support.grpc_peers import every_kind, grpc_client
from tests.support.sidecar import Sidecar, minimal_policy

SERVICE = "test"
Command: TypeAlias = tuple[str, ...]

DIRECT_TRIES = 3


def _checks(peer: Command, target: str) -> dict[str, dict[str, Any]]:
    """Runs every check of a foreign client against a target."""
    done = subprocess.run(
        [*peer, "check", target, SERVICE], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def _failures(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row.get("detail", "") for name, row in results.items() if not row["passed"]}


def _agreed(peer: Command, endpoint: str) -> dict[str, dict[str, Any]]:
    """What the peers do without a sidecar. Some checks go by short deadlines, which a busy machine
    breaks; as nothing of ours takes part, they may try again."""
    for _ in range(DIRECT_TRIES):
        direct = _checks(peer, endpoint)
        if not _failures(direct):
            return direct
    raise AssertionError(f"the peers do not agree with each other: {_failures(direct)}")


def compare(peer: Command, endpoint: str, start_sidecar: Callable[..., Sidecar]) -> None:
    """A foreign client passes all of its checks, directly and through a sidecar."""
    sidecar = start_sidecar(minimal_policy(endpoint, service=SERVICE))
    direct = _agreed(peer, endpoint)
    proxied = _checks(peer, sidecar.address)
    assert not _failures(proxied), f"{_failures(proxied)}\n{sidecar.stderr}"
    assert proxied.keys() == direct.keys()
    assert len(proxied) > 10
    sidecar.until(lambda: sidecar.metric("attnroute_endpoint_inflight") == 0, "no call in flight")
    assert sidecar.metric("attnroute_requests_total", grpc_status="OK") > len(proxied)
    assert sidecar.stop() == 0


async def compare_python_client(endpoint: str, start_sidecar: Callable[..., Sidecar]) -> None:
    """A grpcio client sees of a foreign endpoint the same through a sidecar as directly."""
    sidecar = start_sidecar(minimal_policy(endpoint, service=SERVICE))
    async with grpc_client(endpoint) as direct, grpc_client(sidecar.address) as proxied:
        expected = [found async for found in every_kind(direct)]
        found = [found async for found in every_kind(proxied)]
    assert found == expected
    assert await asyncio.to_thread(sidecar.stop) == 0
