"""Rules of routes, through real calls."""

from __future__ import annotations

from tests.support.dataplane import data_plane
from tests.support.raw_peers import RawServer, answer, open_call, raw_client, raw_server


def counts(*servers: RawServer) -> list[int]:
    return [len(server.streams) for server in servers]


async def test_pins_and_keys_by_path_and_header() -> None:
    async with (
        raw_server(answer()) as first,
        raw_server(answer()) as second,
        raw_server(answer()) as third,
        data_plane([one.address for one in (first, second, third)]) as plane,
        raw_client(plane.address) as client,
    ):
        plane.config["services"][0]["routes"] = [
            {"match": {"path": "/test.Raw/Pinned"}, "rules": {"pin": [second.address]}},
            {"match": {"path_prefix": "/"}, "rules": {"sticky": {"header": "x-user"}}},
        ]
        plane.apply()
        for _ in range(6):
            assert (await open_call(client, "/test.Raw/Pinned").until_done()).grpc_status == 0
        assert counts(first, second, third) == [0, 6, 0]
        for _ in range(6):
            call = open_call(client, "/test.Raw/Sticky", extra=[("x-user", "alice")])
            assert (await call.until_done()).grpc_status == 0
        assert sorted(count % 6 for count in counts(first, second, third)) == [0, 0, 0]
        metrics = plane.metrics()
        assert metrics.value("attnroute_picks_total", reason="pinned") == 6
        assert metrics.value("attnroute_picks_total", reason="sticky") == 6
        assert metrics.value("attnroute_rule_voids_total") == 0
        plane.apply_endpoints([first.address, third.address])
        assert (await open_call(client, "/test.Raw/Pinned").until_done()).grpc_status == 0
        assert plane.metrics().value("attnroute_rule_voids_total", rule="pin") == 1
