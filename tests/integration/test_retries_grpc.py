"""Routes with `retry` and `hedge` between real gRPC peers: a call shows what it shows without them,
and the access log tells how often it was tried."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import GrpcPeer, every_kind, grpc_client, grpc_peer
from tests.support.routes import attempts_at, hedged, refused, retried, retries
from tests.support.wait import until

NEVER_MS = 3_600_000
SERVICES: Mapping[str, dict[str, Any]] = {
    "retry": retried(on=["DATA_LOSS"], per_try_timeout_ms=60_000),
    "hedge": hedged(at={"after_ms": NEVER_MS}, max_share=0.0),
}


@pytest.mark.parametrize("kind", SERVICES)
async def test_every_kind_of_call_shows_what_it_shows_directly(kind: str) -> None:
    async with (
        grpc_peer() as peer,
        data_plane([peer.address], service=SERVICES[kind]) as plane,
        grpc_client(peer.address) as direct,
        grpc_client(plane.address) as client,
    ):
        expected = [shown async for shown in every_kind(direct)]
        assert [shown async for shown in every_kind(client)] == expected
        assert retries(plane) == ({"status": 1} if kind == "retry" else {})


@pytest.mark.parametrize("kind", SERVICES)
async def test_more_than_the_buffer_passes_both_ways(kind: str) -> None:
    """While both directions flow, and with an answer that begins before the request has ended."""
    part, count = b"x" * 100_000, 60

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield part

    async with (
        grpc_peer() as peer,
        data_plane([peer.address], service=SERVICES[kind]) as plane,
        grpc_client(plane.address) as client,
    ):
        assert await client.client_stream()(parts()) == f"{count} {count * len(part)}".encode()
        back = [message async for message in client.bidi()(parts())]
        assert back == [part] * count + [b"end"]
        assert await client.unary()(part * 50) == part * 50
        assert plane.metrics().value("attnroute_replay_bytes") == 0


async def test_the_access_log_has_one_line_with_every_attempt(tmp_path: Path) -> None:
    path = tmp_path / "access.json"

    def lines() -> list[dict[str, Any]]:
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    async with (
        grpc_peer() as one,
        grpc_peer() as other,
        data_plane([one.address, other.address], service=retried(max_attempts=3)) as plane,
        grpc_client(plane.address) as client,
    ):
        plane.config["access_log"] = {"sample": 1.0, "output": str(path)}
        plane.apply()
        call = client.unary("Fail")(b"no", metadata=[("fail-code", "14")])
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await until(lines, "the line")
        (line,) = lines()
        assert (line["attempts"], line["grpc_status"]) == (3, "UNAVAILABLE")
        assert line["endpoint"] in (one.address, other.address)
        assert line["request_bytes"] == len(b"no") + 5
        assert one.started + other.started == 3
        assert min(one.started, other.started) == 1
        assert refused(plane) == {"max_attempts": 1}


async def test_a_hedged_call_ends_at_the_endpoint_that_lost() -> None:
    async with (
        grpc_peer() as one,
        grpc_peer() as other,
        data_plane([one.address, other.address], service=hedged()) as plane,
        grpc_client(plane.address) as client,
    ):
        call = client.unary("Block")(b"asked")
        await until(lambda: one.started and other.started, "both attempts")
        winner, loser = (one, other) if previous(one) else (other, one)
        winner.release.set()
        assert await call == b"asked"
        await until(lambda: loser.cancelled == 1, "the end of the attempt that lost")
        await until(lambda: attempts_at(plane, loser.address) == {"CANCELLED": 1}, "its end")
        assert attempts_at(plane, winner.address) == {"OK": 1}
        assert plane.statuses() == {"OK": 1}


def previous(peer: GrpcPeer) -> bool:
    """Whether it got an attempt that was not the first."""
    return "grpc-previous-rpc-attempts" in peer.seen_metadata[0]
