"""Real gRPC peers through the data plane: every method kind gives what it gives without it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import GrpcPeer, every_kind, grpc_client, grpc_peer


async def test_all_kinds_of_calls_are_the_same_with_and_without_the_proxy() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(peer.address) as direct,
        grpc_client(plane.address) as proxied,
    ):
        expected = [found async for found in every_kind(direct)]
        found = [found async for found in every_kind(proxied)]
        for wanted, got in zip(expected, found, strict=True):
            assert wanted == got
        await plane.until_ended(7 + 16)
        assert plane.ended(grpc_status="OK") == 6
        assert plane.ended(grpc_status="UNIMPLEMENTED") == 2


async def test_interleaved_bidi_streams_keep_apart() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):

        async def talk(number: int) -> None:
            call = client.bidi()()
            for turn in range(20):
                message = f"{number}:{turn}".encode() * (number + 1)
                await call.write(message)
                assert await call.read() == message
            await call.done_writing()
            assert await call.read() == b"end"
            assert await call.read() is grpc.aio.EOF

        await asyncio.gather(*(talk(number) for number in range(50)))
        await plane.until_ended(50, grpc_status="OK")


async def test_many_connections_of_clients_share_one_to_the_endpoint() -> None:
    async with grpc_peer() as peer, data_plane([peer.address]) as plane:

        async def one() -> None:
            async with grpc_client(plane.address) as client:
                assert await client.unary()(b"x") == b"x"

        await asyncio.gather(*(one() for _ in range(30)))
        await plane.until_ended(30, grpc_status="OK")
        assert plane.metrics().value("attnroute_endpoint_connections", endpoint=peer.address) == 1


@pytest.mark.parametrize("threads", [1, 3])
async def test_data_threads_share_the_work(threads: int) -> None:
    async with (
        grpc_peer() as first,
        grpc_peer() as second,
        data_plane([first.address, second.address], threads=threads) as plane,
    ):

        async def one(number: int) -> None:
            async with grpc_client(plane.address) as client:
                for _ in range(10):
                    assert await client.unary()(b"%d" % number) == b"%d" % number

        await asyncio.gather(*(one(number) for number in range(12)))
        await plane.until_ended(120, grpc_status="OK")
        assert first.started + second.started == 120


async def test_calls_spread_over_endpoints() -> None:
    async with grpc_peer() as a, grpc_peer() as b, grpc_peer() as c:
        peers: list[GrpcPeer] = [a, b, c]
        config = {"balancer": {"type": "round_robin"}}
        async with (
            data_plane([p.address for p in peers], service=config) as plane,
            grpc_client(plane.address) as client,
        ):
            for _ in range(30):
                await client.unary()(b"x")
            assert [peer.started for peer in peers] == [10, 10, 10]


async def test_unix_sockets_on_both_sides(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("u")
    outer, inner = directory / "in.sock", directory / "out.sock"
    listener = {"name": "in", "mode": "service", "service": "test", "address": f"unix:{outer}"}
    async with (
        grpc_peer(address=f"unix:{inner}") as peer,
        data_plane([peer.address], listeners=[listener]) as plane,
        grpc_client(plane.address) as client,
    ):
        assert plane.address == f"unix:{outer}"
        assert await client.unary()(b"x") == b"x"
        assert [m async for m in client.bidi()(iter([b"p"]))] == [b"p", b"end"]
        labels = [s.labels["endpoint"] for s in plane.metrics().of("attnroute_endpoint_inflight")]
        assert labels == [f"unix:{inner}"]
        await plane.until_ended(2, grpc_status="OK")
    assert not outer.exists(), "the socket file was left behind"
