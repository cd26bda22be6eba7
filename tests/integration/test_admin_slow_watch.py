"""An admin client that stops reading its watch holds nothing up, and its watch ends with it."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.grpc_peers import grpc_client, grpc_peer
from tests.support.raw_h2 import Manners
from tests.support.raw_peers import open_call, raw_client
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import until

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.client import AdminClient

INITIAL_WINDOW = 4
"""The setting of HTTP/2."""

KEEP = 50


async def test_a_watch_that_nobody_reads_is_bounded_and_ends(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with grpc_peer() as peer:
        picks = f"picks: {{sample: 100%, keep: {KEEP}}}\n"
        sidecar = start_sidecar(picks + minimal_policy(peer.address))

        def watches() -> float:
            return sidecar.metric("attnroute_admin_watches")

        async with (
            raw_client(
                sidecar.admin,
                settings={INITIAL_WINDOW: 0},
                manners=Manners(keep_windows_open=False),
            ) as deaf,
            grpc_client(sidecar.address, authority="cart") as client,
        ):
            for method, request in (
                ("WatchPicks", pb.WatchPicksRequest(service="cart")),
                ("WatchWeights", pb.WatchWeightsRequest(service="cart")),
            ):
                path = f"/attnroute.admin.v1.Admin/{method}"
                open_call(deaf, path, body=request.SerializeToString())
            await until(lambda: watches() == 2, "both watches")
            for _ in range(4 * KEEP):
                await client.unary()(b"x")
            # The history goes on for those who read it, as many records as the policy keeps.
            with AdminClient(sidecar.admin) as admin:

                def newest() -> int:
                    shown = admin.list_picks("cart", 1_000).picks
                    assert len(shown) <= KEEP
                    return shown[-1].number if shown else 0

                await until(lambda: newest() == 4 * KEEP, "the last record")
                assert admin.get_config().generation == 1
            assert watches() == 2
        await until(lambda: watches() == 0, "the end of both watches")
