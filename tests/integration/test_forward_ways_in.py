"""How calls come in: by authority, by port, and what strangers on the port are told."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

import pytest
from tests.support.dataplane import DataPlaneHarness, configuration, data_plane
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.wait import until

from attnroute.dataplane import BindError, ConfigError, DataPlane

REFUSED = "attnroute_listener_refused_total"


async def _exchange(address: str, data: bytes) -> bytes:
    """Sends bytes and reads until the other side closes."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(data)
    received = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return received


async def _still_serves(plane: DataPlaneHarness) -> None:
    async with raw_client(plane.address) as client:
        assert (await open_call(client).until_done()).grpc_status == 0


async def test_services_are_found_by_authority() -> None:
    async with (
        raw_server(answer(b"cart")) as cart,
        raw_server(answer(b"shop")) as shop,
        data_plane({"cart": [cart.address], "shop": [shop.address]}) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["services"][0]["authorities"] = ["cart", "cart.example:443"]
        plane.apply()
        for authority, expected in (
            ("cart", cart),
            ("cart.example:443", cart),
            ("CART", cart),
            ("shop", shop),
            ("shop:1", shop),
            ("Shop:65535", shop),
        ):
            before = len(expected.streams)
            stream = await open_call(client, authority=authority).until_done()
            assert stream.grpc_status == 0, f"{authority}: {stream.describe()}"
            assert len(expected.streams) == before + 1, authority


async def test_unknown_authority_names_it_and_the_configured_ones() -> None:
    async with (
        raw_server(answer()) as cart,
        data_plane({"cart": [cart.address], "shop": []}) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["services"][0]["authorities"] = ["cart"]
        plane.apply()
        for authority in ("other", "cart:80", "[::1]:1"):
            stream = await open_call(client, authority=authority).until_done()
            assert stream.grpc_status == 14, stream.describe()
            assert stream.grpc_message.startswith("attnroute: ")
            for name in (authority, "cart", "shop", "shop:*"):
                assert f"`{name}`" in stream.grpc_message, stream.grpc_message
        assert not cart.streams
        await plane.until_ended(3, grpc_status="UNAVAILABLE")


async def test_a_service_listener_takes_any_authority() -> None:
    listeners = [
        {"name": "only", "mode": "service", "service": "shop", "address": "127.0.0.1:0"},
        {"name": "both", "mode": "explicit", "address": "127.0.0.1:0"},
    ]
    async with (
        raw_server(answer()) as cart,
        raw_server(answer()) as shop,
        data_plane({"cart": [cart.address], "shop": [shop.address]}, listeners=listeners) as plane,
        raw_client(plane.addresses["only"]) as client,
    ):
        for authority in ("anything", "cart", "127.0.0.1:99"):
            stream = await open_call(client, authority=authority).until_done()
            assert stream.grpc_status == 0, stream.describe()
            assert shop.streams[-1].value(":authority") == authority.encode()
        assert (len(cart.streams), len(shop.streams)) == (0, 3)
        assert plane.addresses["only"] != plane.addresses["both"]


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/1.1\r\nhost: test\r\n\r\n",
        b"POST /t.S/M HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nabc",
        b"CONNECT test:443 HTTP/1.1\r\nhost: test:443\r\n\r\n",
        b"GET /" + b"e" * 2000,
    ],
)
async def test_http_1_gets_426_and_is_closed(request_text: bytes) -> None:
    async with raw_server(answer()) as endpoint, data_plane([endpoint.address]) as plane:
        received = await _exchange(plane.address, request_text)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 426 "), received
        assert b"gRPC" in body
        assert f"content-length: {len(body)}".encode() in head
        await until(lambda: plane.metrics().value(REFUSED, reason="http1") == 1, "its count")
        assert not endpoint.streams
        await _still_serves(plane)


async def test_tls_gets_an_alert_that_a_tls_client_understands() -> None:
    async with raw_server(answer()) as endpoint, data_plane([endpoint.address]) as plane:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def handshake() -> str:
            host, port = plane.address.split(":")
            with socket.create_connection((host, int(port)), 20) as plain:
                try:
                    context.wrap_socket(plain)
                except ssl.SSLError as error:
                    return str(error.reason)
            return "no error"

        assert "PROTOCOL_VERSION" in await asyncio.to_thread(handshake)
        await until(lambda: plane.metrics().value(REFUSED, reason="tls") == 1, "its count")
        await _still_serves(plane)


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 50, b"\xff\xfe\xfd", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"PRI * HTTP/3", b"\n"],
)
async def test_garbage_is_closed_and_counted(garbage: bytes) -> None:
    async with raw_server(answer()) as endpoint, data_plane([endpoint.address]) as plane:
        await _exchange(plane.address, garbage)
        await until(lambda: plane.metrics().value(REFUSED) == 1, "its count")
        await _still_serves(plane)


async def test_garbage_after_the_preface_ends_that_connection_alone() -> None:
    async with raw_server(answer()) as endpoint, data_plane([endpoint.address]) as plane:
        async with raw_client(plane.address) as neighbour, raw_client(plane.address) as broken:
            assert (await open_call(neighbour).until_done()).grpc_status == 0
            broken.send_bytes(b"\xff" * 200)
            await broken.until_gone()
            assert broken.goaways
            assert broken.goaways[0].error_code != 0
            assert (await open_call(neighbour).until_done()).grpc_status == 0
        await plane.until_ended(2, grpc_status="OK")


async def test_a_silent_connection_is_closed_after_the_handshake_timeout() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address], timeouts={"handshake_ms": 200}) as plane,
    ):
        assert await _exchange(plane.address, b"") == b""
        assert await _exchange(plane.address, b"PRI * HTTP/2.0\r\n") == b""
        await until(
            lambda: plane.metrics().value(REFUSED, reason="handshake_timeout") == 2, "their count"
        )
        await _still_serves(plane)


async def test_a_busy_port_names_the_address_and_where_it_is_configured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = configuration(["test"])
        config["listeners"][0] |= {"address": address, "source": "policy.yaml:3:14"}
        plane = DataPlane(json.dumps(config).encode(), 1)
        with pytest.raises(BindError) as failure:
            plane.start()
        assert failure.value.args[:3] == ("explicit-0", address, "policy.yaml:3:14")
        assert "in use" in failure.value.args[3]
        plane.stop()


async def test_a_configuration_that_is_none_names_the_path() -> None:
    with pytest.raises(ConfigError) as failure:
        DataPlane(b'{"version": 1, "listeners": [{"name": 3}], "services": []}', 1)
    assert failure.value.args[0].startswith("listeners[0]")
