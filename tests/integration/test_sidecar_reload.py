"""A real sidecar process: reloads, all or nothing, and sources that change."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import grpc
import pytest
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar, minimal_policy
from tests.support.sync_peer import start_unary, sync_channel, sync_peer, unary
from tests.support.wait import patience_s

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.client import AdminClient

Start = Callable[..., Sidecar]

DEAD = "127.0.0.1:9"


def config(sidecar: Sidecar) -> pb.GetConfigResponse:
    with AdminClient(sidecar.admin) as client:
        return client.get_config()


def wait_generation(sidecar: Sidecar, generation: int) -> pb.GetConfigResponse:
    sidecar.until(lambda: config(sidecar).generation == generation, f"generation {generation}")
    return config(sidecar)


def reloads(sidecar: Sidecar, result: str) -> float:
    return sidecar.metric("attnroute_policy_reloads_total", result=result)


@pytest.mark.parametrize("way", ["file", "signal"])
def test_a_new_policy_comes_into_force(start_sidecar: Start, way: str) -> None:
    with sync_peer() as first, sync_peer() as second:
        sidecar = start_sidecar(minimal_policy(first.address))
        before = config(sidecar)
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            sidecar.write_policy(minimal_policy(second.address))
            if way == "signal":
                sidecar.send(signal.SIGHUP)
            after = wait_generation(sidecar, 2)
            unary(channel)
        assert (first.calls, second.calls) == (1, 1)
    assert after.sha256 != before.sha256
    assert second.address in after.policy_yaml
    assert after.source == str(sidecar.policy_path)
    assert after.rejected == ""
    assert reloads(sidecar, "applied") == 1
    assert reloads(sidecar, "rejected") == 0
    assert sidecar.metric("attnroute_policy_info", sha256=after.sha256) == 1
    assert sidecar.metric("attnroute_policy_generation") == 2


@pytest.mark.parametrize("way", ["file", "signal"])
def test_a_bad_policy_changes_nothing_and_says_why(start_sidecar: Start, way: str) -> None:
    with sync_peer() as peer:
        good = minimal_policy(peer.address)
        sidecar = start_sidecar(good)
        bad = good.replace("endpoints", "endpoint") + "    limits: {max_inflight: none}\n"
        sidecar.write_policy(bad)
        if way == "signal":
            sidecar.send(signal.SIGHUP)
        sidecar.until(lambda: config(sidecar).rejected, "the rejection")
        answer = config(sidecar)
        assert answer.generation == 1
        first, *others = answer.rejected.splitlines()
        assert first.startswith(f"{sidecar.policy_path}:7:5: ")
        assert any("`endpoint`" in line for line in [first, *others])
        assert reloads(sidecar, "rejected") == 1
        assert sidecar.metric("attnroute_policy_rejected") == 1
        line = sidecar.logged("policy rejected; the last good one stays in force")
        assert (line["level"], line["problems"]) == ("error", [first, *others])
        with sync_channel(sidecar.address) as channel:
            assert unary(channel) == b"x"
        assert sidecar.get("/readyz").status == 200

        # Back to the old content: the alarm ends, and no new generation is claimed.
        sidecar.write_policy(good)
        sidecar.until(lambda: not config(sidecar).rejected, "the end of the rejection")
        assert config(sidecar).generation == 1
        assert sidecar.metric("attnroute_policy_rejected") == 0
        assert reloads(sidecar, "unchanged") == 1


def test_a_signal_and_the_watcher_count_one_change_once(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    for step, port in enumerate((7, 8), start=2):
        sidecar.write_policy(minimal_policy(f"127.0.0.1:{port}"))
        sidecar.send(signal.SIGHUP)
        wait_generation(sidecar, step)
    # A later change goes through the watcher, which by then has seen the two before.
    sidecar.write_policy(minimal_policy("127.0.0.1:6"))
    wait_generation(sidecar, 4)
    assert reloads(sidecar, "applied") == 3
    assert reloads(sidecar, "unchanged") == 0


def test_a_policy_file_that_is_gone_is_an_alarm(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    sidecar.policy_path.unlink()
    sidecar.until(lambda: config(sidecar).rejected, "the rejection")
    assert "cannot be read" in config(sidecar).rejected
    assert sidecar.metric("attnroute_policy_rejected") == 1
    sidecar.write_policy(minimal_policy(DEAD))
    sidecar.until(lambda: not config(sidecar).rejected, "the end of the rejection")


def test_what_needs_a_restart_is_refused_with_its_place(start_sidecar: Start) -> None:
    policy = minimal_policy(DEAD)
    sidecar = start_sidecar(policy)
    changed = policy.replace(f"http: {ANY_PORT}", "http: 127.0.0.1:1") + (
        "data_plane: {threads: 2}\n"
    )
    sidecar.write_policy(changed)
    sidecar.until(lambda: config(sidecar).rejected, "the rejection")
    http, threads = config(sidecar).rejected.splitlines()
    column = changed.index("127.0.0.1:1}") + 1
    assert http == (
        f"{sidecar.policy_path}:1:{column}: `admin.http` changes from `{ANY_PORT}` to "
        f"`127.0.0.1:1`, which needs a restart; restart the sidecar or change it back"
    )
    assert threads.startswith(f"{sidecar.policy_path}:8:23: `data_plane.threads` changes from")


def test_a_listener_that_cannot_be_bound_refuses_the_whole_policy(start_sidecar: Start) -> None:
    with sync_peer() as peer, sync_peer() as other, socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        sidecar = start_sidecar(minimal_policy(peer.address))
        new = minimal_policy(other.address).replace(
            "services:", f"  - {{name: more, mode: explicit, address: {taken}}}\nservices:"
        )
        sidecar.write_policy(new)
        sidecar.until(lambda: config(sidecar).rejected, "the rejection")
        reason = config(sidecar).rejected
        assert reason.startswith(f"{sidecar.policy_path}:5:")
        assert f"cannot bind listener `more` to `{taken}`" in reason
        with sync_channel(sidecar.address) as channel:
            unary(channel)
        assert (peer.calls, other.calls) == (1, 0)


def test_listeners_and_services_come_and_go(start_sidecar: Start) -> None:
    with sync_peer() as cart, sync_peer() as search:
        sidecar = start_sidecar(minimal_policy(cart.address))
        both = minimal_policy(cart.address) + (
            f"  search:\n    endpoints: {{static: ['{search.address}']}}\n"
        )
        sidecar.write_policy(both)
        wait_generation(sidecar, 2)
        with (
            AdminClient(sidecar.admin) as client,
            sync_channel(sidecar.address, authority="search") as channel,
        ):
            names = [service.name for service in client.list_services().services]
            assert names == ["cart", "search"]
            assert unary(channel) == b"x"
            assert sidecar.metric("attnroute_discovery_updates_total", service="search") == 1

            sidecar.write_policy(minimal_policy(cart.address))
            wait_generation(sidecar, 3)
            with pytest.raises(grpc.RpcError) as caught:
                unary(channel)
            error: grpc.Call = caught.value  # type: ignore[assignment]
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert "`search`" in str(error.details())
        families = [
            sample.labels
            for family in sidecar.metrics()
            for sample in family.samples
            if sample.labels.get("service") == "search"
        ]
        assert families == []


def test_a_call_in_flight_outlives_a_reload_that_drops_its_endpoint(start_sidecar: Start) -> None:
    with sync_peer() as old, sync_peer() as new:
        sidecar = start_sidecar(minimal_policy(old.address))
        with sync_channel(sidecar.address) as channel:
            call = start_unary(channel, b"kept")
            sidecar.until(lambda: old.calls, "the call to reach its endpoint")
            sidecar.write_policy(minimal_policy(new.address))
            wait_generation(sidecar, 2)
            old.release.set()
            assert call.result(patience_s()) == b"kept"


def test_an_endpoint_file_is_followed(start_sidecar: Start) -> None:
    with sync_peer() as first, sync_peer() as second:
        policy = (
            f"{ADMIN}"
            "drain: {linger: 0s, limit: 1s}\n"
            f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
            "services:\n  cart:\n    endpoints: {file: endpoints.yaml, refresh: 100ms}\n"
        )
        sidecar = start_sidecar(policy, wait_ready=False)
        endpoints = sidecar.policy_path.with_name("endpoints.yaml")
        Sidecar.replace(endpoints, f"endpoints: ['{first.address}']\n")
        sidecar.wait_ready()

        with AdminClient(sidecar.admin) as client, sync_channel(sidecar.address) as channel:
            unary(channel)
            Sidecar.replace(
                endpoints,
                f"endpoints:\n  - {{address: '{second.address}', zone: eu-1, labels: {{a: b}}}}\n",
            )
            sidecar.until(lambda: addresses(client) == [second.address], "the new set")
            unary(channel)
            assert (first.calls, second.calls) == (1, 1)
            (endpoint,) = client.list_endpoints("cart").endpoints
            assert (endpoint.zone, dict(endpoint.labels)) == ("eu-1", {"a": "b"})

            # A broken file keeps the set; an explicitly empty list does not.
            Sidecar.replace(endpoints, "endpoints: ['10.0.0.1']\n")
            sidecar.until(
                lambda: sidecar.metric("attnroute_discovery_stale", service="cart") == 1, "stale"
            )
            assert addresses(client) == [second.address]
            Sidecar.replace(endpoints, "endpoints: []\n")
            sidecar.until(lambda: addresses(client) == [], "the empty set")
        # Nothing of this was a reload of the policy.
        assert config(sidecar).generation == 1


def addresses(client: AdminClient) -> list[str]:
    return [endpoint.address for endpoint in client.list_endpoints("cart").endpoints]


def test_a_reload_under_load_fails_no_call(start_sidecar: Start) -> None:
    with sync_peer() as first, sync_peer() as second:
        policies = [minimal_policy(first.address), minimal_policy(first.address, second.address)]
        sidecar = start_sidecar(policies[0])
        with sync_channel(sidecar.address) as channel:
            for turn in range(1, 6):
                sidecar.write_policy(policies[turn % 2])
                sidecar.send(signal.SIGHUP)
                while config(sidecar).generation == turn:
                    assert unary(channel) == b"x"
        assert sidecar.metric("attnroute_requests_total", service="cart") == sidecar.metric(
            "attnroute_requests_total", service="cart", grpc_status="OK"
        )
