"""`python -m attnroute.train`: what it needs, what it says, what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scrapes import scrape

from attnroute.train.__main__ import main
from attnroute.train.dataset import ScrapeLog

RSS_BYTES_MAX = 1_200_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """48 classes on 30 endpoints, four scrapes."""
    place = tmp_path / "log"
    with ScrapeLog(place) as written:
        for number in range(4):
            written.append(scrape(number, classes=48, endpoints=30))
    return place


def test_a_recorded_log_is_trained_on_and_gone_on_from(log: Path, tmp_path: Path) -> None:
    """In a process of its own, so that its memory is its own, too."""
    state, plot = tmp_path / "state.pt", tmp_path / "plot.png"
    done = subprocess.run(
        [sys.executable, "-m", "attnroute.train", "recorded", str(log), "--state", str(state),
         "--plot", str(plot), "--steps", "5"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["scrapes"] == 3
    assert said["seconds_a_cycle"] > 0
    assert said["rss_bytes_max"] < RSS_BYTES_MAX
    assert "scrapes [##########" in done.stderr
    assert ", loss " in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    with ScrapeLog(log) as written:
        written.append(scrape(4, classes=48, endpoints=30))
    assert main(["recorded", str(log), "--state", str(state), "--steps", "1"]) == 0


def test_a_log_of_several_services_needs_a_name(
    log: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert main(["recorded", str(tmp_path / "empty")]) == 1
    assert "found scrapes of no service; name one with `--service`" in caplog.text
    assert main(["recorded", str(log), "--service", "other"]) == 1
