"""A real data plane inside the test's process, and the invariants of every run.

`data_plane` starts it from a configuration, gives its addresses and its parsed metrics, and when
the test is over checks that nothing is in flight any more, that every call that ended was counted
in exactly one status, and that its threads are gone. Faster than a sidecar process by the time a
Python interpreter takes to start, and otherwise the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.support.wait import until

from attnroute.dataplane import DataPlane

CONFIG_VERSION = 1
SEED = 20_240_501
IN_FLIGHT_GAUGES = (
    "attnroute_endpoint_inflight",
    "attnroute_requests_inflight",
    "attnroute_held_bytes",
)

Endpoint = str | tuple[str, float]
"""An address, or an address and its static weight."""


@dataclass(frozen=True)
class Metrics:
    """One reading of the exposition."""

    samples: Sequence[Sample]

    def of(self, name: str, **labels: str) -> list[Sample]:
        """Samples of that name whose labels agree with those given."""
        return [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """The sum of `of`; 0 for a counter that was never counted."""
        return sum(sample.value for sample in self.of(name, **labels))


def parse_metrics(text: bytes) -> Metrics:
    """Parses with the official parser, so that whatever is read is also valid."""
    families = text_string_to_metric_families(text.decode())
    return Metrics([sample for family in families for sample in family.samples])


def endpoint_set(endpoints: Sequence[Endpoint]) -> bytes:
    """The form `DataPlane.apply_endpoints` takes."""
    pairs = [(entry, 1.0) if isinstance(entry, str) else entry for entry in endpoints]
    rows = [{"address": address, "static_weight": weight} for address, weight in pairs]
    return json.dumps({"endpoints": rows}).encode()


@dataclass
class DataPlaneHarness:
    """A running data plane; `config` is what it runs on, as a dictionary to change and apply."""

    plane: DataPlane
    config: dict[str, Any]
    addresses: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def address(self) -> str:
        """The first listener's address."""
        return self.addresses[self.config["listeners"][0]["name"]]

    def metrics(self) -> Metrics:
        """The exposition, now."""
        return parse_metrics(self.plane.metrics())

    def ended(self, **labels: str) -> int:
        """Calls that ended and were counted, all statuses unless `grpc_status` is given."""
        return int(self.metrics().value("attnroute_requests_total", **labels))

    def limit_hits(self, limit: str) -> int:
        """How often a limit was hit."""
        return int(self.metrics().value("attnroute_limit_hits_total", limit=limit))

    def in_flight(self) -> dict[str, float]:
        """Every in-flight gauge that is not 0."""
        gauges = [s for name in IN_FLIGHT_GAUGES for s in self.metrics().of(name)]
        return {f"{g.name}{g.labels}": g.value for g in gauges if g.value != 0}

    def apply(self) -> int:
        """Applies `config` as it stands now."""
        return self.plane.apply_policy(json.dumps(self.config).encode())

    def apply_endpoints(self, endpoints: Sequence[Endpoint], service: str = "test") -> int:
        """Replaces the endpoint set of a service."""
        return self.plane.apply_endpoints(service, endpoint_set(endpoints))

    async def until_ended(self, count: int, **labels: str) -> None:
        """Waits until exactly `count` calls were counted; more is a failure at once."""
        await until(lambda: self.ended(**labels) >= count, f"{count} counted calls {labels}")
        found = self.ended(**labels)
        assert found == count, f"{found} calls counted, {count} were made: {self.statuses()}"

    def statuses(self) -> dict[str, int]:
        """Counted calls by status, without zeros."""
        samples = self.metrics().of("attnroute_requests_total")
        return {s.labels["grpc_status"]: int(s.value) for s in samples if s.value}

    async def drain(self, *, linger_ms: int, limit_ms: int) -> bool:
        """Drains in a thread, as the sidecar does."""
        return await asyncio.to_thread(self.plane.drain, linger_ms, limit_ms)

    async def stop(self) -> None:
        """Stops and checks that every thread of the data plane ended; idempotent."""
        self.stopped = True
        await asyncio.to_thread(self.plane.stop)
        await until(lambda: not data_threads(), f"the end of the data threads {data_threads()}")


def data_threads() -> list[str]:
    """Names of this process's threads that belong to a data plane."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("data-")]


def configuration(
    services: Sequence[str], *, listeners: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The smallest configuration: the first service has every authority no other one has."""
    first, *others = services
    explicit = {"name": "explicit-0", "mode": "explicit", "address": "127.0.0.1:0"}
    return {
        "version": CONFIG_VERSION,
        "listeners": [dict(entry) for entry in listeners or [explicit]],
        "services": [
            {"name": first, "authorities": [first, f"{first}:*", "*"]},
            *({"name": name, "authorities": [name, f"{name}:*"]} for name in others),
        ],
    }


@contextlib.asynccontextmanager
async def data_plane(
    endpoints: Sequence[Endpoint] | Mapping[str, Sequence[Endpoint]],
    *,
    listeners: Sequence[Mapping[str, Any]] | None = None,
    limits: Mapping[str, Any] | None = None,
    timeouts: Mapping[str, Any] | None = None,
    service: Mapping[str, Any] | None = None,
    threads: int = 1,
    settles: bool = True,
) -> AsyncIterator[DataPlaneHarness]:
    """Runs a data plane. `endpoints` alone means those of a service `test`; `service` adds keys to
    the first service. `settles=False` leaves out the check of in-flight gauges, for tests that
    stop it with calls under way and look for themselves."""
    sets = endpoints if isinstance(endpoints, Mapping) else {"test": endpoints}
    config = configuration(list(sets), listeners=listeners)
    config["threads"] = threads
    config["services"][0].update(service or {})
    config["limits"], config["timeouts"] = dict(limits or {}), dict(timeouts or {})
    harness = DataPlaneHarness(DataPlane(json.dumps(config).encode(), SEED), config)
    for name, members in sets.items():
        harness.apply_endpoints(members, name)
    harness.addresses = harness.plane.start()
    try:
        yield harness
        if settles and not harness.stopped:
            await until(lambda: not harness.in_flight(), "every in-flight gauge back at 0")
    finally:
        await harness.stop()
