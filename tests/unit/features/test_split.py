"""The fluid split: a step by hand, the best split where it is known, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnroute.features.split import (
    FleetSplit,
    SplitParameters,
    over,
    queue_slope,
    solve,
)
from attnroute.features.table import Array
from attnroute.features.window import Split

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "split.json"
EXAMPLES = json.loads(GOLDEN.read_text())["examples"]


def uniform(zones: int, classes: int, endpoints: int) -> Array:
    return np.full((zones, classes, endpoints), 1.0 / endpoints)


def cost(split: Array, calls: Array, service_s: Array, rtt_s: Array, concurrency: Array) -> float:
    """What the split is to make least, written down another way."""
    zones, classes, endpoints = split.shape
    time, load = 0.0, [0.0] * endpoints
    for z in range(zones):
        for k in range(classes):
            for i in range(endpoints):
                flow = calls[z, k] * split[z, k, i]
                time += flow * (rtt_s[z, i] + service_s[k, i])
                load[i] += flow * service_s[k, i] / concurrency[i]
    queues = 0.0
    for i in range(endpoints):
        r, e = min(max(load[i], 1e-4), 0.97), (2 * (concurrency[i] + 1)) ** 0.5
        queues += r**e / (1 - r)
    return time + 0.6 * queues


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one["name"])
def test_worked_examples(example: dict[str, Any]) -> None:
    given = {key: np.array(value) for key, value in example["inputs"].items()}
    iterations = int(given.pop("iterations"))
    found = solve(**given, parameters=SplitParameters(iterations=iterations))
    np.testing.assert_allclose(found, example["expected"], atol=1e-6)


def test_the_slope_of_a_queue_is_its_derivative() -> None:
    load, c, by = np.array([0.2, 0.7, 0.9]), np.array([1.0, 2.0, 8.0]), 1e-6

    def queue(r: Array) -> Array:
        return np.asarray(r ** np.sqrt(2 * (c + 1)) / (1 - r))

    numeric = (queue(load + by) - queue(load - by)) / (2 * by)
    np.testing.assert_allclose(queue_slope(load, c, SplitParameters()), numeric, rtol=1e-5)


def test_an_overloaded_endpoint_has_the_slope_of_the_most_loaded_one() -> None:
    c, p = np.ones(2), SplitParameters()
    found = queue_slope(np.array([0.97, 40.0]), c, p)
    assert np.isfinite(found).all()
    assert found[0] == found[1] > 1_000


def test_no_other_split_nearby_is_better() -> None:
    rng = np.random.default_rng(3)
    service_s = rng.gamma(2.0, 0.01, (4, 5))
    rtt_s = np.array([[0.0, 0.0, 0.01, 0.01, 0.002], [0.01, 0.01, 0.0, 0.0, 0.002]])
    concurrency = np.array([1.0, 2.0, 2.0, 4.0, 1.0])
    calls = np.array([[30.0, 10.0, 5.0, 40.0], [5.0, 20.0, 40.0, 5.0]])
    begun = uniform(2, 4, 5)
    split = begun
    for _ in range(8):  # as in 8 seconds that are alike
        split = solve(calls, service_s, rtt_s, concurrency, split)
    np.testing.assert_allclose(split.sum(axis=-1), 1.0)
    # Each solution keeps a tenth of what is uniform at its start, so it is near, not at, the best.
    best = cost(split, calls, service_s, rtt_s, concurrency)
    assert best < 0.9 * cost(begun, calls, service_s, rtt_s, concurrency)
    for _ in range(200):
        other = split * np.exp(0.3 * rng.normal(size=split.shape))
        other /= other.sum(axis=-1, keepdims=True)
        assert cost(other, calls, service_s, rtt_s, concurrency) > 0.995 * best


def test_what_everybody_does_well_is_left_to_who_needs_it() -> None:
    # Both classes are fastest on the first endpoint; only the second suffers much elsewhere.
    service_s = np.array([[0.02, 0.021], [0.02, 0.08]])
    split = solve(
        np.array([[40.0, 20.0]]), service_s, np.zeros((1, 2)), np.ones(2), uniform(1, 2, 2)
    )
    assert split[0, 1, 0] > 0.95
    assert split[0, 0, 1] > 0.6


def test_zones_share_endpoints_and_keep_to_near_ones() -> None:
    split = solve(
        np.array([[20.0], [20.0]]),
        np.full((1, 2), 0.02),
        np.array([[0.0, 0.02], [0.02, 0.0]]),
        np.ones(2),
        uniform(2, 1, 2),
    )
    assert split[0, 0, 0] > 0.9
    assert split[1, 0, 1] > 0.9


def tick(fleet: FleetSplit, service_s: Array, endpoints: tuple[str, ...] = ("a", "b")) -> None:
    size = len(endpoints)
    fleet.tick(
        1.0,
        {"K": 0, "L": 1},
        endpoints,
        service_s[:, :size],
        np.ones(size),
        lambda _zone: np.full(size, np.nan),
    )


def test_a_zone_has_the_classes_that_anybody_calls() -> None:
    fleet = FleetSplit()
    service_s = np.array([[0.01, 0.04], [0.01, 0.01]])
    fleet.count("x", ("K",), np.array([10.0]))
    fleet.count("y", ("L", "M"), np.array([10.0, 0.0]))
    tick(fleet, service_s)
    for zone in ("x", "y"):
        split = fleet.of_zone(zone)
        assert split is not None
        assert (split.classes, split.endpoints) == (("K", "L"), ("a", "b"))
        np.testing.assert_allclose(split.probability.sum(axis=1), 1.0)
    assert fleet.of_zone("z") is None


def test_rates_halve_in_five_seconds_and_end() -> None:
    fleet = FleetSplit()
    service_s = np.full((2, 2), 0.01)
    fleet.count("x", ("K",), np.array([64.0]))
    tick(fleet, service_s)
    for _ in range(5):
        tick(fleet, service_s)
    assert fleet._rates["x"]["K"] == pytest.approx(32.0)
    for _ in range(100):
        tick(fleet, service_s)
    assert fleet.of_zone("x") is None


def test_an_endpoint_that_comes_or_goes_keeps_the_rest() -> None:
    fleet = FleetSplit()
    service_s = np.array([[0.01, 0.02, 0.02], [0.01, 0.01, 0.01]])
    for endpoints in (("a", "b"), ("a", "b", "c"), ("a", "c"), ()):
        fleet.count("x", ("K", "L"), np.array([10.0, 5.0]))
        tick(fleet, service_s, endpoints)
        split = fleet.of_zone("x")
        if not endpoints:
            assert split is None
            continue
        assert split is not None
        assert split.endpoints == endpoints
        assert np.isfinite(split.probability).all()
        np.testing.assert_allclose(split.probability.sum(axis=1), 1.0)


def test_a_split_over_what_a_sidecar_has() -> None:
    split = Split(("K", "bad"), ("a", "b", "gone"), np.array([[0.6, 0.2, 0.2], [np.nan] * 3]))
    instead = np.array([[0.25, 0.25, 0.5, 0.0]] * 3)
    found = over(split, ("K", "bad", "new"), ("a", "new", "b", "unusable"), instead)
    # The endpoint that the split lacks keeps its quarter; the rest is 0.6 to 0.2.
    np.testing.assert_allclose(found[0], [0.75 * 0.75, 0.25, 0.75 * 0.25, 0.0])
    np.testing.assert_allclose(found[1:], instead[1:])


def test_a_split_that_gives_all_to_who_is_not_usable_says_nothing() -> None:
    split = Split(("K",), ("a", "b"), np.array([[1.0, 0.0]]))
    found = over(split, ("K",), ("a", "b"), np.array([[0.0, 1.0]]))
    np.testing.assert_allclose(found, [[0.0, 1.0]])
