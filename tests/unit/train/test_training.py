"""The loop: it learns, the same from the same seed, and goes on where it was killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.scrapes import scrape

from attnroute.features.table import Sums
from attnroute.model.network import Router
from attnroute.train.gates import (
    CandidateLimits,
    Health,
    HealthLimits,
    HealthWatch,
    refusal,
)
from attnroute.train.replay import Replay, Sample, samples
from attnroute.train.trainer import StateError, Training, TrainingConfig

SHORT = TrainingConfig(steps=3)


def some(count: int, seed: int = 0) -> list[Sample]:
    return list(samples(scrape(number, seed=seed) for number in range(count + 1)))


def weights(training: Training) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in training.router.parameters()])


def test_a_sample_has_what_came_next() -> None:
    first, second = scrape(0), scrape(1)
    (sample,) = samples([first, second])
    assert sample.calls.sum() == second.cells.calls.sum()
    assert sample.x_s.sum() == pytest.approx(second.cells.service_s.sum())
    assert sample.buckets.sum() == second.buckets.sum()
    assert sample.rate == pytest.approx(
        np.bincount(first.cells.request_class, first.cells.calls) / 5.0
    )
    assert sample.concurrency.tolist() == [2.0] * 6


def test_a_restarted_endpoint_is_unknown_again() -> None:
    replay = Replay()
    for number in range(4):
        before, _ = replay.take(scrape(number, started_s=1.0))
    after, _ = replay.take(scrape(4, started_s=2.0, calls=0.0))
    assert isinstance(after.sums, Sums)
    assert before.sums.den.sum() > 0
    assert after.sums.den.sum() == 0
    assert after.age_s.tolist() == [0.0] * 6


def test_names_that_are_gone_are_forgotten_and_nothing_moves() -> None:
    replay = Replay()
    for number in range(130):
        facts, _ = replay.take(scrape(number, endpoints=6 if number < 10 else 4))
    assert facts.endpoints == tuple(f"10.0.0.{one}:80" for one in range(4))
    odd = [name.endswith(("1", "3", "5")) for name in facts.classes]
    # Odd methods are slow on the second half, whatever has been dropped in between.
    slow = facts.table.cost_s[:, 2:].mean(axis=1) > facts.table.cost_s[:, :2].mean(axis=1)
    assert slow.tolist() == odd


def test_training_beats_the_table_where_calls_are_few() -> None:
    """Six methods of two sorts, rarely called: what one shows holds for the others."""
    training = Training(Router(seed=1), TrainingConfig(steps=10))
    gains = [training.cycle(sample).gain for sample in some(40)]
    assert gains[0] == pytest.approx(0.0, abs=1e-6), "it starts as the table"
    assert np.mean(gains[-15:]) > 0.005, gains


def test_the_same_seed_gives_the_same_network() -> None:
    found = []
    for seed in (0, 0, 1):
        training = Training(Router(seed=seed), TrainingConfig(seed=seed, steps=3))
        for sample in some(4):
            training.cycle(sample)
        found.append(weights(training))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    data, state = some(8), tmp_path / "state.pt"
    straight = Training(Router(), SHORT)
    for sample in data:
        straight.cycle(sample)
    killed = Training(Router(), SHORT)
    for sample in data[:5]:
        killed.cycle(sample)
    killed.save(state)
    resumed = Training.load(state, SHORT)
    for sample in data[:5]:
        resumed.remember(sample)
    cycles = [resumed.cycle(sample) for sample in data[5:]]
    assert torch.equal(weights(resumed), weights(straight))
    assert resumed.gate.gd == straight.gate.gd
    assert cycles[-1].number == 8
    assert list(tmp_path.iterdir()) == [state]


def test_a_state_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    Training(Router(), SHORT).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StateError, match="no whole state of a training"):
        Training.load(path)


def test_a_state_of_other_features_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    Training(Router(), SHORT).save(path)
    state = torch.load(path, weights_only=True)
    torch.save({**state, "schema": "old"}, path)
    with pytest.raises(StateError, match="made for the features `old`"):
        Training.load(path)


def test_temperature_falls_to_its_floor() -> None:
    training = Training(Router(), TrainingConfig(steps=0, temperature_decay=0.5))
    (sample,) = some(1)
    found = []
    for _ in range(3):
        training.cycle(sample)
        found.append(float(training.router.score.temperature))
    assert found == [0.5, 0.5, 0.5]


def test_health_by_hand() -> None:
    health = Health.of(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([3.0, 1.0]))
    # Usage 0.875 and 0.125, in halves; the second class alone has entropy.
    assert health.usage == pytest.approx((1.75, 0.25))
    assert health.usage_min == pytest.approx(0.25)
    assert health.usage_deviation == pytest.approx(0.75)
    assert health.entropy == pytest.approx(0.25)


def test_a_collapse_has_to_last() -> None:
    watch = HealthWatch(HealthLimits(scrapes=3))
    bad, good = Health(0.0, 0.0, 1.0), Health(1.0, 0.0, 1.0)
    assert [watch.observe(one) for one in (bad, bad, good, bad, bad, bad, bad)] == [
        False, False, False, False, False, True, True,
    ]  # fmt: skip


def test_a_collapsed_routing_is_pulled_apart() -> None:
    """Everything to one endpoint; after some cycles of re-balancing it is shared out again."""
    data = some(12)
    router = Router()
    with torch.no_grad():
        router.encode_endpoints.value.weight.zero_()
        router.encode_endpoints.value.weight[0, :] = 3.0
        router.score.route[router.config.heads] = 40.0
    limits = HealthLimits(usage_min=0.2, scrapes=2)
    training = Training(router, TrainingConfig(steps=10, health=limits, learning_rate=2e-2))
    cycles = [training.cycle(sample) for sample in data]
    assert cycles[0].health.usage_min < 0.2
    assert training.rebalancings > 0
    assert cycles[-1].health.usage_min > 0.15


@pytest.mark.parametrize(
    ("gains", "parity", "health", "reason"),
    [
        ([0.01, 0.01, 0.01], 1e-6, Health(0.5, 0.1, 0.9), ""),
        ([0.01, float("nan")], 1e-6, Health(0.5, 0.1, 0.9), "judged on 1 scrapes, at least 3"),
        ([-0.5, 0.01, 0.01, 0.01], 1e-6, Health(0.5, 0.1, 0.9), ""),
        ([0.3, -0.02, 0.01], 1e-6, Health(0.5, 0.1, 0.9), "lost 0.0200 a call"),
        ([-0.005, -0.001, 0.001], 1e-6, Health(0.5, 0.1, 0.9), "gains -0.00167"),
        ([0.01] * 3, 1e-3, Health(0.5, 0.1, 0.9), "1.0e-03 away from torch"),
        ([0.01] * 3, float("nan"), Health(0.5, 0.1, 0.9), "away from torch"),
        ([0.01] * 3, 1e-6, Health(0.0, 0.1, 0.9), "collapsed onto few endpoints"),
    ],
)
def test_what_a_candidate_has_to_pass(
    gains: list[float], parity: float, health: Health, reason: str
) -> None:
    found = refusal(gains, parity, health, CandidateLimits(), HealthLimits())
    assert (reason in found) if reason else (found == "")
