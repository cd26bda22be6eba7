"""The sidecar's side of the fleet exchange: a stream for each service, to one trainer.

Without a trainer a sidecar goes by its own table, so nothing waits for it and nothing fails with
it. A stream that ends is opened again, later each time; the first update of a stream says which of
the own windows the trainer lacks, and those are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from attnroute._proto.fleet.v1 import fleet_pb2, packed_pb2
from attnroute.clock import Clock
from attnroute.features.view import SharedTable
from attnroute.fleet.messages import (
    MESSAGE_BYTES_MAX,
    METHOD,
    PROTOCOL,
    PROTOCOL_MIN,
    MessageError,
    ModelReport,
    read_update,
    window_message,
)
from attnroute.logs import fields

__all__ = ["FleetClient", "FleetClientEvents", "Identity", "Pauses"]

logger = logging.getLogger(__name__)

SILENCE_S = 10.0
"""A trainer sends an update each second; a stream that is silent for so long is opened anew."""

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    # The proxy of the environment may well be this sidecar.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # The pauses between streams are those below; a channel of its own mind would only add to them.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class FleetClientEvents(Protocol):
    """What is counted."""

    def fleet_connected(self, service: str, *, connected: bool) -> None: ...
    def fleet_updated(self, service: str, sidecars: int) -> None: ...
    def fleet_failed(self, service: str, reason: str) -> None: ...
    def fleet_gone(self, service: str) -> None: ...


@dataclass(frozen=True)
class Identity:
    """Who this sidecar is. sidecar_id: 16 random bytes of the process; metrics_port: of its page
    for training, 0 where the trainer cannot reach it."""

    sidecar_id: bytes
    version: str
    metrics_port: int = 0


@dataclass(frozen=True)
class Pauses:
    """How long a trainer is left alone, in seconds. Each pause is drawn from 80 to 120 %."""

    first_s: float = 1.0
    growth: float = 1.6
    most_s: float = 15.0


@dataclass
class _Stream:
    """One service's exchange, over however many streams."""

    service: str
    zone: str
    table: SharedTable
    news: asyncio.Event
    task: asyncio.Task[None]


class FleetClient:
    """Made and used on one event loop. address: of the trainer, `host:port`; heard: called after
    each update that a table took."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        clock: Clock,
        events: FleetClientEvents,
        *,
        heard: Callable[[], None] = lambda: None,
        models: Callable[[str], Sequence[ModelReport]] = lambda _: (),
        pauses: Pauses = Pauses(),
        rng: random.Random | None = None,
    ) -> None:
        self._heard = heard
        self._models = models
        self.address = address
        self._identity = identity
        self._clock = clock
        self._events = events
        self._pauses = pauses
        self._rng = random.Random() if rng is None else rng
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._streams: dict[str, _Stream] = {}

    def replace(self, tables: Mapping[str, SharedTable], zones: Mapping[str, str]) -> None:
        """Exchanges for these services, in these zones, and for no others."""
        for name, stream in list(self._streams.items()):
            if tables.get(name) is not stream.table or zones.get(name, "") != stream.zone:
                stream.task.cancel()
                del self._streams[name]
                self._events.fleet_gone(name)
        for name, table in tables.items():
            if name not in self._streams:
                zone, news = zones.get(name, ""), asyncio.Event()
                self._events.fleet_connected(name, connected=False)
                task = asyncio.create_task(
                    self._follow(name, zone, table, news), name=f"fleet of {name}"
                )
                self._streams[name] = _Stream(name, zone, table, news, task)

    def announce(self, service: str) -> None:
        """A window of the service has ended and waits in its table to be sent."""
        stream = self._streams.get(service)
        if stream is not None:
            stream.news.set()

    async def close(self) -> None:
        """Ends every stream."""
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.task.cancel()
            self._events.fleet_gone(stream.service)
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)
        await self._channel.close()

    async def _follow(
        self, service: str, zone: str, table: SharedTable, news: asyncio.Event
    ) -> None:
        pause_s = self._pauses.first_s
        while True:
            updates = table.updates
            try:
                reason = await self._exchange(service, zone, table, news)
            except grpc.aio.AioRpcError as error:
                reason = error.code().name
                logger.debug(
                    "the fleet exchange ended",
                    extra=fields(service=service, reason=reason, detail=error.details()),
                )
            except Exception:
                logger.exception("the fleet exchange failed; it is opened again")
                reason = "INTERNAL"
            self._events.fleet_connected(service, connected=False)
            self._events.fleet_failed(service, reason)
            if table.updates > updates:
                pause_s = self._pauses.first_s
            await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
            pause_s = min(pause_s * self._pauses.growth, self._pauses.most_s)

    async def _exchange(
        self, service: str, zone: str, table: SharedTable, news: asyncio.Event
    ) -> str:
        """One stream, until it ends; returns why, as a status or a word."""
        method: grpc.aio.StreamStreamMultiCallable[
            packed_pb2.PackedSidecarMessage, packed_pb2.PackedFleetUpdate
        ] = self._channel.stream_stream(
            METHOD,
            request_serializer=packed_pb2.PackedSidecarMessage.SerializeToString,
            response_deserializer=packed_pb2.PackedFleetUpdate.FromString,
        )
        began = asyncio.Event()
        call = method(self._outgoing(service, zone, table, news, began))
        table.opened()
        try:
            while True:
                # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together
                # with an update.
                async with asyncio.timeout(SILENCE_S):
                    message = await call.read()
                if not isinstance(message, packed_pb2.PackedFleetUpdate):  # the end of the stream
                    return (await call.code()).name
                if message.protocol < PROTOCOL_MIN:
                    return "protocol"
                if not table.update(read_update(message), self._clock.now_s()):
                    return "gap"
                if not began.is_set():
                    began.set()
                    self._events.fleet_connected(service, connected=True)
                self._events.fleet_updated(service, table.sidecars)
                self._heard()
        except TimeoutError:
            return "silent"
        except MessageError as error:
            logger.warning(
                "the trainer sent an update that makes no sense",
                extra=fields(service=service, problem=str(error)),
            )
            return "malformed"
        finally:
            call.cancel()

    async def _outgoing(
        self,
        service: str,
        zone: str,
        table: SharedTable,
        news: asyncio.Event,
        began: asyncio.Event,
    ) -> AsyncGenerator[packed_pb2.PackedSidecarMessage, None]:
        hello = fleet_pb2.Hello(
            protocol=PROTOCOL,
            sidecar_id=self._identity.sidecar_id,
            zone=zone,
            service=service,
            version=self._identity.version,
            metrics_port=self._identity.metrics_port,
        )
        yield packed_pb2.PackedSidecarMessage(hello=hello)
        # The first update tells which windows the trainer has.
        await began.wait()
        sent = 0
        while True:
            news.clear()
            for own in table.late(sent):
                yield window_message(own, self._clock.now_s(), self._models(service))
                sent = own.number
            await news.wait()
