"""The admin API over real gRPC: statuses with details, reflection, health, sockets."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tests.support.wait import patiently, until
from tests.unit.admin.support import World

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.server import AdminServer
from attnroute.errors import StartError

HERE = "policy.yaml:1:8"


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[tuple[AdminServer, grpc.aio.Channel]]:
    server = AdminServer(world.service)
    address = server.bind("127.0.0.1:0", HERE)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield server, channel
    finally:
        await server.stop()


def method(channel: grpc.aio.Channel, name: str, response: Any) -> Any:
    return channel.unary_unary(
        f"/attnroute.admin.v1.Admin/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )


def watch(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(
        "/attnroute.admin.v1.Admin/WatchWeights",
        request_serializer=pb.WatchWeightsRequest.SerializeToString,
        response_deserializer=pb.GetWeightsResponse.FromString,
    )(pb.WatchWeightsRequest(service="cart", min_interval_ms=100))


async def test_every_unary_method_answers() -> None:
    async with serving(World()) as (_server, channel):
        services = await method(channel, "ListServices", pb.ListServicesResponse)(
            pb.ListServicesRequest()
        )
        endpoints = await method(channel, "ListEndpoints", pb.ListEndpointsResponse)(
            pb.ListEndpointsRequest(service="cart")
        )
        weights = await method(channel, "GetWeights", pb.GetWeightsResponse)(
            pb.GetWeightsRequest(service="cart")
        )
        config = await method(channel, "GetConfig", pb.GetConfigResponse)(pb.GetConfigRequest())
    assert [service.name for service in services.services] == ["cart", "empty"]
    assert len(endpoints.endpoints) == 2
    assert sum(row.weight for row in weights.classes[0].endpoints) == pytest.approx(1.0)
    assert config.generation == 3


async def test_a_refusal_carries_its_details() -> None:
    async with serving(World()) as (_server, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "GetWeights", pb.GetWeightsResponse)(
                pb.GetWeightsRequest(service="chart")
            )
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "configured are: cart, empty" in (caught.value.details() or "")
    trailers = dict(caught.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (5, caught.value.details())
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "SERVICE_NOT_FOUND"


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving(World()) as (_server, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "Nothing", pb.GetConfigResponse)(pb.GetConfigRequest())
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_leaves_frees_its_watch() -> None:
    world = World()
    async with serving(world) as (_server, channel):
        call = watch(channel)
        await patiently(call.read(), "the first message")
        assert world.service.watches == 1
        call.cancel()
        await until(lambda: world.service.watches == 0, "the slot to be free")


async def test_stop_ends_watches_with_unavailable() -> None:
    world = World()
    async with serving(world) as (server, channel):
        call = watch(channel)
        await patiently(call.read(), "the first message")
        await patiently(server.stop(), "the stop")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await patiently(call.read(), "the end")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_reflection_describes_the_api_without_files() -> None:
    world = World()
    server = AdminServer(world.service)
    address = server.bind("127.0.0.1:0", HERE)
    await server.start()

    def ask() -> tuple[set[str], list[str]]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            service = DescriptorPool(database).FindServiceByName("attnroute.admin.v1.Admin")
            return set(database.get_services()), [method.name for method in service.methods]

    try:
        services, methods = await asyncio.to_thread(ask)
    finally:
        await server.stop()
    assert services >= {"attnroute.admin.v1.Admin", "grpc.health.v1.Health"}
    assert methods == [
        "ListServices",
        "ListEndpoints",
        "GetWeights",
        "WatchWeights",
        "GetConfig",
        "SetOverride",
        "Drain",
        "ListPicks",
        "WatchPicks",
        "Explain",
        "GetModel",
        "SetModel",
    ]


async def test_health_follows_readiness() -> None:
    async with serving(World()) as (server, channel):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        check = stub.Check
        overall = health_pb2.HealthCheckRequest()
        admin = health_pb2.HealthCheckRequest(service="attnroute.admin.v1.Admin")
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await check(overall)).status == not_serving
        assert (await check(admin)).status == health_pb2.HealthCheckResponse.SERVING
        await server.set_ready(True)
        assert (await check(overall)).status == health_pb2.HealthCheckResponse.SERVING
        await server.set_ready(False)
        assert (await check(overall)).status == not_serving


async def test_a_busy_port_names_address_and_place() -> None:
    first, second = AdminServer(World().service), AdminServer(World().service)
    address = first.bind("127.0.0.1:0", HERE)
    await first.start()
    try:
        with pytest.raises(StartError) as caught:
            second.bind(address, HERE)
    finally:
        await first.stop()
        await second.stop()
    assert str(caught.value) == (
        f"{HERE}: cannot bind admin address `{address}`: Address already in use; "
        f"free it or configure another"
    )


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.7:15010", "[::]:0"])
async def test_only_loopback_is_served(address: str) -> None:
    server = AdminServer(World().service)
    with pytest.raises(StartError, match="not on loopback"):
        server.bind(address, HERE)
    await server.stop()


async def test_the_unix_socket_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    server = AdminServer(World().service)
    assert server.bind(f"unix:{path}", HERE) == f"unix:{path}"
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        answer = await method(channel, "GetConfig", pb.GetConfigResponse)(pb.GetConfigRequest())
    assert answer.generation == 3
    await server.stop()
    assert not path.exists()


async def test_a_stale_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = AdminServer(World().service)
    server.bind(f"unix:{path}", HERE)
    await server.start()
    await server.stop()


async def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    server = AdminServer(World().service)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="another process listens"):
            server.bind(f"unix:{path}", HERE)
    await server.stop()
    assert path.exists()


async def test_a_file_is_never_replaced_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    server = AdminServer(World().service)
    with pytest.raises(StartError, match="is no socket"):
        server.bind(f"unix:{path}", HERE)
    await server.stop()
    assert path.read_text() == "precious"


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    server = AdminServer(World().service)
    with pytest.raises(StartError, match=r"directory `.*/none` of socket"):
        server.bind(f"unix:{tmp_path}/none/admin.sock", HERE)
    await server.stop()
