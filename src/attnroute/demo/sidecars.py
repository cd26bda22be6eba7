"""The sidecars of the demo: real processes with one policy file between them.

A balancer is switched the way an operator would: the file is replaced, both sidecars reload it, and
the admin API says when it is in force. Shares and in-flight of the live view come from the admin
API as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnroute._proto.admin.v1 import admin_pb2
from attnroute.admin.client import AdminClient
from attnroute.demo.balancers import Balancer
from attnroute.demo.models import CHANNEL, Registry
from attnroute.demo.processes import Child, Children, DemoError
from attnroute.demo.world import SERVICE
from attnroute.errors import AdminError

LISTENER = "load"
PATIENCE_S = 20.0
"""For a sidecar to become ready or to take a policy; only a broken one needs it."""

DRAIN_LIMIT_S = 5

_POLL_S = 0.02


def policy_text(
    balancer: Balancer, endpoints: Sequence[str], trainer: str, *, models: bool = False
) -> str:
    """The whole policy of both sidecars; the system picks every port. Ejection is on for all of
    them, and has nothing to do until endpoints are ill. They learn under every balancer, as a
    service would that is about to change to `learned`. trainer: address of the fleet exchange;
    models: it keeps bundles, too."""
    model = f"{{registry: '{trainer}', channel: {CHANNEL}, cache: model-cache}}"
    lines = "".join(f"        - {address}\n" for address in endpoints)
    return (
        "admin: {grpc: 127.0.0.1:0, http: 127.0.0.1:0}\n"
        f"drain: {{linger: 1s, limit: {DRAIN_LIMIT_S}s}}\n"
        "listeners:\n"
        f"  - {{name: {LISTENER}, mode: explicit, address: 127.0.0.1:0}}\n"
        f"fleet: {{trainer: {trainer}}}\n"
        "services:\n"
        f"  {SERVICE}:\n"
        f"    balancer: {balancer.policy}\n"
        "    outlier_detection: {}\n"
        "    request_class: {}\n"
        "    endpoints:\n"
        "      static:\n"
        f"{lines}" + (f"model: {model}\n" if models else "")
    )


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What the sidecars say about one endpoint, together."""

    share: float | None
    """Mean of the measured shares of the last 10 s; None without picks."""
    in_flight: int


class PolicyFile:
    """Replaced as a whole, so that nobody reads half of it."""

    def __init__(
        self,
        path: Path,
        endpoints: Sequence[str],
        trainer: str,
        ill: Sequence[str] = (),
        *,
        models: bool = False,
    ) -> None:
        self.path = path
        self._models = models
        self._trainer = trainer
        self._endpoints, self._ill = endpoints, ill

    def write(self, balancer: Balancer, *, with_ill: bool = False) -> str:
        """Returns the sha256 that the admin API will show once this is in force. with_ill: the
        endpoints that are ill are among the others."""
        endpoints = [*self._endpoints, *self._ill] if with_ill else self._endpoints
        text = policy_text(balancer, endpoints, self._trainer, models=self._models).encode()
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(text)
        fresh.replace(self.path)
        return hashlib.sha256(text).hexdigest()


class Sidecar:
    """One running sidecar, seen through its ports file and its admin API."""

    def __init__(self, child: Child, ports: dict[str, Any]) -> None:
        self.child = child
        self.listener: str = ports["listeners"][LISTENER]
        self._pid: int = ports["pid"]
        self._admin = AdminClient(ports["admin"]["grpc"])

    async def wait_in_force(self, sha256: str) -> None:
        """Asks for a reload and waits. Raises DemoError if the policy is refused or never comes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    config = await asyncio.to_thread(self._admin.get_config)
                    if config.sha256 == sha256:
                        return
                    if config.rejected:
                        raise DemoError(f"{self.child.name} refused the policy: {config.rejected}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DemoError(
                f"{self.child.name} did not take the policy within {PATIENCE_S:g} s"
            ) from None

    async def weights(self) -> admin_pb2.GetWeightsResponse:
        """Raises AdminError."""
        return await asyncio.to_thread(self._admin.get_weights, SERVICE)

    async def model(self) -> admin_pb2.GetModelResponse:
        """Raises AdminError."""
        return await asyncio.to_thread(self._admin.get_model)

    def close(self) -> None:
        """The admin connection; the process is stopped by `Children`."""
        self._admin.close()


async def start_trainer(children: Children, folder: Path, registry: Registry | None = None) -> str:
    """Starts `attnroute trainer` on a leash; returns the address of the fleet exchange, at which
    the registry is, too."""
    config = folder / "trainer.yaml"
    text = "fleet: {address: 127.0.0.1:0}\nhttp: 127.0.0.1:0\n"
    if registry is not None:
        text += f"registry: {{directory: {registry.directory.name}}}\n"
    config.write_text(text, encoding="utf-8")
    _, ports = await _start(children, "trainer", "trainer", config)
    return str(ports["fleet"])


async def start_sidecar(children: Children, number: int, policy: Path) -> Sidecar:
    """Starts `attnroute sidecar` on a leash and waits until it is ready."""
    return Sidecar(*await _start(children, f"sidecar {number}", "sidecar", policy))


async def _start(
    children: Children, name: str, command: str, config: Path
) -> tuple[Child, dict[str, Any]]:
    ports_file = config.with_name(f"{name.replace(' ', '-')}.json")
    child = await children.start(
        name,
        "attnroute.demo.leash",
        *(sys.executable, "-m", "attnroute", command),
        *("--config", str(config), "--ports-file", str(ports_file)),
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if ports_file.exists():
                    return child, json.loads(ports_file.read_bytes())
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoError(f"{child.name} was not ready within {PATIENCE_S:g} s") from None


async def endpoint_states(sidecars: Sequence[Sidecar]) -> dict[str, EndpointState]:
    """By address. Empty while a sidecar does not answer: the view can wait, the run goes on."""
    try:
        answers = await asyncio.gather(*(sidecar.weights() for sidecar in sidecars))
    except AdminError:
        return {}
    shares: dict[str, list[float]] = {}
    in_flight: dict[str, int] = {}
    for answer in answers:
        for endpoint in answer.classes[0].endpoints if answer.classes else ():
            known = shares.setdefault(endpoint.address, [])
            if endpoint.HasField("share"):
                known.append(endpoint.share)
            in_flight[endpoint.address] = in_flight.get(endpoint.address, 0) + endpoint.in_flight
    return {
        address: EndpointState(sum(known) / len(known) if known else None, in_flight[address])
        for address, known in shares.items()
    }
