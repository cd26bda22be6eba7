"""How a service reaches its endpoints, as the operator writes it: `docs/connections.md`.

The defaults repeat those of `crates/dataplane/src/config/outward.rs`; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from attnroute.policy import scalars
from attnroute.policy.balancers import Share
from attnroute.policy.fields import Parsed, Strict, duration, size

__all__ = [
    "Connection",
    "Keepalive",
    "ServiceLimits",
    "Waiting",
    "connection_json",
    "limits_json",
    "waiting_json",
]

_U32_MAX = 2**32 - 1
_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)

Unlimited = Literal["unlimited"]


def _or_unlimited(
    parse: Callable[[object], int], expected: str, *, least: int = 1, most: int = _U32_MAX
) -> Callable[[object], Any]:
    def read(value: object) -> int | str:
        if value == "unlimited":
            return "unlimited"
        try:
            number = parse(value)
        except ValueError:
            raise ValueError(f"expected {expected}, or `unlimited`") from None
        if not least <= number <= most:
            raise ValueError(f"expected {expected}, or `unlimited`")
        return number

    return read


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("not a number")


Count = Annotated[
    int | Unlimited,
    Parsed(
        _or_unlimited(_count, f"a whole number from 1 to {_U32_MAX}"),
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": _U32_MAX},
                {"const": "unlimited"},
            ]
        },
    ),
]


def _render_size(value: int | str) -> str:
    return value if isinstance(value, str) else scalars.format_size(value)


MessageSize = Annotated[
    int | Unlimited,
    Parsed(
        _or_unlimited(scalars.parse_size, "a size from `1B` to `4294967295B`"),
        {
            "anyOf": [
                {"type": "string", "pattern": scalars.SIZE_PATTERN},
                {"type": "integer", "minimum": 1, "maximum": _U32_MAX},
                {"const": "unlimited"},
            ],
            "x-limits": f"1B to {_U32_MAX}B",
        },
        _render_size,
    ),
]

_HELD_BYTES = (1 << 10, 1 << 40)

HeldSize = Annotated[
    int | Unlimited,
    Parsed(
        _or_unlimited(
            scalars.parse_size,
            "a size from `1KiB` to `1024GiB`",
            least=_HELD_BYTES[0],
            most=_HELD_BYTES[1],
        ),
        {
            "anyOf": [
                {"type": "string", "pattern": scalars.SIZE_PATTERN},
                {"type": "integer", "minimum": _HELD_BYTES[0], "maximum": _HELD_BYTES[1]},
                {"const": "unlimited"},
            ],
            "x-limits": "1KiB to 1024GiB",
        },
        _render_size,
    ),
]


class ServiceLimits(Strict):
    """Limits of one service."""

    max_inflight: int = Field(
        default=10_000,
        ge=1,
        le=_U32_MAX,
        description="Calls in flight over all endpoints; `waiting.when_full` says what becomes of "
        "one more.",
    )
    max_inflight_per_endpoint: Count = Field(
        default="unlimited",
        description="Calls in flight at one endpoint, which is left out of picks then; the same "
        "holds where no endpoint has room.",
    )
    max_open_connections: Count = Field(
        default="unlimited",
        description="Connections over all endpoints and data threads; a call that needs one more "
        "goes to another endpoint or is UNAVAILABLE.",
    )
    max_connections_per_endpoint: int = Field(
        default=4, ge=1, le=1_000, description="Connections per endpoint and data thread."
    )
    max_pending: int = Field(
        default=1_000,
        ge=1,
        le=_U32_MAX,
        description="Calls that wait for a connection, per endpoint and data thread.",
    )
    max_waiting: int = Field(
        default=1_000,
        ge=1,
        le=_U32_MAX,
        description="Calls that wait for room or for an endpoint; one more is UNAVAILABLE.",
    )
    max_held_bytes: Annotated[int, size(*_HELD_BYTES)] = Field(
        default=512 << 20,
        description="Bytes that calls may hold in the sidecar because one side does not take them, "
        "over all endpoints: a call counts with a stream window per direction in which data waits. "
        "`waiting.when_full` says what becomes of one more call.",
    )
    max_held_bytes_per_endpoint: HeldSize = Field(
        default="unlimited",
        description="The same at one endpoint, which is left out of picks then; the same holds "
        "where no endpoint has room.",
    )
    max_message_bytes: MessageSize = Field(
        default="unlimited",
        description="Length of one message, in both directions; a longer one ends its call "
        "RESOURCE_EXHAUSTED.",
    )
    max_replay_bytes: Annotated[int, size(0, 64 << 20)] = Field(
        default=64 << 10,
        description="Bytes of a request that are kept until its answer begins, so that it can be "
        "sent again if its endpoint did not process it, or its route says so; 0 keeps nothing.",
    )
    max_replay_bytes_total: Annotated[int, size(0, 1 << 40)] = Field(
        default=64 << 20,
        description="The same of all calls of routes with `retry` or `hedge` together.",
    )
    max_endpoints: int = Field(
        default=10_000, ge=1, le=100_000, description="Endpoints; a larger set is refused."
    )


class Keepalive(Strict):
    """Pings on a connection with calls: whether the endpoint still answers."""

    interval: Annotated[timedelta, duration(timedelta(0), 24 * _HOUR)] = Field(
        default=timedelta(seconds=10),
        description="Silence after which the endpoint is asked by a PING; where it answers those "
        "and nothing else, the third and later ones are 5 minutes apart; 0 switches pings off.",
    )
    timeout: Annotated[timedelta, duration(_MS, _HOUR)] = Field(
        default=timedelta(seconds=5),
        description="Further silence after which the connection is given up and its calls end "
        "UNAVAILABLE.",
    )


class Connection(Strict):
    """How connections to endpoints are made and watched."""

    connect_timeout: Annotated[timedelta, duration(_MS, 24 * _HOUR)] = Field(
        default=timedelta(seconds=2),
        description="From the first packet to the endpoint's SETTINGS.",
    )
    backoff_base: Annotated[timedelta, duration(_MS, _HOUR)] = Field(
        default=timedelta(milliseconds=100),
        description="Wait after the first failed connect; it grows by 1.6 with 20 % jitter.",
    )
    backoff_max: Annotated[timedelta, duration(_MS, _HOUR)] = Field(
        default=timedelta(seconds=1),
        description="Longest wait between two connects to a failing endpoint.",
    )
    max_streams: int = Field(
        default=1_000,
        ge=1,
        le=_U32_MAX,
        description="Streams at most on one connection, whatever the endpoint allows.",
    )
    max_age: Annotated[timedelta, duration(timedelta(0), 24 * 30 * _HOUR)] = Field(
        default=timedelta(0),
        description="Age at which a connection is replaced by a new one, so that a balancer in "
        "between or new servers behind an address get their share; its calls finish; 0: never.",
    )
    max_age_jitter: Share = Field(
        default=0.1,
        description="Share of `max_age` by which it differs from connection to connection.",
    )
    max_leaving: Annotated[timedelta, duration(timedelta(0), 24 * 30 * _HOUR)] = Field(
        default=timedelta(0),
        description="How long calls may stay on a connection that takes no more of them, because "
        "its endpoint drains, has left the set, or `max_age` is over; then they end UNAVAILABLE. "
        "0: as long as they like.",
    )
    keepalive: Keepalive = Field(
        default=Keepalive(), description="Whether the endpoint still answers."
    )


class Waiting(Strict):
    """Calls that wait for a place."""

    when_full: Literal["fail", "queue"] = Field(
        default="fail",
        description="Where `max_inflight` or `max_held_bytes` of `limits` is reached, or all "
        "endpoints are full: `fail` ends the call UNAVAILABLE, `queue` lets it wait.",
    )
    for_ready: bool = Field(
        default=False,
        description="Whether calls wait while no endpoint can take them; `wait_for_ready` of a "
        "route goes before it.",
    )
    max_time: Annotated[timedelta, duration(_MS, 24 * _HOUR)] = Field(
        default=timedelta(seconds=30),
        description="Longest wait; the deadline of a call may be shorter.",
    )


def limits_json(limits: ServiceLimits) -> dict[str, int | None]:
    """The form of the data plane: an unlimited one is missing."""
    return {name: None if value == "unlimited" else value for name, value in limits}


def connection_json(connection: Connection) -> dict[str, Any]:
    """The form of the data plane: durations in milliseconds."""
    return {
        "connect_timeout_ms": connection.connect_timeout // _MS,
        "backoff_base_ms": connection.backoff_base // _MS,
        "backoff_max_ms": connection.backoff_max // _MS,
        "max_streams": connection.max_streams,
        "max_age_ms": connection.max_age // _MS,
        "max_age_jitter": connection.max_age_jitter,
        "max_leaving_ms": connection.max_leaving // _MS,
        "keepalive": {
            "interval_ms": connection.keepalive.interval // _MS,
            "timeout_ms": connection.keepalive.timeout // _MS,
        },
    }


def waiting_json(waiting: Waiting) -> dict[str, Any]:
    """The form of the data plane: durations in milliseconds."""
    return {
        "when_full": waiting.when_full,
        "for_ready": waiting.for_ready,
        "max_time_ms": waiting.max_time // _MS,
    }
