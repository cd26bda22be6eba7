"""Load reports out of band: what endpoints say of their load between calls (gRFC A51).

One stream of `xds.service.orca.v3.OpenRcaService/StreamCoreMetrics` for each endpoint of a service
that asks for it, over a connection of its own: the data plane's connections carry calls only. The
messages are not decoded here, the data plane reads them as it reads those of answers, so no stub
and no generated code are needed; the request is one field, written by hand.

An endpoint that does not know the service is left alone for a while; every other end of a stream is
followed by another try, later each time. Nothing here is on the path of a call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from attnroute.logs import fields

__all__ = [
    "METHOD",
    "OrcaEvents",
    "OrcaPlan",
    "OutOfBandReports",
    "Pauses",
    "ReportSink",
    "encode_request",
]

logger = logging.getLogger(__name__)

METHOD = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"

REPORT_BYTES_MAX = 16 * 1024
"""As the data plane's: a longer report is not looked at."""

SILENCE_FLOOR_S = 90.0
"""A stream that is silent for so long, and for three intervals, is opened anew. Servers may report
less often than they are asked; 30 s is their usual least interval."""

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", REPORT_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    # An endpoint's address is meant as it stands, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


class ReportSink(Protocol):
    """Where reports go (attnroute.dataplane.DataPlane)."""

    def reported(self, service: str, endpoint: str, report: bytes) -> bool: ...


class OrcaEvents(Protocol):
    """What is counted."""

    def out_of_band_report(self, service: str) -> None: ...
    def out_of_band_failure(self, service: str, reason: str) -> None: ...
    def out_of_band_followed(self, service: str, followed: int, left_out: int) -> None: ...
    def out_of_band_gone(self, service: str) -> None: ...


@dataclass(frozen=True)
class OrcaPlan:
    """What a service asks for: reports of these endpoints, of at most that many."""

    interval: timedelta
    endpoints_max: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Pauses:
    """How long an endpoint is left alone, in seconds. Each pause is drawn from 80 to 120 %."""

    first_s: float = 1.0
    growth: float = 1.6
    most_s: float = 60.0
    unimplemented_s: float = 600.0


@dataclass
class _Service:
    interval: timedelta
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


def encode_request(interval: timedelta) -> bytes:
    """An `OrcaLoadReportRequest` that asks for a report each interval: field 1, a Duration."""
    duration = Duration()
    duration.FromTimedelta(interval)
    body = duration.SerializeToString()
    return b"\x0a" + bytes((len(body),)) + body


class OutOfBandReports:
    """The open streams; made and used on one event loop."""

    def __init__(
        self,
        sink: ReportSink,
        events: OrcaEvents,
        *,
        pauses: Pauses = Pauses(),
        rng: random.Random | None = None,
    ) -> None:
        self._sink = sink
        self._events = events
        self._pauses = pauses
        self._rng = random.Random() if rng is None else rng
        self._services: dict[str, _Service] = {}

    def replace(self, plans: Mapping[str, OrcaPlan]) -> None:
        """Follows what `plans` names, all of it, and nothing else. Endpoints beyond the limit of a
        service are left out; those that are followed already stay so."""
        for name in self._services.keys() - plans.keys():
            _cancel(self._services.pop(name).tasks.values())
            self._events.out_of_band_gone(name)
        for name, plan in plans.items():
            service = self._services.get(name)
            if service is None or service.interval != plan.interval:
                if service is not None:
                    _cancel(service.tasks.values())
                service = self._services[name] = _Service(plan.interval)
            self._follow(name, service, plan)

    async def close(self) -> None:
        """Ends every stream."""
        tasks = [task for one in self._services.values() for task in one.tasks.values()]
        self._services.clear()
        _cancel(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, name: str, service: _Service, plan: OrcaPlan) -> None:
        tasks = service.tasks
        for address in tasks.keys() - set(plan.addresses):
            tasks.pop(address).cancel()
        # One that found its endpoint gone may begin again: the address is back.
        for address in [address for address, task in tasks.items() if task.done()]:
            del tasks[address]
        kept = dict.fromkeys([*tasks, *plan.addresses])
        chosen = list(kept)[: plan.endpoints_max]
        for address in tasks.keys() - set(chosen):
            tasks.pop(address).cancel()
        for address in chosen:
            if address not in tasks:
                tasks[address] = asyncio.create_task(
                    self._ask(name, address, service.interval), name=f"reports of {address}"
                )
        self._events.out_of_band_followed(name, len(chosen), len(kept) - len(chosen))

    async def _ask(self, service: str, address: str, interval: timedelta) -> None:
        """Asks one endpoint again and again; returns once it has left the set."""
        pauses = self._pauses
        # A fleet of endpoints is not dialled at one moment.
        await asyncio.sleep(self._rng.random() * min(1.0, interval.total_seconds()))
        pause_s = pauses.first_s
        while True:
            stream = _Stream(self._sink, self._events, service, address)
            reason = await stream.follow(interval)
            if reason is None:
                return
            if stream.reports > 0:
                pause_s = pauses.first_s
            self._events.out_of_band_failure(service, reason)
            logger.debug(
                "out-of-band load reports ended",
                extra=fields(service=service, endpoint=address, reason=reason),
            )
            wait_s = pauses.unimplemented_s if reason == "UNIMPLEMENTED" else pause_s
            pause_s = min(pause_s * pauses.growth, pauses.most_s)
            await asyncio.sleep(wait_s * self._rng.uniform(0.8, 1.2))


class _Stream:
    """One try to follow one endpoint."""

    def __init__(self, sink: ReportSink, events: OrcaEvents, service: str, address: str) -> None:
        self._sink = sink
        self._events = events
        self._service = service
        self._address = address
        self.reports = 0

    async def follow(self, interval: timedelta) -> str | None:
        """Hands reports on until the stream ends. Returns why it did, a status or `silent`; None
        if the endpoint is not in the set any more."""
        silence_s = max(SILENCE_FLOOR_S, 3 * interval.total_seconds())
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(METHOD)
            call = method(encode_request(interval))
            try:
                while True:
                    report = await asyncio.wait_for(call.read(), silence_s)
                    if not isinstance(report, bytes):  # the end of the stream
                        return (await call.code()).name
                    if not self._sink.reported(self._service, self._address, report):
                        return None
                    self.reports += 1
                    self._events.out_of_band_report(self._service)
            except TimeoutError:
                return "silent"
            except grpc.aio.AioRpcError as error:
                return error.code().name
            finally:
                call.cancel()


def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
