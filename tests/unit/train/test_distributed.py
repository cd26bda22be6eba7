"""Two processes on gloo do what one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scrapes import scrape

from attnroute.train.dataset import ScrapeLog
from attnroute.train.distributed import DistributedConfig, train
from attnroute.train.replay import samples

STEPS = 8
PATIENCE_S = 240


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two services of different size."""
    places = []
    for seed, endpoints in ((0, 4), (1, 7)):
        places.append(tmp_path_factory.mktemp(f"service-{seed}"))
        with ScrapeLog(places[-1]) as log:
            for number in range(6):
                log.append(scrape(number, seed=seed, endpoints=endpoints))
    return places


def alone(logs: list[Path]) -> list[float]:
    services = []
    for place in logs:
        with ScrapeLog(place) as log:
            services.append(list(samples(log.read())))
    return list(train(services, DistributedConfig(steps=STEPS))[1].losses)


def together(logs: list[Path], out: Path, *options: str) -> dict[str, list[float]]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "attnroute.train.distributed", *map(str, logs), "--out", str(out),
        "--steps", str(STEPS), *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[:4000]
    found: dict[str, list[float]] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def whole(logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Averaged gradients, sent as they are."""
    return together(logs, tmp_path_factory.mktemp("out") / "ddp.json")


def test_two_processes_have_the_loss_of_one(
    logs: list[Path], whole: dict[str, list[float]]
) -> None:
    expected = alone(logs)
    assert whole["losses"] == pytest.approx(expected, rel=1e-4)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3), "it trains"


def test_small_gradients_and_averaged_numbers_train_too(
    logs: list[Path], whole: dict[str, list[float]], tmp_path: Path
) -> None:
    """They send less, and come out near, not equal."""
    power = together(logs, tmp_path / "power.json", "--hook", "powersgd")
    local = together(logs, tmp_path / "local.json", "--local-steps", "4")
    for found in (power, local):
        assert found["losses"] == pytest.approx(whole["losses"], rel=0.05)
        assert found["losses"] != whole["losses"]
        assert found["sent_bytes"] < whole["sent_bytes"]


def test_a_batch_that_cannot_be_shared_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    with pytest.raises(ValueError, match="a batch of 4 cannot be shared out to 3 processes"):
        train([], DistributedConfig())
