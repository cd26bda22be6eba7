"""The policy as the operator writes it: every key, its type, its limits, its default.

Field rules live here; rules between fields (a service that a listener names, an address given
twice) live in `rules`, because pydantic runs a model's own validators only once all its fields are
right, and an operator wants to see every mistake at once. `load.load_policy` applies both and is
the way to a `Policy`.

Durations are `timedelta`, sizes are bytes. The defaults of data-plane values repeat those of
`crates/dataplane/src/config.rs`; a test holds them together.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

from attnroute.policy import scalars
from attnroute.policy.balancers import (
    Balancer,
    HeaderName,
    LeastRequest,
    Share,
    SlowStart,
    share_from,
)
from attnroute.policy.fields import Parsed, Strict, duration, size
from attnroute.policy.health import Health, OutlierDetection
from attnroute.policy.listeners import Address, Listener, Name
from attnroute.policy.load_reports import Fleet, LoadReports
from attnroute.policy.model import Model
from attnroute.policy.observe import AccessLog, Picks, Tracing
from attnroute.policy.outward import Connection, ServiceLimits, Waiting
from attnroute.policy.request_class import RequestClass
from attnroute.policy.resilience import Hedge, Retry
from attnroute.policy.sources import (
    EndpointAddress,
    EndpointFile,
    EndpointSource,
    EndpointSources,
    StaticEndpoint,
    Text,
)

__all__ = [
    "Admin",
    "Connection",
    "DataPlaneSettings",
    "Drain",
    "EndpointFile",
    "EndpointSource",
    "Limits",
    "Listener",
    "PathMatch",
    "Policy",
    "PolicyJsonSchema",
    "RateLimit",
    "ResetLimit",
    "Route",
    "Service",
    "ServiceLimits",
    "StaticEndpoint",
    "Timeouts",
    "Waiting",
    "json_schema",
]

_U32_MAX = 2**32 - 1
_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)


_PATH_SCHEMA = {"type": "string", "pattern": "^/", "maxLength": 1024}

SocketPath = Annotated[
    str, Parsed(scalars.parse_socket_path, {"type": "string", "pattern": "^(unix:)?/"})
]
Authority = Annotated[
    str,
    Parsed(scalars.parse_authority, {"type": "string", "pattern": scalars.AUTHORITY_PATTERN}),
]
Path = Annotated[str, Parsed(scalars.parse_path, _PATH_SCHEMA)]
Timeout = Annotated[timedelta, duration(_MS, 24 * _HOUR)]
BusyPoll = Annotated[timedelta, duration(timedelta(0), _MS, step=timedelta(microseconds=1))]


def _exactly_one(*keys: str) -> dict[str, Any]:
    return {"oneOf": [{"required": [key]} for key in keys]}


class Admin(Strict):
    """Where the sidecar is observed and changed."""

    grpc: Address = Field(
        default="127.0.0.1:15010",
        description="Address of the admin gRPC API; port 0 lets the system pick one.",
    )
    socket: SocketPath | None = Field(
        default=None,
        description="Path of a Unix socket (mode 0600) for the admin gRPC API; it takes changes.",
    )
    http: Address = Field(
        default="127.0.0.1:15011",
        description="Address of `/metrics`, `/healthz` and `/readyz`.",
    )
    allow_changes: bool = Field(
        default=False,
        description="Whether the admin gRPC API takes changes on TCP too; a pod shares loopback.",
    )


class DataPlaneSettings(Strict):
    """How the forward path runs. Fixed while the process lives."""

    threads: int = Field(default=1, ge=1, le=64, description="Data threads.")
    busy_poll: BusyPoll = Field(
        default=timedelta(0),
        description="Keep polling for so long after a call instead of sleeping: costs up to this "
        "much CPU per call at low rates, saves two wake-ups of latency; 0 switches it off.",
    )


class RateLimit(Strict):
    """How often something may happen: a burst that time refills."""

    per_second: int = Field(default=1_000, ge=0, le=_U32_MAX, description="What time gives back.")
    burst: int = Field(
        default=10_000, ge=0, le=_U32_MAX, description="What may happen at once; 0: no limit."
    )


class ResetLimit(Strict):
    """How many calls of one client connection may be reset."""

    share: Share = Field(default=0.75, description="Of its new calls.")
    per_second: int = Field(
        default=1_000, ge=0, le=_U32_MAX, description="On top of it, what time gives back."
    )
    burst: int = Field(
        default=1_000, ge=0, le=_U32_MAX, description="What may happen at once; 0: no limit."
    )


class Limits(Strict):
    """Limits that concern clients. Every hit is counted in `attnroute_limit_hits_total{limit}`."""

    max_connections: int = Field(
        default=10_000, ge=1, le=_U32_MAX, description="Open client connections per listener."
    )
    max_streams_per_connection: int = Field(
        default=1_000,
        ge=1,
        le=_U32_MAX,
        description="Open streams per client connection, announced to the client.",
    )
    max_header_list_bytes: Annotated[int, size(1_024, 16 << 20)] = Field(
        default=96 << 10,
        description="Size of a header list as RFC 9113 6.5.2 counts it, in both directions; the "
        "default lets 64 KiB of binary error details pass.",
    )
    stream_window_bytes: Annotated[int, size(1_024, 2**31 - 1)] = Field(
        default=256 << 10,
        description="Receive window of one stream, in both directions.",
    )
    max_send_buffer_bytes: Annotated[int, size(1, 1 << 30)] = Field(
        default=256 << 10,
        description="Bytes held per stream for a peer that does not read.",
    )
    max_pending_resets: int = Field(
        default=1_000,
        ge=1,
        le=_U32_MAX,
        description="Streams that a client may have reset before they were even accepted, per "
        "connection.",
    )
    max_connect_head_bytes: Annotated[int, size(256, 1 << 20)] = Field(
        default=8 << 10,
        description="Size of an HTTP CONNECT request on a `connect` listener.",
    )
    resets: ResetLimit = Field(
        default=ResetLimit(),
        description="Resets that a client makes, or provokes by mistakes, per connection; above, "
        "it is cut off.",
    )
    control_frames: RateLimit = Field(
        default=RateLimit(),
        description="Frames that neither carry a call nor answer one (SETTINGS, PING, PRIORITY, "
        "empty ones, unknown ones), per connection of a client or to an endpoint; above, it is cut "
        "off.",
    )


class Timeouts(Strict):
    """Timeouts of connections."""

    handshake: Timeout = Field(
        default=timedelta(seconds=10),
        description="From accept to the end of the client's HTTP/2 preface.",
    )
    header_block: Annotated[timedelta, duration(timedelta(0), _HOUR)] = Field(
        default=timedelta(seconds=10),
        description="From the first byte of a header block to its last, of a client or of an "
        "endpoint; above, the connection is cut off. 0: no limit.",
    )
    stalled_stream: Annotated[timedelta, duration(timedelta(0), 24 * _HOUR)] = Field(
        default=timedelta(minutes=5),
        description="A call whose client takes nothing of an answer that waits for it ends after "
        "this time, or up to twice as much. 0: no limit.",
    )


class Drain(Strict):
    """How the sidecar stops after SIGTERM."""

    linger: Annotated[timedelta, duration(timedelta(0), _HOUR)] = Field(
        default=timedelta(seconds=15),
        description="Go on accepting for so long while client connections are open.",
    )
    limit: Annotated[timedelta, duration(timedelta(0), _HOUR)] = Field(
        default=timedelta(seconds=25),
        description="End of everything, `linger` included; keep it below what kills the process.",
    )


class PathMatch(Strict):
    """Which calls a route means: exactly one key."""

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {"^x-": {}}} | _exactly_one("path", "path_prefix")
    )

    path: Path | None = Field(
        default=None, description="The whole path, `/package.Service/Method`."
    )
    path_prefix: Path | None = Field(
        default=None, description="Its beginning, `/package.Service/`; the longest one wins."
    )


class Sticky(Strict):
    """Calls with the same key go to the same endpoint."""

    header: HeaderName = Field(
        description="Request header whose value is the key; a call without it is not sticky."
    )


class Rules(Strict):
    """What stands above the balancer, in this order."""

    pin: tuple[EndpointAddress, ...] = Field(
        default=(), description="Only these endpoints, while one of them is usable."
    )
    sticky: Sticky | None = Field(
        default=None, description="Keep calls of a key at one endpoint; default off."
    )
    max_share: Annotated[float, share_from(0.001)] | None = Field(
        default=None,
        description="Share of the route's last 1,000 picks, or of the last second's, that one "
        "endpoint may have; default unlimited.",
    )
    explore: Share = Field(
        default=0.0,
        description="Probability with which a call tries an endpoint that had less than this "
        "share, divided by their number, of the last 10 s.",
    )


class Locality(Strict):
    """Where the sidecar is, and whether endpoints of its zone are preferred."""

    own_zone: Text = Field(description="The sidecar's own zone.")
    zone_label: Text = Field(
        default="", description="The label that holds the zone of an endpoint that names none."
    )
    prefer: bool | None = Field(
        default=None,
        description="Whether endpoints of the own zone are preferred; by default they are, but not "
        "under `learned`, whose costs have the time on the way.",
    )
    min_healthy: Annotated[float, share_from(0.01)] = Field(
        default=0.7,
        description="Share of the own zone's endpoints that must be usable for it to take all "
        "calls; below, the rest goes to other zones in proportion.",
    )


class Route(Strict):
    """Settings of the calls whose path matches; an exact path goes before every prefix."""

    match: PathMatch = Field(description="Which calls.")
    timeout: Timeout | None = Field(
        default=None,
        description="Upper bound of a call's deadline; the client's own may be shorter.",
    )
    idempotent: bool = Field(
        default=False,
        description="Its calls may be processed more than once; `retry` and `hedge` need it.",
    )
    retry: Retry | None = Field(
        default=None, description="Whether calls that fail are tried again; default off."
    )
    hedge: Hedge | None = Field(
        default=None, description="Whether calls that take long are sent twice; default off."
    )
    wait_for_ready: bool | None = Field(
        default=None,
        description="Whether calls wait while no endpoint can take them; default what "
        "`waiting.for_ready` says.",
    )
    rules: Rules = Field(default=Rules(), description="What stands above the balancer.")


class Service(Strict):
    """One service."""

    authorities: tuple[Authority, ...] = Field(
        default=(),
        min_length=1,
        description="Values of `:authority` that mean this service: `host`, `host:port`, `host:*` "
        "(any port) or `*` (whatever no other service has); default the name, with any port.",
    )
    endpoints: EndpointSources = Field(
        description="Where its endpoints come from: one source, or a list of them that are merged; "
        "the first one that names an address says what its weight, zone and labels are."
    )
    balancer: Balancer = Field(
        default=LeastRequest(type="least_request", choice_count="all"),
        description="Which balancer picks; default `least_request` over all endpoints.",
    )
    scorers: tuple[Text, ...] = Field(
        default=(),
        max_length=8,
        description="Scorers of other distributions that score beside the table, by name: "
        "docs/scorers.md; for `learned`.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Calls that each endpoint works on at a time, if you know; default: what it "
        "reports, else learned.",
    )
    request_class: RequestClass | None = Field(
        default=None,
        description="How calls are told apart, and that they are counted by class and endpoint; "
        "default: only for a balancer that learns.",
    )
    locality: Locality | None = Field(
        default=None,
        description="The own zone, and whether its endpoints are preferred; default unknown.",
    )
    outlier_detection: OutlierDetection | None = Field(
        default=None,
        description="Whether and when calls that go wrong eject an endpoint; default off.",
    )
    health: Health | None = Field(
        default=None, description="Whether endpoints are asked for their health; default off."
    )
    panic_threshold: Share = Field(
        default=0.5,
        description="Share of the endpoints below which those that are not well are used all the "
        "same; 0: never.",
    )
    slow_start: SlowStart = Field(
        default=SlowStart(), description="How new endpoints get their first calls."
    )
    load_reports: LoadReports = Field(
        default=LoadReports(), description="Where load reports come from and how they are read."
    )
    strip_load_reports: bool = Field(
        default=False,
        description="Keep `endpoint-load-metrics-bin` from clients, who else see it unchanged.",
    )
    limits: ServiceLimits = Field(default=ServiceLimits(), description="Limits of this service.")
    connection: Connection = Field(
        default=Connection(), description="How connections to its endpoints are made."
    )
    waiting: Waiting = Field(
        default=Waiting(), description="Whether and how long calls wait for a place."
    )
    routes: tuple[Route, ...] = Field(default=(), description="Settings by path.")


class Policy(Strict):
    """The whole policy of a sidecar."""

    admin: Admin = Field(default=Admin(), description="Where the sidecar is observed and changed.")
    data_plane: DataPlaneSettings = Field(
        default=DataPlaneSettings(), description="How the forward path runs."
    )
    listeners: tuple[Listener, ...] = Field(
        min_length=1, description="Where clients come in; at least one."
    )
    limits: Limits = Field(default=Limits(), description="Limits that concern clients.")
    timeouts: Timeouts = Field(default=Timeouts(), description="Timeouts of connections.")
    fleet: Fleet = Field(default=Fleet(), description="The other sidecars.")
    model: Model | None = Field(
        default=None,
        description="Where bundles of the attention router come from, which scores beside the "
        "table for every service that balances by `learned`; default: the table alone.",
    )
    drain: Drain = Field(default=Drain(), description="How the sidecar stops after SIGTERM.")
    picks: Picks = Field(default=Picks(), description="Which picks are recorded.")
    access_log: AccessLog | None = Field(
        default=None, description="One JSON line per sampled call; off by default."
    )
    tracing: Tracing | None = Field(
        default=None, description="One span per sampled call; off by default."
    )
    services: dict[Name, Service] = Field(
        default_factory=dict,
        description="What clients may ask for, by name; at least one, unless every listener is "
        "`inbound`.",
    )


class PolicyJsonSchema(GenerateJsonSchema):
    """Defaults as an operator would write them, and no titles: they only repeat the keys."""

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, timedelta):
            return scalars.format_duration(dft)
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json")
        return super().encode_default(dft)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the policy file, for editors and for CI."""
    schema = Policy.model_json_schema(mode="validation", schema_generator=PolicyJsonSchema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnroute policy",
    } | {key: value for key, value in schema.items() if key != "title"}
