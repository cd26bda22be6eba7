"""What the admin API answers (proto/attnroute/admin/v1/admin.proto).

Answers are built from two views: the control side (policy, sources) and telemetry (the data plane's
counters). The methods know no transport: a refusal is an exception with a status and its
google.rpc details, and `attnroute.admin.server` turns it into a gRPC status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.timestamp_pb2 import Timestamp

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin import changes
from attnroute.admin.explain import ExplainView, explain_message, request_json
from attnroute.admin.model import ModelView, gates, model_message, set_model
from attnroute.admin.picks import BATCH, PickView, last_of, pick_message
from attnroute.admin.refusals import RefusalError, error_info, refuse_field
from attnroute.admin.weights import EVERY_CLASS, Scores, ScoresView
from attnroute.clock import Clock
from attnroute.discovery.overrides import ActiveOverride
from attnroute.telemetry.snapshot import EndpointInfo, ServiceSnapshot

WATCH_INTERVAL_MS_DEFAULT = 500
WATCH_INTERVAL_MS_MIN = 100

DRAIN_POLL_S = 0.05
"""How often a drain that waits looks at the calls in flight."""

PICKS_POLL_S = 0.2
"""How often a watch looks for new picks."""

WATCHES_MAX = 64
"""Open streams; one more is RESOURCE_EXHAUSTED."""


@dataclass(frozen=True)
class ServiceInfo:
    """A service as the policy in force and its source of endpoints have it."""

    name: str
    authorities: tuple[str, ...]
    balancer: str
    source: str
    """Kind of source: `static`, `file`."""
    source_error: str
    """Empty, or why the last good set still serves."""


@dataclass(frozen=True)
class ConfigInfo:
    """The policy in force and what became of the newest file."""

    policy_yaml: str
    sha256: str
    source: str
    generation: int
    applied_at_s: float
    """Seconds since 1970-01-01 UTC."""
    rejected: str


class ControlView(Protocol):
    """What the control side tells the admin API."""

    def services(self) -> Sequence[ServiceInfo]:
        """Every service of the policy in force, in its order."""
        ...

    def config(self) -> ConfigInfo:
        """The policy in force."""
        ...

    def allow_changes(self) -> bool:
        """Whether TCP takes changes, by the policy in force."""
        ...


class OverrideView(changes.OverrideView, Protocol):
    """What the admin API reads and changes of overrides."""

    def of(self, service: str) -> Mapping[str, ActiveOverride]: ...


class TelemetryView(Protocol):
    """What the admin API reads of the data plane."""

    def read(self, service: str) -> ServiceSnapshot: ...
    def shares(self, snapshot: ServiceSnapshot) -> npt.NDArray[np.float64] | None: ...


_WHY_NOT = {
    state: name.removeprefix("ENDPOINT_STATE_").lower().replace("_", " ")
    for name, state in pb.EndpointState.items()
    if state not in (pb.ENDPOINT_STATE_UNSPECIFIED, pb.ENDPOINT_STATE_USABLE)
}
"""What keeps an endpoint from every call, in words."""


class PickerView(ExplainView, ScoresView, Protocol):
    """What the admin API reads of pickers."""


class AdminService:
    """The methods of attnroute.admin.v1.Admin, by their names in lower case."""

    def __init__(
        self,
        control: ControlView,
        telemetry: TelemetryView,
        overrides: OverrideView,
        picks: PickView,
        picker: PickerView,
        clock: Clock,
        *,
        models: ModelView,
        watches_max: int = WATCHES_MAX,
        on_limit_hit: Callable[[str], None] = lambda _limit: None,
    ) -> None:
        """on_limit_hit is called with the name of a limit that refused a call."""
        self._control = control
        self._telemetry = telemetry
        self._overrides = overrides
        self._picks = picks
        self._picker = picker
        self._models = models
        self._clock = clock
        self._watches_max = watches_max
        self._on_limit_hit = on_limit_hit
        self._watches = 0
        self._closing = asyncio.Event()

    @property
    def watches(self) -> int:
        """Open streams of `WatchWeights` and `WatchPicks`."""
        return self._watches

    def close(self) -> None:
        """Ends every open stream with UNAVAILABLE, so that stopping need not wait for clients."""
        self._closing.set()

    async def list_services(self, _request: pb.ListServicesRequest) -> pb.ListServicesResponse:
        """Every service with the size and state of its endpoint set."""
        answer = pb.ListServicesResponse()
        for info in self._control.services():
            snapshot = self._telemetry.read(info.name)
            answer.services.append(
                pb.Service(
                    name=info.name,
                    authorities=info.authorities,
                    balancer=info.balancer,
                    endpoints=len(snapshot.endpoints),
                    usable_endpoints=int(np.count_nonzero(snapshot.rows["usable"])),
                    endpoint_epoch=snapshot.endpoint_epoch,
                    in_flight=int(snapshot.rows["in_flight"].sum()),
                    source=info.source,
                    source_error=info.source_error,
                )
            )
        return answer

    async def list_endpoints(self, request: pb.ListEndpointsRequest) -> pb.ListEndpointsResponse:
        """The endpoints of one service with their counters."""
        info = self._find(request.service)
        snapshot = self._telemetry.read(info.name)
        overrides = self._overrides.of(info.name)
        answer = pb.ListEndpointsResponse(service=info.name, endpoint_epoch=snapshot.endpoint_epoch)
        for endpoint, row in zip(snapshot.endpoints, snapshot.rows, strict=True):
            successes = int(row["successes"])
            override = overrides.get(endpoint.address)
            answer.endpoints.append(
                pb.Endpoint(
                    address=endpoint.address,
                    state=_state(endpoint, row),
                    zone=endpoint.zone,
                    priority=endpoint.priority,
                    labels=endpoint.labels,
                    static_weight=endpoint.static_weight,
                    in_flight=int(row["in_flight"]),
                    connections=int(row["connections"]),
                    picks_total=int(row["picks"]),
                    successes_total=successes,
                    failures_total=int(row["failures"]),
                    mean_latency_s=int(row["latency_ns"]) / successes / 1e9 if successes else 0.0,
                    override=None if override is None else changes.override_message(override),
                )
            )
        return answer

    async def get_weights(self, request: pb.GetWeightsRequest) -> pb.GetWeightsResponse:
        """The weights of one service, read now."""
        info = self._find(request.service)
        scores = self._scores(info)
        scores.check_class(request.request_class)
        snapshot = self._telemetry.read(info.name)
        return self._weights(info, snapshot, scores, request.request_class)

    async def watch_weights(
        self, request: pb.WatchWeightsRequest
    ) -> AsyncIterator[pb.GetWeightsResponse]:
        """The weights now and after each change.

        State is read only when the client took the message before, so a client that does not read
        holds one task and no queue, and sees the newest state when it goes on.
        """
        info = self._find(request.service)
        self._scores(info).check_class(request.request_class)
        interval_s = _watch_interval_s(request.min_interval_ms)
        with self._watch_slot():
            sent: tuple[object, ...] | None = None
            while not self._closing.is_set():
                info = self._find(request.service)
                snapshot = self._telemetry.read(info.name)
                scores = self._scores(info)
                state = (*_comparable(info, snapshot), *scores.version)
                if state != sent:
                    sent = state
                    yield self._weights(info, snapshot, scores, request.request_class)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), interval_s)
        raise RefusalError(grpc.StatusCode.UNAVAILABLE, "attnroute: the sidecar is stopping", ())

    async def get_config(self, _request: pb.GetConfigRequest) -> pb.GetConfigResponse:
        """The policy in force, and why a newer file is not."""
        config = self._control.config()
        return pb.GetConfigResponse(
            policy_yaml=config.policy_yaml,
            sha256=config.sha256,
            source=config.source,
            generation=config.generation,
            applied_at=_timestamp(config.applied_at_s),
            rejected=config.rejected,
        )

    def check_may_change(self, *, local: bool) -> None:
        """Raises RefusalError on TCP unless the policy takes changes there. local: the call came
        over the Unix socket."""
        if not local and not self._control.allow_changes():
            changes.refuse_change_on_tcp()

    async def set_override(self, request: pb.SetOverrideRequest) -> pb.SetOverrideResponse:
        """Sets or ends the override of one endpoint."""
        info = self._find(request.service)
        answer = pb.SetOverrideResponse(service=info.name, endpoint=request.endpoint)
        if request.override == pb.OVERRIDE_NONE:
            epoch = changes.clear_override(self._overrides, info.name, request.endpoint)
            answer.endpoint_epoch = epoch
            return answer
        kind = changes.KINDS.get(request.override)
        if kind is None:
            refuse_field(
                "override", f"`override` is {request.override}, expected one that the API names"
            )
        duration = request.duration if request.HasField("duration") else None
        override, epoch = changes.set_override(
            self._overrides, info.name, request.endpoint, kind, duration
        )
        answer.override.CopyFrom(override)
        answer.endpoint_epoch = epoch
        return answer

    async def drain(self, request: pb.DrainRequest) -> pb.DrainResponse:
        """Drains one endpoint and waits for its calls, if asked to."""
        info = self._find(request.service)
        wait_s = changes.wait_s(request)
        duration = request.duration if request.HasField("duration") else None
        override, epoch = changes.set_override(
            self._overrides, info.name, request.endpoint, "drain", duration
        )
        ends_s = self._clock.now_s() + wait_s
        while (in_flight := self._in_flight(info.name, request.endpoint)) > 0:
            if self._closing.is_set() or self._clock.now_s() >= ends_s:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), DRAIN_POLL_S)
        return pb.DrainResponse(
            service=info.name,
            endpoint=request.endpoint,
            override=override,
            endpoint_epoch=epoch,
            in_flight=in_flight,
        )

    async def list_picks(self, request: pb.ListPicksRequest) -> pb.ListPicksResponse:
        """The newest recorded picks of one service."""
        info = self._find(request.service)
        last = last_of(request)
        picks = self._picks.last(info.name, last)
        return pb.ListPicksResponse(
            service=info.name,
            picks=[pick_message(pick, EVERY_CLASS) for pick in picks],
            number=picks[-1].number if picks else 0,
            dropped_total=self._picks.dropped,
        )

    async def watch_picks(self, request: pb.WatchPicksRequest) -> AsyncIterator[pb.Pick]:
        """Each pick that is recorded from now on.

        Holds a number and what it is about to send: a client that does not read costs no more, and
        goes on with what is still kept.
        """
        info = self._find(request.service)
        with self._watch_slot():
            sent = request.after if request.HasField("after") else self._picks.number(info.name)
            while not self._closing.is_set():
                self._find(info.name)
                picks = self._picks.after(info.name, sent, BATCH)
                for pick in picks:
                    sent = pick.number
                    yield pick_message(pick, EVERY_CLASS)
                if len(picks) < BATCH:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), PICKS_POLL_S)
        raise RefusalError(grpc.StatusCode.UNAVAILABLE, "attnroute: the sidecar is stopping", ())

    async def explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """The pick that would be made now, with every term of every cost."""
        info = self._find(request.service)
        snapshot = self._telemetry.read(info.name)
        left_out = {
            endpoint.address: _WHY_NOT.get(_state(endpoint, row), "left out by the rules")
            for endpoint, row in zip(snapshot.endpoints, snapshot.rows, strict=True)
        }
        found = self._picker.explain(info.name, request_json(request))
        answer = explain_message(found, left_out)
        answer.read_at.CopyFrom(_timestamp(self._clock.wall_s()))
        return answer

    async def get_model(self, _request: pb.GetModelRequest) -> pb.GetModelResponse:
        """Which model scores, and what became of others."""
        return model_message(self._models.state())

    async def set_model(self, request: pb.SetModelRequest) -> pb.GetModelResponse:
        """Promotes, rolls back, freezes."""
        return set_model(self._models, request)

    def _in_flight(self, service: str, address: str) -> int:
        snapshot = self._telemetry.read(service)
        pairs = zip(snapshot.endpoints, snapshot.rows, strict=True)
        return sum(int(row["in_flight"]) for endpoint, row in pairs if endpoint.address == address)

    def _find(self, service: str) -> ServiceInfo:
        if not service:
            refuse_field("service", "`service` is empty; name a service of the policy")
        services = self._control.services()
        for info in services:
            if info.name == service:
                return info
        known = ", ".join(info.name for info in services)
        raise RefusalError(
            grpc.StatusCode.NOT_FOUND,
            f"attnroute: service `{service}` is not configured; configured are: {known}",
            [error_info("SERVICE_NOT_FOUND", service=service, configured=known)],
        )

    def _scores(self, info: ServiceInfo) -> Scores:
        return Scores(info.name, info.balancer, self._picker.scores_in_force(info.name))

    def _weights(
        self, info: ServiceInfo, snapshot: ServiceSnapshot, scores: Scores, request_class: str
    ) -> pb.GetWeightsResponse:
        shares = self._telemetry.shares(snapshot)
        rows = [
            pb.EndpointWeight(
                address=endpoint.address,
                weight=float(row["weight"]),
                share=None if shares is None else float(shares[index]),
                state=_state(endpoint, row),
                in_flight=int(row["in_flight"]),
            )
            for index, (endpoint, row) in enumerate(
                zip(snapshot.endpoints, snapshot.rows, strict=True)
            )
        ]
        answer = pb.GetWeightsResponse(
            service=info.name,
            balancer=info.balancer,
            endpoint_epoch=snapshot.endpoint_epoch,
            read_at=_timestamp(self._clock.wall_s()),
            scorers=gates(self._models.state().seats, info.name),
        )
        scores.fill(answer, rows, request_class)
        return answer

    @contextmanager
    def _watch_slot(self) -> Iterator[None]:
        if self._watches >= self._watches_max:
            self._on_limit_hit("admin_watches")
            raise RefusalError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"attnroute: {self._watches_max} watches are open, which is the limit; end one",
                [error_info("TOO_MANY_WATCHES", limit=str(self._watches_max))],
            )
        self._watches += 1
        try:
            yield
        finally:
            self._watches -= 1


def _watch_interval_s(min_interval_ms: int) -> float:
    if min_interval_ms == 0:
        min_interval_ms = WATCH_INTERVAL_MS_DEFAULT
    if min_interval_ms < WATCH_INTERVAL_MS_MIN:
        refuse_field(
            "min_interval_ms",
            f"`min_interval_ms` is {min_interval_ms}, expected {WATCH_INTERVAL_MS_MIN} or more, "
            f"or 0 for {WATCH_INTERVAL_MS_DEFAULT}",
        )
    return min_interval_ms / 1000


def _state(endpoint: EndpointInfo, row: np.void) -> pb.EndpointState:
    if endpoint.override == "drain":
        return pb.ENDPOINT_STATE_DRAINED
    if row["static_weight"] == 0:
        return pb.ENDPOINT_STATE_WEIGHT_ZERO
    if row["failing"]:
        return pb.ENDPOINT_STATE_CONNECT_FAILING
    if row["unhealthy"]:
        return pb.ENDPOINT_STATE_UNHEALTHY
    if row["ejected"]:
        return pb.ENDPOINT_STATE_EJECTED
    if row["standby"]:
        return pb.ENDPOINT_STATE_STANDBY
    return pb.ENDPOINT_STATE_USABLE


def _comparable(info: ServiceInfo, snapshot: ServiceSnapshot) -> tuple[object, ...]:
    """What a change of is worth a message: weights, set, state; not counters or shares."""
    columns = (
        "id",
        "weight",
        "usable",
        "failing",
        "ejected",
        "unhealthy",
        "standby",
        "static_weight",
    )
    values = (snapshot.rows[column].tobytes() for column in columns)
    return (info.balancer, snapshot.endpoint_epoch, *values)


def _timestamp(wall_s: float) -> Timestamp:
    # A float of today's date holds no more than microseconds.
    seconds, micros = divmod(round(wall_s * 1e6), 1_000_000)
    return Timestamp(seconds=seconds, nanos=micros * 1000)
