"""SE-10: who reaches the admin surface, and what may be changed from where."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.sidecar import ANY_PORT, Sidecar, minimal_policy
from tests.support.sync_peer import sync_peer
from tests.support.wait import patience_s

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.changes import CHANGING
from attnroute.admin.server import SERVICE

Start = Callable[..., Sidecar]

DEAD = "127.0.0.1:9"


def status(address: str, method: str, authority: str | None = None) -> grpc.StatusCode:
    """Of one call with an empty message."""
    options = [("grpc.enable_http_proxy", 0)]
    if authority is not None:
        options.append(("grpc.default_authority", authority))  # type: ignore[arg-type]
    with grpc.insecure_channel(address, options=options) as channel:
        call: Any = channel.unary_stream(f"/{SERVICE.full_name}/{method}")
        try:
            next(call(b"", timeout=patience_s()))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_se_10_changes_over_tcp_are_refused_before_anything_is_read(
    start_sidecar: Start, method: str
) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    refused = status(sidecar.admin, method) == grpc.StatusCode.PERMISSION_DENIED
    assert refused == (method in CHANGING)


def test_se_10_the_socket_takes_changes_from_its_owner_only(
    start_sidecar: Start, tmp_path: Path
) -> None:
    socket = tmp_path / "admin.sock"
    text = minimal_policy(DEAD).replace(f"grpc: {ANY_PORT}", f"grpc: {ANY_PORT}, socket: {socket}")
    start_sidecar(text)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    # Past the door, what is wrong is the empty request.
    assert status(f"unix:{socket}", "SetOverride") == grpc.StatusCode.INVALID_ARGUMENT


def test_se_10_no_way_in_from_the_data_path(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address))
        # With admin's authority there is no such service; with a service's the call is the
        # endpoint's to refuse, and nobody answers it in the endpoint's place.
        unrouted = status(sidecar.address, "GetConfig", authority=sidecar.admin)
        routed = status(sidecar.address, "GetConfig", authority="cart")
    assert unrouted == grpc.StatusCode.UNAVAILABLE
    assert routed == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:15010"])
def test_se_10_admin_grpc_is_refused_anywhere_but_on_loopback(
    start_sidecar: Start, address: str
) -> None:
    text = minimal_policy(DEAD).replace(f"grpc: {ANY_PORT}", f'grpc: "{address}"')
    sidecar = start_sidecar(text, wait_ready=False)
    assert sidecar.wait() == 1
    assert f"admin address `{address}` is not on loopback" in sidecar.stderr


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/", "/nothing"])
def test_se_10_the_http_port_only_reads(start_sidecar: Start, path: str) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    for method in ("POST", "PUT", "DELETE"):
        assert sidecar.get(path, method=method).status in (404, 405)


def test_se_10_the_config_says_where_changes_may_come_from(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    with grpc.insecure_channel(sidecar.admin) as channel:
        call = channel.unary_unary(
            f"/{SERVICE.full_name}/GetConfig",
            request_serializer=pb.GetConfigRequest.SerializeToString,
            response_deserializer=pb.GetConfigResponse.FromString,
        )
        answer = call(pb.GetConfigRequest(), timeout=patience_s())
    assert "allow_changes: false" in answer.policy_yaml
