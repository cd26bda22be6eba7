"""A model that knows no service yet, only what services are like: trained on random worlds.

Every draw is disguised: methods move to other slots, labels and zones say something random,
utilization is sometimes missing, and every second world is seen in scrapes of 5 s. What is left to
learn is what holds everywhere: how fast what is known grows old, how far similar endpoints and
methods can be trusted, what a new endpoint does. A sidecar's own trainer goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from attnroute.features.schema import CLASS_FEATURES, ENDPOINT_FEATURES, METHOD_SLOTS
from attnroute.model.network import Router, RouterConfig
from attnroute.scoring.guardrail import quasi_loss
from attnroute.train.dataset import ScrapeLog
from attnroute.train.replay import Sample, samples
from attnroute.train.scrapes import Scrape, merged
from attnroute.train.trainer import Training, TrainingConfig, inputs_of
from attnroute.train.worlds import play_world, write_world

__all__ = ["PretrainConfig", "World", "disguised", "gain_over", "load_worlds", "pretrain"]


@dataclass(frozen=True)
class PretrainConfig:
    """How a default model is made."""

    seed: int = 1
    worlds: int = 40
    duration_s: float = 60.0
    steps: int = 2_000
    batch: int = 3
    learning_rate: float = 3e-3
    held_out: int = 5
    """Every so manieth world is not trained on, but judged on."""
    heads: int = 4


@dataclass(frozen=True)
class World:
    """What a world gives to learn from."""

    seed: int
    samples: tuple[Sample, ...]


def load_worlds(
    folder: Path, config: PretrainConfig, told: Callable[[int, int], None] = lambda *_: None
) -> list[World]:
    """Plays worlds, or reads those that were played before. told: done, of how many."""
    found = []
    for number in range(config.worlds):
        seed = config.seed * 1_000 + number
        scrapes = _scrapes(folder, seed, config.duration_s)
        if number % 2:
            scrapes = [merged(scrapes[at : at + 5]) for at in range(0, len(scrapes) - 4, 5)]
        kept = tuple(one for one in samples(scrapes) if one.calls.sum() > 0)
        if kept:
            found.append(World(number, kept))
        told(number + 1, config.worlds)
    return found


def _scrapes(folder: Path, seed: int, duration_s: float) -> list[Scrape]:
    place = folder / f"{seed}-{duration_s:.0f}"
    done = place / "done"
    if done.exists():
        with ScrapeLog(place) as log:
            return list(log.read())
    place.mkdir(parents=True, exist_ok=True)
    for stale in place.glob("*.log"):
        stale.unlink()
    path = write_world(place / "world.yaml", seed, duration_s)
    scrapes = play_world(path, seed, 1.0, reports=seed % 3 != 0)
    with ScrapeLog(place) as log:
        for scrape in scrapes:
            log.append(scrape)
    done.touch()
    return scrapes


def disguised(sample: Sample, rng: np.random.Generator) -> Sample:
    """The same calls by other names."""
    order = rng.permutation(METHOD_SLOTS)
    endpoint = sample.matrices.endpoint.copy()
    request_class = sample.matrices.request_class.copy()
    names = [spec.name for spec in ENDPOINT_FEATURES]
    for part in ("kind_ratio", "kind_calls"):
        first = names.index(f"{part}_0")
        block = slice(first, first + METHOD_SLOTS)
        endpoint[:, block] = endpoint[:, block][:, order]
    request_class[:, :METHOD_SLOTS] = request_class[:, :METHOD_SLOTS][:, order]
    place = names.index("zone_match")
    endpoint[:, place] = rng.choice([0.0, 0.5, 1.0], len(endpoint))
    first, last = names.index("region_0"), names.index(f"kind_ratio_{0}")
    if rng.random() < 0.5:
        # A handful of label sets, as zones and kinds of machines have.
        sets = rng.choice([-0.5, 0.0, 0.5], (6, last - first))
        endpoint[:, first:last] = sets[rng.integers(0, 6, len(endpoint))]
    if rng.random() < 0.3:
        endpoint[:, [names.index("utilization"), names.index("utilization_known")]] = 0.0
    headers = [spec.name for spec in CLASS_FEATURES].index("header_0")
    if rng.random() < 0.3:
        shape = request_class[:, headers:].shape
        request_class[:, headers:] = rng.choice([-1.0, 0.0, 0.0, 1.0], shape)
    matrices = replace(sample.matrices, endpoint=endpoint, request_class=request_class)
    return replace(sample, matrices=matrices)


def gain_over(router: Router, worlds: Sequence[World]) -> dict[int, float]:
    """QL(S0) - QL(S) over all calls of each world, nats a call."""
    found = {}
    for world in worlds:
        calls, x_s, table_s, cost_s = [], [], [], []
        for sample in world.samples:
            with torch.no_grad():
                routed = router(**inputs_of(sample))
            seen = sample.calls > 0
            calls.append(sample.calls[seen])
            x_s.append(sample.x_s[seen])
            table_s.append(sample.matrices.table_cost_s[seen].astype(np.float64))
            cost_s.append(routed.cost_s.numpy()[seen].astype(np.float64))
        count, times = np.concatenate(calls), np.concatenate(x_s)
        found[world.seed] = quasi_loss(count, times, np.concatenate(table_s)) - quasi_loss(
            count, times, np.concatenate(cost_s)
        )
    return found


def pretrain(
    worlds: Sequence[World],
    config: PretrainConfig,
    told: Callable[[int, int, float], None] = lambda *_: None,
) -> tuple[Router, list[float]]:
    """Trains on all but the held out worlds. Returns the router and the losses of the steps."""
    trained = [world for world in worlds if world.seed % config.held_out != config.held_out - 1]
    router = Router(RouterConfig(heads=config.heads), seed=config.seed)
    training = Training(
        router, TrainingConfig(seed=config.seed, learning_rate=config.learning_rate)
    )
    rng = np.random.default_rng((config.seed, 7))
    found: list[float] = []
    for step in range(config.steps):
        # A cosine, so that the last steps settle.
        rate = config.learning_rate * (
            0.02 + 0.98 * (1 + math.cos(math.pi * step / config.steps)) / 2
        )
        for group in training.optimiser.param_groups:
            group["lr"] = rate
        batch = []
        for _ in range(config.batch):
            world = trained[int(rng.integers(len(trained)))]
            batch.append(disguised(world.samples[int(rng.integers(len(world.samples)))], rng))
        found.append(training.step(batch))
        told(step + 1, config.steps, found[-1])
    return router, found
