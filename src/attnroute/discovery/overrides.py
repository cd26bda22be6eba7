"""What operators decide about single endpoints: drained, or pinned, for a while.

Overrides stand between the sources of endpoints and the data plane and go with every set that
passes, so that a pick sees one snapshot and never an override of another set. Each of them ends by
itself: what somebody forgot in an incident must not shape traffic for weeks. They live in the
process; a restart begins without any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from attnroute.clock import Clock
from attnroute.dataplane import DataPlaneError
from attnroute.logs import fields

__all__ = [
    "OVERRIDES_MAX",
    "ActiveOverride",
    "EndpointUnknownError",
    "Kind",
    "Overrides",
    "TooManyOverridesError",
]

logger = logging.getLogger(__name__)

OVERRIDES_MAX = 1_000
"""Over all services."""

Kind = Literal["drain", "pin"]


class Sink(Protocol):
    """Where sets go on to."""

    def apply_endpoints(self, service: str, endpoints: bytes) -> int: ...


class EndpointUnknownError(Exception):
    """The service has no such endpoint."""


class TooManyOverridesError(Exception):
    """As many as there may be are in force."""


@dataclass(frozen=True, slots=True)
class ActiveOverride:
    """One override in force. expires_at_s: seconds since 1970-01-01 UTC, for people."""

    kind: Kind
    expires_at_s: float
    ends_s: float
    """On the monotonic clock, which decides."""


class Overrides:
    """Passes sets on with the overrides in them; made and used on one event loop."""

    def __init__(self, sink: Sink, clock: Clock, *, overrides_max: int = OVERRIDES_MAX) -> None:
        self._sink = sink
        self._clock = clock
        self._overrides_max = overrides_max
        self._sets: dict[str, bytes] = {}
        """The newest set of each service, as its source gave it."""
        self._active: dict[str, dict[str, ActiveOverride]] = {}

    def apply_endpoints(self, service: str, endpoints: bytes) -> int:
        """attnroute.discovery.sources.EndpointSink."""
        epoch = self._sink.apply_endpoints(service, self._with_overrides(service, endpoints))
        self._sets[service] = endpoints
        return epoch

    def of(self, service: str) -> Mapping[str, ActiveOverride]:
        """Address to override; those of endpoints that are gone for now included."""
        return self._active.get(service, {})

    def set(
        self, service: str, address: str, kind: Kind, duration_s: float
    ) -> tuple[ActiveOverride, int]:
        """Brings an override into force, instead of the one that the endpoint had.

        Returns it and the endpoint epoch. Raises EndpointUnknownError, TooManyOverridesError, or
        what the data plane raises; then nothing changed.
        """
        self._check_known(service, address)
        active = self._active.get(service, {})
        if address not in active and self._count() >= self._overrides_max:
            raise TooManyOverridesError
        override = ActiveOverride(
            kind, self._clock.wall_s() + duration_s, self._clock.now_s() + duration_s
        )
        epoch = self._replace(service, {**active, address: override})
        logger.info(
            "override in force",
            extra=fields(service=service, endpoint=address, override=kind, duration_s=duration_s),
        )
        return override, epoch

    def clear(self, service: str, address: str) -> int:
        """Ends the override of an endpoint, if it has one. Returns the endpoint epoch.

        Raises EndpointUnknownError for an endpoint that has none and is not in the set.
        """
        active = self._active.get(service, {})
        if address not in active:
            self._check_known(service, address)
        else:
            logger.info("override ended", extra=fields(service=service, endpoint=address))
        return self._replace(service, {key: one for key, one in active.items() if key != address})

    def expire(self) -> None:
        """Ends what is over; to be called about once a second."""
        now_s = self._clock.now_s()
        for service, active in list(self._active.items()):
            left = {address: one for address, one in active.items() if one.ends_s > now_s}
            if len(left) == len(active):
                continue
            for address in active.keys() - left.keys():
                logger.info("override expired", extra=fields(service=service, endpoint=address))
            self._replace(service, left)

    def keep(self, services: Collection[str]) -> None:
        """Forgets every other service."""
        for known in (self._sets, self._active):
            for gone in known.keys() - set(services):
                del known[gone]

    def _replace(self, service: str, active: dict[str, ActiveOverride]) -> int:
        before = self._active.get(service, {})
        self._active[service] = active
        try:
            return self._sink.apply_endpoints(
                service, self._with_overrides(service, self._sets[service])
            )
        except DataPlaneError:
            self._active[service] = before
            raise

    def _with_overrides(self, service: str, endpoints: bytes) -> bytes:
        active = self._active.get(service)
        if not active:
            return endpoints
        document = json.loads(endpoints)
        for entry in document["endpoints"]:
            override = active.get(entry["address"])
            if override is not None:
                entry["override"] = override.kind
        return json.dumps(document, allow_nan=False).encode()

    def _check_known(self, service: str, address: str) -> None:
        entries: list[dict[str, Any]] = json.loads(self._sets.get(service, b'{"endpoints":[]}'))[
            "endpoints"
        ]
        if all(entry["address"] != address for entry in entries):
            raise EndpointUnknownError

    def _count(self) -> int:
        return sum(len(active) for active in self._active.values())
