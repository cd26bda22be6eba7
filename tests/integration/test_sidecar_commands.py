"""`attnroute weights` and `attnroute endpoints` against a real sidecar."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.wait import patience_s

Start = Callable[..., Sidecar]

DEAD = "127.0.0.1:9"


def attnroute(*arguments: str, admin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ATTNROUTE_ADMIN": admin} if admin else dict(os.environ)
    return subprocess.run(
        [sys.executable, "-m", "attnroute", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=patience_s(),
    )


def test_weights_and_shares_after_traffic(start_sidecar: Start) -> None:
    with sync_peer() as first, sync_peer() as second:
        policy = minimal_policy(first.address, second.address).rstrip("\n")
        sidecar = start_sidecar(policy + "\n    balancer: {type: round_robin}\n")
        with sync_channel(sidecar.address) as channel:
            for _ in range(10):
                unary(channel)
        table = attnroute("weights", "cart", "--admin", sidecar.admin)
        document = attnroute("weights", "cart", "--json", admin=sidecar.admin)
    assert (table.returncode, table.stderr) == (0, "")
    assert "cart: round_robin" in table.stdout
    assert first.address in table.stdout
    assert "\x1b" not in table.stdout
    (weights,) = json.loads(document.stdout)["classes"]
    assert [row["share"] for row in weights["endpoints"]] == [0.5, 0.5]
    assert [row["weight"] for row in weights["endpoints"]] == pytest.approx([0.5, 0.5])


def test_endpoints_show_state_and_counters(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
        table = attnroute("endpoints", "cart", admin=sidecar.admin)
        document = attnroute("endpoints", "cart", "--json", admin=sidecar.admin)
    assert table.returncode == 0
    assert "usable" in table.stdout
    (endpoint,) = json.loads(document.stdout)["endpoints"]
    assert endpoint["address"] == peer.address
    assert (endpoint["picks_total"], endpoint["successes_total"]) == (1, 1)
    assert 0 < endpoint["mean_latency_s"] < 60


@pytest.mark.parametrize("command", ["weights", "endpoints"])
def test_an_unknown_service_names_the_configured_ones(start_sidecar: Start, command: str) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    done = attnroute(command, "chart", admin=sidecar.admin)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == ("attnroute: service `chart` is not configured; configured are: cart\n")


@pytest.mark.parametrize("command", ["weights", "endpoints"])
def test_nobody_at_the_address_is_said_in_one_line(command: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening: a connect is refused
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = attnroute(command, "cart", "--admin", address)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"attnroute: no sidecar answers at admin address `{address}` (")
    assert "ATTNROUTE_ADMIN" in line


@contextmanager
def watching(sidecar: Sidecar) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "attnroute", "weights", "cart", "--watch", "--json"]
    process = subprocess.Popen(
        [*command, "--admin", sidecar.admin],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=patience_s())


def test_watch_prints_a_line_at_once_and_one_per_change(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    with watching(sidecar) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        sidecar.write_policy(minimal_policy("127.0.0.1:7", "127.0.0.1:8"))
        second = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(patience_s()) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    assert [row["address"] for row in first["classes"][0]["endpoints"]] == [DEAD]
    assert [row["address"] for row in second["classes"][0]["endpoints"]] == [
        "127.0.0.1:7",
        "127.0.0.1:8",
    ]


def test_watch_ends_when_the_sidecar_does(start_sidecar: Start) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    with watching(sidecar) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sidecar.stop()
        assert process.wait(patience_s()) == 1
        assert process.stderr is not None
        assert process.stderr.read() == "attnroute: the sidecar is stopping\n"


def test_a_ports_file_needs_its_directory(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(minimal_policy(DEAD))
    ports = tmp_path / "none" / "ports.json"
    done = attnroute("sidecar", "--config", str(policy), "--ports-file", str(ports))
    assert done.returncode == 2
    assert f"directory `{tmp_path}/none` does not exist" in done.stderr


def test_a_sidecar_without_a_policy_is_bad_usage() -> None:
    done = attnroute("sidecar")
    assert done.returncode == 2
    assert "--config" in done.stderr


def test_text_logs_on_request(tmp_path: Path) -> None:
    done = attnroute("--log-format", "text", "sidecar", "--config", f"{tmp_path}/none.yaml")
    assert done.returncode == 2
    assert f" error attnroute.sidecar {tmp_path}/none.yaml:1:1: " in done.stderr
