"""Children are measured, and gone when they should be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.process import Child, busy_loop, process_tree, wait_until
from tests.support.wait import until_blocking

# A parent with one child; both ignore SIGTERM, so only the SIGKILL of the group ends them.
STUBBORN = "trap '' TERM; sh -c 'echo up; exec sleep 60' & wait"


@pytest.fixture
def core() -> int:
    return min(os.sched_getaffinity(0))


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie that nobody has collected yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_cpu_time_of_a_child_counts_its_children(tmp_path: Path, core: int) -> None:
    child = Child(
        "parent",
        ["sh", "-c", "sh -c 'ulimit -t 30; while :; do :; done' & wait"],
        core=core,
        directory=tmp_path,
    )
    try:
        until_blocking(lambda: len(child.pids()) == 2, "the child of the child")
        before = child.cpu()
        until_blocking(lambda: child.cpu().since(before).total_s > 0.05, "CPU time of the loop")
        assert child.rss_bytes() > 100_000
    finally:
        child.stop()
    assert child.cpu().total_s == 0.0


def test_cpu_clock_agrees_with_the_process_itself(tmp_path: Path, core: int) -> None:
    """A child burns CPU, prints its own clock, and waits: both clocks must tell the same."""
    script = (
        "import signal, time\n"
        "while time.process_time() < 0.2: pass\n"
        "print(time.process_time(), flush=True)\n"
        "signal.pause()\n"
    )
    source = tmp_path / "burn.py"
    source.write_text(script)
    child = Child("burn", [sys.executable, str(source)], core=core, directory=tmp_path)
    try:
        until_blocking(lambda: child.log_path.read_text().endswith("\n"), "its own reading")
        own_s = float(child.log_path.read_text())
        assert child.cpu().total_s == pytest.approx(own_s, abs=0.05)
    finally:
        child.stop()


def test_stop_ends_the_whole_group_even_if_it_will_not(
    tmp_path: Path, core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.process.STOP_TIMEOUT_S", 0.1)
    child = Child("stubborn", ["sh", "-c", STUBBORN], core=core, directory=tmp_path)
    until_blocking(lambda: "up" in child.log_path.read_text(), "both to ignore SIGTERM")
    pids = process_tree(child.pid)
    assert len(pids) >= 2
    child.stop()
    child.stop()
    until_blocking(lambda: not any(alive(pid) for pid in pids), "every process to be gone")


def test_busy_loop_ends_by_itself(tmp_path: Path, core: int) -> None:
    loop = busy_loop(core=core, directory=tmp_path, limit_s=1)
    try:
        until_blocking(lambda: not alive(loop.pid), "its limit of CPU time")
    finally:
        loop.stop()


def test_child_runs_on_its_core_alone(tmp_path: Path, core: int) -> None:
    child = Child("sleep", ["sleep", "60"], core=core, directory=tmp_path)
    try:
        until_blocking(lambda: os.sched_getaffinity(child.pid) == {core}, "its core")
    finally:
        child.stop()


def test_child_that_ends_is_reported_with_its_log(tmp_path: Path, core: int) -> None:
    child = Child("broken", ["sh", "-c", "echo no such key; exit 3"], core=core, directory=tmp_path)
    with pytest.raises(BenchmarkError, match=r"`broken` ended with status 3; .*no such key"):
        wait_until(lambda: False, what="never", child=child, timeout_s=20)
    child.stop()


def test_waiting_has_an_end(tmp_path: Path, core: int) -> None:
    child = Child("idle", ["sleep", "60"], core=core, directory=tmp_path)
    try:
        with pytest.raises(BenchmarkError, match=r"not ready within 0\.1 s: no port"):
            wait_until(lambda: False, what="no port", child=child, timeout_s=0.1)
    finally:
        child.stop()
