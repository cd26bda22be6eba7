"""Cases H2-02 to H2-54 about answers: what an endpoint sends is what the client gets."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hyperframe.frame import DataFrame, HeadersFrame
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client
from tests.support.raw_h2 import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RawStream,
    grpc_message,
)
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    answer_status,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import patiently

CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED = 1, 2, 4, 7
RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 8, 13, 14
ENDED = "attnroute_requests_total"


EJECTS_AT_ONCE = {"outlier_detection": {"consecutive_errors": 1, "max_ejected": 0.5}}


async def test_h2_02_error_only_answer_stays_one_header_block() -> None:
    async with (
        raw_server(answer_status(5, "none", [("x-why", "gone")])) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        kinds = [type(s.frame) for s in client.seen if s.frame.stream_id == stream.id]
        assert kinds == [HeadersFrame], kinds
        assert stream.blocks[0].end_stream
        assert (stream.grpc_status, stream.grpc_message) == (5, "none")
        assert stream.value("x-why") == b"gone"
        await plane.until_ended(1, grpc_status="NOT_FOUND")


async def test_h2_03_declared_length_without_a_body_is_malformed() -> None:
    async def lie(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers([*RESPONSE, (b"content-length", b"5"), *trailers(0)], end_stream=True)

    async with (
        raw_server(lie) as endpoint,
        raw_server(answer()) as well,
        data_plane([endpoint.address, well.address], service=EJECTS_AT_ONCE) as plane,
        raw_client(plane.address) as client,
    ):
        calls = 0
        while not endpoint.streams:
            stream, calls = await open_call(client).until_done(), calls + 1
        assert stream.grpc_status in (INTERNAL, UNAVAILABLE), stream.describe()
        await plane.until_ended(calls)
        assert plane.ended(grpc_status="OK") == calls - 1
        assert plane.metrics().value("attnroute_endpoint_ejections_total") == 1


async def test_h2_05_status_in_the_first_block_of_a_normal_answer_does_not_count() -> None:
    async def two_statuses(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers([*RESPONSE, (b"grpc-status", b"0")])
        await stream.write(grpc_message(b"x"))
        stream.headers(trailers(INTERNAL, "really"), end_stream=True)

    async with (
        raw_server(two_statuses) as endpoint,
        raw_server(answer()) as well,
        data_plane([endpoint.address, well.address], service=EJECTS_AT_ONCE) as plane,
        raw_client(plane.address) as client,
    ):
        calls = 0
        while not endpoint.streams:
            stream, calls = await open_call(client).until_done(), calls + 1
        assert [block.end_stream for block in stream.blocks] == [False, True]
        assert (stream.grpc_status, stream.data) == (INTERNAL, grpc_message(b"x"))
        await plane.until_ended(calls)
        assert plane.ended(grpc_status="INTERNAL") == 1
        assert plane.metrics().value("attnroute_endpoint_ejections_total") == 1


async def test_h2_08_reset_after_a_complete_answer_is_no_error() -> None:
    async def early(stream: RawStream) -> None:
        await stream.until_bytes(len(grpc_message(b"ask")))
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"answer"))
        stream.headers(trailers(0), end_stream=True)
        stream.reset(NO_ERROR)

    async with (
        raw_server(early) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(20):
            stream = open_call(client, body=None)
            stream.data_frame(grpc_message(b"ask"))
            await stream.until_done()
            stream.data_frame(b"", end_stream=True)
            assert (stream.grpc_status, stream.data) == (0, grpc_message(b"answer"))
        await plane.until_ended(20, grpc_status="OK")
        assert len(endpoint.streams) == 20, "a complete answer was retried"
        assert not client.goaways
        assert len(endpoint.connections) == 1


RESETS = {
    0: INTERNAL,
    1: INTERNAL,
    2: INTERNAL,
    3: INTERNAL,
    4: INTERNAL,
    6: INTERNAL,
    9: INTERNAL,
    10: INTERNAL,
    7: UNAVAILABLE,
    8: CANCELLED,
    11: RESOURCE_EXHAUSTED,
    12: PERMISSION_DENIED,
}


async def test_h2_10_reset_codes_map_by_the_grpc_table() -> None:
    async def reset(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.reset(int(stream.value("x-code") or b"0"))

    async with (
        raw_server(reset) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for code, expected in RESETS.items():
            stream = await open_call(client, extra=[("x-code", str(code))]).until_done()
            assert stream.grpc_status == expected, f"reset code {code}: {stream.describe()}"
            assert stream.blocks[0].get("content-type") == b"application/grpc"
            assert stream.blocks[0].get(":status") == b"200"
            assert stream.grpc_message.startswith("attnroute: ")
        await plane.until_ended(len(RESETS))
        assert len(endpoint.connections) == 1, "a stream's reset cost the connection"


async def _truncate(stream: RawStream, how: str) -> None:
    await stream.until(lambda: stream.ended, "the request")
    stream.headers(RESPONSE)
    await stream.write(grpc_message(b"whole") + grpc_message(b"0123456789")[:9])
    await stream.connection.drain()
    if how == "fin":
        stream.connection.end_writing()
    elif how == "end":
        stream.data_frame(b"", end_stream=True)
    else:
        stream.reset(NO_ERROR)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("fin", {UNAVAILABLE, INTERNAL}),
        ("end", {INTERNAL, UNKNOWN}),
        ("reset", {UNAVAILABLE, INTERNAL}),
    ],
)
async def test_h2_13_truncation_is_visible(how: str, expected: set[int]) -> None:
    async with (
        raw_server(lambda stream: _truncate(stream, how)) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert effective_status(stream) in expected, stream.describe()
        assert grpc_message(b"whole") in stream.data
        assert not any(chunk.end_stream for chunk in stream.chunks), "it ended as if complete"
        await plane.until_ended(1)
        assert not plane.ended(grpc_status="OK")
        async with grpc_client(plane.address) as real:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await patiently(real.unary()(b"x"), "any end of a cut answer at a real client")
        assert failure.value.code().value[0] in expected


def effective_status(stream: RawStream) -> int:
    """The status a gRPC client makes of how the stream ended."""
    if stream.grpc_status is not None:
        return stream.grpc_status
    if stream.reset_code is not None:
        return RESETS.get(stream.reset_code, UNKNOWN)
    return UNKNOWN if stream.ended else UNAVAILABLE


async def test_h2_24_large_error_details_keep_their_status() -> None:
    async def detailed(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        code, size = int(stream.value("x-code") or b""), int(stream.value("x-size") or b"")
        stream.headers(RESPONSE)
        details = [("grpc-status-details-bin", "A" * size)]
        stream.headers(trailers(code, "why", details), end_stream=True)

    async with (
        raw_server(detailed) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for code in range(1, 17):
            for kib in (1, 4, 8, 12, 16, 24, 64, 128):
                given = [("x-code", str(code)), ("x-size", str(kib * 1024))]
                stream = await open_call(client, extra=given).until_done()
                where = f"status {code}, {kib} KiB: {stream.describe()[:600]}"
                details = stream.value("grpc-status-details-bin")
                if kib <= 64:
                    assert (stream.grpc_status, stream.grpc_message) == (code, "why"), where
                    assert details == b"A" * (kib * 1024), where
                else:  # above the limit of 96 KiB
                    assert details is None, where
                    assert (stream.grpc_status, stream.grpc_message) == (code, "why"), where
        await plane.until_ended(16 * 8)
        assert len(endpoint.connections) == 1, "an error's size cost the connection"


async def test_h2_29_interim_blocks_are_skipped() -> None:
    async def interim(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers([(":status", "103"), ("link", "</x>")])
        stream.headers([(":status", "100")])
        await answer(b"late")(stream)

    async with (
        raw_server(interim) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert [block.get(":status") for block in stream.blocks] == [b"200", None]
        assert (stream.grpc_status, stream.data) == (0, grpc_message(b"late"))
        await plane.until_ended(1, grpc_status="OK")


async def test_h2_29_interim_block_that_ends_the_stream_is_that_streams_error() -> None:
    async def broken(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        if stream.value("x-good"):
            await answer(b"fine")(stream)
        else:
            stream.headers([(":status", "103")], end_stream=True)

    async with (
        raw_server(broken) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        bad = await open_call(client).until_done()
        assert bad.grpc_status in (INTERNAL, UNKNOWN, UNAVAILABLE), bad.describe()
        good = await open_call(client, extra=[("x-good", "1")]).until_done()
        assert good.grpc_status == 0
        assert len(endpoint.connections) == 1
        await plane.until_ended(2)


async def test_h2_43_tcp_reset_right_after_the_trailers() -> None:
    async def then_reset(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        stream.data_frame(grpc_message(b"x" * 100))
        stream.headers(trailers(0), end_stream=True)
        stream.connection.goaway(stream.id)
        stream.connection.tcp_reset()

    async with (
        raw_server(then_reset) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for number in range(1000):
            stream = await open_call(client).until_done()
            assert stream.grpc_status == 0, f"call {number}: {stream.describe()}"
            assert len(stream.data) == 105
            endpoint.forget_gone()
        await plane.until_ended(1000, grpc_status="OK")


async def test_h2_43_tcp_reset_before_the_trailers_is_no_end() -> None:
    async def then_reset(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        stream.data_frame(grpc_message(b"x" * 100))
        await asyncio.sleep(0)
        stream.connection.tcp_reset()

    async with (
        raw_server(then_reset) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for _ in range(50):
            stream = await open_call(client).until_done()
            assert effective_status(stream) in (INTERNAL, UNAVAILABLE), stream.describe()
            assert not any(chunk.end_stream for chunk in stream.chunks)
        await plane.until_ended(50)
        assert not plane.ended(grpc_status="OK")


PASSING_MESSAGES = [
    b"100%25 sure",
    b"caf%C3%A9",
    "caf\u00e9".encode(),
    b"%F0%9F%98%80",
    b"line%0Abreak%0D%0A",
    b"%zz",
    b"%E9",
    b"%",
    b"x" * 4096,
]


async def test_h2_54_grpc_message_passes_byte_for_byte() -> None:
    async def speak(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        message = PASSING_MESSAGES[int(stream.value("x-number") or b"")]
        fields = [*RESPONSE, *trailers(9), (b"grpc-message", message)]
        stream.headers(fields, end_stream=True)

    async with (
        raw_server(speak) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for number, message in enumerate(PASSING_MESSAGES):
            stream = await open_call(client, extra=[("x-number", str(number))]).until_done()
            assert stream.blocks[0].all("grpc-message") == [message]
        await plane.until_ended(len(PASSING_MESSAGES), grpc_status="FAILED_PRECONDITION")


async def test_h2_54_own_messages_are_percent_encoded() -> None:
    name = "caf\u00e9 100% \U0001f600\n"
    async with (
        data_plane({name: []}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as real,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert "caf%C3%A9 100%25 %F0%9F%98%80%0A" in stream.grpc_message
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await real.unary()(b"x")
        assert name in (failure.value.details() or "")


async def test_h2_26_own_error_text_stays_small() -> None:
    async with (
        data_plane({"\u00e9" * 50_000: []}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        assert stream.grpc_status == UNAVAILABLE
        assert 500 < len(stream.grpc_message) <= 3 * 1024


async def test_answers_that_are_no_grpc_get_the_mapped_status() -> None:
    """H2-12: the HTTP table is only for foreign answers without grpc-status."""
    expected = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14, 418: 2}

    async def foreign(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        status = stream.value("x-status") or b""
        stream.headers([(b":status", status), (b"content-type", b"text/html")])
        stream.data_frame(b"<h1>no</h1>", end_stream=True)

    async with (
        raw_server(foreign) as endpoint,
        data_plane([endpoint.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        for status, code in expected.items():
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await client.unary()(b"x", metadata=[("x-status", str(status))])
            assert failure.value.code().value[0] == code, f"HTTP {status}"
        await plane.until_ended(len(expected))
        assert not plane.ended(grpc_status="OK")


async def test_frames_of_a_normal_answer_keep_their_order() -> None:
    async with (
        raw_server(answer(b"x" * 10, tail=[("x-tail", "t")])) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client).until_done()
        kinds = [
            type(s.frame)
            for s in client.seen
            if s.frame.stream_id == stream.id and isinstance(s.frame, HeadersFrame | DataFrame)
        ]
        assert kinds == [HeadersFrame, DataFrame, HeadersFrame]
        assert stream.value("x-tail") == b"t"


async def test_resets_after_the_headers_reach_the_client() -> None:
    """The code of a reset in the middle of an answer is not lost (H2-10, H2-13)."""

    async def reset(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"x"))
        stream.reset(int(stream.value("x-code") or b"0"))

    async with (
        raw_server(reset) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for code in (PROTOCOL_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL):
            stream = await open_call(client, extra=[("x-code", str(code))]).until_done()
            assert effective_status(stream) == RESETS[code], stream.describe()
        await plane.until_ended(4)
