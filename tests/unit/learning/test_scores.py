"""Published scores through the compiled picker."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnroute.dataplane import Picker, StaleEpochError, classes

MS = 1_000_000
SECOND = 1_000 * MS

Matrix = npt.NDArray[np.float32]


def learner(endpoints: int = 3, methods: tuple[str, ...] = ("/a", "/b"), **balancer: Any) -> Picker:
    config = {
        "name": "cart",
        "authorities": [],
        "balancer": {"type": "learned"} | balancer,
        "request_class": {"message_bytes_buckets": []},
    }
    made = Picker(json.dumps(config).encode(), 7)
    apply_endpoints(made, endpoints)
    for number, method in enumerate(methods, start=1):
        index, _ = made.pick(number * MS, path=method)
        made.finished(index, number * MS + 1, 1, 0)
    assert [each.name for each in classes(made.classes())[1]] == ["other", *methods]
    return made


def apply_endpoints(made: Picker, count: int) -> int:
    rows = [{"address": f"10.0.0.{number + 1}:80"} for number in range(count)]
    return made.apply_endpoints(json.dumps({"endpoints": rows}).encode())


def scores(made: Picker, cost_s: Matrix) -> dict[str, Any]:
    endpoints = cost_s.shape[1]
    return {
        "endpoint_epoch": made.snapshot()[0],
        "class_epoch": made.classes()[0],
        "cost_s": cost_s,
        "table_cost_s": cost_s,
        "spread": np.ones_like(cost_s),
        "probability": np.full_like(cost_s, 1 / endpoints),
        "mean_service_s": np.full(endpoints, 0.02, np.float32),
        "concurrency": np.ones(endpoints, np.float32),
        "sidecars": 1,
        "model": "",
    }


def costs(*rows: list[float]) -> Matrix:
    return np.array(rows, dtype=np.float32)


def test_each_class_goes_where_it_costs_least() -> None:
    made = learner()
    cost_s = costs([0.02, 0.02, 0.02], [0.01, 0.05, 0.05], [0.05, 0.05, 0.01])
    assert made.publish_scores(**scores(made, cost_s)) == 1
    assert made.publish_scores(**scores(made, cost_s), now_ns=SECOND) == 2
    assert made.pick(SECOND, path="/a") == (0, "no_reports")
    assert made.pick(SECOND, path="/b") == (2, "no_reports")
    assert made.pick(200 * SECOND, path="/b")[1] == "fallback_expired"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cost_s": np.zeros((3, 2), np.float32)}, "`table_cost_s` is of shape [3, 3]"),
        ({"spread": np.ones((3, 3), np.float64)}, "`spread` is no such array"),
        ({"spread": "text"}, "`spread` is no such array"),
        ({"probability": np.ones((3, 3), np.float32)}, "row 0 of `probability` sums to 3"),
        ({"probability": np.full((3, 3), np.nan, np.float32)}, "`probability` has NaN at 0"),
        ({"cost_s": np.full((3, 3), -1, np.float32)}, "`cost_s` has -1 at 0"),
        ({"table_cost_s": np.full((3, 3), np.inf, np.float32)}, "`table_cost_s` has inf at 0"),
        ({"mean_service_s": np.ones(4, np.float32)}, "`mean_service_s` is of shape [4]"),
        ({"concurrency": np.zeros(3, np.float32)}, "`concurrency` has 0 at 0"),
        ({"spread": np.asfortranarray(np.eye(3, dtype=np.float32)[:, ::-1])}, "not contiguous"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    made = learner()
    with pytest.raises(ValueError, match=r"^`|^row") as refused:
        made.publish_scores(**scores(made, np.full((3, 3), 0.02, np.float32)) | changes)
    assert message in str(refused.value)
    assert made.pick(SECOND, path="/a")[1] == "no_reports"


def test_scores_for_what_is_gone_leave_those_before() -> None:
    made = learner()
    cost_s = costs([0.02, 0.02, 0.02], [0.01, 0.05, 0.05], [0.05, 0.05, 0.01])
    made.publish_scores(**scores(made, cost_s))
    late = scores(made, cost_s)
    apply_endpoints(made, 4)
    with pytest.raises(StaleEpochError, match="endpoint epoch is 2, the scores are for 1"):
        made.publish_scores(**late)
    assert made.pick(SECOND, path="/b")[0] == 2
    late = scores(made, np.full((3, 4), 0.02, np.float32))
    index, _ = made.pick(SECOND, path="/c")
    made.finished(index, SECOND + 1, 1, 0)
    with pytest.raises(StaleEpochError, match="class epoch"):
        made.publish_scores(**late)


def test_what_is_missing_is_named() -> None:
    made = learner()
    incomplete = scores(made, np.full((3, 3), 0.02, np.float32))
    del incomplete["model"]
    with pytest.raises(Exception, match="model"):
        made.publish_scores(**incomplete)


@pytest.mark.parametrize(
    "balancer",
    [
        {"fallback": {"type": "learned"}},
        {"candidates": 0},
        {"candidates": 65},
        {"holdout": 1.5},
        {"queue_factor": -1},
        {"ratio_decay_ms": 0},
        {"scores_stale_after_ms": 5_000, "fallback_after_ms": 4_000},
    ],
)
def test_a_wrong_configuration_is_refused(balancer: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="balancer"):
        learner(**balancer)
