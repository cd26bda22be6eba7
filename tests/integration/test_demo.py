"""`attnroute demo` as a user runs it: to its end, interrupted, killed, and with a dying sidecar."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import alive, command_line, descendants
from tests.support.wait import patience_s, until_blocking

from attnroute.demo.balancers import BALANCERS, LEARNED
from attnroute.demo.faults import FAULTS
from attnroute.demo.models import default_bundle
from attnroute.demo.run import SIDECARS
from attnroute.demo.world import WORLDS

SECONDS = 8
END_PATIENCE_S = SECONDS + 60.0
"""Start, report and a busy machine come on top of the time under load."""

PROCESSES = len(WORLDS["mixed"].endpoints) + len(FAULTS) + 2 + 3 * SIDECARS
"""Endpoints, those that are ill among them, the trainer and its leash, and beside each sidecar its
leash and its load."""


@contextlib.contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running demo; when the test is over nothing of it is left, or the test fails."""
    with (
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "attnroute", "demo", "--out", str(folder / "out"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # A killed demo cannot remove its folder for policy and logs: it shall lie in ours.
            env={**os.environ, "DEMO_SECONDS": str(SECONDS), "TMPDIR": str(folder)},
        ) as process,
    ):
        try:
            yield process
        finally:
            left = descendants(process.pid)
            process.kill()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def output(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def wait_for_all(process: subprocess.Popen[bytes], folder: Path) -> set[int]:
    """Waits until every process of the demo runs; returns the pids."""

    def all_run() -> bool:
        assert process.poll() is None, output(folder, "stderr")
        return len(descendants(process.pid)) == PROCESSES

    until_blocking(all_run, "every process of the demo", timeout_s=END_PATIENCE_S)
    return descendants(process.pid)


def wait_for_progress(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits until the first slice is over, so that the next one is under load."""

    def progress() -> bool:
        assert process.poll() is None, output(folder, "stderr")
        return "round 1/" in output(folder, "stderr")

    until_blocking(progress, "the first line of progress", timeout_s=END_PATIENCE_S)


def assert_gone(pids: set[int]) -> None:
    until_blocking(
        lambda: not any(map(alive, pids)),
        "the end of every process of the demo",
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A whole short run: (its folder, its JSON)."""
    folder = tmp_path_factory.mktemp("demo")
    with demo(folder, "--json", "--seed", "7") as process:
        pids = wait_for_all(process, folder)
        code = process.wait(END_PATIENCE_S)
    assert_gone(pids)
    assert code in (0, 1), output(folder, "stderr") + output(folder, "stdout")
    document: dict[str, Any] = json.loads(output(folder, "stdout"))
    # Two seconds for each balancer on a busy machine prove nothing; the code says what came out.
    assert code == (1 if document["shortfalls"] else 0), output(folder, "stderr")
    assert all(line in output(folder, "stderr") for line in document["shortfalls"])
    return folder, document


def test_no_call_fails_while_policies_reload(finished: tuple[Path, dict[str, Any]]) -> None:
    _, document = finished
    assert document["failed_calls"] == 0
    assert document["failures"] == {}
    assert document["complaints"] == []
    # Then one to each balancer again, and two to let endpoints that are ill come and go.
    slices = len(BALANCERS) * document["rounds"]
    assert document["reloads"] == SIDECARS * (slices - 1 + 3 * len(BALANCERS))


def test_every_balancer_meets_endpoints_that_are_ill(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, document = finished
    turns = document["faults"]
    assert [turn["balancer"] for turn in turns] == [balancer.key for balancer in BALANCERS]
    for turn in turns:
        calls = sum(turn[fault]["calls"] for fault in FAULTS)
        # Each sidecar ejects after five failures in a row, so either endpoint got some calls, and
        # a small part of all; every failure of the turn is one of them or of a busy machine.
        # `learned` takes a new endpoint to be slow for its first 30 s, and need not try it at all.
        if turn["balancer"] != LEARNED:
            assert all(turn[fault]["calls"] >= 1 for fault in FAULTS), turn
        for fault in FAULTS:
            assert turn[fault]["calls"] == 0 or turn[fault]["sent_s"] >= 0.0, turn
        assert turn["errors"] >= calls * 0.5, turn
        assert calls < turn["calls"] / 2, turn
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "Endpoints that are ill" in page


def test_every_balancer_is_measured(finished: tuple[Path, dict[str, Any]]) -> None:
    _, document = finished
    rows = document["balancers"]
    assert [row["balancer"] for row in rows] == [balancer.key for balancer in BALANCERS]
    for row in rows:
        assert row["errors"] == 0
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert 0.0 < row["slow_share"] < 1.0
    # The same calls for all.
    assert len({row["calls"] for row in rows}) == 1
    expected = document["calls_per_s"] * document["measured_s_per_balancer"]
    assert rows[0]["calls"] == pytest.approx(expected, rel=0.2)
    # In turn means exactly that: slow endpoints get what their number says.
    world = WORLDS[document["world"]]
    in_turn = len(world.slow_endpoints) / len(world.endpoints)
    assert rows[0]["slow_share"] == pytest.approx(in_turn, abs=0.02)


def test_the_files_are_there_and_whole(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, document = finished
    plot = Path(document["files"]["plot"]).read_bytes()
    assert plot.startswith(b"\x89PNG\r\n\x1a\n")
    assert plot.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack_from(">II", plot, 16)
    assert (width, height) > (1000, 500)
    assert len(plot) > 20_000
    page = Path(document["files"]["page"]).read_text(encoding="utf-8")
    assert all(balancer.label in page for balancer in BALANCERS)
    result = json.loads(Path(document["files"]["result"]).read_text(encoding="utf-8"))
    assert result["balancers"] == document["balancers"]
    assert Path(document["files"]["plot"]).parent == folder / "out"


def test_what_is_missing_is_said(finished: tuple[Path, dict[str, Any]]) -> None:
    _, document = finished
    assert any("a model that is trained" in text for text in document["missing"])


def test_the_default_model_is_swapped_in_while_calls_flow(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, document = finished
    model = document["model"]
    source = default_bundle()
    assert source is not None
    assert model["published"] == source.name
    assert {swap["sidecar"] for swap in model["swaps"]} == set(range(SIDECARS))
    assert {swap["version"] for swap in model["swaps"]} == {source.name}
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert f"model {source.name} was swapped in" in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        pids = wait_for_all(process, tmp_path)
        wait_for_progress(process, tmp_path)
        process.send_signal(number)
        assert process.wait(END_PATIENCE_S) == 130, output(tmp_path, "stderr")
        assert not any(map(alive, pids)), "it ended before its processes did"
    assert "Traceback" not in output(tmp_path, "stderr")
    assert output(tmp_path, "stdout") == ""


def test_a_killed_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        pids = wait_for_all(process, tmp_path)
        process.kill()
        process.wait(patience_s())
        assert_gone(pids)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("-m attnroute sidecar", r"sidecar \d+"),
        (f"-m attnroute.demo.leash {sys.executable} -m attnroute trainer", "trainer"),
        ("-m attnroute.demo.endpoint", r"endpoint \d+"),
        ("-m attnroute.demo.load", r"load \d+"),
    ],
    ids=("sidecar", "leash", "endpoint", "load"),
)
def test_a_process_that_dies_ends_the_demo_by_name(tmp_path: Path, command: str, name: str) -> None:
    with demo(tmp_path) as process:
        pids = wait_for_all(process, tmp_path)
        victim = next(
            pid for pid in pids if command_line(pid).startswith(f"{sys.executable} {command}")
        )
        os.kill(victim, signal.SIGKILL)
        assert process.wait(END_PATIENCE_S) == 1, output(tmp_path, "stderr")
        assert not any(map(alive, pids)), "it ended before its processes did"
    stderr = output(tmp_path, "stderr")
    assert re.search(rf"attnroute: {name} ended unexpectedly with exit code (137|-9)", stderr)
    assert "Traceback" not in stderr


def test_bad_usage_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "1") as process:
        assert process.wait(patience_s()) == 2
    assert "--seconds" in output(tmp_path, "stderr")
    assert not (tmp_path / "out").exists()
