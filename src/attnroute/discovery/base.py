"""What a source of endpoints looks like to the rest.

A `Resolver` is an async iterator of full sets, not of changes: whoever missed a message is right
again with the next one. A source that fails says nothing about the set, so a failure is a value of
its own and never an empty set: the last good set stays and is marked stale. An empty set is an
answer like any other and empties the service; whoever does not want to believe one (`dns`) says so
with a failure.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from attnroute.types import EndpointSpec

__all__ = [
    "EndpointSet",
    "EndpointSpec",
    "FailureKind",
    "ResolveFailure",
    "Resolved",
    "Resolver",
    "encode_endpoints",
]


@dataclass(frozen=True, slots=True)
class EndpointSet:
    """A full set: it replaces whatever was known before. Every address stands once."""

    endpoints: tuple[EndpointSpec, ...]


FailureKind = Literal["error", "empty", "refused"]
"""`error`: no answer, or one that cannot be read; `empty`: an answer without endpoints that the
policy does not take for the set; `refused`: an answer that must not come into force."""


@dataclass(frozen=True, slots=True)
class ResolveFailure:
    """The source gave no set that counts; the last good one stays. `reason` is one sentence."""

    reason: str
    kind: FailureKind = "error"


Resolved = EndpointSet | ResolveFailure


class Resolver(Protocol):
    """A source of endpoints."""

    @property
    def name(self) -> str:
        """The kind of source as the policy calls it (`static`, `file`, `dns`); a metric label."""
        ...

    def watch(self) -> AsyncIterator[Resolved]:
        """Yields the set as soon as it is known, then at every change of set or failure.

        Raises nothing but cancellation: what goes wrong is a `ResolveFailure`, once per change.
        May end if the source cannot change.
        """
        ...


def encode_endpoints(endpoints: EndpointSet) -> bytes:
    """The set as `DataPlane.apply_endpoints` takes it, in the order given."""
    rows = [
        {
            "address": endpoint.address,
            "static_weight": endpoint.static_weight,
            "zone": endpoint.zone,
            "priority": endpoint.priority,
            "labels": dict(endpoint.labels),
        }
        for endpoint in endpoints.endpoints
    ]
    return json.dumps({"endpoints": rows}, allow_nan=False).encode()
