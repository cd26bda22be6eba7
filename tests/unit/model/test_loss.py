"""Each term of the loss by hand, and what its gradient must not touch."""

from __future__ import annotations

import math

import pytest
import torch

from attnroute.features.window import BUCKETS
from attnroute.model.loss import (
    Target,
    attention_loss,
    histogram_loss,
    losses,
    mean_loss,
    queue_lengths,
)
from attnroute.model.network import Routed
from attnroute.telemetry.training import BOUNDS_S


def routed(cost_s: list[list[float]], probability: list[list[float]]) -> Routed:
    cost = torch.tensor(cost_s, requires_grad=True)
    zero = torch.zeros_like(cost)
    return Routed(
        cost, zero + 1, torch.tensor(probability, requires_grad=True), zero + 2, zero, zero
    )


def target(calls: list[list[float]], x_s: list[list[float]], rate: list[float]) -> Target:
    size = len(calls[0])
    return Target(
        calls=torch.tensor(calls),
        x_s=torch.tensor(x_s),
        buckets=torch.zeros(len(calls), BUCKETS),
        wait_s=torch.zeros(size),
        rtt_s=torch.zeros(size),
        rate=torch.tensor(rate),
        concurrency=torch.ones(size),
        mean_s=0.02,
    )


def test_the_mean_by_hand() -> None:
    given = target([[2.0, 1.0]], [[0.06, 0.05]], [1.0])
    found = mean_loss(torch.tensor([[0.02, 0.04]]), given)
    # 0.06/0.02 + 2 ln 1 + 0.05/0.04 + ln 2 over three calls and one.
    assert found.item() == pytest.approx((3 + 1.25 + math.log(2)) / 4)


def test_the_mean_is_least_at_the_mean() -> None:
    given = target([[4.0]], [[0.12]], [1.0])
    at = {cost: mean_loss(torch.tensor([[cost]]), given).item() for cost in (0.025, 0.03, 0.036)}
    assert min(at, key=lambda cost: at[cost]) == 0.03


def test_the_histogram_by_hand() -> None:
    """Two endpoints of one class, three calls to one: the class's shares are theirs by calls."""
    given = target([[3.0, 1.0]], [[0.06, 0.04]], [1.0])
    bucket = next(place for place, bound in enumerate(BOUNDS_S) if bound > 0.02)
    given.buckets[0, bucket] = 4.0

    def inside(mean_s: float) -> float:
        def below(bound: float) -> float:
            middle = math.log(mean_s) - 0.5
            return 0.5 * (1 + math.erf((math.log(bound) - middle) / math.sqrt(2)))

        return below(BOUNDS_S[bucket]) - below(BOUNDS_S[bucket - 1])

    expected = -math.log(0.75 * inside(0.02) + 0.25 * inside(0.04))
    found = histogram_loss(routed([[0.02, 0.04]], [[0.5, 0.5]]), given)
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_a_bucket_that_cannot_be_costs_no_more_than_its_floor() -> None:
    given = target([[1.0]], [[0.02]], [1.0])
    given.buckets[0, 0] = 1.0
    found = histogram_loss(routed([[100.0]], [[1.0]]), given)
    assert found.item() == pytest.approx(-math.log(1e-5), rel=1e-4)


def test_without_buckets_there_is_no_histogram() -> None:
    assert histogram_loss(routed([[0.02]], [[1.0]]), target([[1.0]], [[0.02]], [1.0])).item() == 0


def test_queues_by_hand() -> None:
    found = queue_lengths(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([1.0, 7.0, 1.0]))
    # r^2/(1 - r); 7 r^4/(1 - r); 0.95^2/0.05 and 60 for each call too many.
    expected = [0.5, 7 * 0.5**4 / 0.5, 0.95**2 / 0.05 + 60 * 0.05]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_attention_by_hand() -> None:
    given = target([[1.0, 1.0]], [[0.02, 0.02]], [10.0])
    found = attention_loss(routed([[0.02, 0.02]], [[0.5, 0.5]]), given)
    # Load 0.1 each: 0.2 calls in service, 2 * 0.6 * 0.01/0.9 waiting, over 0.02 s * 10/s.
    spent = (0.2 + 0.6 * 2 * 0.01 / 0.9) / 0.2
    assert found.item() == pytest.approx(spent - 0.02 * math.log(2), rel=1e-5)


def test_an_uneven_load_costs() -> None:
    given = target([[1.0, 1.0]], [[0.02, 0.02]], [1.0])
    even = attention_loss(routed([[0.02, 0.02]], [[0.5, 0.5]]), given)
    uneven = attention_loss(routed([[0.02, 0.02]], [[0.9, 0.1]]), given)
    # Shares of the load 0.9 and 0.1: 0.01 * 2 * 0.16, and less entropy.
    assert uneven.item() > even.item() + 0.0032


def test_the_attention_bends_no_cost() -> None:
    answer = routed([[0.02, 0.04]], [[0.5, 0.5]])
    torch.autograd.backward(attention_loss(answer, target([[1.0, 1.0]], [[0.1, 0.1]], [1.0])))
    assert answer.cost_s.grad is None
    assert answer.probability.grad is not None


def test_all_terms_add_up_and_no_calls_are_no_nan() -> None:
    answer = routed([[0.02, 0.04]], [[0.5, 0.5]])
    found = losses(answer, target([[2.0, 1.0]], [[0.06, 0.05]], [1.0]))
    parts = (found.mean, found.histogram, found.correction, found.attention)
    assert found.total.item() == pytest.approx(sum(part.item() for part in parts))
    assert found.correction.item() == pytest.approx(1e-3 * 4)
    nothing = losses(answer, target([[0.0, 0.0]], [[0.0, 0.0]], [0.0]))
    assert math.isfinite(nothing.total.item())
