"""The trainer's side of the fleet exchange: one table per service, one stream per sidecar and
service.

Every second the tables end a window and each stream is sent what changed. A stream that reads
slowly gets the sums of several seconds in one update; it holds nobody up. A message that makes no
sense is dropped and counted, its stream goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio

from attnroute._proto.fleet.v1 import fleet_pb2, packed_pb2
from attnroute.clock import Clock
from attnroute.errors import StartError
from attnroute.features.merge import FleetTable, Subscriber
from attnroute.features.split import SplitParameters
from attnroute.features.table import TableParameters
from attnroute.fleet.messages import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MIN,
    SERVICE,
    MessageError,
    ModelReport,
    read_models,
    read_window,
    update_message,
)
from attnroute.logs import fields

__all__ = ["FleetEvents", "FleetLimits", "FleetServer", "FleetSettings", "page_address"]

logger = logging.getLogger(__name__)

TICK_S = 1.0
HELLO_TIMEOUT_S = 10.0

SIDECAR_ID_BYTES = 16
SERVICE_NAME_MAX = 256

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class FleetLimits:
    """What the exchange may hold. Every hit is counted."""

    streams: int = 4_096
    services: int = 256
    classes: int = 512
    """Per service; more are counted in `other`."""
    endpoints: int = 10_000
    """Per service; more are left out."""


@dataclass(frozen=True)
class FleetSettings:
    """How the tables are kept. split: solved for every service, where given."""

    table: TableParameters = field(default_factory=TableParameters)
    split: SplitParameters | None = None


class FleetEvents(Protocol):
    """What is counted."""

    def fleet_window(self, service: str) -> None: ...
    def fleet_dropped(self, service: str, reason: str) -> None: ...
    def fleet_limit(self, limit: str) -> None: ...
    def fleet_state(self, service: str, *, sidecars: int, classes: int, endpoints: int) -> None: ...
    def fleet_gone(self, service: str) -> None: ...


def page_address(peer: str, port: int) -> str:
    """Where a sidecar's page is: at the address that its stream comes from, whatever else it says,
    so that nobody can make the trainer call others. Empty if it cannot be told.

    peer: as gRPC writes it, `ipv4:10.0.0.1:5`, `ipv6:%5B::1%5D:5` or `unix:...`.
    """
    if not 0 < port < 65_536:
        return ""
    kind, _, rest = unquote(peer).partition(":")
    if kind == "unix":
        return f"127.0.0.1:{port}"
    return f"{rest.rpartition(':')[0]}:{port}" if kind in ("ipv4", "ipv6") else ""


class FleetServer:
    """Made and used on one event loop. trainer: 16 random bytes of this process. tick_s: length of
    a window; services: what else is served at its address."""

    def __init__(
        self,
        *,
        trainer: bytes,
        clock: Clock,
        limits: FleetLimits,
        events: FleetEvents,
        settings: FleetSettings | None = None,
        tick_s: float = TICK_S,
        services: Sequence[grpc.GenericRpcHandler] = (),
    ) -> None:
        self._tick_s = tick_s
        self._trainer = trainer
        self._clock = clock
        self._limits = limits
        self._settings = settings or FleetSettings()
        self._events = events
        self._tables: dict[str, FleetTable] = {}
        self._counted: dict[str, tuple[int, int, int]] = {}
        self._streams = 0
        self._pages: Counter[str] = Counter()
        """Addresses of sidecars' pages for training, and how many streams name each."""
        self._reports: dict[tuple[bytes, str], tuple[ModelReport, ...]] = {}
        """By sidecar and service: what its last window said of models."""
        self._ticked = asyncio.Condition()
        self._tick = 0
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(
            options=(
                # Shared ports would let a second trainer bind a busy address without a word.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                # A sidecar whose machine is gone frees its stream.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ),
        )
        handler = grpc.stream_stream_rpc_method_handler(
            self._exchange,
            request_deserializer=packed_pb2.PackedSidecarMessage.FromString,
            response_serializer=packed_pb2.PackedFleetUpdate.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE.full_name, {"Exchange": handler}),
                *services,
            )
        )

    def bind(self, address: str, source: str) -> str:
        """Binds `ip:port` or `unix:/path`; returns it with its real port. Raises StartError."""
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartError(
                f"{source}: cannot bind fleet address `{address}`; free it or configure another"
            ) from error
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Serves, and ticks each second."""
        await self._server.start()
        self._task = asyncio.create_task(self._tick_forever(), name="fleet tick")

    async def stop(self) -> None:
        """Ends every stream."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._ticked:
            self._ticked.notify_all()
        await self._server.stop(0.5)

    def pages(self) -> tuple[str, ...]:
        """`host:port` of the pages for training of the sidecars that take part now."""
        return tuple(sorted(self._pages))

    def reports(self) -> tuple[ModelReport, ...]:
        """What the gates of the sidecars that take part now say of bundles, one for each sidecar,
        service and bundle."""
        return tuple(report for reports in self._reports.values() for report in reports)

    def table(self, service: str) -> FleetTable | None:
        """The table of a service that some sidecar has called."""
        return self._tables.get(service)

    async def tick(self) -> None:
        """Ends a window of every table and wakes the streams."""
        now_s = self._clock.now_s()
        for service, table in list(self._tables.items()):
            table.tick(now_s)
            self._count(service, table)
            if table.watching == 0:
                del self._tables[service]
                self._counted.pop(service, None)
                self._events.fleet_gone(service)
        async with self._ticked:
            self._tick += 1
            self._ticked.notify_all()

    async def _tick_forever(self) -> None:
        next_s = self._clock.now_s() + self._tick_s
        while True:
            await asyncio.sleep(max(0.0, next_s - self._clock.now_s()))
            # A process that was stopped does not make up for the seconds that it missed.
            next_s = max(next_s + self._tick_s, self._clock.now_s())
            try:
                await self.tick()
            except Exception:
                logger.exception("a tick of the fleet table failed; the next one goes on")

    def _count(self, service: str, table: FleetTable) -> None:
        ledger = table.ledger
        self._events.fleet_state(
            service,
            sidecars=table.sidecars,
            classes=len(ledger.classes),
            endpoints=len(ledger.endpoints),
        )
        now = table.dropped_cells, ledger.folded, ledger.left_out
        before = self._counted.get(service, (0, 0, 0))
        if now[0] > before[0]:
            self._events.fleet_dropped(service, "cell")
        if now[1] > before[1]:
            self._events.fleet_limit("fleet.max_classes")
        if now[2] > before[2]:
            self._events.fleet_limit("fleet.max_endpoints")
        self._counted[service] = now

    async def _exchange(
        self, _requests: Any, context: _Context
    ) -> AsyncGenerator[packed_pb2.PackedFleetUpdate, None]:
        hello = await self._hello(context)
        subscriber = Subscriber(hello.sidecar_id, hello.zone)
        self._streams += 1
        page = page_address(context.peer(), hello.metrics_port)
        if page:
            self._pages[page] += 1
        reader = asyncio.create_task(self._read(hello.service, subscriber, context))
        try:
            seen = self._tick
            while not reader.done():
                table = self._table(hello.service)
                yield update_message(hello.service, table.update(subscriber, self._clock.now_s()))
                async with self._ticked:
                    while self._tick == seen and not self._closing:
                        await self._ticked.wait()
                    seen = self._tick
                if self._closing:
                    return
        finally:
            self._streams -= 1
            if page:
                self._pages[page] -= 1
                self._pages += Counter()  # drops what is at 0
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._reports.pop((subscriber.sidecar, hello.service), None)

    async def _hello(self, context: _Context) -> fleet_pb2.Hello:
        """The introduction; a stream that may not be ends here."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                message = await context.read()
        except TimeoutError:
            message = grpc.aio.EOF
        if not isinstance(message, packed_pb2.PackedSidecarMessage) or not message.HasField(
            "hello"
        ):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message is no `hello`; send it first"
            )
        hello: fleet_pb2.Hello = message.hello
        code, problem = self._refusal(hello)
        if problem:
            logger.warning(
                "a sidecar was refused", extra=fields(peer=context.peer(), problem=problem)
            )
            await context.abort(code, problem)
        return hello

    def _refusal(self, hello: fleet_pb2.Hello) -> tuple[grpc.StatusCode, str]:
        status = grpc.StatusCode
        if hello.protocol < PROTOCOL_MIN:
            return status.FAILED_PRECONDITION, (
                f"this trainer speaks protocol `{PROTOCOL_MIN}` and later, the sidecar "
                f"`{hello.protocol}`; update the sidecar"
            )
        if len(hello.sidecar_id) != SIDECAR_ID_BYTES:
            return status.INVALID_ARGUMENT, (
                f"`sidecar_id` has `{len(hello.sidecar_id)}` bytes, expected {SIDECAR_ID_BYTES}"
            )
        if not 0 < len(hello.service) <= SERVICE_NAME_MAX:
            return status.INVALID_ARGUMENT, (
                f"`service` has `{len(hello.service)}` characters, expected 1 to {SERVICE_NAME_MAX}"
            )
        if self._streams >= self._limits.streams:
            self._events.fleet_limit("fleet.max_streams")
            return status.RESOURCE_EXHAUSTED, (
                f"`{self._streams}` streams are open, the limit; raise `fleet.max_streams`"
            )
        if hello.service not in self._tables and len(self._tables) >= self._limits.services:
            self._events.fleet_limit("fleet.max_services")
            return status.RESOURCE_EXHAUSTED, (
                f"`{len(self._tables)}` services are known, the limit; raise `fleet.max_services`"
            )
        return status.OK, ""

    def _table(self, service: str) -> FleetTable:
        table = self._tables.get(service)
        if table is None:
            table = self._tables[service] = FleetTable(
                trainer=self._trainer,
                now_s=self._clock.now_s(),
                classes_max=self._limits.classes,
                endpoints_max=self._limits.endpoints,
                parameters=self._settings.table,
                split=self._settings.split,
            )
        return table

    async def _read(self, service: str, subscriber: Subscriber, context: _Context) -> None:
        """Takes in windows until the sidecar ends its side."""
        while True:
            message = await context.read()
            if not isinstance(message, packed_pb2.PackedSidecarMessage):
                return
            if not message.HasField("window"):
                self._events.fleet_dropped(service, "unknown")
                continue
            try:
                window = read_window(message.window)
                self._reports[subscriber.sidecar, service] = read_models(message.window)
            except MessageError as error:
                self._events.fleet_dropped(service, "malformed")
                logger.warning(
                    "a window was dropped", extra=fields(service=service, problem=str(error))
                )
                continue
            table = self._table(service)
            fresh = table.window(
                subscriber,
                message.window.number,
                message.window.age_s,
                window,
                self._clock.now_s(),
            )
            if fresh:
                self._events.fleet_window(service)
            else:
                self._events.fleet_dropped(service, "again")
