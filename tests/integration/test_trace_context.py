"""Trace context passes through untouched, whatever the sidecar itself notes of the call."""

from __future__ import annotations

import base64

import pytest
from tests.support.dataplane import data_plane
from tests.support.raw_peers import answer, open_call, raw_client, raw_server

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=opaque:1,other=00f067aa0ba902b7",
    "grpc-trace-bin": base64.b64encode(bytes(range(29))).decode().rstrip("="),
    "baggage": "user=7;tier=gold",
}


@pytest.mark.parametrize("parent", [None, "00-0-0-00", "garbage"])
async def test_what_the_client_sent_is_what_the_endpoint_gets(parent: str | None) -> None:
    context = CONTEXT if parent is None else {**CONTEXT, "traceparent": parent}
    async with (
        raw_server(answer()) as server,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        traced = await open_call(client, extra=tuple(context.items())).until_done()
        plain = await open_call(client).until_done()
        assert (traced.grpc_status, plain.grpc_status) == (0, 0)
        with_context, without = server.streams
        seen = {key: with_context.value(key) for key in context}
        assert seen == {key: value.encode() for key, value in context.items()}
        assert [key for key in context if without.value(key)] == []
