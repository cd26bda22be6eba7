"""A sidecar asks endpoints for load reports between calls, and goes by them."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from tests.support.orca import orca_server
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

from attnroute.admin.client import AdminClient

Start = Callable[..., Sidecar]
AS_CART = (("grpc.default_authority", "cart"),)

ASKING = """\
    balancer: {type: weighted_round_robin, blackout: 0, update: 1ms}
    load_reports: {out_of_band: {interval: 100ms}}
"""


async def call(address: str, *, times: int) -> None:
    """Calls that the peers, which serve nothing but reports, answer UNIMPLEMENTED: no failure."""
    async with grpc.aio.insecure_channel(address, options=AS_CART) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/cart/Get")
        for _ in range(times):
            with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                await method(b"")


async def test_weights_follow_reports_between_calls(start_sidecar: Start) -> None:
    async with orca_server() as first, orca_server() as second:
        policy = minimal_policy(first.address, second.address)
        sidecar = start_sidecar(policy + ASKING)
        # What was reported before a connection does not count after it (gRFC A58).
        await call(sidecar.address, times=2)
        first.send(cpu_utilization=0.5, rps_fractional=100)
        second.send(cpu_utilization=0.25, rps_fractional=100)

        def count(name: str) -> float:
            return sidecar.metric(f"attnroute_out_of_band_{name}", service="cart")

        await until(lambda: count("reports_total") == 2, "both reports")
        assert count("endpoints") == 2
        assert count("left_out") == 0
        await call(sidecar.address, times=1)  # schedules are made anew by picks
        with AdminClient(sidecar.admin) as admin:
            weights = admin.get_weights("cart")
        (shown,) = weights.classes
        assert [round(row.weight, 3) for row in shown.endpoints] == [0.333, 0.667]
        # A policy that does not ask ends the streams and drops their series.
        sidecar.write_policy(policy)
        await until(lambda: first.open == second.open == 0, "the end of both streams")
        await until(
            lambda: b"attnroute_out_of_band_endpoints{" not in sidecar.get("/metrics").body,
            "the end of the series",
        )
