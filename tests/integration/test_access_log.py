"""The access log of a real sidecar: what a line says, where it goes, and who waits (nobody)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.wait import patience_s

Start = Callable[..., Sidecar]

DEAD = "127.0.0.1:9"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def logged(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def policy(output: object, *endpoints: str, sample: str = "100%") -> str:
    return f"access_log: {{sample: {sample}, output: {output}}}\n" + minimal_policy(*endpoints)


def test_a_line_tells_the_whole_call(start_sidecar: Start, tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(path, peer.address))
        with sync_channel(sidecar.address) as channel:
            unary(
                channel,
                b"12345",
                metadata=[("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")],
            )
        sidecar.until(lambda: logged(path), "a line")
    (line,) = logged(path)
    assert (line["service"], line["authority"], line["endpoint"]) == ("cart", "cart", peer.address)
    assert line["method"].startswith("/")
    assert (line["reason"], line["attempts"], line["grpc_status"]) == ("single", 1, "OK")
    # Five bytes of message behind five of gRPC's own frame head.
    assert (line["request_bytes"], line["response_bytes"]) == (10, 10)
    assert 0 < line["latency_ms"] < patience_s() * 1000
    assert 0 < line["deadline_ms"] <= patience_s() * 1000
    assert line["trace_id"] == TRACE
    assert line["ts"].endswith("Z")


def test_a_call_that_failed_tells_how_often_it_was_tried(
    start_sidecar: Start, tmp_path: Path
) -> None:
    path = tmp_path / "access.json"
    sidecar = start_sidecar(policy(path, DEAD, "127.0.0.2:9"))
    with sync_channel(sidecar.address) as channel, pytest.raises(grpc.RpcError):
        unary(channel)
    sidecar.until(lambda: logged(path), "a line")
    line = logged(path)[0]
    assert line["grpc_status"] == "UNAVAILABLE"
    assert line["attempts"] >= 1
    assert line["endpoint"] in (DEAD, "127.0.0.2:9")
    assert (line["response_bytes"], line["trace_id"]) == (0, None)


def test_stderr_takes_lines_between_the_log(start_sidecar: Start) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy("stderr", peer.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(50):
                unary(channel)

        def calls() -> list[dict[str, Any]]:
            return [line for line in sidecar.log if "grpc_status" in line]

        sidecar.until(lambda: len(calls()) == 50, "50 lines")
        assert sidecar.metric("attnroute_access_log_lines_total") == 50


def test_hang_up_opens_the_file_anew(start_sidecar: Start, tmp_path: Path) -> None:
    path, old = tmp_path / "access.json", tmp_path / "access.json.1"
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(path, peer.address))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            sidecar.until(lambda: len(logged(path)) == 1, "the first line")
            path.rename(old)
            sidecar.send(signal.SIGHUP)
            sidecar.until(
                lambda: sidecar.metric("attnroute_policy_reloads_total", result="unchanged") == 1,
                "the signal",
            )
            unary(channel)
            sidecar.until(lambda: len(logged(path)) == 1, "a line in the new file")
    assert len(logged(old)) == 1


def test_the_last_lines_are_written_before_the_end(start_sidecar: Start, tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(path, peer.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(30):
                unary(channel)
        assert sidecar.stop() == 0
    assert len(logged(path)) == 30


def test_an_output_that_takes_nothing_holds_no_call_up(
    start_sidecar: Start, tmp_path: Path
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with sync_peer() as peer:
        # Nobody reads, so that the writer hangs in opening it.
        sidecar = start_sidecar(policy(path, peer.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(100):
                unary(channel)
        assert sidecar.stop() == 0


def test_an_output_that_cannot_be_opened_is_said_and_counted(
    start_sidecar: Start, tmp_path: Path
) -> None:
    with sync_peer() as peer:
        sidecar = start_sidecar(policy(tmp_path / "none" / "access.json", peer.address))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
        line = sidecar.logged("cannot write the access log")
        assert "No such file" in line["cause"]
        assert sidecar.metric("attnroute_access_log_dropped_total", reason="output") == 1


def test_a_reload_switches_it_off_and_on(start_sidecar: Start, tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    with sync_peer() as peer:
        sidecar = start_sidecar(minimal_policy(peer.address))
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            sidecar.write_policy(policy(path, peer.address))
            sidecar.until(lambda: sidecar.metric("attnroute_policy_generation") == 2, "on")
            unary(channel)
            sidecar.until(lambda: len(logged(path)) == 1, "a line")
            sidecar.write_policy(minimal_policy(peer.address))
            sidecar.until(lambda: sidecar.metric("attnroute_policy_generation") == 3, "off")
            unary(channel)
        assert sidecar.stop() == 0
    assert len(logged(path)) == 1
