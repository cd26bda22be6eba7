"""RS-15: a full service refuses at once, and says so."""

from __future__ import annotations

from tests.support.dataplane import data_plane
from tests.support.raw_h2 import CANCEL
from tests.support.raw_peers import never, open_call, raw_client, raw_server

UNAVAILABLE = 14


async def test_rs_15_six_slow_calls_at_a_limit_of_three() -> None:
    async with (
        raw_server(never) as endpoint,
        data_plane([endpoint.address], service={"limits": {"max_inflight": 3}}) as plane,
        raw_client(plane.address) as client,
    ):
        calls = [open_call(client) for _ in range(6)]
        await endpoint.until_streams(3)
        for refused in calls[3:]:
            await refused.until_done()
            assert refused.grpc_status == UNAVAILABLE, refused.describe()
            assert "`limits.max_inflight` is reached" in refused.grpc_message
        assert not any(held.done for held in calls[:3])
        assert len(endpoint.streams) == 3
        assert plane.limit_hits("max_inflight") == 3
        # What the sidecar refused says nothing about the endpoint.
        assert plane.metrics().value("attnroute_endpoint_requests_total") == 0
        for held in calls[:3]:
            held.reset(CANCEL)
        await plane.until_ended(6)
        calls = [open_call(client)]
        await endpoint.until_streams(4)
        calls[0].reset(CANCEL)
