"""LB-10: a successful DNS answer replaces the set; what is empty or wrong does not.

A real DNS server, a real sidecar, real endpoints. SRV names, so that each endpoint on this machine
has a port of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.dns_server import DnsServer, Zone, a, srv
from tests.support.raw_h2 import RawStream
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar

from attnroute.admin.client import AdminClient

NAME = "_grpc._tcp.cart.test"


def zone(*servers: RawServer) -> Zone:
    ports = [int(server.address.rpartition(":")[2]) for server in servers]
    return {NAME: [srv("here.test", port) for port in ports], "here.test": [a("127.0.0.1")]}


def policy(dns: DnsServer, more: str = "") -> str:
    return (
        f"{ADMIN}drain: {{linger: 0s, limit: 1s}}\n"
        f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
        "services:\n  cart:\n    endpoints:\n"
        f"      dns: {{name: {NAME}, server: {dns.address}, allow_loopback: true{more}}}\n"
        "      refresh: 100ms\n"
    )


def endpoints(sidecar: Sidecar) -> set[str]:
    with AdminClient(sidecar.admin) as client:
        return {each.address for each in client.list_endpoints("cart").endpoints}


def errors(sidecar: Sidecar, reason: str) -> float:
    labels = {"service": "cart", "source": "dns", "reason": reason}
    return sidecar.metric("attnroute_discovery_errors_total", **labels)


async def until(condition: Callable[[], object], sidecar: Sidecar, what: str) -> None:
    """Waits off the loop, on which the endpoints live."""
    await asyncio.to_thread(sidecar.until, condition, what)


async def _held(stream: RawStream) -> None:
    """Answers when told, so that a call outlives the membership of its endpoint."""
    if stream.value(":path") == b"/test.Raw/Held":
        stream.headers(RESPONSE)
        await stream.until(lambda: stream.ended or stream.dead, "the end of the request")
        stream.headers(trailers(0), end_stream=True)
        return
    await stream.until(lambda: stream.ended or stream.dead, "the end of the request")
    if not stream.dead:
        stream.headers([*RESPONSE, *trailers(0)], end_stream=True)


async def test_lb_10_successful_answers_replace_the_set(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with (
        raw_server(_held) as first,
        raw_server(_held) as second,
        raw_server(_held) as third,
        raw_server(_held) as fourth,
    ):
        with DnsServer(zone(first, second, third)) as dns:
            sidecar = await asyncio.to_thread(start_sidecar, policy(dns))
            async with raw_client(sidecar.address) as client:
                assert await asyncio.to_thread(endpoints, sidecar) == {
                    server.address for server in (first, second, third)
                }
                held = [
                    open_call(client, "/test.Raw/Held", authority="cart", body=None)
                    for _ in range(12)
                ]
                for stream in held:
                    await stream.until_headers()
                assert all(server.streams for server in (first, second, third))

                dns.zone = zone(second)
                await until(
                    lambda: endpoints(sidecar) == {second.address}, sidecar, "the smaller set"
                )
                before = [len(server.streams) for server in (first, second, third)]
                for _ in range(10):
                    call = await open_call(client, authority="cart").until_done()
                    assert call.grpc_status == 0
                after = [len(server.streams) for server in (first, second, third)]
                assert after == [before[0], before[1] + 10, before[2]]
                # Calls of those that left go on to their end.
                for stream in held:
                    stream.data_frame(b"", end_stream=True)
                for stream in held:
                    assert (await stream.until_done()).grpc_status == 0

                dns.zone = {NAME: []}
                await until(lambda: errors(sidecar, "empty") == 1, sidecar, "the empty answer")
                assert await asyncio.to_thread(endpoints, sidecar) == {second.address}
                assert errors(sidecar, "error") == 0
                assert (await open_call(client, authority="cart").until_done()).grpc_status == 0

                dns.status = "SERVFAIL"
                await until(lambda: errors(sidecar, "error") == 1, sidecar, "the failure")
                assert await asyncio.to_thread(endpoints, sidecar) == {second.address}
                assert sidecar.metric("attnroute_discovery_stale", service="cart") == 1

                dns.status, dns.zone = "NOERROR", zone(fourth)
                await until(lambda: endpoints(sidecar) == {fourth.address}, sidecar, "the last set")
                assert sidecar.metric("attnroute_discovery_stale", service="cart") == 0
                assert (await open_call(client, authority="cart").until_done()).grpc_status == 0
                assert len(fourth.streams) == 1


async def test_lb_10_an_empty_answer_empties_where_the_policy_says_so(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with raw_server(_held) as server:
        with DnsServer(zone(server)) as dns:
            sidecar = await asyncio.to_thread(start_sidecar, policy(dns, ", on_empty: empty"))
            async with raw_client(sidecar.address) as client:
                assert (await open_call(client, authority="cart").until_done()).grpc_status == 0
                dns.zone = {}
                await until(lambda: endpoints(sidecar) == set(), sidecar, "the empty set")
                call = await open_call(client, authority="cart").until_done()
                assert call.grpc_status == 14
                assert "endpoint set is empty" in call.grpc_message
                assert sidecar.metric("attnroute_discovery_stale", service="cart") == 0


async def test_the_sidecar_is_never_its_own_endpoint(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with raw_server(_held) as server:
        with DnsServer(zone(server)) as dns:
            sidecar = await asyncio.to_thread(start_sidecar, policy(dns))
            own = [sidecar.address, sidecar.admin, sidecar.http]
            for count, address in enumerate(own, start=1):
                port = int(address.rpartition(":")[2])
                dns.zone = {**zone(server), NAME: [srv("here.test", port)]}
                await until(
                    lambda count=count: errors(sidecar, "refused") == count,  # type: ignore[misc]
                    sidecar,
                    f"the refusal of {address}",
                )
                assert await asyncio.to_thread(endpoints, sidecar) == {server.address}
                reason = next(line["reason"] for line in reversed(sidecar.log) if "reason" in line)
                assert f"`{address}` is an address of this sidecar" in reason
            async with raw_client(sidecar.address) as client:
                assert (await open_call(client, authority="cart").until_done()).grpc_status == 0


async def test_names_that_come_late_are_found_soon(start_sidecar: Callable[..., Sidecar]) -> None:
    """LB-16 for names: not ready while there is no such name, serving soon after there is."""
    async with raw_server(_held) as server:
        with DnsServer({}) as dns:
            sidecar = await asyncio.to_thread(start_sidecar, policy(dns), wait_ready=False)
            await until(lambda: errors(sidecar, "empty") == 1, sidecar, "the first answer")
            page = await asyncio.to_thread(sidecar.get, "/readyz")
            assert page.status == 503
            assert "there is no such name" in page.body.decode()
            dns.zone = zone(server)
            await asyncio.to_thread(sidecar.wait_ready)
            async with raw_client(sidecar.address) as client:
                assert (await open_call(client, authority="cart").until_done()).grpc_status == 0
