"""A real sidecar process: what it says and serves from its start until it is ready."""

from __future__ import annotations

import json
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.wait import patience_s

from attnroute.admin.client import AdminClient

Start = Callable[..., Sidecar]

FILE_POLICY = (
    f"{ADMIN}"
    "drain: {linger: 0s, limit: 1s}\n"
    f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
    "services:\n  cart:\n    endpoints: {file: endpoints.yaml, refresh: 100ms}\n"
)


def test_a_call_flows_once_the_ports_file_is_there(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address))
        with sync_channel(sidecar.address) as channel:
            assert unary(channel, b"hello") == b"hello"
        assert sidecar.metric("attnroute_requests_total", service="cart", grpc_status="OK") == 1


def test_the_ports_file_names_every_address(start_sidecar: Start, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    policy = (
        f"admin: {{grpc: {ANY_PORT}, http: {ANY_PORT}, socket: {path}}}\n"
        f"listeners:\n  - {{mode: explicit, address: {ANY_PORT}}}\n"
        f"  - {{name: only-cart, mode: service, address: {ANY_PORT}, service: cart}}\n"
        "services:\n  cart:\n    endpoints: {static: [127.0.0.1:9]}\n"
    )
    sidecar = start_sidecar(policy)
    assert set(sidecar.ports) == {"listeners", "admin", "pid"}
    assert set(sidecar.listeners) == {"explicit-0", "only-cart"}
    assert sidecar.ports["pid"] == sidecar.pid
    assert sidecar.ports["admin"] == {
        "grpc": sidecar.admin,
        "socket": f"unix:{path}",
        "http": sidecar.http,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with AdminClient(f"unix:{path}") as client:
        assert [service.name for service in client.list_services().services] == ["cart"]
    assert sidecar.stop() == 0
    assert not path.exists()


def test_a_ports_file_that_cannot_be_written_comes_later(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, FILE_POLICY)
    directory = tmp_path / "ports"
    directory.mkdir()
    sidecar.ports_path = directory / "ports.json"
    try:
        sidecar.start(wait_ready=False)
        sidecar.logged("listening")
        directory.rmdir()
        Sidecar.replace(tmp_path / "endpoints.yaml", "endpoints: [127.0.0.1:9]\n")
        line = sidecar.logged("cannot write the ports file; it is tried again")
        assert line["path"] == str(sidecar.ports_path)
        directory.mkdir()
        sidecar.wait_ready()
        assert list(directory.iterdir()) == [sidecar.ports_path]
    finally:
        sidecar.kill()


def test_a_ports_file_of_an_earlier_run_does_not_pass_for_ready(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, FILE_POLICY)
    sidecar.ports_path.write_text(json.dumps({"listeners": {}}))
    try:
        sidecar.start(wait_ready=False)
        sidecar.logged("listening")
        assert not sidecar.ports_path.exists()
    finally:
        sidecar.kill()


def test_every_problem_of_a_policy_is_listed(start_sidecar: Start) -> None:
    policy = (
        f"listeners:\n  - {{mode: explicit, address: {ANY_PORT}, port: 3}}\n"
        "services:\n  cart:\n    endpoints: {static: [10.0.0.1]}\n    limitz: {}\n"
    )
    sidecar = start_sidecar(policy, wait_ready=False)
    assert sidecar.wait() == 2
    messages = [line["message"] for line in sidecar.log if line["level"] == "error"]
    where = str(sidecar.policy_path)
    assert [message.split(": ")[0] for message in messages] == [
        f"{where}:2:{policy.splitlines()[1].index('port') + 1}",
        f"{where}:5:26",
        f"{where}:6:5",
    ]
    assert "did you mean `limits`?" in messages[2]
    assert not sidecar.ports_path.exists()


def test_a_missing_policy_is_bad_input(start_sidecar: Start, tmp_path: Path) -> None:
    sidecar = start_sidecar("", wait_ready=False, arguments=["--config", f"{tmp_path}/none.yaml"])
    assert sidecar.wait() == 2
    assert f"{tmp_path}/none.yaml:1:1" in sidecar.stderr


@pytest.mark.parametrize("what", ["listener", "grpc", "http"])
def test_a_busy_port_names_the_address_and_where_it_is_configured(
    start_sidecar: Start, what: str
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        addresses = {"listener": ANY_PORT, "grpc": ANY_PORT, "http": ANY_PORT} | {what: taken}
        policy = (
            f"admin:\n  grpc: {addresses['grpc']}\n  http: {addresses['http']}\n"
            f"listeners:\n  - {{mode: explicit, address: {addresses['listener']}}}\n"
            "services:\n  cart:\n    endpoints: {static: [127.0.0.1:9]}\n"
        )
        sidecar = start_sidecar(policy, wait_ready=False)
        assert sidecar.wait() == 1
    place = {"listener": "5:31", "grpc": "2:9", "http": "3:9"}[what]
    (error,) = (line["message"] for line in sidecar.log if line["level"] == "error")
    assert error.startswith(f"{sidecar.policy_path}:{place}: cannot bind ")
    assert f"`{taken}`" in error
    assert "in use" in error


def test_a_missing_endpoint_file_keeps_it_from_being_ready_and_says_so(
    start_sidecar: Start,
) -> None:
    sidecar = start_sidecar(FILE_POLICY, wait_ready=False)
    answer = sidecar.get("/readyz")
    assert answer.status == 503
    (reason,) = answer.json()["waiting_for"]
    assert reason.startswith("endpoints of cart: ")
    assert "endpoints.yaml" in reason
    assert sidecar.get("/healthz").status == 200
    assert not sidecar.ports_path.exists()
    assert sidecar.metric("attnroute_discovery_stale", service="cart") == 1
    with grpc.insecure_channel(sidecar.admin) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING

    with sync_peer() as peer:
        Sidecar.replace(
            sidecar.policy_path.with_name("endpoints.yaml"), f"endpoints: ['{peer.address}']\n"
        )
        sidecar.wait_ready()
        with sync_channel(sidecar.address) as channel:
            assert unary(channel) == b"x"
    assert sidecar.get("/readyz").json() == {
        "ready": True,
        "draining": False,
        "waiting_for": [],
    }
    assert sidecar.metric("attnroute_discovery_stale", service="cart") == 0
    with grpc.insecure_channel(sidecar.admin) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING


def test_a_source_that_is_lost_later_costs_no_readiness(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(FILE_POLICY, wait_ready=False)
        endpoints = sidecar.policy_path.with_name("endpoints.yaml")
        Sidecar.replace(endpoints, f"endpoints: ['{peer.address}']\n")
        sidecar.wait_ready()
        endpoints.unlink()
        sidecar.until(
            lambda: sidecar.metric("attnroute_discovery_stale", service="cart") == 1, "stale"
        )
        assert sidecar.get("/readyz").status == 200
        assert sidecar.metric("attnroute_discovery_errors_total", service="cart", source="file")
        with AdminClient(sidecar.admin) as client:
            (service,) = client.list_services().services
        assert (service.source, service.endpoints) == ("file", 1)
        assert "endpoints.yaml" in service.source_error
        with sync_channel(sidecar.address) as channel:
            assert unary(channel) == b"x"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_before_it_is_ready(
    start_sidecar: Start, number: signal.Signals, code: int
) -> None:
    sidecar = start_sidecar(FILE_POLICY, wait_ready=False)
    sidecar.logged("listening")
    assert sidecar.stop(number) == code


def test_reflection_and_health_serve_a_client_without_files(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy("127.0.0.1:9"))
    with grpc.insecure_channel(sidecar.admin) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        admin = DescriptorPool(database).FindServiceByName("attnroute.admin.v1.Admin")
    assert "GetWeights" in admin.methods_by_name


def health(channel: grpc.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    status: int = stub.Check(health_pb2.HealthCheckRequest(), timeout=patience_s()).status
    return status


def test_se_10_the_data_port_is_no_way_into_admin(start_sidecar: Start) -> None:
    """Neither by admin's authority nor by the path of its methods."""
    sidecar = start_sidecar(minimal_policy("127.0.0.1:9"))
    for authority in (sidecar.admin, sidecar.http, "localhost"):
        with sync_channel(sidecar.address, authority=authority) as channel:
            call: Any = channel.unary_unary("/attnroute.admin.v1.Admin/GetConfig")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=patience_s())
            error: grpc.Call = caught.value  # type: ignore[assignment]
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert f"`{authority}`" in str(error.details())


def test_a_second_sidecar_on_the_same_admin_port_is_refused(start_sidecar: Start) -> None:
    first = start_sidecar(minimal_policy("127.0.0.1:9"))
    policy = minimal_policy("127.0.0.1:9").replace(f"grpc: {ANY_PORT}", f"grpc: {first.admin}")
    second = start_sidecar(policy, wait_ready=False)
    assert second.wait() == 1
    assert f"cannot bind admin address `{first.admin}`: Address already in use" in second.stderr


def test_logs_are_json_lines_in_the_order_of_a_life(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy("127.0.0.1:9"))
    assert sidecar.stop() == 0
    for line in sidecar.log:
        assert list(line)[:4] == ["ts", "level", "target", "message"]
    messages = [line["message"] for line in sidecar.log]
    assert messages.index("listening") < messages.index("ready") < messages.index("draining")
