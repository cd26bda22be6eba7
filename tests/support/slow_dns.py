"""A DNS server that has every answer, and takes for ever to say it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dnslib import DNSRecord

DRIP_S = 0.02


class SlowDns(asyncio.DatagramProtocol):
    """UDP answers are cut (TC), so that the question comes by TCP; there one byte comes at a time,
    of an answer that announces 65,535."""

    def __init__(self) -> None:
        self.port = 0
        self.open_streams = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = DNSRecord.parse(data).reply()
        reply.header.tc = 1
        assert self._transport is not None
        self._transport.sendto(reply.pack(), addr)

    async def drip(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_streams += 1
        try:
            writer.write(b"\xff\xff")
            while True:
                writer.write(b"\0")
                await writer.drain()
                await asyncio.sleep(DRIP_S)
        except ConnectionError:
            pass
        finally:
            self.open_streams -= 1
            writer.close()


@contextlib.asynccontextmanager
async def slow_dns() -> AsyncIterator[SlowDns]:
    """A running one, on 127.0.0.1, UDP and TCP on one port."""
    slow = SlowDns()
    listening = await asyncio.start_server(slow.drip, "127.0.0.1", 0)
    slow.port = listening.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: slow, local_addr=("127.0.0.1", slow.port)
    )
    try:
        yield slow
    finally:
        transport.close()
        listening.close()
