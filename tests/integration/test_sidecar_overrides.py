"""`drain`, `undrain`, `pin` and `wait` against a real sidecar with traffic through it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.test_sidecar_commands import attnroute
from tests.support.sidecar import ANY_PORT, Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary

Start = Callable[..., Sidecar]

DEAD = "127.0.0.1:9"


def policy(socket: Path, *endpoints: str) -> str:
    text = minimal_policy(*endpoints)
    return text.replace(f"grpc: {ANY_PORT}", f"grpc: {ANY_PORT}, socket: {socket}")


def picks(admin: str) -> list[int]:
    rows = json.loads(attnroute("endpoints", "cart", "--json", admin=admin).stdout)["endpoints"]
    return [row["picks_total"] for row in rows]


def test_a_drained_endpoint_gets_no_call_and_a_pinned_one_gets_all(
    start_sidecar: Start, tmp_path: Path
) -> None:
    socket = tmp_path / "admin.sock"
    with sync_peer() as first, sync_peer() as second:
        sidecar = start_sidecar(policy(socket, first.address, second.address))
        admin = f"unix:{socket}"
        drained = attnroute("drain", first.address, "--wait", "5s", "--json", admin=admin)
        assert (drained.returncode, drained.stderr) == (0, "")
        document = json.loads(drained.stdout)
        assert document["override"]["kind"] == "drain"
        assert (document["service"], document["in_flight"]) == ("cart", 0)
        with sync_channel(sidecar.address) as channel:
            for _ in range(10):
                unary(channel)
            assert picks(admin) == [0, 10]
            assert "drained" in attnroute("endpoints", "cart", admin=admin).stdout
            assert attnroute("undrain", first.address, admin=admin).returncode == 0
            pinned = attnroute("pin", first.address, "--for", "5m", admin=admin)
            assert "pinned until" in pinned.stdout
            for _ in range(10):
                unary(channel)
            assert picks(admin) == [10, 10]
        assert sidecar.metric("attnroute_picks_total", reason="pinned") == 10


def test_an_override_ends_by_itself(start_sidecar: Start, tmp_path: Path) -> None:
    socket = tmp_path / "admin.sock"
    with sync_peer() as first, sync_peer() as second:
        sidecar = start_sidecar(policy(socket, first.address, second.address))
        attnroute("pin", first.address, "--for", "1s", admin=f"unix:{socket}")
        sidecar.logged("override expired")
        with sync_channel(sidecar.address) as channel:
            for _ in range(40):
                unary(channel)
        assert all(picks(sidecar.admin))


def test_tcp_refuses_changes_and_says_what_to_do(start_sidecar: Start, tmp_path: Path) -> None:
    sidecar = start_sidecar(policy(tmp_path / "admin.sock", DEAD))
    done = attnroute("drain", DEAD, "--service", "cart", admin=sidecar.admin)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "attnroute: changes are refused on TCP; use the Unix socket of `admin.socket` "
        "(--admin unix:/path), or set `admin.allow_changes`\n"
    )


def test_a_reload_can_allow_changes_on_tcp(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    sidecar.write_policy(minimal_policy(DEAD).replace("admin: {", "admin: {allow_changes: true, "))
    sidecar.until(
        lambda: attnroute("drain", DEAD, admin=sidecar.admin).returncode == 0, "the reload"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("drain", "10.9.9.9:1"), 1, "no service has an endpoint `10.9.9.9:1`"),
        (("pin", DEAD, "--for", "ten"), 2, "found `ten`"),
        (("pin", DEAD, "--for", "25h"), 1, "expected 1 s to 86400 s"),
    ],
)
def test_bad_usage_is_said(
    start_sidecar: Start, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    socket = tmp_path / "admin.sock"
    start_sidecar(policy(socket, DEAD))
    done = attnroute(*arguments, admin=f"unix:{socket}")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_wait_returns_when_the_sidecar_is_ready(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    done = attnroute("wait", "--json", admin=sidecar.admin)
    assert done.returncode == 0
    assert json.loads(done.stdout)["ready"] is True


def test_wait_gives_up_and_says_why() -> None:
    done = attnroute("wait", "--timeout", "300ms", admin=DEAD)
    assert (done.returncode, done.stdout) == (1, "")
    assert "was not ready within 0.3 s: nobody answers there" in done.stderr
