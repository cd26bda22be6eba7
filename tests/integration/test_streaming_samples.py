"""The sample of a streaming call ends at the first message of its answer, through real calls."""

from __future__ import annotations

import time
from typing import Any

import grpc.aio
import numpy as np
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import GrpcClient, grpc_client, grpc_peer

from attnroute.dataplane import rows

CALLS_MEANWHILE = 50


def counted(plane: DataPlaneHarness) -> tuple[int, int]:
    """Successes, and the sum of their latencies in nanoseconds."""
    _, data = plane.plane.snapshot("test")
    return int(np.sum(rows(data)["successes"])), int(np.sum(rows(data)["latency_ns"]))


async def let_time_pass(client: GrpcClient) -> None:
    """Time that a sample of the whole call would hold: far more than one way of a message."""
    for _ in range(CALLS_MEANWHILE):
        await client.unary()(b"x")


async def test_a_server_stream_is_measured_to_its_first_message() -> None:
    """The first call shows by its second message what kind of method it is."""
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        for ended, messages in ((1, 2), (2, 1)):
            peer.release.clear()
            began_ns = time.monotonic_ns()
            call: Any = client.server_stream("BlockStream")(str(messages).encode())
            for _ in range(messages):
                await call.read()
            read_ns = time.monotonic_ns() - began_ns
            await let_time_pass(client)
            await plane.until_ended(ended * CALLS_MEANWHILE + ended - 1)
            before = counted(plane)
            peer.release.set()
            assert await call.read() is grpc.aio.EOF
            await plane.until_ended(ended * (CALLS_MEANWHILE + 1))
            after = counted(plane)
            assert after[0] == before[0] + 1
            assert 0 < after[1] - before[1] < read_ns


async def test_a_bidirectional_stream_is_measured_to_its_first_answer() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        for ended, messages in ((1, 2), (2, 1)):
            began_ns = time.monotonic_ns()
            call: Any = client.bidi()()
            for _ in range(messages):
                await call.write(b"hello")
                assert await call.read() == b"hello"
            read_ns = time.monotonic_ns() - began_ns
            await let_time_pass(client)
            await plane.until_ended(ended * CALLS_MEANWHILE + ended - 1)
            before = counted(plane)
            await call.done_writing()
            assert await call.read() == b"end"
            assert await call.read() is grpc.aio.EOF
            await plane.until_ended(ended * (CALLS_MEANWHILE + 1))
            after = counted(plane)
            assert after[0] == before[0] + 1
            assert 0 < after[1] - before[1] < read_ns


async def test_a_unary_call_is_measured_to_its_end() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        call: Any = client.unary("Block")(b"x")
        await let_time_pass(client)
        await plane.until_ended(CALLS_MEANWHILE)
        before = counted(plane)
        began_ns = time.monotonic_ns()
        await let_time_pass(client)
        meanwhile_ns = time.monotonic_ns() - began_ns
        await plane.until_ended(2 * CALLS_MEANWHILE)
        middle = counted(plane)
        peer.release.set()
        assert await call == b"x"
        await plane.until_ended(2 * CALLS_MEANWHILE + 1)
        assert counted(plane)[1] - middle[1] > meanwhile_ns
        assert middle[0] == before[0] + CALLS_MEANWHILE
