"""Endpoints that stand by take over when too few of a better priority are well, and step back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.grpc_peers import GrpcPeer, grpc_client, grpc_peer
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar
from tests.support.wait import until

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.client import AdminClient

USABLE, FAILING = pb.ENDPOINT_STATE_USABLE, pb.ENDPOINT_STATE_CONNECT_FAILING
STANDBY = pb.ENDPOINT_STATE_STANDBY


def policy(file: Path) -> str:
    return (
        f"{ADMIN}drain: {{linger: 0s, limit: 1s}}\n"
        f"listeners:\n  - {{mode: explicit, address: {ANY_PORT}}}\n"
        f"services: {{cart: {{endpoints: {{file: {file}}}, balancer: {{type: round_robin}}}}}}\n"
    )


async def test_a_standby_takes_over_and_steps_back(
    start_sidecar: Callable[..., Sidecar], tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    async with grpc_peer() as spare, grpc_peer() as first:
        rows = [{"address": first.address}, {"address": spare.address, "priority": 3}]
        file.write_text(json.dumps({"endpoints": rows}))
        sidecar = start_sidecar(policy(file))
        with AdminClient(sidecar.admin) as admin:

            def states() -> list[int]:
                return [one.state for one in admin.list_endpoints("cart").endpoints]

            async def calls(to: GrpcPeer) -> None:
                before = to.started
                async with grpc_client(sidecar.address, authority="cart") as client:
                    for _ in range(4):
                        assert await client.unary()(b"x") == b"x"
                assert to.started == before + 4

            await calls(first)
            assert states() == [USABLE, STANDBY]
            assert admin.list_endpoints("cart").endpoints[1].priority == 3
            assert sidecar.metric("attnroute_endpoints_standby") == 1
            await first.server.stop(grace=None)
            await until(lambda: states()[0] == FAILING, "the loss of the first")
            await calls(spare)
            assert states() == [FAILING, USABLE]
            async with grpc_peer(address=first.address) as again:
                await until(lambda: states() == [USABLE, STANDBY], "its return")
                await calls(again)
