"""Where calls come in, as the operator writes it: listeners of every mode.

Which keys belong to which mode is a rule between fields and stands in `rules`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from attnroute.policy import scalars
from attnroute.policy.fields import Parsed, Strict, duration
from attnroute.policy.sources import EndpointAddress

__all__ = [
    "KEYS_OF_MODE",
    "MODES",
    "Address",
    "Listener",
    "Name",
    "Queue",
    "listener_json",
    "with_defaults",
]

_U32_MAX = 2**32 - 1
_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)
_ADDRESS_SCHEMA = {"type": "string", "pattern": r"^(unix:/.+|.+:[0-9]{1,5})$"}

Address = Annotated[str, Parsed(scalars.parse_address, _ADDRESS_SCHEMA)]
Name = Annotated[
    str, Parsed(scalars.parse_name, {"type": "string", "pattern": scalars.NAME_PATTERN})
]

MODES = ("explicit", "service", "inbound", "connect")

KEYS_OF_MODE = {
    "service": ("explicit", "service"),
    "target": ("inbound",),
    "max_concurrency": ("inbound",),
    "queue": ("inbound",),
    "min_report_interval": ("inbound",),
}
"""Keys that not every mode has, and the modes that do."""

MIN_REPORT_INTERVAL = timedelta(milliseconds=100)


class Queue(Strict):
    """Calls that wait for a place in the server of an `inbound` listener."""

    max_length: int = Field(
        default=100,
        ge=0,
        le=_U32_MAX,
        description="How many; one more is RESOURCE_EXHAUSTED. 0: none waits.",
    )
    timeout: Annotated[timedelta, duration(_MS, _HOUR)] = Field(
        default=timedelta(milliseconds=500),
        description="For how long; a call that had no place by then is RESOURCE_EXHAUSTED.",
    )


class Listener(Strict):
    """One address where calls come in."""

    name: Name = Field(
        default="",
        description="Unique name in metrics and in the ports file; default `<mode>-<index>`.",
    )
    mode: Literal["explicit", "service", "inbound", "connect"] = Field(
        description="`explicit`: the service by `:authority`; `service`: always the same one; "
        "`inbound`: in front of a server; `connect`: by the target of HTTP CONNECT."
    )
    address: Address = Field(
        description="`ip:port` (port 0 lets the system pick one) or `unix:/path`."
    )
    service: Name | None = Field(
        default=None,
        description="The service of a `service` listener; for an `explicit` one the service of "
        "calls that name no authority.",
    )
    target: EndpointAddress | None = Field(
        default=None, description="The server behind an `inbound` listener."
    )
    max_concurrency: Annotated[int, Field(ge=1, le=_U32_MAX)] | None = Field(
        default=None,
        description="Calls that the server behind an `inbound` listener works on at a time; more "
        "wait in front of it. Default: as many as come.",
    )
    queue: Queue | None = Field(
        default=None,
        description="Calls that wait where `max_concurrency` is set; default `{}`.",
    )
    min_report_interval: Annotated[timedelta, duration(_MS, _HOUR)] | None = Field(
        default=None,
        description="Shortest interval in which an `inbound` listener reports out of band, "
        "whatever a client asks for; default `100ms`.",
    )


def with_defaults(listener: Listener, index: int) -> Listener:
    """Writes out what has a default that depends on other keys."""
    update: dict[str, Any] = {"name": listener.name or f"{listener.mode}-{index}"}
    if listener.mode == "inbound":
        update["min_report_interval"] = listener.min_report_interval or MIN_REPORT_INTERVAL
        if listener.max_concurrency is not None:
            update["queue"] = listener.queue or Queue()
    return listener.model_copy(update=update)


def listener_json(listener: Listener, source: str) -> dict[str, Any]:
    """In the form of the data plane, with its defaults written out; source: where its address
    stands."""
    return {
        "name": listener.name,
        "mode": listener.mode,
        "address": listener.address,
        "service": listener.service,
        "inbound": _inbound_json(listener) if listener.mode == "inbound" else None,
        "source": source,
    }


def _inbound_json(listener: Listener) -> dict[str, Any]:
    queue = listener.queue or Queue()
    interval = listener.min_report_interval or MIN_REPORT_INTERVAL
    return {
        "target": listener.target,
        "max_concurrency": listener.max_concurrency,
        "queue": {"max_length": queue.max_length, "timeout_ms": queue.timeout // _MS},
        "min_report_interval_ms": interval // _MS,
    }
