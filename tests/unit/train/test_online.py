"""Training beside a fleet: over a kill, from a bundle, and to a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.graphs import exported
from tests.support.scrapes import scrape
from tests.unit.model.test_network import trained

from attnroute.bundle import Bundle, read, write
from attnroute.features.schema import schema_hash
from attnroute.features.window import BUCKETS
from attnroute.model.export import bundle_of, router_of, run_graphs, with_weights
from attnroute.model.network import RouterConfig
from attnroute.telemetry.increases import Increases
from attnroute.train.__main__ import main
from attnroute.train.gates import CandidateLimits
from attnroute.train.online import OnlineConfig, OnlineTraining
from attnroute.train.trainer import TrainingConfig

CONFIG = OnlineConfig(
    TrainingConfig(steps=2), CandidateLimits(scrapes_min=2, loss_max=10, gain_min=-10)
)


def increases(number: int, service: str = "shop") -> Increases:
    one = scrape(number, classes=4, endpoints=3)
    cells = one.cells
    columns = (cells.latency_s, cells.calls, cells.service_s, cells.service_samples,
               cells.estimated_s, one.errors)  # fmt: skip
    return Increases(
        cells={
            (service, one.classes[row], one.endpoints[column]): np.array(values)
            for row, column, *values in zip(
                cells.request_class, cells.endpoint, *columns, strict=True
            )
        },
        buckets={
            (service, name): one.buckets[row].reshape(BUCKETS)
            for row, name in enumerate(one.classes)
        },
        info={(service, name): ("a", "", "") for name in one.endpoints},
        pages=1,
        span_s=5.0,
    )


def weights(online: OnlineTraining) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in online.training.router.parameters()])


@pytest.fixture(scope="module")
def start() -> Bundle:
    """A bundle to begin from."""
    router = trained()
    return bundle_of(
        router, name="d", version="1.0.0", trained={}, metrics={}, card="",
        graphs=with_weights(exported(), router),
    )  # fmt: skip


def test_a_trainer_that_was_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    straight = OnlineTraining(tmp_path / "a", CONFIG)
    for number in range(6):
        straight.take(increases(number), 5.0 * (number + 1))
    killed = OnlineTraining(tmp_path / "b", CONFIG)
    for number in range(4):
        killed.take(increases(number), 5.0 * (number + 1))
    # It is gone without a word, and its last record torn.
    (segment,) = (tmp_path / "b" / "scrapes").glob("*.log")
    with segment.open("ab") as file:
        file.write(b"ATSC half a record")
    resumed = OnlineTraining(tmp_path / "b", CONFIG)
    assert resumed.log.torn == 1
    for number in range(4, 6):
        resumed.take(increases(number), 5.0 * (number + 1))
    assert torch.equal(weights(straight), weights(resumed))
    assert resumed.training.cycles == 5
    for one in (straight, killed, resumed):
        one.close()


def test_services_are_told_apart(tmp_path: Path) -> None:
    online = OnlineTraining(tmp_path, CONFIG)
    assert online.take(increases(0, "a"), 5.0) == []
    assert online.take(increases(1, "b"), 10.0) == [], "the first of b, not the second of a"
    assert len(online.take(increases(2, "a"), 15.0)) == 1
    online.close()


def test_a_state_that_is_damaged_is_begun_anew(tmp_path: Path) -> None:
    online = OnlineTraining(tmp_path, CONFIG)
    for number in range(3):
        online.take(increases(number), 5.0 * (number + 1))
    online.close()
    (tmp_path / "state.pt").write_bytes(b"no state")
    again = OnlineTraining(tmp_path, CONFIG)
    assert again.training.cycles == 0
    assert len(again.take(increases(3), 20.0)) == 1, "the scrapes are still there"
    again.close()


def test_from_a_bundle_to_a_bundle(tmp_path: Path, start: Bundle) -> None:
    online = OnlineTraining(tmp_path, CONFIG, start)
    assert online.candidate("shop", 1.0)[1] == "nothing has been trained on yet"
    online.take(increases(0), 5.0)
    online.take(increases(1), 10.0)
    assert "judged on 1 scrapes" in online.candidate("shop", 1.0)[1]
    online.take(increases(2), 15.0)
    bundle, reason = online.candidate("shop", 1.0)
    assert bundle is not None, reason
    assert bundle.manifest.trained["scrapes"] == 2
    assert bundle.manifest.created_s == 1.0
    assert bundle.probe.inputs["pair"].shape[:2] == (4, 3)
    before = run_graphs(start.graphs, bundle.probe.inputs)["cost_s"]
    assert (bundle.probe.outputs["cost_s"] != before).any()
    assert online.training.optimiser.param_groups[0]["lr"] == 1e-3
    online.close()


def test_a_default_model_is_made_by_one_command(
    tmp_path: Path, start: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """From worlds to a bundle that passes every check; a second time the worlds are read."""
    known = write(tmp_path / "known", start)
    arguments = ["pretrain", str(tmp_path), "--worlds", "5", "--seconds", "3", "--steps", "3",
                 "--cache", str(tmp_path / "cache"), "--graphs", str(known),
                 "--plot", str(tmp_path / "losses.png")]  # fmt: skip
    assert main(arguments) == 0
    bundle = read(tmp_path / "default" / "1.0.0", expected_schema=schema_hash())
    assert bundle.manifest.metrics["parity"] <= 1e-5
    assert {
        "gain_held_out",
        "gain_trained",
        "int8_rank_agreement",
    } <= bundle.manifest.metrics.keys()
    assert "pretrain" in str(bundle.manifest.trained["command"])
    assert f"`{bundle.manifest.feature_schema}`" in bundle.card
    assert sum(path.stat().st_size for path in (tmp_path / "default" / "1.0.0").iterdir()) < 2e6
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert router_of(bundle).config == start_config(start)
    assert "bytes; {" in capsys.readouterr().out
    played = sorted((tmp_path / "cache").rglob("*.log"))
    before = [path.stat().st_mtime_ns for path in played]
    assert main([*arguments, "--version", "1.0.1", "--steps", "1"]) == 0
    assert [path.stat().st_mtime_ns for path in played] == before
    assert len(played) == 5


def start_config(bundle: Bundle) -> RouterConfig:
    """The shape of the network that a bundle names."""
    return router_of(bundle).config
