"""Load reports and keys of real calls reach the balancer.

gRPC clients keep the report for themselves, so the peers name themselves in a trailer of their own.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from tests.support.dataplane import data_plane

from attnroute.dataplane import rows

METHOD = "/test.Reporting/Call"
METRICS_KEY = "endpoint-load-metrics-bin"


def report(cpu: float, qps: float) -> bytes:
    """An `OrcaLoadReport` with cpu_utilization (field 1) and rps_fractional (field 6)."""
    return b"\x09" + struct.pack("<d", cpu) + b"\x31" + struct.pack("<d", qps)


@asynccontextmanager
async def reporting_peer(trailer: bytes) -> AsyncIterator[str]:
    """A server whose every answer carries this report; gives its address."""

    async def call(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        context.set_trailing_metadata(((METRICS_KEY, trailer), ("x-peer-bin", trailer)))
        return b"ok"

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Call": grpc.unary_unary_rpc_method_handler(call)
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Reporting", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def one_call(channel: grpc.aio.Channel, **metadata: str) -> bytes:
    """Calls once; returns the report of the peer that answered."""
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
    call = method(b"", metadata=tuple(metadata.items()))
    assert await call == b"ok"
    trailers: Any = await call.trailing_metadata()
    return bytes(dict(trailers)["x-peer-bin"])


async def test_reports_of_answers_become_weights() -> None:
    slow, fast = report(0.5, 100), report(0.25, 100)
    async with (
        reporting_peer(slow) as first,
        reporting_peer(fast) as second,
        data_plane([first, second]) as plane,
    ):
        balancer = {"type": "weighted_round_robin", "blackout_ms": 0, "update_ms": 1}
        plane.config["services"][0]["balancer"] = balancer
        plane.apply()
        async with grpc.aio.insecure_channel(plane.address) as channel:
            answered = {await one_call(channel) for _ in range(40)}
        assert answered == {slow, fast}
        await plane.until_ended(40, grpc_status="OK")
        _, data = plane.plane.snapshot("test")
        # 100 / 0.5 to 100 / 0.25.
        assert [round(float(weight), 3) for weight in rows(data)["weight"]] == [0.333, 0.667]
        reasons = {s.labels["reason"] for s in plane.metrics().of("attnroute_picks_total")}
        assert "weighted_round_robin" in reasons


async def test_garbage_for_a_report_fails_no_call() -> None:
    """LB-17: what cannot be read is no report."""
    async with (
        reporting_peer(b"\xff\xff\xff") as first,
        reporting_peer(b"\x09\x00") as second,
        data_plane([first, second]) as plane,
    ):
        plane.config["services"][0]["balancer"] = {"type": "weighted_round_robin"}
        plane.apply()
        async with grpc.aio.insecure_channel(plane.address) as channel:
            answered = Counter([await one_call(channel) for _ in range(20)])
        assert answered == {b"\xff\xff\xff": 10, b"\x09\x00": 10}
        await plane.until_ended(20, grpc_status="OK")


async def test_calls_of_one_key_stay_together() -> None:
    async with (
        reporting_peer(b"1") as first,
        reporting_peer(b"2") as second,
        reporting_peer(b"3") as third,
        data_plane([first, second, third]) as plane,
    ):
        for kind in ("ring_hash", "maglev"):
            plane.config["services"][0]["balancer"] = {"type": kind, "header": "x-user"}
            plane.apply()
            async with grpc.aio.insecure_channel(plane.address) as channel:
                owners = {
                    user: {await one_call(channel, **{"x-user": f"user-{user}"}) for _ in range(5)}
                    for user in range(20)
                }
            assert all(len(owner) == 1 for owner in owners.values())
            assert len(set.union(*owners.values())) == 3
        await plane.until_ended(200, grpc_status="OK")
