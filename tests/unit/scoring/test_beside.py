"""A scorer beside the control thread: what a slow one costs."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support import models
from tests.support.facts import CLASSES, facts
from tests.support.wait import patience_s
from tests.unit.scoring.test_attention import given

from attnroute.clock import ManualClock
from attnroute.scoring.attention import AttentionScorer, Model
from attnroute.scoring.beside import RESULT_AGE_MAX_S, BesideScorer
from attnroute.scoring.worker import ScoringWorker


class Gate:
    """Holds the runs of a model until it is opened."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)
        self.error: Exception | None = None
        self._score = model.score
        model.score = self._hold  # type: ignore[method-assign]

    def _hold(self, inputs: Any) -> Any:
        self.begun.release()
        assert self.open.wait(patience_s())
        if self.error is not None:
            raise self.error
        return self._score(inputs)


def held() -> tuple[BesideScorer, Gate, ManualClock, ScoringWorker]:
    gate, clock, worker = (
        Gate(Model(models.small_bundle(gain=-1.0))),
        ManualClock(),
        ScoringWorker(),
    )
    scorer = BesideScorer(
        AttentionScorer(gate.model), worker, budget_s=patience_s(), now_s=clock.now_s
    )
    return scorer, gate, clock, worker


def shut(scorer: BesideScorer, gate: Gate) -> None:
    """From now on runs are not waited for, and do not end."""
    gate.open.clear()
    scorer._budget_s = 0.0


def opened(scorer: BesideScorer, gate: Gate) -> None:
    gate.open.set()
    assert scorer._pending is not None
    assert scorer._pending.wait(patience_s())


def test_while_a_run_takes_long_the_last_one_serves_and_none_is_begun() -> None:
    scorer, gate, clock, worker = held()
    known = facts()
    first = scorer.score(given(known))
    shut(scorer, gate)
    other = facts(seed=1)
    for _ in range(4):
        assert scorer.score(given(other)) is first
    assert (scorer.runs, scorer.late, scorer.skipped, scorer.slow_in_a_row) == (1, 1, 3, 3)
    clock.advance(RESULT_AGE_MAX_S + 1)
    old = scorer.score(given(other))
    assert (old.confidence == 0).all()
    np.testing.assert_array_equal(old.cost_s, other.table.cost_s)
    opened(scorer, gate)
    scorer._budget_s = patience_s()
    scorer.score(given(other))
    assert scorer.slow_in_a_row == 0
    assert scorer.runs == 3
    worker.close()


def test_one_service_that_takes_long_does_not_make_another_wait() -> None:
    scorer, gate, _, worker = held()
    shut(scorer, gate)
    known = facts()
    assert (scorer.score(given(known)).confidence == 0).all()  # nothing has been said yet
    other = BesideScorer(
        AttentionScorer(Model(models.small_bundle())), worker, budget_s=patience_s()
    )
    assert (other.score(given(known)).confidence == 0).all()
    assert (other.skipped, other.slow_in_a_row) == (1, 0)
    opened(scorer, gate)
    assert (other.score(given(known)).confidence == 1).all()
    worker.close()


def test_a_run_that_fails_is_told_to_who_asks_next() -> None:
    scorer, gate, _, worker = held()
    gate.error = RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        scorer.score(given(facts()))
    gate.error = None
    assert (scorer.score(given(facts())).confidence == 1).all()
    worker.close()


def test_what_was_said_of_others_is_carried_over_by_name() -> None:
    scorer, gate, _, worker = held()
    known = facts()
    first = scorer.score(given(known))
    shut(scorer, gate)
    fewer = facts(CLASSES[1:], 6)
    renamed = replace(fewer, endpoints=("new:80", *known.endpoints[:5]))
    scored = scorer.score(given(renamed))
    np.testing.assert_array_equal(scored.cost_s[:, 1:], first.cost_s[1:])
    np.testing.assert_array_equal(scored.cost_s[:, 0], renamed.table.cost_s[:, 0])
    assert scored.confidence[0].tolist() == [0, 1, 1, 1, 1, 1]
    opened(scorer, gate)
    worker.close()


def test_no_endpoints_are_no_fault() -> None:
    none = replace(
        given(facts(endpoints=1)), endpoints=(), table_cost_s=np.zeros((len(CLASSES), 0))
    )
    scorer, _, _, worker = held()
    assert scorer.score(none).cost_s.size == 0
    worker.close()
