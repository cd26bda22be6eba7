"""Requests that change something: what they may ask for, and how overrides are told."""

from __future__ import annotations

from typing import NoReturn, Protocol

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError, error_info, refuse_field
from attnroute.discovery.overrides import (
    OVERRIDES_MAX,
    ActiveOverride,
    EndpointUnknownError,
    Kind,
    TooManyOverridesError,
)

DURATION_DEFAULT_S = 600
DURATION_MIN_S = 1
DURATION_MAX_S = 24 * 3600
WAIT_MAX_S = 3600

CHANGING = frozenset({"SetOverride", "Drain", "SetModel"})
"""Methods that the Unix socket takes, and TCP only where the policy says so."""

KINDS: dict[int, Kind] = {pb.OVERRIDE_DRAIN: "drain", pb.OVERRIDE_PIN: "pin"}
_NUMBERS = {kind: number for number, kind in KINDS.items()}


class OverrideView(Protocol):
    """What changes overrides (attnroute.discovery.overrides.Overrides)."""

    def set(
        self, service: str, address: str, kind: Kind, duration_s: float
    ) -> tuple[ActiveOverride, int]: ...
    def clear(self, service: str, address: str) -> int: ...


def refuse_change_on_tcp() -> NoReturn:
    """Raises PERMISSION_DENIED."""
    raise RefusalError(
        grpc.StatusCode.PERMISSION_DENIED,
        "attnroute: changes are refused on TCP; use the Unix socket of `admin.socket` "
        "(--admin unix:/path), or set `admin.allow_changes`",
        [error_info("CHANGES_NOT_ALLOWED")],
    )


def set_override(
    view: OverrideView, service: str, endpoint: str, kind: Kind, duration: Duration | None
) -> tuple[pb.EndpointOverride, int]:
    """Sets an override; returns it and the endpoint epoch. Raises RefusalError."""
    duration_s = _seconds(
        "duration", duration, DURATION_DEFAULT_S, (DURATION_MIN_S, DURATION_MAX_S)
    )
    try:
        active, epoch = view.set(service, _named(endpoint), kind, duration_s)
    except EndpointUnknownError:
        _refuse_endpoint(service, endpoint)
    except TooManyOverridesError:
        raise RefusalError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"attnroute: {OVERRIDES_MAX} overrides are in force, which is the limit; end one",
            [error_info("TOO_MANY_OVERRIDES", limit=str(OVERRIDES_MAX))],
        ) from None
    return override_message(active), epoch


def clear_override(view: OverrideView, service: str, endpoint: str) -> int:
    """Ends an override; returns the endpoint epoch. Raises RefusalError."""
    try:
        return view.clear(service, _named(endpoint))
    except EndpointUnknownError:
        _refuse_endpoint(service, endpoint)


def wait_s(request: pb.DrainRequest) -> float:
    """How long a drain waits for calls in flight. Raises RefusalError."""
    wait = request.wait if request.HasField("wait") else None
    return _seconds("wait", wait, 0, (0, WAIT_MAX_S))


def override_message(active: ActiveOverride) -> pb.EndpointOverride:
    """An override in force, as admin tells it."""
    seconds, micros = divmod(round(active.expires_at_s * 1e6), 1_000_000)
    return pb.EndpointOverride(
        kind=_NUMBERS[active.kind],  # type: ignore[arg-type]
        expires_at=Timestamp(seconds=seconds, nanos=micros * 1000),
    )


def _seconds(
    field: str, duration: Duration | None, default_s: float, bounds: tuple[float, float]
) -> float:
    if duration is None:
        return default_s
    seconds = duration.seconds + duration.nanos / 1e9
    least, most = bounds
    if not least <= seconds <= most:
        refuse_field(field, f"`{field}` is {seconds:g} s, expected {least:g} s to {most:g} s")
    return seconds


def _named(endpoint: str) -> str:
    if not endpoint:
        refuse_field("endpoint", "`endpoint` is empty; name the address of an endpoint")
    return endpoint


def _refuse_endpoint(service: str, endpoint: str) -> NoReturn:
    raise RefusalError(
        grpc.StatusCode.NOT_FOUND,
        f"attnroute: service `{service}` has no endpoint `{endpoint}`; "
        f"`attnroute endpoints {service}` lists them",
        [error_info("ENDPOINT_NOT_FOUND", service=service, endpoint=endpoint)],
    ) from None
