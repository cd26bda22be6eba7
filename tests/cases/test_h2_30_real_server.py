"""H2-30 against a real gRPC server with its defaults: it is asked whether it still answers, and
never so often that it objects."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.cases.test_rs_05_silent_endpoint import keepalive
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer, path
from tests.support.raw_h2 import ENHANCE_YOUR_CALM, PREFACE, RawStream
from tests.support.raw_peers import never, open_call, raw_client, raw_server
from tests.support.wait import patiently, until

INTERVAL_MS = 50
PING, GOAWAY, ACK = 6, 7, 1
FREE_PINGS = 2
"""A server that follows gRPC's defaults closes the connection at the third one in 5 minutes
between which it sent neither headers nor data; the sidecar leaves one to spare."""


@dataclass
class Relay:
    """Passes bytes on between the sidecar and a server, and counts frames that matter here."""

    address: str = ""
    connections: int = 0
    pings: int = 0
    goaways: int = 0
    ends: set[asyncio.Task[None]] = field(default_factory=set)

    def count(self, kind: int, flags: int, *, upward: bool) -> None:
        self.pings += upward and kind == PING and not flags & ACK
        self.goaways += not upward and kind == GOAWAY

    async def pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, upward: bool
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if upward:
                to.write(await source.readexactly(len(PREFACE)))
            while True:
                head = await source.readexactly(9)
                length, kind, flags = struct.unpack(">I", b"\0" + head[:3])[0], head[3], head[4]
                self.count(kind, flags, upward=upward)
                to.write(head + await source.readexactly(length))
                await to.drain()
        to.close()
        with contextlib.suppress(ConnectionError):
            await to.wait_closed()


@contextlib.asynccontextmanager
async def relayed(server: str) -> AsyncIterator[Relay]:
    """A relay in front of a server."""
    relay = Relay()
    host, _, port = server.rpartition(":")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay.connections += 1
        answers, requests = await asyncio.open_connection(host, int(port))
        for source, to, upward in ((reader, requests, True), (answers, writer, False)):
            relay.ends.add(asyncio.create_task(relay.pass_on(source, to, upward=upward)))

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        listening.close()
        # The sidecar was stopped before, and the server after it: each end closes the other one.
        await patiently(asyncio.gather(*relay.ends), "the end of what was relayed")


async def _many_intervals() -> None:
    """Time in which further pings would have been sent; that none was can be seen no other way."""
    await asyncio.sleep(20 * INTERVAL_MS / 1e3)


async def test_h2_30_a_real_server_with_its_defaults_never_objects() -> None:
    async with (
        grpc_peer() as peer,
        relayed(peer.address) as relay,
        data_plane([relay.address], service=keepalive(INTERVAL_MS, 60_000)) as plane,
        grpc_client(plane.address) as client,
    ):
        # A call that says nothing for long: the server is asked, but not a third time.
        held = client.unary("Block")(b"held")
        await until(lambda: relay.pings == FREE_PINGS, "pings about a silent call")
        await _many_intervals()
        assert relay.pings == FREE_PINGS
        peer.release.set()
        assert await patiently(held, "the answer") == b"held"
        # Idle: nobody is asked at all.
        await _many_intervals()
        asked = relay.pings
        assert asked <= FREE_PINGS + 1, "an idle connection was asked"
        # And then it takes calls as before, on the connection that it has.
        for number in range(10):
            assert await client.unary()(str(number).encode()) == str(number).encode()
        assert (relay.connections, relay.goaways) == (1, 0)
        await plane.until_ended(11, grpc_status="OK")


async def test_h2_30_that_server_objects_to_whoever_asks_more_often() -> None:
    """What the test above would see if it went wrong."""
    async with grpc_peer() as peer, raw_client(peer.address) as eager:
        held = open_call(eager, path("Block"))
        await until(lambda: peer.started == 1, "the call")
        for number in range(2 * FREE_PINGS):
            if not eager.gone:
                eager.ping(bytes([number]) * 8)
                await eager.next_frame()
        await eager.until_gone()
        assert [goaway.error_code for goaway in eager.goaways][-1] == ENHANCE_YOUR_CALM
        assert held.grpc_status != 0


async def test_h2_30_who_objected_is_asked_half_as_often() -> None:
    async def object_once(stream: RawStream) -> None:
        connection = stream.connection
        await stream.until(lambda: stream.ended or stream.dead, "the request")
        if connection is endpoint.connections[0]:
            connection.goaway(0, ENHANCE_YOUR_CALM, b"too_many_pings")
            connection.end_writing()
        else:
            await never(stream)

    interval_ms = 300
    async with (
        raw_server(object_once) as endpoint,
        data_plane([endpoint.address], service=keepalive(interval_ms, 60_000)) as plane,
        raw_client(plane.address) as client,
    ):
        call = open_call(client, body=b"write")
        await until(lambda: len(endpoint.connections) == 2, "another connection")
        second = endpoint.connections[1]
        await second.until(lambda: second.pings, "a ping about the silent call")
        asked_s = next(seen.at_s for seen in second.seen if seen.frame.type == PING)
        # It came no sooner than two intervals after the last word of the endpoint.
        assert asked_s - second.opened_s >= 2 * interval_ms / 1e3
        assert not call.done
        call.reset()
