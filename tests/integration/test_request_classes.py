"""Real calls fall into request classes, by the size of a message that nobody waits for."""

from __future__ import annotations

from hyperframe.frame import DataFrame
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.raw_h2 import RawConnection, RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    open_call,
    raw_client,
    raw_server,
    request_fields,
    trailers,
)
from tests.support.wait import until

from attnroute.dataplane import classes, window

UNIMPLEMENTED = 12


async def serve(stream: RawStream) -> None:
    """Knows one method."""
    await stream.until(lambda: stream.ended or stream.dead, "the request's end")
    if stream.value(":path") != b"/shop.Cart/Get":
        stream.headers([*RESPONSE, *trailers(UNIMPLEMENTED)], end_stream=True)
    elif not stream.dead:
        stream.headers(RESPONSE)
        await stream.write(grpc_message(b"ok"))
        stream.headers(trailers(0), end_stream=True)


def names(plane: DataPlaneHarness) -> list[str]:
    return [each.name for each in classes(plane.plane.classes("test"))[1]]


async def admitted(plane: DataPlaneHarness, count: int) -> None:
    await until(lambda: len(names(plane)) == count, f"{count} classes")


async def call(
    client: RawConnection, size: int, *, path: str = "/shop.Cart/Get", tier: str = "a"
) -> None:
    """Headers and message in one piece, so that both are there at the pick."""
    stream = client.open_stream()
    headers = client.header_frames(stream.id, request_fields(path, extra=[("x-tier", tier)]))
    message = DataFrame(stream.id, grpc_message(b"x" * size), flags=["END_STREAM"])
    client.send(*headers, message)
    await stream.until_done()


async def test_calls_are_counted_by_class_and_what_is_too_much_is_folded() -> None:
    settings = {"request_class": {"headers": ["x-tier"], "max_classes": 4}}
    async with (
        raw_server(serve) as endpoint,
        data_plane([endpoint.address], service=settings) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until_settled()
        await call(client, 10, path="/nobody.Serves/This")
        for count, (size, tier) in enumerate([(10, "a"), (2_000, "a"), (10, "b")], start=2):
            await call(client, size, tier=tier)
            await admitted(plane, count)
        assert names(plane) == [
            "other",
            "/shop.Cart/Get;bytes=..1024;x-tier=a",
            "/shop.Cart/Get;bytes=1024..16384;x-tier=a",
            "/shop.Cart/Get;bytes=..1024;x-tier=b",
        ]
        for size, tier in [(10, "a"), (10, "a"), (2_000, "a"), (10, "c")]:
            await call(client, size, tier=tier)
        await plane.until_ended(8)
        found = window(plane.plane.take_window("test"))
        # In `other`: the first call of each class, one that nobody serves, and one too many.
        assert dict(zip(found.cells["class"].tolist(), found.cells["calls"], strict=True)) == {
            0: 5,
            1: 2,
            2: 1,
        }
        assert found.endpoints["calls"].tolist() == [8]
        folded = plane.metrics().value("attnroute_request_class_folded_total", service="test")
        assert folded == plane.limit_hits("max_classes") == 1


async def test_a_call_does_not_wait_for_its_message() -> None:
    async with (
        raw_server(serve) as endpoint,
        data_plane([endpoint.address], service={"request_class": {}}) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client, "/shop.Cart/Get", body=None)
        await endpoint.until_streams(1)
        stream.data_frame(grpc_message(b"x" * 2_000), end_stream=True)
        await stream.until_done()
        assert stream.grpc_status == 0
        await admitted(plane, 2)
        assert names(plane) == ["other", "/shop.Cart/Get;bytes=unknown"]


async def test_what_was_looked_at_arrives_whole() -> None:
    """A message in several frames, of which only the first was there; and an empty last frame."""
    async with (
        raw_server(serve) as endpoint,
        data_plane([endpoint.address], service={"request_class": {}}) as plane,
        raw_client(plane.address) as client,
    ):
        await client.until_settled()
        message = grpc_message(bytes(range(256)) * 8)
        stream = client.open_stream()
        headers = client.header_frames(stream.id, request_fields("/shop.Cart/Get"))
        client.send(*headers, DataFrame(stream.id, message[:700]))
        (received,) = await endpoint.until_streams(1)
        await received.until_bytes(700)
        stream.data_frame(message[700:])
        stream.data_frame(b"", end_stream=True)
        await stream.until_done()
        assert (stream.grpc_status, received.data) == (0, message)
        await admitted(plane, 2)
        assert names(plane)[1] == "/shop.Cart/Get;bytes=1024..16384"
