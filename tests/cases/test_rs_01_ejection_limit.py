"""RS-01: the limit of ejected endpoints is judged after an ejection, and holds."""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.support.dataplane import data_plane
from tests.support.raw_peers import RawServer, answer, open_call, raw_client


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("percent", [10, 34, 50, 100])
async def test_rs_01_at_most_the_floor_of_the_share_is_ejected(count: int, percent: int) -> None:
    servers = [await RawServer(answer(code=14)).start() for _ in range(count)]
    outlier = {"max_ejected": percent / 100, "consecutive_errors": 2}
    service = {"balancer": {"type": "round_robin"}, "outlier_detection": outlier}
    expected = 0 if count == 1 else count * percent // 100
    try:
        async with (
            data_plane([server.address for server in servers], service=service) as plane,
            raw_client(plane.address) as client,
        ):
            for _ in range(6 * count):
                assert (await open_call(client).until_done()).grpc_status == 14
                assert plane.metrics().value("attnroute_endpoints_ejected") <= expected
            assert plane.metrics().value("attnroute_endpoints_ejected") == expected
            assert plane.metrics().value("attnroute_endpoint_ejections_total") == expected
            refused = plane.metrics().value("attnroute_endpoint_ejections_refused_total")
            assert (refused > 0) == (expected < count)
            panics = plane.metrics().value("attnroute_panic")
            assert panics == (count - expected < math.ceil(count / 2))
    finally:
        await asyncio.gather(*(server.close() for server in servers))
