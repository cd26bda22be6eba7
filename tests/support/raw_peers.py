"""Raw HTTP/2 endpoints and clients, and the header lists they speak gRPC with.

`RawServer` plays an endpoint whose script is a coroutine per stream; `connect` and `open_call` play
a client. Both are made of `raw_h2.RawConnection`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from tests.support.raw_h2 import (
    PREFACE,
    Fields,
    Handler,
    Manners,
    Pairs,
    RawConnection,
    RawStream,
    grpc_message,
    to_fields,
)
from tests.support.wait import until


class RawServer:
    """Plays an endpoint: `handler` is run for each new stream of each connection."""

    def __init__(
        self,
        handler: Handler,
        *,
        settings: dict[int, int] | None = None,
        manners: Manners | None = None,
        greet: bool = True,
    ) -> None:
        self.connections: list[RawConnection] = []
        self.address = ""
        self.refuse_connections = False
        self._handler, self._manners = handler, manners or Manners()
        self._settings, self._greet = settings or {}, greet
        self._server: asyncio.Server | None = None
        self._faults: list[BaseException] = []

    async def start(self, *, port: int = 0, unix_path: str | None = None) -> RawServer:
        """Listens on a port the system picks, or on the port or path given."""
        if unix_path is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
            self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        else:
            self._server = await asyncio.start_unix_server(self._accept, unix_path)
            self.address = f"unix:{unix_path}"
        return self

    @property
    def streams(self) -> list[RawStream]:
        """Every stream of every connection, oldest first."""
        streams = [s for connection in self.connections for s in connection.streams.values()]
        return sorted(streams, key=lambda stream: stream.opened_s)

    async def until_streams(self, count: int) -> Sequence[RawStream]:
        """Waits for that many streams over all connections."""
        await until(lambda: len(self.streams) >= count, f"{count} streams at the endpoint")
        return self.streams

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = RawConnection(reader, writer, manners=self._manners, handler=self._handler)
        self.connections.append(connection)
        if self.refuse_connections:
            connection.tcp_reset()
            return
        if self._greet:
            connection.settings(self._settings)
        connection.start()

    def forget_gone(self) -> None:
        """Drops what was recorded about lost connections, for tests that make thousands."""
        self._faults += [fault for c in self.connections if c.gone for fault in c.faults]
        self.connections = [c for c in self.connections if not c.gone]

    def stop_listening(self) -> None:
        """New connections are refused, open ones stay."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Closes everything; raises what went wrong inside a handler."""
        self.stop_listening()
        closed = 0
        while closed < len(self.connections):
            for connection in self.connections[closed:]:
                await connection.close()
                closed += 1
            # What was accepted in the last moment has a few turns of the loop to come to light.
            for _ in range(20):
                await asyncio.sleep(0)
        faults = [*self._faults, *(fault for c in self.connections for fault in c.faults)]
        if faults:
            raise faults[0]


async def connect(
    address: str,
    *,
    settings: dict[int, int] | None = None,
    manners: Manners | None = None,
    connection_window: int = 0,
) -> RawConnection:
    """A raw client connection to `ip:port` or `unix:/path`: preface and SETTINGS are sent."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    connection = RawConnection(reader, writer, manners=manners)
    connection.send_bytes(PREFACE)
    connection.settings(settings or {})
    if connection_window:
        connection.open_window(connection_window)
    connection.start()
    return connection


def request_fields(
    path: str,
    *,
    authority: str = "test",
    extra: Pairs = (),
    te: str | None = "trailers",
) -> Fields:
    """The fields of an ordinary gRPC request, `extra` behind them."""
    pairs: list[tuple[str | bytes, str | bytes]] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
    ]
    if te is not None:
        pairs.append(("te", te))
    return to_fields([*pairs, *extra])


def open_call(
    connection: RawConnection,
    path: str = "/test.Raw/Call",
    *,
    body: bytes | None = b"",
    authority: str = "test",
    extra: Pairs = (),
    te: str | None = "trailers",
) -> RawStream:
    """Opens a call. `body` is one message's payload, sent with END_STREAM; None sends nothing."""
    stream = connection.open_stream()
    stream.headers(request_fields(path, authority=authority, extra=extra, te=te))
    if body is not None:
        stream.data_frame(grpc_message(body), end_stream=True)
    return stream


RESPONSE: Fields = to_fields([(":status", "200"), ("content-type", "application/grpc")])


def trailers(code: int, message: str = "", extra: Pairs = ()) -> Fields:
    """Trailers of a gRPC answer."""
    pairs: list[tuple[str | bytes, str | bytes]] = [("grpc-status", str(code))]
    if message:
        pairs.append(("grpc-message", message))
    return to_fields([*pairs, *extra])


@contextlib.asynccontextmanager
async def raw_server(
    handler: Handler,
    *,
    settings: dict[int, int] | None = None,
    manners: Manners | None = None,
    unix_path: str | None = None,
) -> AsyncIterator[RawServer]:
    """A running endpoint; a fault inside its script fails the test."""
    server = RawServer(handler, settings=settings, manners=manners)
    await server.start(unix_path=unix_path)
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def raw_client(
    address: str,
    *,
    settings: dict[int, int] | None = None,
    manners: Manners | None = None,
    connection_window: int = 0,
) -> AsyncIterator[RawConnection]:
    """A client connection."""
    connection = await connect(
        address, settings=settings, manners=manners, connection_window=connection_window
    )
    try:
        yield connection
    finally:
        await connection.close()


def answer(
    payload: bytes = b"ok", *, code: int = 0, extra: Pairs = (), tail: Pairs = ()
) -> Handler:
    """The script of a well-behaved unary endpoint: reads the request, answers one message."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended or stream.dead, "the request's end")
        if stream.dead:
            return
        stream.headers([*RESPONSE, *to_fields(extra)])
        await stream.write(grpc_message(payload))
        stream.headers(trailers(code, extra=tail), end_stream=True)

    return script


def answer_status(code: int, message: str = "", extra: Pairs = ()) -> Handler:
    """The script of an endpoint that answers Trailers-Only."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended or stream.dead, "the request's end")
        if not stream.dead:
            stream.headers([*RESPONSE, *trailers(code, message, extra)], end_stream=True)

    return script


async def never(stream: RawStream) -> None:
    """The script of an endpoint that says nothing."""
    await stream.until(lambda: stream.dead, "the reset of a stream that is never answered")
