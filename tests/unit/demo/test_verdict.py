"""When the demo says that `learned` won."""

from __future__ import annotations

import pytest

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.messages import Sample
from attnroute.demo.plan import make_plan
from attnroute.demo.results import Results
from attnroute.demo.verdict import shortfalls
from attnroute.demo.world import WORLDS

PLAN = make_plan(90.0, BALANCERS)


def played(latency_s: dict[str, tuple[float, float]]) -> Results:
    """Fifty calls of each balancer, 49 of one latency and one of another."""
    results = Results(WORLDS["mixed"], PLAN, BALANCERS)
    for turn in PLAN.slices[: len(BALANCERS)]:
        usual_s, worst_s = latency_s[turn.balancer.key]
        results.add(
            Sample(
                order=turn.number, offset_s=PLAN.settle_s + 0.1 + index / 100, lateness_s=0.0,
                latency_s=worst_s if index == 0 else usual_s, status=0, endpoint=0, wait_s=0.0,
                service_s=usual_s,
            )
            for index in range(50)
        )  # fmt: skip
    return results


SLOW = {"round_robin": (0.2, 0.9), "least_request_2": (0.05, 0.1), "least_request_all": (0.1, 0.3)}


def test_faster_in_mean_and_tail_than_both() -> None:
    assert shortfalls(played(SLOW | {"learned": (0.08, 0.2)})) == ()


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        ((0.08, 0.35), ["`least_request (all)`: p99 350.0 ms against 300.0 ms"]),
        ((0.11, 0.2), ["`least_request (all)`: mean"]),
        ((0.1, 0.3), ["mean", "p99 300.0 ms against 300.0 ms"]),
        ((0.3, 1.0), ["round_robin`: mean", "round_robin`: p99", "(all)`: mean", "(all)`: p99"]),
    ],
)
def test_what_was_not_won_is_said(learned: tuple[float, float], words: list[str]) -> None:
    found = shortfalls(played(SLOW | {"learned": learned}))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True)), found


def test_without_calls_nothing_is_won() -> None:
    assert len(shortfalls(Results(WORLDS["mixed"], PLAN, BALANCERS))) == 4
