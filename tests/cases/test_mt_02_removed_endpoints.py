"""MT-02: the series of an endpoint that left go when its last call ends, and not before."""

from __future__ import annotations

from tests.support.dataplane import data_plane
from tests.support.raw_h2 import RawStream
from tests.support.raw_peers import RESPONSE, answer, open_call, raw_client, raw_server, trailers
from tests.support.wait import until

INFLIGHT = "attnroute_endpoint_inflight"


async def _held(stream: RawStream) -> None:
    stream.headers(RESPONSE)
    await stream.until(lambda: stream.dead or stream.value("x-finish"), "the end")


async def test_mt_02_series_live_as_long_as_calls() -> None:
    async with (
        raw_server(_held) as leaving,
        raw_server(answer()) as staying,
        data_plane([leaving.address]) as plane,
        raw_client(plane.address) as client,
    ):
        held = [open_call(client) for _ in range(3)]
        for stream in held:
            await stream.until_headers()
        plane.apply_endpoints([staying.address])
        metrics = plane.metrics()
        assert metrics.value(INFLIGHT, endpoint=leaving.address) == 3
        assert (await open_call(client).until_done()).grpc_status == 0
        for at_endpoint in leaving.streams:
            at_endpoint.headers(trailers(0), end_stream=True)
        for stream in held:
            assert (await stream.until_done()).grpc_status == 0
        await until(
            lambda: leaving.address not in plane.plane.metrics().decode(),
            "the end of the series of an endpoint that left",
        )
        await leaving.connections[0].until_gone()
        await plane.until_ended(4, grpc_status="OK")


async def test_mt_02_an_address_that_comes_back_has_one_series() -> None:
    async with (
        raw_server(_held) as server,
        raw_server(answer()) as other,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        old = open_call(client)
        await old.until_headers()
        plane.apply_endpoints([other.address])
        plane.apply_endpoints([server.address])
        new = open_call(client)
        await new.until_headers()
        assert len(plane.metrics().of(INFLIGHT, endpoint=server.address)) == 1
        for at_endpoint in server.streams:
            at_endpoint.headers(trailers(0), end_stream=True)
        for stream in (old, new):
            assert (await stream.until_done()).grpc_status == 0
        await until(lambda: not plane.in_flight(), "in flight back at 0")
        assert plane.metrics().value(INFLIGHT, endpoint=server.address) == 0


async def test_mt_02_two_thousand_endpoints_come_and_go() -> None:
    async with (
        raw_server(answer()) as server,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await open_call(client).until_done()).grpc_status == 0
        base = len(plane.plane.metrics())
        for turn in range(20):
            crowd = [f"127.1.{turn}.{n}:9" for n in range(1, 101)]
            plane.apply_endpoints([server.address, *((address, 0.0) for address in crowd)])
            assert (await open_call(client).until_done()).grpc_status == 0
        assert f"127.1.19.1:9{chr(34)}" in plane.plane.metrics().decode()
        plane.apply_endpoints([server.address])
        await until(lambda: len(plane.plane.metrics()) < base + 500, "the old size of the page")
        assert len(plane.metrics().of(INFLIGHT)) == 1
        await plane.until_ended(21, grpc_status="OK")
