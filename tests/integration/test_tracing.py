"""Spans of calls at a real OTLP receiver, and trace context that passes through untouched."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.otlp import attributes, otlp_receiver
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

from attnroute.admin.client import AdminClient

Start = Callable[..., Sidecar]

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECORDED = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=opaque:1"))
NOT_RECORDED = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
TOKEN = "Bearer of-nobody"


def policy(endpoint: str, collector: str) -> str:
    headers = f"{{authorization: {TOKEN}}}"
    tracing = f"tracing: {{otlp: '{collector}', sample: 100%, headers: {headers}}}\n"
    return minimal_policy(endpoint) + tracing


async def test_a_call_becomes_a_span_below_that_of_its_caller(start_sidecar: Start) -> None:
    with otlp_receiver() as receiver:
        async with grpc_peer() as peer:
            sidecar = start_sidecar(policy(peer.address, receiver.address))
            began_ns = time.time_ns()
            async with grpc_client(sidecar.address, authority="cart") as client:
                await client.unary()(b"x", metadata=NOT_RECORDED)
                await client.unary()(b"abc", metadata=RECORDED)
                code = await client.unary("Missing")(b"").code()
                assert code is grpc.StatusCode.UNIMPLEMENTED
            await until(lambda: len(receiver.spans) >= 2, "two spans")
            first, second = receiver.spans
            assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
            assert (first.trace_state, first.name) == ("vendor=opaque:1", "test.Peer/Unary")
            assert (first.kind, first.status.code) == (first.SPAN_KIND_CLIENT, 0)
            # The clock may be set meanwhile; the length comes from the monotonic one.
            assert first.end_time_unix_nano > first.start_time_unix_nano
            assert abs(first.start_time_unix_nano - began_ns) < 60e9
            found = attributes(first)
            assert found["network.peer.address"] == peer.address
            assert (found["attnroute.service"], found["attnroute.attempts"]) == ("cart", 1)
            assert found["attnroute.request_bytes"] == 5 + 3
            assert (found["rpc.system"], found["rpc.service"]) == ("grpc", "test.Peer")
            # Who brings no context begins a trace.
            assert second.trace_id.hex() != TRACE
            assert second.parent_span_id == b""
            assert second.status.message == "UNIMPLEMENTED"
            # What the client sent is what the endpoint got.
            assert peer.seen_metadata[1]["traceparent"] == [RECORDED[0][1]]
            assert peer.seen_metadata[1]["tracestate"] == [RECORDED[1][1]]
            assert receiver.metadata[0]["authorization"] == TOKEN
            assert sidecar.metric("attnroute_spans_total", result="exported") == 2
            names = {
                pair.key: pair.value.string_value
                for pair in receiver.resources[0].resource.attributes
            }
            assert names["service.name"] == "attnroute"


async def test_secrets_are_shown_nowhere(start_sidecar: Start) -> None:
    with otlp_receiver() as receiver:
        async with grpc_peer() as peer:
            sidecar = start_sidecar(policy(peer.address, receiver.address))
            with AdminClient(sidecar.admin) as client:
                shown = client.get_config().policy_yaml
            assert "authorization: (secret)" in shown
            assert TOKEN not in shown
            assert sidecar.stop() == 0
            assert TOKEN not in sidecar.stderr


async def test_what_is_left_is_sent_when_the_sidecar_stops(start_sidecar: Start) -> None:
    with otlp_receiver() as receiver:
        async with grpc_peer() as peer:
            sidecar = start_sidecar(policy(peer.address, receiver.address))
            async with grpc_client(sidecar.address, authority="cart") as client:
                for _ in range(20):
                    await client.unary()(b"x", metadata=RECORDED)
            assert sidecar.stop() == 0
        assert len(receiver.spans) == 20


async def test_an_outage_is_logged_once_and_ends(start_sidecar: Start) -> None:
    with otlp_receiver() as receiver:
        receiver.refuse = True
        async with grpc_peer() as peer:
            sidecar = start_sidecar(policy(peer.address, receiver.address))
            async with grpc_client(sidecar.address, authority="cart") as client:
                await client.unary()(b"x")
                await until(lambda: receiver.refused >= 1, "a refusal")
                await client.unary()(b"x")
                await until(lambda: receiver.refused >= 2, "another one")
                assert sidecar.logged("cannot export spans")["collector"] == receiver.address
                receiver.refuse = False
                await client.unary()(b"x")
                await until(lambda: receiver.spans, "a span")
            assert len(receiver.spans) == 1
            assert sidecar.stderr.count("cannot export spans") == 1
            assert sidecar.metric("attnroute_spans_total", result="failed") == 2
            assert "opentelemetry" not in sidecar.stderr


async def test_without_tracing_no_call_is_kept_for_it() -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        await client.unary()(b"x", metadata=RECORDED)
        await plane.until_ended(1)
        assert plane.plane.take_spans(10) == b"[]"
