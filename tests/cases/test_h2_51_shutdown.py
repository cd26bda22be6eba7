"""H2-51, K8-02, K8-04: the end of a sidecar is polite, complete and bounded."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import PREFACE, STREAM_ID_MAX, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import patiently, until

UNAVAILABLE = 14


async def _endless(stream: RawStream) -> None:
    stream.headers(RESPONSE)
    await stream.write(grpc_message(b"first"))
    await stream.until(lambda: stream.dead, "the end of an endless stream")


@pytest.mark.parametrize("peer", ["silent", "half a preface", "endless stream", "all"])
async def test_h2_51_shutdown_ends_in_spite_of_odd_peers(peer: str) -> None:
    async with raw_server(_endless) as endpoint, data_plane([endpoint.address]) as plane:
        host, port = plane.address.split(":")
        sockets = []
        if peer in ("silent", "all"):
            sockets.append(await asyncio.open_connection(host, int(port)))
        if peer in ("half a preface", "all"):
            sockets.append(await asyncio.open_connection(host, int(port)))
            sockets[-1][1].write(PREFACE[:12])
        async with raw_client(plane.address) as client:
            stream = None
            if peer in ("endless stream", "all"):
                stream = open_call(client)
                await stream.until_bytes(10)
            began_s = time.monotonic()
            finished = await plane.drain(linger_ms=200, limit_ms=1_500)
            took_s = time.monotonic() - began_s
            # The limit, what last answers may take to leave, and what a slow machine adds.
            assert took_s < 1.5 + 0.5 + 10, f"the drain took {took_s:.1f} s"
            assert finished == (stream is None)
            await client.until(lambda: client.goaways, "GOAWAY")
            assert client.goaways[0].last_stream_id == STREAM_ID_MAX
            assert client.goaways[0].error_code == 0
            if stream is not None:
                await stream.until_done()
                assert stream.grpc_status == UNAVAILABLE, stream.describe()
                assert stream.reset_code is None
                assert len(client.goaways) >= 2, "the final GOAWAY is missing"
                assert client.goaways[-1].last_stream_id == stream.id
            await client.until_gone()
        for reader, writer in sockets:
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        assert not plane.in_flight()


async def test_k8_02_unary_calls_finish_and_endless_streams_end_unavailable() -> None:
    go_on = asyncio.Event()

    async def slow_or_endless(stream: RawStream) -> None:
        if stream.value(":path") == b"/t.S/Endless":
            await _endless(stream)
            return
        await stream.until(lambda: stream.ended, "the request")
        await go_on.wait()
        await answer(b"at last")(stream)

    async with (
        raw_server(slow_or_endless) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        slow = [open_call(client, "/t.S/Slow") for _ in range(5)]
        endless = open_call(client, "/t.S/Endless")
        await endless.until_bytes(10)
        await endpoint.until_streams(6)
        draining = asyncio.create_task(plane.drain(linger_ms=100, limit_ms=2_000))
        await client.until(lambda: client.goaways, "GOAWAY")
        assert not any(stream.done for stream in [*slow, endless]), "ended at once"
        go_on.set()
        for stream in slow:
            await stream.until_done()
            assert (stream.grpc_status, stream.data) == (0, grpc_message(b"at last"))
        assert not endless.done
        assert not await draining, "a call was ended, and drain says that none was"
        await endless.until_done()
        assert endless.grpc_status == UNAVAILABLE, endless.describe()
        assert endless.reset_code is None, "it ended by reset, not by a status"
        assert "drain" in endless.grpc_message
        goaway_s = client.goaway_s()
        assert goaway_s < min(block.at_s for block in endless.blocks[1:])
        await plane.until_ended(6)


async def test_k8_02_without_calls_the_drain_is_quick_and_says_so() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client).until_done()).grpc_status == 0
        await client.close()
        began_s = time.monotonic()
        assert await plane.drain(linger_ms=60_000, limit_ms=90_000)
        assert time.monotonic() - began_s < 20


async def test_k8_04_application_still_calls_while_it_stops() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
    ):
        async with raw_client(plane.address) as client:
            assert (await open_call(client).until_done()).grpc_status == 0
            draining = asyncio.create_task(plane.drain(linger_ms=30_000, limit_ms=40_000))
            end_s = time.monotonic() + 2.5
            count = 0
            while time.monotonic() < end_s:
                stream = await open_call(client).until_done()
                assert stream.grpc_status == 0, stream.describe()
                async with raw_client(plane.address) as fresh:
                    stream = await open_call(fresh).until_done()
                    assert stream.grpc_status == 0, stream.describe()
                count += 2
                await asyncio.sleep(0.05)
            assert not client.goaways, "GOAWAY while the application still had calls to make"
            assert not draining.done()
        assert await draining, "the drain did not end once the application was gone"
        await plane.until_ended(count + 1, grpc_status="OK")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*plane.address.split(":"))


async def test_k8_04_the_linger_has_an_end() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client).until_done()).grpc_status == 0
        assert await plane.drain(linger_ms=300, limit_ms=10_000)
        await client.until(lambda: client.goaways, "GOAWAY")
        await client.until_gone()


async def test_k8_02_real_peers_see_a_clean_end() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        blocked = asyncio.create_task(_answer(client.unary("Block")(b"x")))
        stream = client.server_stream("BlockStream")(b"1")
        assert await stream.read() == b"0"
        await until(lambda: peer.started == 2, "both calls at the endpoint")
        draining = asyncio.create_task(plane.drain(linger_ms=100, limit_ms=1_500))
        assert not await draining
        assert await patiently(stream.code(), "a status") is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await blocked
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        await until(lambda: peer.cancelled == 2, "the cancellation at the endpoint")


async def _answer(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes:
    return await call


async def test_a_call_that_ends_while_draining_keeps_its_trailers() -> None:
    finish = asyncio.Event()

    async def until_told(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await finish.wait()
        await stream.write(grpc_message(b"x" * 300_000))
        stream.headers(trailers(0, extra=[("x-tail", "t")]), end_stream=True)

    async with (
        raw_server(until_told) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await stream.until_headers()
        draining = asyncio.create_task(plane.drain(linger_ms=100, limit_ms=30_000))
        await client.until(lambda: client.goaways, "GOAWAY")
        finish.set()
        await stream.until_done()
        assert (stream.grpc_status, len(stream.data)) == (0, 300_005)
        assert stream.value("x-tail") == b"t"
        assert await draining
