"""The HTTP pages, over a real socket."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from attnroute.admin.http import HttpServer, Readiness, make_app
from attnroute.errors import StartError

HERE = "policy.yaml:1:40"


class View:
    """Answers what it is told."""

    def __init__(self) -> None:
        self.state = Readiness(ready=True, draining=False, waiting_for=())

    def readiness(self) -> Readiness:
        return self.state

    def exposition(self) -> bytes:
        return b"# HELP a A.\n# TYPE a gauge\na 1\n"


@asynccontextmanager
async def serving(view: View) -> AsyncIterator[httpx2.AsyncClient]:
    server = HttpServer(make_app(view, "1.2.3"))
    address = server.bind("127.0.0.1:0", HERE)
    await server.start()
    async with httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        yield client
    await server.stop()


async def test_metrics_have_the_one_content_type_whatever_is_asked_for() -> None:
    async with serving(View()) as client:
        for accept in ("*/*", "application/openmetrics-text; version=1.0.0"):
            answer = await client.get("/metrics", headers={"accept": accept})
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert answer.text.endswith("a 1\n")


async def test_readyz_says_what_is_waited_for() -> None:
    view = View()
    async with serving(view) as client:
        assert (await client.get("/readyz")).status_code == 200
        view.state = Readiness(ready=False, draining=False, waiting_for=("endpoints of cart",))
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "draining": False,
        "waiting_for": ["endpoints of cart"],
    }


async def test_health_and_index() -> None:
    async with serving(View()) as client:
        health, index = await client.get("/healthz"), await client.get("/")
    assert health.json() == {"healthy": True}
    assert "attnroute sidecar 1.2.3" in index.text
    assert all(f'href="{path}"' in index.text for path in ("/metrics", "/readyz", "/healthz"))


@pytest.mark.parametrize(
    ("verb", "path", "status"), [("POST", "/metrics", 405), ("GET", "/x", 404)]
)
async def test_nothing_else_is_there(verb: str, path: str, status: int) -> None:
    async with serving(View()) as client:
        assert (await client.request(verb, path)).status_code == status


async def test_a_busy_port_names_address_and_place() -> None:
    first, second = (HttpServer(make_app(View(), "1.2.3")) for _ in range(2))
    address = first.bind("127.0.0.1:0", HERE)
    with pytest.raises(StartError) as caught:
        second.bind(address, HERE)
    await first.stop()
    await second.stop()
    assert str(caught.value) == (
        f"{HERE}: cannot bind HTTP address `{address}`: Address already in use; "
        f"free it or configure another"
    )


async def test_a_unix_socket_works_too_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    server = HttpServer(make_app(View(), "1.2.3"))
    server.bind(f"unix:{path}", HERE)
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
    await server.stop()
    assert not path.exists()
