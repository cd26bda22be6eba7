"""The test peers against each other, without a proxy: what they say can be relied on."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, SettingsFrame
from tests.support.grpc_peers import grpc_client, grpc_peer, path
from tests.support.raw_h2 import CANCEL, Manners, RawStream, grpc_message
from tests.support.raw_peers import RESPONSE, RawServer, connect, open_call, trailers


async def _echo(stream: RawStream) -> None:
    await stream.until(lambda: stream.ended, "the request")
    stream.headers(RESPONSE)
    await stream.write(stream.data)
    stream.headers(trailers(0, "fine", [("x-tail", "t")]), end_stream=True)


async def test_grpcio_client_understands_the_raw_server() -> None:
    server = await RawServer(_echo).start()
    async with grpc_client(server.address) as client:
        call = client.unary()(b"x" * 300_000)
        assert await call == b"x" * 300_000
        assert ("x-tail", "t") in list(await call.trailing_metadata())
    assert server.streams[0].value(":path") == path("Unary").encode()
    await server.close()


async def test_raw_client_understands_the_grpcio_server() -> None:
    async with grpc_peer() as peer:
        client = await connect(peer.address)
        stream = open_call(
            client, path("Unary"), body=b"hello", extra=[("echo-a", "1"), ("echo-a", "2")]
        )
        await stream.until_done()
        assert (stream.grpc_status, stream.data) == (0, grpc_message(b"hello"))
        assert b",".join(stream.blocks[0].all("echo-a")) in (b"1,2", b"1, 2")
        assert [block.end_stream for block in stream.blocks] == [False, True]
        refused = open_call(client, path("Fail"), body=b"no", extra=[("fail-code", "5")])
        await refused.until_done()
        assert (refused.grpc_status, refused.grpc_message) == (5, "no")
        assert [block.end_stream for block in refused.blocks] == [True]
        await client.close()


async def test_raw_peers_record_frames_with_times() -> None:
    seen: list[RawStream] = []

    async def answer(stream: RawStream) -> None:
        seen.append(stream)
        await stream.until(lambda: stream.reset_code is not None, "the reset")

    server = await RawServer(answer, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 7}).start()
    client = await connect(server.address)
    await client.until_frame(SettingsFrame)
    assert client.peer_settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 7
    stream = open_call(client, extra=[("x-large", "v" * 40_000)], body=None)
    stream.reset(CANCEL)
    client.ping(b"12345678")
    pong = await client.until_frame(PingFrame)
    assert isinstance(pong, PingFrame)
    assert pong.opaque_data == b"12345678"
    (at_server,) = await server.until_streams(1)
    await at_server.until(lambda: at_server.reset_code == CANCEL, "CANCEL")
    kinds = [type(entry.frame) for entry in server.connections[0].seen]
    assert HeadersFrame in kinds
    assert ContinuationFrame in kinds
    times = [entry.at_s for entry in server.connections[0].seen]
    assert times == sorted(times)
    await client.close()
    await server.close()


async def test_raw_peer_respects_and_withholds_windows() -> None:
    async def answer(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await stream.write(b"x" * 100_000, end_stream=True)

    server = await RawServer(answer).start()
    client = await connect(server.address, manners=Manners(keep_windows_open=False))
    stream = open_call(client)
    assert len(await stream.until_bytes(65_535)) == 65_535
    client.open_window(40_000)
    stream.open_window(40_000)
    await stream.until_done()
    assert len(stream.data) == 100_000
    await client.close()
    await server.close()


async def test_fault_in_a_script_fails_the_test() -> None:
    async def broken(stream: RawStream) -> None:
        raise ValueError("scripted fault")

    server = await RawServer(broken).start()
    client = await connect(server.address)
    open_call(client)
    await server.until_streams(1)
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="scripted fault"):
        await server.close()
    await client.close()


async def test_tcp_reset_leaves_what_was_sent_readable() -> None:
    async def answer(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        stream.data_frame(grpc_message(b"x"))
        stream.headers(trailers(0), end_stream=True)
        stream.connection.tcp_reset()

    server = await RawServer(answer).start()
    client = await connect(server.address)
    stream = await open_call(client).until_done()
    assert stream.grpc_status == 0
    await client.until_gone()
    await client.close()
    await server.close()


async def test_all_method_kinds_of_the_grpcio_peer() -> None:
    async with grpc_peer() as peer, grpc_client(peer.address) as client:
        assert await client.unary()(b"u") == b"u"
        assert await client.client_stream()(iter([b"ab", b"c"])) == b"2 3"
        answers = [message async for message in client.server_stream()(b"3 4")]
        assert answers == [b"0...", b"1...", b"2..."]
        answers = [message async for message in client.bidi()(iter([b"p", b"q"]))]
        assert answers == [b"p", b"q", b"end"]
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.unary("Fail")(b"text", metadata=[("fail-code", "9")])
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
