"""A model that knows no service yet: made from worlds, by other names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.scrapes import scrape

from attnroute.features.extract import Matrices
from attnroute.features.schema import ENDPOINT_FEATURES, METHOD_SLOTS
from attnroute.sim.scenario import load_scenario
from attnroute.train.pretrain import PretrainConfig, World, disguised, gain_over, pretrain
from attnroute.train.replay import samples
from attnroute.train.worlds import play_world, random_world, write_world


def world(seed: int) -> World:
    """One of two sorts of methods; pairs are rarely seen."""
    scrapes = (scrape(number, seed=seed, classes=8, calls=0.7) for number in range(16))
    return World(seed, tuple(samples(scrapes)))


def test_what_worlds_have_in_common_holds_in_others() -> None:
    """Trained on some, it beats the table in those that it has not seen."""
    config = PretrainConfig(steps=120, learning_rate=5e-3, held_out=3)
    worlds = [world(seed) for seed in range(6)]
    router, losses = pretrain(worlds, config)
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    gains = gain_over(router, worlds)
    assert min(gains[2], gains[5]) > 0.01, gains


def test_a_disguise_moves_methods_together() -> None:
    sample = world(0).samples[-1]
    other = disguised(sample, np.random.default_rng(3))
    first = [spec.name for spec in ENDPOINT_FEATURES].index("kind_ratio_0")

    def seen(matrices: Matrices) -> list[list[float]]:
        """[C, E]: the ratio in the slot of each class's method."""
        block = matrices.endpoint[:, first : first + METHOD_SLOTS]
        found: list[list[float]] = (matrices.request_class[:, :METHOD_SLOTS] @ block.T).tolist()
        return found

    assert seen(sample.matrices) == seen(other.matrices)
    moved = other.matrices.request_class[:, :METHOD_SLOTS]
    assert (moved != sample.matrices.request_class[:, :METHOD_SLOTS]).any()
    assert (sample.matrices.pair == other.matrices.pair).all()


def test_random_worlds_can_be_played(tmp_path: Path) -> None:
    for seed in range(40):
        scenario = load_scenario(write_world(tmp_path / f"{seed}.yaml", seed, 60))
        assert not scenario.overload, random_world(seed, 60)


def test_a_world_is_scraped_as_a_trainer_would(tmp_path: Path) -> None:
    path = write_world(tmp_path / "w.yaml", 2, 6)
    scrapes = play_world(path, 2, 1.0)
    assert [round(one.at_s) for one in scrapes] == list(range(1, len(scrapes) + 1))
    assert 5 <= len(scrapes) <= 8
    for one in scrapes:
        assert one.cells.calls.sum() == one.buckets.sum()
        assert one.cells.sound().all()
    assert sum(one.cells.calls.sum() for one in scrapes) > 100
    assert np.isfinite(scrapes[-1].rtt_s).any()
