"""A real sidecar process: the order of its end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import grpc
import pytest
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar
from tests.support.sync_peer import start_unary, sync_channel, sync_peer, unary
from tests.support.wait import patience_s

from attnroute.admin.client import AdminClient

Start = Callable[..., Sidecar]


def policy(address: str, *, linger: str, limit: str) -> str:
    return (
        f"{ADMIN}"
        f"drain: {{linger: {linger}, limit: {limit}}}\n"
        f"listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
        f"services:\n  cart:\n    endpoints: {{static: ['{address}']}}\n"
    )


def wait_draining(sidecar: Sidecar) -> None:
    sidecar.until(lambda: sidecar.get("/readyz").json()["draining"], "the drain")


def test_k8_04_new_calls_work_while_the_application_still_has_a_connection(
    start_sidecar: Start,
) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(peer.address, linger="60s", limit="60s"))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            sidecar.send(signal.SIGTERM)
            wait_draining(sidecar)
            answer = sidecar.get("/readyz")
            assert (answer.status, answer.json()["ready"]) == (503, False)
            # Neither this connection nor a new one is turned away.
            assert unary(channel) == b"x"
            with sync_channel(sidecar.address) as late:
                assert unary(late) == b"x"
            # Metrics and admin serve until the end.
            ok = sidecar.metric("attnroute_requests_total", service="cart", grpc_status="OK")
            assert ok == 3
            with AdminClient(sidecar.admin) as client:
                assert client.get_config().generation == 1
        # The application has gone, and with it the reason to wait.
        assert sidecar.wait() == 0
        assert sidecar.log[-1]["message"] == "sidecar stopped"
        sidecar.logged("drained; every call finished")


def test_k8_02_a_call_in_flight_finishes(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(peer.address, linger="0s", limit="60s"))
        with sync_channel(sidecar.address) as channel:
            call = start_unary(channel, b"slow")
            sidecar.until(lambda: peer.calls, "the call to reach its endpoint")
            sidecar.send(signal.SIGTERM)
            wait_draining(sidecar)
            peer.release.set()
            assert call.result(patience_s()) == b"slow"
        assert sidecar.wait() == 0


def test_k8_02_what_outlives_the_limit_ends_unavailable(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(peer.address, linger="0s", limit="500ms"))
        with sync_channel(sidecar.address) as channel:
            call = start_unary(channel)
            sidecar.until(lambda: peer.calls, "the call to reach its endpoint")
            assert sidecar.stop() == 0
            assert call.code() == grpc.StatusCode.UNAVAILABLE
            assert str(call.details()).startswith("attnroute: ")
        sidecar.logged("drain is over; calls that were still open ended UNAVAILABLE")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [(signal.SIGTERM, signal.SIGTERM, 0), (signal.SIGINT, signal.SIGINT, 130)],
)
def test_a_second_signal_ends_it_now(
    start_sidecar: Start, first: signal.Signals, second: signal.Signals, code: int
) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(peer.address, linger="1h", limit="1h"))
        with sync_channel(sidecar.address) as channel:
            call = start_unary(channel)
            sidecar.until(lambda: peer.calls, "the call to reach its endpoint")
            sidecar.send(first)
            wait_draining(sidecar)
            sidecar.send(second)
            assert sidecar.wait() == code
            assert call.code() == grpc.StatusCode.UNAVAILABLE
        sidecar.logged("second signal; calls that are open end now")


def test_a_reload_signal_during_the_drain_is_harmless(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(peer.address, linger="60s", limit="60s"))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            sidecar.send(signal.SIGTERM)
            wait_draining(sidecar)
            sidecar.send(signal.SIGHUP)
            assert unary(channel) == b"x"
        assert sidecar.wait() == 0


def test_an_open_watch_does_not_hold_up_the_end(start_sidecar: Start) -> None:
    sidecar = start_sidecar(policy("127.0.0.1:9", linger="0s", limit="1s"))
    with AdminClient(sidecar.admin) as client:
        watch = client.watch_weights("cart")
        assert next(watch).service == "cart"
        assert sidecar.stop() == 0
