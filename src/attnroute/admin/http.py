"""Metrics and health over HTTP: read-only, on the control loop, never on a data thread.

`/healthz` says that the control loop turns, `/readyz` that calls can be routed, `/metrics` shows
what was counted. The page at `/` links them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from attnroute.admin.metrics import CONTENT_TYPE
from attnroute.admin.sockets import UNIX, bind_tcp, bind_unix, clear_stale_socket
from attnroute.errors import StartError

CONNECTIONS_MAX = 100
"""Open connections and running requests; one more is answered 503."""

KEEP_ALIVE_S = 75
"""Idle connections stay open longer than common scrape intervals (15 to 60 s)."""


DATE_S = 1.0
"""How old the `date` header of an answer may be."""


@dataclass(frozen=True)
class Readiness:
    """Whether calls can be routed, and what is waited for."""

    ready: bool
    draining: bool
    waiting_for: tuple[str, ...]

    def as_json(self) -> Mapping[str, object]:
        """The body of `/readyz`."""
        return {
            "ready": self.ready,
            "draining": self.draining,
            "waiting_for": list(self.waiting_for),
        }


class HttpView(Protocol):
    """What the pages show."""

    def readiness(self) -> Readiness:
        """The state now."""
        ...

    def exposition(self) -> bytes:
        """Prometheus text, format 0.0.4; called from a worker thread."""
        ...


def make_app(
    view: HttpView,
    version: str,
    *,
    process: str = "sidecar",
    training: Callable[[], bytes] | None = None,
) -> Starlette:
    """The pages as an ASGI application. process: whose they are; training: the text of
    `/metrics/training`, where there is one, called from a worker thread."""

    async def index(_request: Request) -> Response:
        return HTMLResponse(_INDEX.format(version=version, process=process))

    async def metrics(_request: Request) -> Response:
        # Text of thousands of series takes milliseconds: not on the loop that ticks.
        return Response(await run_in_threadpool(view.exposition), media_type=CONTENT_TYPE)

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"healthy": True})

    async def readyz(_request: Request) -> Response:
        state = view.readiness()
        return JSONResponse(state.as_json(), status_code=200 if state.ready else 503)

    async def metrics_training(_request: Request) -> Response:
        assert training is not None, "the page has a route only where it is"
        return Response(await run_in_threadpool(training), media_type=CONTENT_TYPE)

    pages = {"/": index, "/metrics": metrics, "/healthz": healthz, "/readyz": readyz}
    if training is not None:
        pages["/metrics/training"] = metrics_training
    return Starlette(routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()])


class HttpServer:
    """Serves an application on one bound socket."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._task: asyncio.Task[None] | None = None

    def bind(self, address: str, source: str) -> str:
        """Binds `ip:port` or `unix:/path` and returns the address with its real port.

        source: where the operator wrote it, for messages. Raises StartError.
        """
        try:
            if address.startswith(UNIX):
                self._path = Path(address.removeprefix(UNIX))
                clear_stale_socket(self._path, source)
                self._socket = bind_unix(self._path)
                return address
            self._socket, port = bind_tcp(address)
        except OSError as error:
            raise StartError(
                f"{source}: cannot bind HTTP address `{address}`: {error.strerror or error}; "
                f"free it or configure another"
            ) from error
        return f"{address.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Serves; needs `bind` before."""
        assert self._socket is not None, "bind comes before start"
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="http")

    async def stop(self) -> None:
        """Finishes running requests for a second and closes; without `start` only closes."""
        if self._task is not None:
            self._server.end()
            await self._task
        elif self._socket is not None:
            self._socket.close()
        if self._path is not None and self._socket is not None:
            self._path.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Leaves signals to the sidecar, which drains before anything stops."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Serves no longer; `serve` returns when running requests have ended."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Once a second, for the `date` header. The one of uvicorn looks ten times a second whether
        it should end, which costs an idle process a tenth of a percent of a core."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_INDEX = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>attnroute {process}</title></head>
<body>
<h1>attnroute {process} {version}</h1>
<ul>
<li><a href="/metrics">/metrics</a>: counters, Prometheus text</li>
<li><a href="/readyz">/readyz</a>: whether calls can be routed</li>
<li><a href="/healthz">/healthz</a>: whether the process is alive</li>
</ul>
<p>Endpoints and weights: <code>attnroute endpoints SERVICE</code>,
<code>attnroute weights SERVICE --watch</code>.</p>
</body>
</html>
"""
