"""Cases H2-27 to H2-40 about requests: what a client sends is what the endpoint gets."""

from __future__ import annotations

import grpc
import pytest
from tests.support.dataplane import data_plane
from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import PROTOCOL_ERROR, Fields, RawStream, grpc_message, to_fields
from tests.support.raw_peers import RESPONSE, answer, open_call, raw_client, raw_server, trailers

BINARY = to_fields(
    [
        ("a-bin", "AAEC"),
        ("a-bin", "+/8="),
        ("a-bin", "+/8"),
        ("b-bin", "AA==,AQ"),
        ("a-bin", ""),
        ("plain", "one"),
        ("plain", "two, three"),
    ]
)


def _custom(fields: Fields) -> Fields:
    return [field for field in fields if field[0] in (b"a-bin", b"b-bin", b"plain")]


async def test_h2_27_binary_metadata_is_opaque() -> None:
    async def mirror(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers([*RESPONSE, *_custom(stream.blocks[0].fields)])
        await stream.write(grpc_message(b""))
        stream.headers([*trailers(0), *BINARY], end_stream=True)

    async with (
        raw_server(mirror) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, extra=BINARY).until_done()
        at_endpoint = endpoint.streams[0].blocks[0].fields
        for got in (at_endpoint, stream.blocks[0].fields, stream.blocks[1].fields):
            # Fields of one name keep their order and number; that is all that HTTP promises.
            for name in (b"a-bin", b"b-bin", b"plain"):
                sent = [value for key, value in BINARY if key == name]
                assert [value for key, value in got if key == name] == sent
        await plane.until_ended(1, grpc_status="OK")


async def test_h2_27_binary_metadata_between_real_peers() -> None:
    blobs = [bytes(range(length)) for length in (0, 1, 2, 3, 255)]
    async with (
        grpc_peer() as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        call = client.unary()(b"x", metadata=[("echo-x-bin", blob) for blob in blobs])
        assert await call == b"x"
        assert peer.seen_metadata[0]["echo-x-bin"] == blobs
        assert [v for k, v in await call.initial_metadata() or () if k == "echo-x-bin"] == blobs
        tail = [v for k, v in await call.trailing_metadata() or () if k == "trail-echo-x-bin"]
        assert tail == blobs


async def test_h2_37_te_trailers_always_goes_out() -> None:
    async with (
        raw_server(answer()) as endpoint,
        grpc_peer() as peer,
        data_plane({"test": [endpoint.address], "real": [peer.address]}) as plane,
        raw_client(plane.address) as client,
    ):
        for te in ("trailers", None):
            stream = await open_call(client, te=te).until_done()
            assert stream.grpc_status == 0, stream.describe()
            assert endpoint.streams[-1].blocks[0].all("te") == [b"trailers"]
            stream = await open_call(
                client, "/test.Peer/Unary", authority="real", te=te
            ).until_done()
            assert stream.grpc_status == 0, stream.describe()
        await plane.until_ended(4, grpc_status="OK")


async def test_h2_37_no_other_te_value_is_forwarded() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = await open_call(client, te="gzip").until_done()
        reached = [s.blocks[0].all("te") for s in endpoint.streams]
        assert reached in ([], [[b"trailers"]]), reached
        assert stream.grpc_status == 0 or stream.reset_code == PROTOCOL_ERROR


GOOD_AUTHORITIES = ["test", "test:50051", "TEST", "Test.Example:1", "[::1]:8080", "[2001:db8::1]"]
BAD_AUTHORITIES = ["a/b", "user@test", "user:pass@test:1", "t" * 300, "test:port", "te st"]


def _fields(authority: str | None, host: str | None) -> Fields:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/t.S/M")]
    if authority is not None:
        fields.append((":authority", authority))
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    if host is not None:
        fields.append(("host", host))
    return to_fields(fields)


async def test_h2_38_valid_authorities_are_never_rewritten() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for authority in GOOD_AUTHORITIES:
            stream = await open_call(client, authority=authority).until_done()
            assert stream.grpc_status == 0, f"{authority}: {stream.describe()}"
            assert endpoint.streams[-1].value(":authority") == authority.encode()


async def test_h2_38_malformed_authorities_are_that_streams_error() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for authority in BAD_AUTHORITIES:
            stream = await open_call(client, authority=authority).until_done()
            assert stream.reset_code == PROTOCOL_ERROR, f"{authority}: {stream.describe()}"
        stream = client.open_stream()
        stream.headers(_fields("test", "other"), end_stream=True)
        await stream.until_done()
        assert stream.reset_code == PROTOCOL_ERROR, f"different host: {stream.describe()}"
        assert not endpoint.streams
        stream = await open_call(client).until_done()
        assert stream.grpc_status == 0, "a neighbour was hurt"
        assert not client.goaways


async def test_h2_38_malformed_authorities_are_counted() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        before = plane.metrics().value("attnroute_malformed_requests_total")
        stream = client.open_stream()
        stream.headers(_fields("test", "other"), end_stream=True)
        await stream.until_done()
        assert plane.metrics().value("attnroute_malformed_requests_total") == before + 1


async def test_h2_38_missing_authority_is_the_host() -> None:
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane({"test": [first.address], "second": [second.address]}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = client.open_stream()
        stream.headers(_fields(None, "second"))
        stream.data_frame(grpc_message(b""), end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0, stream.describe()
        assert (len(first.streams), len(second.streams)) == (0, 1)


async def test_h2_38_missing_authority_and_host_is_the_listeners_default() -> None:
    listener = {"name": "in", "mode": "explicit", "address": "127.0.0.1:0", "service": "second"}
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        data_plane(
            {"test": [first.address], "second": [second.address]}, listeners=[listener]
        ) as plane,
        raw_client(plane.address) as client,
    ):
        stream = client.open_stream()
        stream.headers(_fields(None, None))
        stream.data_frame(grpc_message(b""), end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0, stream.describe()
        assert (len(first.streams), len(second.streams)) == (0, 1)


async def test_h2_38_empty_authority_is_the_host_or_that_streams_error() -> None:
    """An empty host makes an `http` URI invalid (RFC 9110 4.2.1): refusing it is right as well."""
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = client.open_stream()
        stream.headers(_fields("", "test"))
        stream.data_frame(grpc_message(b""), end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0 or stream.reset_code == PROTOCOL_ERROR, stream.describe()
        assert (await open_call(client).until_done()).grpc_status == 0
        assert not client.goaways


async def test_h2_40_compression_headers_belong_to_the_peers() -> None:
    async def compressing(stream: RawStream) -> None:
        await stream.until(lambda: stream.ended, "the request")
        stream.headers([*RESPONSE, (b"grpc-encoding", b"zstd-of-tomorrow")])
        await stream.write(grpc_message(b"\x00\x01squeezed", compressed=1))
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(compressing) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        offered = [("grpc-accept-encoding", "identity,odd"), ("grpc-encoding", "odd")]
        stream = open_call(client, extra=offered, body=None)
        stream.data_frame(grpc_message(b"\xff\xfe", compressed=1), end_stream=True)
        await stream.until_done()
        reached = endpoint.streams[0]
        assert reached.value("grpc-accept-encoding") == b"identity,odd"
        assert reached.value("grpc-encoding") == b"odd"
        assert reached.data == grpc_message(b"\xff\xfe", compressed=1)
        assert stream.value("grpc-encoding") == b"zstd-of-tomorrow"
        assert stream.value("grpc-accept-encoding") is None
        assert stream.data == grpc_message(b"\x00\x01squeezed", compressed=1)


async def test_h2_40_real_peers_compress_through_the_proxy() -> None:
    async with (
        grpc_peer(compression=grpc.Compression.Gzip) as peer,
        data_plane([peer.address]) as plane,
        grpc_client(plane.address, compression=grpc.Compression.Gzip) as client,
        grpc_client(plane.address) as plain,
    ):
        body = b"repeat " * 10_000
        assert await client.unary()(body) == body
        passed = plane.metrics().value("attnroute_request_bytes_total")
        assert 0 < passed < len(body) / 10, "the request did not travel compressed"
        assert await plain.unary()(body) == body
        await plane.until_ended(2, grpc_status="OK")


@pytest.mark.parametrize("method", ["CONNECT", "PRI"])
@pytest.mark.parametrize("form", ["short", "whole"])
async def test_se_08_there_is_no_tunnel_in_http2(method: str, form: str) -> None:
    """CONNECT as RFC 9113 has it and with a path, and the method that HTTP/2 begins with."""
    pairs = [(":method", method), (":authority", "test")]
    if form == "whole":
        pairs += [(":scheme", "http"), (":path", "/test.Raw/Call")]
    pairs += [("content-type", "application/grpc"), ("te", "trailers")]
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        running = open_call(client, body=None)
        stream = client.open_stream()
        stream.headers(pairs, end_stream=True)
        await stream.until_done()
        assert stream.reset_code == PROTOCOL_ERROR, stream.describe()
        # Of the other two, which are malformed in themselves, the library says so.
        if (method == "CONNECT") == (form == "short"):
            assert plane.metrics().value("attnroute_malformed_requests_total") == 1
        running.data_frame(grpc_message(b"x"), end_stream=True)
        assert (await running.until_done()).grpc_status == 0, "it hurt a neighbour"
        assert len(endpoint.streams) == 1, "it went on to the endpoint"
        assert not client.goaways


async def test_se_08_connection_fields_are_that_streams_error() -> None:
    fields = [
        ("connection", "close"),
        ("upgrade", "h2c"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
    ]
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        for field in fields:
            stream = await open_call(client, extra=[field], body=None).until_done()
            assert stream.reset_code == PROTOCOL_ERROR, f"{field}: {stream.describe()}"
        assert not endpoint.streams
        assert (await open_call(client).until_done()).grpc_status == 0
