"""Ctrl-C ends a simulation at once, and its processes with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import alive, descendants
from tests.support.wait import patience_s, until_blocking

# Some 100 s of work for each seed: it cannot end by itself within this test.
WORLD = """\
sidecars: 10
endpoints: [{count: 100, workers: 100}]
service_time: {mean: 10ms, exponential: {}}
load: {fraction: 0.9}
warmup: 1s
duration: 1000s
"""


def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(WORLD, encoding="utf-8")
    command = [sys.executable, "-m", "attnroute", "sim", str(file), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # Two workers and the tracker of multiprocessing.
        until_blocking(lambda: len(descendants(process.pid)) >= 3, "processes that simulate")
        children = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=patience_s())
    assert process.returncode == 130
    assert "Traceback" not in complaints
    until_blocking(lambda: not any(alive(child) for child in children), "the end of them all")
