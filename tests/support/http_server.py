"""An HTTP server that answers what a test tells it to, also what no server should."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Request:
    """What a client asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class HttpPeer:
    """A running server; `answer` may be replaced at any time."""

    answer: Answer
    address: str = ""
    requests: list[Request] = field(default_factory=list)
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.serving[task] = writer
        task.add_done_callback(self.serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ", 2)
                request = Request(method, path, headers, body)
                self.requests.append(request)
                await self.answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()


def page(body: bytes, *, status: str = "200 OK", **headers: str) -> Answer:
    """Answers with a body; header names with `_` for `-`."""

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return answer


@asynccontextmanager
async def http_peer(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpPeer]:
    """Serves on a port of the system's choice while the context lasts."""
    peer = HttpPeer(answer)
    server = await asyncio.start_server(peer._accept, "127.0.0.1", 0, ssl=tls)
    peer.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        # Clients may keep their connections for longer.
        for writer in peer.serving.values():
            writer.close()
        await asyncio.gather(*peer.serving, return_exceptions=True)
