"""`attnroute wrap`: a program with a sidecar of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.processes import alive
from tests.support.sync_peer import sync_peer
from tests.support.wait import patience_s, until_blocking

CLIENT = """
import os, grpc
with grpc.insecure_channel("cart.example:80") as channel:
    call = channel.unary_unary("/test.Peer/Unary")
    print(call(b"through", timeout=30).decode(), os.environ["grpc_proxy"])
"""


def policy(tmp_path: Path, address: str, mode: str = "connect") -> Path:
    """A policy whose service is the target of the client."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        "admin: {grpc: 127.0.0.1:0, http: 127.0.0.1:0}\n"
        "drain: {linger: 1s, limit: 3s}\n"
        f"listeners: [{{mode: {mode}, address: 127.0.0.1:0}}]\n"
        "services:\n"
        "  cart:\n"
        '    authorities: ["cart.example:80"]\n'
        f"    endpoints: {{static: [{address}]}}\n"
    )
    return path


def arguments(config: Path, *program: str) -> list[str]:
    return [sys.executable, "-m", "attnroute", "wrap", "--config", str(config), "--", *program]


def clean_environment() -> dict[str, str]:
    """Without proxies of the machine."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.lower() not in ("grpc_proxy", "no_grpc_proxy", "no_proxy")
    }


def wrap(config: Path, *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(config, *program),
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
        timeout=3 * patience_s(),
    )


def test_a_grpc_client_finds_the_sidecar(tmp_path: Path) -> None:
    with sync_peer() as peer:
        done = wrap(policy(tmp_path, peer.address), sys.executable, "-c", CLIENT)
    assert done.returncode == 0, done.stderr
    text, proxy = done.stdout.split()
    assert text == "through"
    assert proxy.startswith("http://127.0.0.1:")
    assert "drained; every call finished" in done.stderr
    assert "grpc_proxy" not in os.environ


def test_a_program_that_a_signal_ends_has_the_code_of_a_shell(tmp_path: Path) -> None:
    done = wrap(policy(tmp_path, "127.0.0.1:9"), "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + 9, done.stderr
    assert "sidecar stopped" in done.stderr


def test_without_a_program_no_sidecar_starts(tmp_path: Path) -> None:
    config = policy(tmp_path, "127.0.0.1:9")
    for program, code in (("no-such-program", 127), (str(config), 126)):
        done = wrap(config, program)
        assert done.returncode == code
        assert done.stderr == f"attnroute: no program `{program}`; check its name and PATH\n"


@contextmanager
def running(tmp_path: Path, script: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A wrapped shell script, once it runs; it has written its own pid to the file."""
    pid_path = tmp_path / "pid"
    config = policy(tmp_path, "127.0.0.1:9")
    started = f"echo $$ >{pid_path}.new && mv {pid_path}.new {pid_path}; {script}"
    process = subprocess.Popen(
        arguments(config, "sh", "-c", started),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        until_blocking(
            lambda: pid_path.exists() or process.poll() is not None, "the program's start"
        )
        assert pid_path.exists(), process.communicate(timeout=patience_s())
        yield process, pid_path
    finally:
        if process.poll() is None:
            process.kill()
            if pid_path.exists():
                os.kill(int(pid_path.read_text()), signal.SIGKILL)
        process.communicate(timeout=patience_s())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_program(tmp_path: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'exit 42' {name}; echo ready >{tmp_path}/ready; while :; do sleep 0.05; done"
    with running(tmp_path, script) as (process, pid_path):
        until_blocking((tmp_path / "ready").exists, "the trap")
        process.send_signal(number)
        _, errors = process.communicate(timeout=2 * patience_s())
        assert process.returncode == 42, errors
        assert not alive(int(pid_path.read_text()))
        assert "sidecar stopped" in errors


def test_a_policy_without_a_way_for_the_program_is_refused(tmp_path: Path) -> None:
    config = policy(tmp_path, "127.0.0.1:9", mode="explicit")
    done = wrap(config, "true")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{config}:3:12: no listener has mode `connect`")


def test_a_sidecar_that_cannot_start_ends_it(tmp_path: Path) -> None:
    config = policy(tmp_path, "127.0.0.1:9")
    config.write_text(config.read_text().replace("http: 127.0.0.1:0", "http: 192.0.2.1:9"))
    done = wrap(config, "touch", str(tmp_path / "ran"))
    assert done.returncode == 1, done.stderr
    assert "192.0.2.1:9" in done.stderr
    assert not (tmp_path / "ran").exists()
