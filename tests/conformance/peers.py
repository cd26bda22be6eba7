"""What every foreign peer is held to: the same outcome through a sidecar as without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from tests.support.grpc_peers import every_kind, grpc_client
from tests.support.sidecar import ANY_PORT, Sidecar, minimal_policy

SERVICE = "test"
Command: TypeAlias = tuple[str, ...]

TARGET = "test.invalid:80"
"""What a client asks a proxy for: a name that leads nowhere else (RFC 2606)."""

CONNECT = f"  - {{name: connect, mode: connect, address: {ANY_PORT}}}\n"

DIRECT_TRIES = 3


def told_a_proxy(address: str) -> dict[str, str]:
    """An environment in which gRPC clients go through that proxy: grpc-core and grpc-js read
    `grpc_proxy`, grpc-go `HTTPS_PROXY`, grpc-java properties of its machine."""
    host, _, port = address.rpartition(":")
    names = ("grpc_proxy", "https_proxy", "HTTPS_PROXY")
    kept = {k: v for k, v in os.environ.items() if k.lower() not in ("no_proxy", "no_grpc_proxy")}
    java = f"-Dhttps.proxyHost={host} -Dhttps.proxyPort={port} -Dhttp.nonProxyHosts="
    return {**kept, **dict.fromkeys(names, f"http://{address}"), "JAVA_TOOL_OPTIONS": java}


def _checks(
    peer: Command, target: str, environment: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Runs every check of a foreign client against a target."""
    command = [*peer, "check", target, SERVICE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
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
    """A foreign client passes all of its checks, directly, through a sidecar, and through one that
    it is told as its proxy."""
    sidecar = start_sidecar(_policy(endpoint))
    direct = _agreed(peer, endpoint)
    through_tunnel = told_a_proxy(sidecar.listeners["connect"])
    explicit = sidecar.listeners["explicit-0"]
    for proxied in (_checks(peer, explicit), _checks(peer, TARGET, through_tunnel)):
        assert not _failures(proxied), f"{_failures(proxied)}\n{sidecar.stderr}"
        assert proxied.keys() == direct.keys()
        assert len(proxied) > 10
    assert sidecar.metric("attnroute_listener_tunnels_total", content="http2") >= 1
    sidecar.until(lambda: sidecar.metric("attnroute_endpoint_inflight") == 0, "no call in flight")
    assert sidecar.metric("attnroute_requests_total", grpc_status="OK") > len(proxied)
    assert sidecar.stop() == 0


def _policy(endpoint: str) -> str:
    service = f'    authorities: ["{SERVICE}", "{TARGET}"]\n'
    return minimal_policy(endpoint, service=SERVICE, listeners=CONNECT, extra=service)


async def compare_python_client(endpoint: str, start_sidecar: Callable[..., Sidecar]) -> None:
    """A grpcio client sees of a foreign endpoint the same through a sidecar as directly, and the
    same through one that it is told as its proxy."""
    sidecar = start_sidecar(_policy(endpoint))
    async with grpc_client(endpoint) as direct:
        expected = [found async for found in every_kind(direct)]
    async with grpc_client(sidecar.listeners["explicit-0"]) as proxied:
        assert [found async for found in every_kind(proxied)] == expected
    with pytest.MonkeyPatch.context() as patch:
        for name in ("no_grpc_proxy", "no_proxy"):
            patch.delenv(name, raising=False)
        patch.setenv("grpc_proxy", f"http://{sidecar.listeners['connect']}")
        async with grpc_client(TARGET) as tunnelled:
            assert [found async for found in every_kind(tunnelled)] == expected
    assert sidecar.metric("attnroute_listener_tunnels_total", content="http2") == 1
    assert await asyncio.to_thread(sidecar.stop) == 0
