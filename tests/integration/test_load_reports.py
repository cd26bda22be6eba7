"""Load reports and keys of real calls reach the balancer.

gRPC clients keep the report for themselves, so the peers name themselves in a trailer of their own.
"""

from __future__ import annotations

import base64
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.raw_peers import answer, answer_status, open_call, raw_client, raw_server
from tests.support.wait import patience_s
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from attnroute.dataplane import ConfigError, rows

METHOD = "/test.Reporting/Call"
METRICS_KEY = "endpoint-load-metrics-bin"


def report(cpu: float, qps: float) -> bytes:
    """An `OrcaLoadReport` with cpu_utilization (field 1) and rps_fractional (field 6)."""
    return b"\x09" + struct.pack("<d", cpu) + b"\x31" + struct.pack("<d", qps)


def named_report(**named: float) -> bytes:
    """An `OrcaLoadReport` of named metrics."""
    serialised: bytes = OrcaLoadReport(named_metrics=named).SerializeToString()
    return serialised


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
        count = plane.metrics().value("attnroute_malformed_load_reports_total", service="test")
        assert count == 20


@pytest.mark.parametrize("trailers_only", [False, True])
async def test_reports_reach_the_client_unless_the_policy_keeps_them(trailers_only: bool) -> None:  # noqa: FBT001
    encoded = base64.b64encode(report(0.5, 100)).decode()
    tail = ((METRICS_KEY, encoded), ("x-other-bin", "AAAA"), (METRICS_KEY, "%"))
    script = answer_status(5, extra=tail) if trailers_only else answer(code=5, tail=tail)
    async with raw_server(script) as peer, data_plane([peer.address]) as plane:
        for strips in (False, True):
            plane.config["services"][0]["strip_load_reports"] = strips
            plane.apply()
            async with raw_client(plane.address) as client:
                stream = await open_call(client).until_done()
                assert stream.grpc_status == 5
                block = stream.blocks[-1]
                found = block.all(METRICS_KEY)
                assert found == ([] if strips else [encoded.encode(), b"%"])
                assert block.get("x-other-bin") == b"AAAA"
        await plane.until_ended(2, grpc_status="NOT_FOUND")
        # Of several reports one that can be read is enough.
        assert plane.metrics().value("attnroute_malformed_load_reports_total") == 0


async def test_values_under_the_names_of_the_application_are_used() -> None:
    """c3 goes by what is in the endpoint: `queue_length` there, `attnroute.inflight` here."""
    busy, idle = named_report(queue_length=50.0), named_report(queue_length=0.0)
    async with (
        reporting_peer(busy) as first,
        reporting_peer(idle) as second,
        data_plane([first, second]) as plane,
    ):
        service = plane.config["services"][0]
        service["balancer"] = {"type": "c3"}
        service["load_reports"] = {"names": {"attnroute.inflight": "named_metrics.queue_length"}}
        plane.apply()
        async with grpc.aio.insecure_channel(plane.address) as channel:
            first_calls = {await one_call(channel) for _ in range(2)}
            assert first_calls == {busy, idle}, "nothing is known of either"
            # 50 calls there cost far more than any difference in latency here.
            answered = [await one_call(channel) for _ in range(20)]
        assert set(answered) == {idle}


async def test_a_report_out_of_band_counts_like_one_of_an_answer() -> None:
    async with (
        reporting_peer(b"") as first,
        reporting_peer(b"") as second,
        data_plane([first, second]) as plane,
    ):
        balancer = {"type": "weighted_round_robin", "blackout_ms": 0, "update_ms": 1}
        plane.config["services"][0]["balancer"] = balancer
        plane.apply()
        async with grpc.aio.insecure_channel(plane.address) as channel:
            # What was reported before a connection does not count after it (gRFC A58).
            for _ in range(2):
                await one_call(channel)
        assert plane.plane.reported("test", first, report(0.5, 100))
        assert plane.plane.reported("test", second, report(0.25, 100))
        assert not plane.plane.reported("test", "127.0.0.1:1", report(0.25, 100))
        assert not plane.plane.reported("test", "nonsense", report(0.25, 100))
        with pytest.raises(ConfigError):
            plane.plane.reported("other", first, report(0.25, 100))

        def weights() -> list[float]:
            return [round(float(one), 3) for one in rows(plane.plane.snapshot("test")[1])["weight"]]

        # Schedules are made anew when calls end, but not by two within `update`.
        async with grpc.aio.insecure_channel(plane.address) as channel:
            end_s = time.monotonic() + patience_s()
            while weights() != [0.333, 0.667]:
                assert time.monotonic() < end_s, "no weights by what was reported"
                await one_call(channel)
        # Garbage is counted and changes nothing.
        assert plane.plane.reported("test", first, b"\xff")
        count = plane.metrics().value("attnroute_malformed_load_reports_total", service="test")
        assert count == 1
        assert weights() == [0.333, 0.667]


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
