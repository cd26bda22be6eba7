"""RS-13: a call that takes long is sent to another endpoint, and the first good answer wins.

Nothing here depends on how long an endpoint takes: each answers when the test says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from hyperframe.frame import SettingsFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import CANCEL, Manners, RawConnection, RawStream
from tests.support.raw_h2 import grpc_message as message
from tests.support.raw_peers import (
    RESPONSE,
    RawServer,
    answer,
    answer_status,
    never,
    open_call,
    raw_client,
    raw_server,
    request_fields,
    trailers,
)
from tests.support.routes import attempts_at, hedged
from tests.support.wait import until

OK, NOT_FOUND, INTERNAL, UNAVAILABLE = 0, 5, 13, 14
NEVER_MS = 3_600_000


@dataclass
class Pair:
    """Two endpoints that say nothing by themselves, a data plane and a client."""

    endpoints: tuple[RawServer, RawServer]
    plane: DataPlaneHarness
    client: RawConnection

    async def streams(self) -> tuple[RawStream, RawStream]:
        """The first attempt and the other one, once there are both."""
        one, other = self.endpoints
        await until(lambda: one.streams and other.streams, "both attempts")
        first, second = one.streams[0], other.streams[0]
        return (second, first) if first.value("grpc-previous-rpc-attempts") else (first, second)

    @property
    def attempts(self) -> int:
        return sum(len(endpoint.streams) for endpoint in self.endpoints)

    def hedges(self, suffix: str = "") -> int:
        return int(self.plane.metrics().value(f"attnroute_hedges{suffix}_total"))

    def statuses(self) -> list[str]:
        """Of every attempt that ended, at whichever endpoint."""
        found = [attempts_at(self.plane, endpoint.address) for endpoint in self.endpoints]
        return sorted(status for each in found for status in each for _ in range(each[status]))


@contextlib.asynccontextmanager
async def pair(
    service: Mapping[str, Any],
    *,
    settings: dict[int, int] | None = None,
    manners: Manners | None = None,
) -> AsyncIterator[Pair]:
    async with (
        raw_server(never, settings=settings, manners=manners) as one,
        raw_server(never, settings=settings, manners=manners) as other,
        data_plane([one.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        yield Pair((one, other), plane, client)


def finish(stream: RawStream, payload: bytes, code: int = OK) -> None:
    """A whole answer."""
    stream.headers(RESPONSE)
    stream.data_frame(message(payload))
    stream.headers(trailers(code), end_stream=True)


def refuse(stream: RawStream, code: int, *extra: tuple[str, str]) -> None:
    """Trailers-Only."""
    stream.headers([*RESPONSE, *trailers(code, "", extra)], end_stream=True)


async def cancelled(stream: RawStream) -> None:
    await stream.until(lambda: stream.dead, "the reset of the attempt that lost")
    assert stream.reset_code == CANCEL


async def test_rs_13_the_other_one_may_win() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client, body=b"asked")
        first, second = await p.streams()
        assert second.data == message(b"asked")
        assert second.value("grpc-previous-rpc-attempts") == b"1"
        finish(second, b"second")
        await call.until_done()
        assert (call.grpc_status, call.data) == (OK, message(b"second"))
        await cancelled(first)
        await p.plane.until_ended(1, grpc_status="OK")
        assert (p.hedges(), p.hedges("_won")) == (1, 1)
        # The loser is no failure of its endpoint.
        await until(lambda: p.statuses() == ["CANCELLED", "OK"], "the end of both attempts")


async def test_rs_13_the_first_one_may_win() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client)
        first, second = await p.streams()
        finish(first, b"first")
        await call.until_done()
        assert (call.grpc_status, call.data) == (OK, message(b"first"))
        await cancelled(second)
        assert (p.hedges(), p.hedges("_won")) == (1, 0)


async def test_rs_13_a_failure_waits_for_the_other_one() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client)
        first, second = await p.streams()
        refuse(first, INTERNAL)
        await until(lambda: "INTERNAL" in p.statuses(), "the end of the first attempt")
        assert not call.blocks
        finish(second, b"second")
        await call.until_done()
        assert (call.grpc_status, call.data) == (OK, message(b"second"))
        assert p.attempts == 2


async def test_rs_13_when_all_fail_the_client_gets_the_last_failure() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client)
        first, second = await p.streams()
        refuse(first, INTERNAL)
        await until(lambda: "INTERNAL" in p.statuses(), "the end of the first attempt")
        refuse(second, UNAVAILABLE, ("x-second", "1"))
        await call.until_done()
        assert (call.grpc_status, call.value("x-second")) == (UNAVAILABLE, b"1")
        assert len(call.blocks) == 1
        assert p.statuses() == ["INTERNAL", "UNAVAILABLE"]


async def test_rs_13_a_status_that_is_an_answer_wins() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client)
        first, second = await p.streams()
        refuse(first, NOT_FOUND)
        await call.until_done()
        assert call.grpc_status == NOT_FOUND
        await cancelled(second)


async def test_rs_13_a_failure_before_its_time_sends_the_other_one_at_once() -> None:
    async with pair(hedged(at={"after_ms": NEVER_MS})) as p:
        call = open_call(p.client)
        await until(lambda: p.attempts == 1, "the first attempt")
        (first,) = [stream for endpoint in p.endpoints for stream in endpoint.streams]
        refuse(first, UNAVAILABLE)
        _, second = await p.streams()
        finish(second, b"second")
        await call.until_done()
        assert call.grpc_status == OK


async def test_rs_13_push_back_stops_hedging() -> None:
    async with pair(hedged(at={"after_ms": NEVER_MS})) as p:
        call = open_call(p.client)
        await until(lambda: p.attempts == 1, "the first attempt")
        (first,) = [stream for endpoint in p.endpoints for stream in endpoint.streams]
        refuse(first, UNAVAILABLE, ("grpc-retry-pushback-ms", "-1"))
        await call.until_done()
        assert call.grpc_status == UNAVAILABLE
        assert call.value("grpc-retry-pushback-ms") == b"-1"
        assert (p.attempts, p.hedges()) == (1, 0)


async def test_rs_13_a_client_that_leaves_ends_both() -> None:
    async with pair(hedged()) as p:
        call = open_call(p.client)
        first, second = await p.streams()
        call.reset(CANCEL)
        await cancelled(first)
        await cancelled(second)
        await p.plane.until_ended(1, grpc_status="CANCELLED")
        await until(lambda: p.statuses() == ["CANCELLED"] * 2, "the end of both attempts")


async def test_rs_13_its_share_is_a_limit() -> None:
    async with pair(hedged(max_share=0.0)) as p:
        call = open_call(p.client)
        await until(lambda: p.hedges("_refused"), "the moment at which it would be sent")
        assert p.attempts == 1
        (only,) = [stream for endpoint in p.endpoints for stream in endpoint.streams]
        finish(only, b"only")
        assert (await call.until_done()).grpc_status == OK


async def test_rs_13_not_where_the_policy_does_not_say_so() -> None:
    routes = {"routes": [{"match": {"path_prefix": "/"}, "idempotent": True}]}
    async with pair(routes) as p:
        call = open_call(p.client, extra=[("grpc-timeout", "300m")])
        await call.until_done()
        assert p.attempts == 1


async def test_rs_13_an_upload_goes_on_to_the_winner() -> None:
    """What the client sends before and after the answer begins reaches the endpoint once and in
    order."""
    async with pair(hedged()) as p:
        call = p.client.open_stream()
        call.headers(request_fields("/test.Raw/Call"))
        call.data_frame(message(b"1"))
        first, second = await p.streams()
        call.data_frame(message(b"2"))
        await first.until_bytes(12)
        await second.until_bytes(12)
        second.headers(RESPONSE)
        await call.until_headers()
        await cancelled(first)
        call.data_frame(message(b"3"), end_stream=True)
        await second.until(lambda: second.ended, "the end of the request")
        assert second.data == b"".join(message(part) for part in (b"1", b"2", b"3"))
        second.headers(trailers(OK), end_stream=True)
        assert (await call.until_done()).grpc_status == OK
        assert p.plane.metrics().value("attnroute_request_bytes_total") == 18


async def test_rs_13_a_winner_that_lags_gets_the_rest() -> None:
    """Its window held it back while the other one took everything."""
    small = {SettingsFrame.INITIAL_WINDOW_SIZE: 10}
    async with pair(hedged(), settings=small, manners=Manners(keep_windows_open=False)) as p:
        call = p.client.open_stream()
        call.headers(request_fields("/test.Raw/Call"))
        parts = [message(f"part {number}".encode()) for number in range(4)]
        for part in parts[:3]:
            call.data_frame(part)
        first, second = await p.streams()
        first.open_window(1_000)
        await first.until_bytes(33)
        await second.until_bytes(10)
        second.headers(RESPONSE)
        await call.until_headers()
        await cancelled(first)
        call.data_frame(parts[3], end_stream=True)
        second.open_window(1_000)
        await second.until(lambda: second.ended, "the end of the request")
        assert second.data == b"".join(parts)
        second.headers(trailers(OK), end_stream=True)
        assert (await call.until_done()).grpc_status == OK
        # Counted once, however often it was sent.
        assert p.plane.metrics().value("attnroute_request_bytes_total") == 44


async def test_rs_13_more_than_the_buffer_holds_leaves_one_attempt() -> None:
    service = {**hedged(), "limits": {"max_replay_bytes": 10}}
    async with pair(service) as p:
        call = p.client.open_stream()
        call.headers(request_fields("/test.Raw/Call"))
        first, second = await p.streams()
        call.data_frame(message(b"more than ten bytes"), end_stream=True)

        def left() -> list[RawStream]:
            return [stream for stream in (first, second) if not stream.dead]

        await until(lambda: len(left()) == 1, "the end of one attempt")
        (kept,) = left()
        await kept.until(lambda: kept.ended, "the request")
        assert kept.data == message(b"more than ten bytes")
        finish(kept, b"ok")
        assert (await call.until_done()).grpc_status == OK
        assert p.plane.limit_hits("max_replay_bytes") == 1


async def test_rs_13_at_the_measured_tail_of_the_method_at_the_endpoint() -> None:
    """While too little is known no attempt is sent; later one, at the 95th percentile."""
    service = {
        **hedged(at={"quantile": 0.95}),
        "balancer": {"type": "round_robin"},
    }

    async def script(stream: RawStream) -> None:
        if stream.value("x-hold") and not stream.value("grpc-previous-rpc-attempts"):
            await stream.until(lambda: stream.dead, "the reset")
        else:
            await answer()(stream)

    async with (
        raw_server(script) as one,
        raw_server(script) as other,
        data_plane([one.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        unknown = open_call(client, "/test.Raw/New", extra=[("x-hold", "1")])
        for _ in range(60):
            stream = await open_call(client).until_done()
            assert stream.grpc_status == OK, stream.describe()
        # Of those some took longer than the others.
        before = plane.metrics().value("attnroute_hedges_won_total")
        stream = await open_call(client, extra=[("x-hold", "1")]).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert plane.metrics().value("attnroute_hedges_won_total") == before + 1
        streams = [stream for endpoint in (one, other) for stream in endpoint.streams]
        assert sum(stream.value(":path") == b"/test.Raw/New" for stream in streams) == 1
        assert not unknown.done
        unknown.reset(CANCEL)


async def test_rs_13_what_lost_does_not_eject_its_endpoint() -> None:
    service = {**hedged(at={"after_ms": 1}), "outlier_detection": {"consecutive_errors": 1}}
    async with (
        raw_server(never) as silent,
        raw_server(answer()) as well,
        data_plane([silent.address, well.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        while not silent.streams:
            assert (await open_call(client).until_done()).grpc_status == OK
        await until(lambda: attempts_at(plane, silent.address), "the end of the attempt that lost")
        assert set(attempts_at(plane, silent.address)) == {"CANCELLED"}
        assert plane.metrics().value("attnroute_endpoints_ejected") == 0
        assert plane.metrics().value("attnroute_endpoint_ejections_total") == 0


async def test_rs_13_no_second_attempt_at_the_same_endpoint() -> None:
    async with (
        raw_server(answer_status(UNAVAILABLE)) as only,
        data_plane([only.address], service=hedged(at={"after_ms": 1})) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert len(only.streams) == 1
