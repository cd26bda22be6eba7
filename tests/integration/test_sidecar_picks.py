"""`attnroute picks` against a real sidecar."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from tests.integration.test_sidecar_commands import attnroute
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.wait import until_blocking

Start = Callable[..., Sidecar]

ATTNROUTE = (sys.executable, "-m", "attnroute")
EVERY_PICK = "picks: {sample: 100%}\n"


def test_a_pick_tells_whom_it_chose_among_whom(start_sidecar: Start) -> None:
    with sync_peer() as first, sync_peer() as second:
        sidecar = start_sidecar(EVERY_PICK + minimal_policy(first.address, second.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(5):
                unary(channel)
        done = attnroute("picks", "cart", "--last", "3", "--json", admin=sidecar.admin)
        text = attnroute("picks", "cart", admin=sidecar.admin)
    assert (done.returncode, done.stderr) == (0, "")
    picks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [pick["number"] for pick in picks] == [3, 4, 5]
    both = {first.address, second.address}
    for pick in picks:
        assert {pick["endpoint"], pick["runner_up"]} == both
        assert pick["reason"] == "least_request"
        assert pick["method"].startswith("/")
        assert {one["address"] for one in pick["candidates"]} == both
        assert {one["in_flight"] for one in pick["candidates"]} == {0}
        assert sum(one["weight"] for one in pick["candidates"]) == 1
    # Draws go on from pick to pick, so that each can be replayed.
    assert picks[0]["rng_key"] == picks[1]["rng_key"]
    assert picks[0]["rng_counter"] < picks[1]["rng_counter"]
    assert "(least_request, then" in text.stdout


def test_follow_shows_new_picks(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(EVERY_PICK + minimal_policy(peer.address))
        with (
            sync_channel(sidecar.address) as channel,
            subprocess.Popen(
                [*ATTNROUTE, "picks", "cart", "--follow", "--json", "--admin", sidecar.admin],
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            try:
                sidecar.until(lambda: sidecar.metric("attnroute_admin_watches") == 1, "a watch")
                unary(channel)
                assert process.stdout is not None
                pick = json.loads(process.stdout.readline())
            finally:
                process.kill()
    assert (pick["endpoint"], pick["reason"], pick["runner_up"]) == (peer.address, "single", None)


def test_without_sampling_nothing_is_recorded(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar("picks: {sample: 0%}\n" + minimal_policy(peer.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(20):
                unary(channel)
        done = attnroute("picks", "cart", admin=sidecar.admin)
        assert (done.returncode, done.stdout) == (0, "")
        assert "`picks.sample`" in done.stderr
        sidecar.write_policy(EVERY_PICK + minimal_policy(peer.address))
        sidecar.until(lambda: sidecar.metric("attnroute_policy_generation") == 2, "the reload")
        with sync_channel(sidecar.address) as channel:
            unary(channel)
        until_blocking(
            lambda: attnroute("picks", "cart", admin=sidecar.admin).stdout, "a recorded pick"
        )
