"""LB-08: endpoints that are added take their share within a discovery cycle and slow start."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from tests.support.dns_server import DnsServer, Zone, a, srv
from tests.support.raw_h2 import RawConnection, RawStream
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar
from tests.support.wait import until

NAME = "_grpc._tcp.cart.test"
SLOW_START_S = 1.0
AT_ONCE = 24
MEASURED = 400


async def _slow(stream: RawStream) -> None:
    """20 ms of work, so that calls pile up on two of them."""
    await stream.until(lambda: stream.ended or stream.dead, "the end of the request")
    await asyncio.sleep(0.02)
    if not stream.dead:
        stream.headers([*RESPONSE, *trailers(0)], end_stream=True)


def _zone(*servers: RawServer) -> Zone:
    ports = [int(server.address.rpartition(":")[2]) for server in servers]
    return {NAME: [srv("here.test", port) for port in ports], "here.test": [a("127.0.0.1")]}


def _policy(dns: DnsServer) -> str:
    return (
        f"{ADMIN}drain: {{linger: 0s, limit: 1s}}\n"
        f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
        "services:\n  cart:\n    endpoints:\n"
        f"      dns: {{name: {NAME}, server: {dns.address}, allow_loopback: true}}\n"
        f"      refresh: 100ms\n    slow_start: {{window: {SLOW_START_S}s}}\n"
    )


class _Load:
    """Calls without a pause on one connection; a failed one fails the test."""

    def __init__(self, client: RawConnection) -> None:
        self._client = client
        self._stop = False

    async def _loop(self) -> None:
        while not self._stop:
            call = await open_call(self._client, authority="cart").until_done()
            assert call.grpc_status == 0, call.describe()

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._loop()) for _ in range(AT_ONCE)]

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def test_lb_08_added_endpoints_take_their_share(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(raw_server(_slow)) for _ in range(4)]
        dns = stack.enter_context(DnsServer(_zone(*servers[:2])))
        sidecar = await asyncio.to_thread(start_sidecar, _policy(dns))
        client = await stack.enter_async_context(raw_client(sidecar.address))

        def counts() -> list[int]:
            return [len(server.streams) for server in servers]

        async with _Load(client):
            await until(lambda: sum(counts()) >= 100, "calls on the first two")
            assert counts()[2:] == [0, 0]
            dns.zone = _zone(*servers)
            await until(lambda: min(counts()) > 0, "the first calls of the new ones")
            grown_s = time.monotonic() + SLOW_START_S
            await until(lambda: time.monotonic() > grown_s, "the end of slow start")
            before = counts()
            await until(lambda: sum(counts()) >= sum(before) + MEASURED, "the measured calls")
            taken = [after - start for after, start in zip(counts(), before, strict=True)]
        fair = sum(taken) / len(servers)
        assert min(taken[2:]) >= 0.8 * fair, taken
