"""RS-08 to RS-12, RS-17, RS-18, H2-34: which calls are tried again, when, where and how often."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.dataplane import data_plane
from tests.support.raw_h2 import CANCEL, INTERNAL_ERROR, REFUSED_STREAM, Handler, RawStream
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
from tests.support.routes import AMPLE, attempts_at, refused, retried, retries
from tests.support.wait import until

OK, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 0, 4, 13, 14
PREVIOUS = "grpc-previous-rpc-attempts"


def first_then_ok(first: Handler) -> Handler:
    """The first attempt of each call fares as told, every other one is answered."""

    async def script(stream: RawStream) -> None:
        await (answer()(stream) if stream.value(PREVIOUS) else first(stream))

    return script


async def closes_tcp(stream: RawStream) -> None:
    """The endpoint has processed the call, and its connection breaks."""
    await stream.until(lambda: stream.ended or stream.dead, "the request's end")
    stream.connection.tcp_reset()


def resets(code: int) -> Handler:
    """The endpoint has read the call, and resets it."""

    async def script(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended or stream.dead, "the request's end")
        stream.reset(code)

    return script


async def test_rs_08_a_budget_does_not_shrink_with_the_burst() -> None:
    calls = 6
    all_there = asyncio.Event()

    async def together(stream: RawStream) -> None:
        if sum(not each.value(PREVIOUS) for each in endpoint.streams) == calls:
            all_there.set()
        await all_there.wait()
        await answer_status(UNAVAILABLE)(stream)

    service = retried(budget={"share": 1.0, "floor": 0})
    async with (
        raw_server(first_then_ok(together)) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        streams = [open_call(client) for _ in range(calls)]
        for stream in streams:
            await stream.until_done()
            assert stream.grpc_status == OK, stream.describe()
        assert len(endpoint.streams) == 2 * calls
        assert retries(plane) == {"status": calls}


async def test_rs_08_beyond_the_budget_the_failure_passes() -> None:
    service = retried(budget={"share": 0.0, "floor": 2, "window_ms": 3_600_000})
    async with (
        raw_server(answer_status(UNAVAILABLE, "overloaded")) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(5):
            stream = await open_call(client).until_done()
            assert (stream.grpc_status, stream.grpc_message) == (UNAVAILABLE, "overloaded")
        assert len(endpoint.streams) == 5 + 2
        assert retries(plane) == {"status": 2}
        assert refused(plane) == {"max_attempts": 2, "budget": 3}


async def test_rs_08_a_reload_gives_no_new_budget() -> None:
    budget = {"share": 0.0, "floor": 1, "window_ms": 3_600_000}
    async with (
        raw_server(answer_status(UNAVAILABLE)) as endpoint,
        data_plane([endpoint.address], service=retried(budget=budget)) as plane,
        raw_client(plane.address) as client,
    ):
        await open_call(client).until_done()
        plane.config["services"][0]["panic_threshold"] = 0.25
        plane.apply()
        await open_call(client).until_done()
        assert retries(plane) == {"status": 1}
        # Another rule has another one.
        plane.config["services"][0].update(retried(budget={**budget, "floor": 2}))
        plane.apply()
        await open_call(client).until_done()
        assert retries(plane) == {"status": 2}


async def headers_then_status(stream: RawStream) -> None:
    """Case A: headers, and the status in trailers."""
    await stream.until(lambda: stream.ended, "the request's end")
    stream.headers(RESPONSE)
    stream.headers(trailers(UNAVAILABLE), end_stream=True)


async def message_then_reset(stream: RawStream) -> None:
    """Case C, and worse: no status follows."""
    await stream.until(lambda: stream.ended, "the request's end")
    stream.headers(RESPONSE)
    await stream.write(message(b"one"))
    stream.reset(REFUSED_STREAM)


@pytest.mark.parametrize(
    "script",
    [headers_then_status, answer(code=UNAVAILABLE), message_then_reset],
    ids=["headers", "message", "message-and-reset"],
)
async def test_rs_10_nothing_is_tried_again_after_its_headers(script: Handler) -> None:
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], service=retried()) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        assert len(endpoint.streams) == 1
        assert (retries(plane), refused(plane)) == ({}, {})


async def test_rs_10_a_status_alone_is_tried_again_and_never_seen() -> None:
    script = first_then_ok(answer_status(UNAVAILABLE, extra=[("x-first", "1")]))
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], service=retried()) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, body=b"asked").until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert stream.value("x-first") is None
        assert len(stream.blocks) == 2, "headers and trailers of one answer"
        first, second = endpoint.streams
        assert first.data == second.data == message(b"asked")
        assert first.value(PREVIOUS) is None
        assert second.value(PREVIOUS) == b"1"
        await plane.until_ended(1, grpc_status="OK")
        assert attempts_at(plane, endpoint.address) == {"UNAVAILABLE": 1, "OK": 1}


async def test_rs_10_attempts_of_the_client_itself_are_counted_on() -> None:
    async with (
        raw_server(answer_status(UNAVAILABLE)) as endpoint,
        data_plane([endpoint.address], service=retried(max_attempts=3)) as plane,
        raw_client(plane.address) as client,
    ):
        await open_call(client, extra=[(PREVIOUS, "2")]).until_done()
        assert [each.value(PREVIOUS) for each in endpoint.streams] == [b"2", b"3", b"4"]


FRAME = b"r" * 65_000
BUFFER = {"limits": {"max_replay_bytes": 256 << 10}}


async def upload(stream: RawStream, frames: int) -> None:
    """Messages of one frame each, numbered, each sent as the window allows."""
    for number in range(frames):
        await stream.write(message(bytes([number]) + FRAME))


async def test_rs_11_a_stream_larger_than_the_buffer_is_not_tried_again() -> None:
    async def dies(stream: RawStream) -> None:
        await stream.until(lambda: len(stream.data) >= 18 * len(FRAME), "18 messages")
        stream.connection.tcp_reset()

    async with (
        raw_server(dies) as endpoint,
        data_plane([endpoint.address], service={**retried(), **BUFFER}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = client.open_stream()
        stream.headers(request_fields("/test.Raw/Call"))
        sending = asyncio.create_task(upload(stream, 20))
        await stream.until_done()
        sending.cancel()
        assert stream.grpc_status == UNAVAILABLE, stream.describe()
        assert len(endpoint.streams) == 1
        assert refused(plane) == {"replay_buffer": 1}
        assert plane.limit_hits("max_replay_bytes") == 1
        assert plane.metrics().value("attnroute_replay_bytes") == 0


async def test_rs_11_one_that_fits_is_sent_again_from_its_beginning() -> None:
    async def dies(stream: RawStream) -> None:
        await stream.until(lambda: len(stream.data) >= len(FRAME), "a message")
        stream.connection.tcp_reset()

    async with (
        raw_server(first_then_ok(dies)) as endpoint,
        data_plane([endpoint.address], service={**retried(), **BUFFER}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = client.open_stream()
        stream.headers(request_fields("/test.Raw/Call"))
        await upload(stream, 2)
        await until(lambda: len(endpoint.streams) == 2, "the second attempt")
        await upload(stream, 1)
        stream.data_frame(b"", end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == OK, stream.describe()
        sent = b"".join(message(bytes([number]) + FRAME) for number in (0, 1, 0))
        assert endpoint.streams[1].data == sent
        # What the client sent is counted once, however often it went out.
        assert plane.metrics().value("attnroute_request_bytes_total") == len(sent)
        assert plane.metrics().value("attnroute_replay_bytes") == 0


async def test_rs_11_all_calls_share_one_limit() -> None:
    service = {**retried(), "limits": {"max_replay_bytes_total": 10}}
    async with (
        raw_server(answer_status(UNAVAILABLE)) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        await open_call(client, body=b"small").until_done()
        assert len(endpoint.streams) == 2
        await open_call(client, body=b"more than ten").until_done()
        assert len(endpoint.streams) == 3
        assert plane.limit_hits("max_replay_bytes_total") == 1


@pytest.mark.parametrize("balancer", ["peak_ewma", "round_robin", "maglev", "least_request"])
async def test_rs_12_the_second_attempt_goes_elsewhere(balancer: str) -> None:
    calls = 20
    service = {**retried(), "balancer": {"type": balancer}}
    async with (
        raw_server(answer_status(UNAVAILABLE)) as bad,
        raw_server(answer()) as good,
        data_plane([bad.address, good.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(calls):
            stream = await open_call(client).until_done()
            assert stream.grpc_status == OK, stream.describe()
        refusals = len(bad.streams)
        assert refusals >= 1
        assert len(good.streams) == calls
        assert retries(plane) == {"status": refusals}
        # Each attempt stands where it was made, and once.
        assert attempts_at(plane, bad.address) == {"UNAVAILABLE": refusals}
        assert attempts_at(plane, good.address) == {"OK": calls}
        picks = plane.metrics().value("attnroute_picks_total")
        assert picks == calls + refusals


async def test_rs_12_rules_hold_for_every_attempt() -> None:
    service = retried(max_attempts=3)
    async with (
        raw_server(answer_status(UNAVAILABLE)) as bad,
        raw_server(answer()) as good,
        data_plane([bad.address, good.address]) as plane,
        raw_client(plane.address) as client,
    ):
        service["routes"][0]["rules"] = {"pin": [bad.address]}
        plane.config["services"][0].update(service)
        plane.apply()
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert (len(bad.streams), len(good.streams)) == (3, 0)


class Reluctant(RawServer):
    """Refuses its first three connections."""

    @property
    def refuse_connections(self) -> bool:
        return len(self.connections) <= 3

    @refuse_connections.setter
    def refuse_connections(self, _: bool) -> None:
        pass


async def test_rs_12_a_refused_connection_is_no_end() -> None:
    """The only endpoint cannot be reached at first: the call waits and tries again."""
    service = {
        **retried(max_attempts=5, backoff_ms=200, max_backoff_ms=2_000),
        "connection": {"backoff_base_ms": 10, "backoff_max_ms": 20},
    }
    async with contextlib.AsyncExitStack() as stack:
        endpoint = await Reluctant(answer()).start()
        stack.push_async_callback(endpoint.close)
        plane = await stack.enter_async_context(data_plane([endpoint.address], service=service))
        client = await stack.enter_async_context(raw_client(plane.address))
        stream = await open_call(client).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert len(endpoint.streams) == 1
        assert retries(plane)["status"] >= 1


@pytest.mark.parametrize("value", ["500", "0"])
async def test_rs_17_waits_as_told(value: str) -> None:
    script = first_then_ok(answer_status(UNAVAILABLE, extra=[("grpc-retry-pushback-ms", value)]))
    service = retried(backoff_ms=3_600_000, max_backoff_ms=3_600_000)
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == OK, stream.describe()
        first, second = endpoint.streams
        assert (second.opened_s - first.opened_s) * 1000 > int(value) - 50


@pytest.mark.parametrize("value", ["-1", "abc", "99999999999", "60000"])
async def test_rs_17_not_again_as_told(value: str) -> None:
    """The last of them is beyond the deadline."""
    script = answer_status(UNAVAILABLE, "busy", [("grpc-retry-pushback-ms", value)])
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], service=retried()) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "30S")]).until_done()
        assert (stream.grpc_status, stream.grpc_message) == (UNAVAILABLE, "busy")
        assert stream.value("grpc-retry-pushback-ms") == value.encode()
        assert len(endpoint.streams) == 1
        assert refused(plane) == {"deadline" if value == "60000" else "push_back": 1}


FAILURES = {
    "closes-tcp": closes_tcp,
    "reset": resets(INTERNAL_ERROR),
    "trailers-only": answer_status(UNAVAILABLE),
}
ROUTE: dict[str, Any] = {"match": {"path_prefix": "/"}}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    "routes",
    [[], [{**ROUTE, "idempotent": True}], [{**ROUTE, "timeout_ms": 30_000}]],
    ids=["default", "idempotent", "not-idempotent"],
)
async def test_rs_18_what_may_have_been_processed_happens_once(
    failure: str, routes: list[dict[str, Any]]
) -> None:
    async with (
        raw_server(FAILURES[failure]) as endpoint,
        raw_server(FAILURES[failure]) as other,
        data_plane([endpoint.address, other.address], service={"routes": routes}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status in (INTERNAL, UNAVAILABLE)
        assert len(endpoint.streams) + len(other.streams) == 1


@pytest.mark.parametrize("failure", FAILURES)
async def test_rs_18_an_idempotent_route_says_which_failures_are_tried_again(failure: str) -> None:
    async with (
        raw_server(first_then_ok(FAILURES[failure])) as endpoint,
        data_plane([endpoint.address], service=retried(on=["UNAVAILABLE", "INTERNAL"])) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert len(endpoint.streams) == 2
        plane.config["services"][0].update(retried(on=["ABORTED"]))
        plane.apply()
        stream = await open_call(client).until_done()
        assert stream.grpc_status in (INTERNAL, UNAVAILABLE), stream.describe()
        assert len(endpoint.streams) == 3


async def test_rs_18_what_was_refused_goes_again_whatever_the_rule_lists() -> None:
    async def refuses_once(stream: RawStream) -> None:
        await (answer() if len(endpoint.streams) > 1 else resets(REFUSED_STREAM))(stream)

    service = retried(on=["ABORTED"], budget={**AMPLE, "share": 0.0, "floor": 0})
    async with (
        raw_server(refuses_once) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert len(endpoint.streams) == 2
        assert retries(plane) == {"refused": 1}
        # No application has seen the first, so it is no attempt to one (gRFC A6).
        assert endpoint.streams[1].value(PREVIOUS) is None


def timeout_ms(stream: RawStream) -> float:
    value = stream.value("grpc-timeout")
    assert value is not None
    unit_ms = {b"n": 1e-6, b"u": 1e-3, b"m": 1, b"S": 1_000, b"M": 60_000, b"H": 3_600_000}
    return int(value[:-1]) * unit_ms[value[-1:]]


async def test_h2_34_each_attempt_carries_its_own_time() -> None:
    service = retried(max_attempts=3, per_try_timeout_ms=100)
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "50S")]).until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED
        assert "per_try_timeout" in stream.grpc_message
        assert len(endpoint.streams) == 3
        for each in endpoint.streams:
            assert 0 < timeout_ms(each) <= 100
            await each.connection.until(lambda: all(s.dead for s in endpoint.streams), "resets")
            assert each.reset_code == CANCEL
        assert retries(plane) == {"per_try_timeout": 2}
        assert attempts_at(plane, endpoint.address) == {"DEADLINE_EXCEEDED": 3}


async def test_h2_34_the_endpoint_may_be_the_first_to_say_that_the_time_is_over() -> None:
    async def punctual(stream: RawStream) -> None:
        await asyncio.sleep(timeout_ms(stream) / 1000 * 0.95)
        if not stream.dead:
            await answer_status(DEADLINE_EXCEEDED)(stream)

    service = retried(per_try_timeout_ms=1_500)
    async with (
        raw_server(first_then_ok(punctual)) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == OK, stream.describe()
        assert retries(plane) == {"per_try_timeout": 1}
        # Not so an endpoint that says it at once, for reasons of its own.
    async with (
        raw_server(answer_status(DEADLINE_EXCEEDED)) as endpoint,
        data_plane([endpoint.address], service=retried(per_try_timeout_ms=60_000)) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED
        assert len(endpoint.streams) == 1


async def test_h2_34_what_is_left_of_the_call_when_that_is_less() -> None:
    script = first_then_ok(answer_status(UNAVAILABLE))
    service = retried(per_try_timeout_ms=60_000)
    async with (
        raw_server(script) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "30S")]).until_done()
        assert stream.grpc_status == OK, stream.describe()
        first, second = endpoint.streams
        assert timeout_ms(second) < timeout_ms(first) <= 30_000


async def test_h2_34_the_deadline_of_the_call_ends_all_attempts() -> None:
    service = retried(max_attempts=5, per_try_timeout_ms=200)
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "300m")]).until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED
        assert "deadline of the call" in stream.grpc_message
        assert len(endpoint.streams) <= 2


async def test_h2_34_the_last_attempt_is_not_blamed_for_the_time_of_the_first() -> None:
    """One fails late; the other one has less than half of the time, and says nothing."""

    async def late(stream: RawStream) -> None:
        if not stream.value(PREVIOUS):
            await asyncio.sleep(timeout_ms(stream) / 1000 * 0.6)
        await (never if stream.value(PREVIOUS) else answer_status(UNAVAILABLE))(stream)

    service = {**retried(), "outlier_detection": {"consecutive_errors": 1, "max_ejected": 1.0}}
    async with (
        raw_server(late) as one,
        raw_server(late) as other,
        data_plane([one.address, other.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=[("grpc-timeout", "2S")]).until_done()
        assert stream.grpc_status == DEADLINE_EXCEEDED
        await until(lambda: not plane.in_flight(), "the end of both attempts")
        assert plane.metrics().value("attnroute_endpoint_ejections_total") == 1
        (first,) = [each for each in (one, other) if not each.streams[0].value(PREVIOUS)]
        assert attempts_at(plane, first.address) == {"UNAVAILABLE": 1}


async def test_a_client_that_leaves_ends_the_wait_for_the_next_attempt() -> None:
    service = retried(backoff_ms=3_600_000, max_backoff_ms=3_600_000)
    async with (
        raw_server(answer_status(UNAVAILABLE)) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await until(lambda: retries(plane), "the wait")
        stream.reset(CANCEL)
        await plane.until_ended(1, grpc_status="CANCELLED")
        assert len(endpoint.streams) == 1


async def test_a_data_plane_that_stops_ends_the_wait_for_the_next_attempt() -> None:
    service = retried(backoff_ms=3_600_000, max_backoff_ms=3_600_000)
    async with (
        raw_server(answer_status(UNAVAILABLE)) as endpoint,
        data_plane([endpoint.address], service=service) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await until(lambda: retries(plane), "the wait")
        await plane.drain(linger_ms=0, limit_ms=1)
        await stream.until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert "shutting down" in stream.grpc_message
