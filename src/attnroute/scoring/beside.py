"""A scorer beside the control thread: what takes long holds up no tick.

A run is waited for as long as the budget says. One that takes longer goes on and serves the next
time; none is begun until it is over, and meanwhile the last finished one serves, up to 30 s. What
was said of other classes and endpoints is carried over by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute.scoring.base import Scored, Scorer, ScorerInfo, ScoringInput
from attnroute.scoring.worker import Run, ScoringWorker

__all__ = ["OVERTIME_S", "RESULT_AGE_MAX_S", "BesideScorer"]

RESULT_AGE_MAX_S = 30.0
"""How long the last finished run serves while newer ones are not there."""

OVERTIME_S = 1.0
"""A run that takes longer has missed the next tick."""


@dataclass(frozen=True)
class _Result:
    """What a run said, by name."""

    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    scored: Scored
    began_s: float
    took_s: float


class BesideScorer:
    """A scorer on a worker's thread (attnroute.scoring.base.Scorer).

    budget_s: how long a run is waited for. now_s: monotonic.
    """

    def __init__(
        self,
        scorer: Scorer,
        worker: ScoringWorker,
        *,
        budget_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scorer = scorer
        self.runs = 0
        self.skipped = 0
        """Runs that were not begun because one before was not over."""
        self.late = 0
        """Runs that were not waited for to the end."""
        self.slow_in_a_row = 0
        """Ticks at which a run was not over yet, or took longer than a tick."""
        self.took_s = 0.0
        """Seconds that all finished runs took."""
        self._worker = worker
        self._budget_s = budget_s
        self._now_s = now_s
        self._pending: Run[_Result] | None = None
        self._last: _Result | None = None

    @property
    def info(self) -> ScorerInfo:
        """Of the scorer."""
        return self.scorer.info

    def score(self, given: ScoringInput) -> Scored:
        """attnroute.scoring.base.Scorer. Without a finished run that is young enough: the table's
        values, with no confidence. Raises what the scorer raised."""
        if given.table_cost_s.size == 0:
            return _nothing(given)
        self._finish(0.0)
        if self._pending is None:
            self._begin(given)
        else:
            self.skipped += 1
            self.slow_in_a_row += 1
        last = self._last
        if last is None or self._now_s() - last.began_s > RESULT_AGE_MAX_S:
            return _nothing(given)
        if last.classes == tuple(given.classes) and last.endpoints == tuple(given.endpoints):
            return last.scored
        return _carried(last, given)

    def _begin(self, given: ScoringInput) -> None:
        began_s = self._now_s()

        def run() -> _Result:
            since_s = time.perf_counter()
            scored = self.scorer.score(given)
            took_s = time.perf_counter() - since_s
            return _Result(tuple(given.classes), tuple(given.endpoints), scored, began_s, took_s)

        self._pending = self._worker.begin(run)
        if self._pending is None:  # another service's run takes long
            self.skipped += 1
        elif not self._finish(self._budget_s):
            self.late += 1

    def _finish(self, timeout_s: float) -> bool:
        """Takes what the pending run said; True if it is over. Raises what it raised."""
        pending = self._pending
        if pending is None or not pending.wait(timeout_s):
            return False
        self._pending = None
        self._last = None  # what was said before a fault is not relied on either
        self._last = last = pending.result()
        self.runs += 1
        self.took_s += last.took_s
        self.slow_in_a_row = self.slow_in_a_row + 1 if last.took_s > OVERTIME_S else 0
        return True


def _nothing(given: ScoringInput) -> Scored:
    shape = given.table_cost_s.shape
    even = np.full(shape, 1.0 / max(1, shape[1]))
    return Scored(given.table_cost_s, even, np.ones(shape), np.zeros(shape))


def _carried(last: _Result, given: ScoringInput) -> Scored:
    """The last result for other classes and endpoints: what it does not know has no confidence."""
    rows = _places(last.classes, tuple(given.classes))
    columns = _places(last.endpoints, tuple(given.endpoints))
    known = (rows >= 0)[:, None] & (columns >= 0)[None, :]
    at = np.ix_(rows, columns)
    nothing = _nothing(given)

    def carried(name: str) -> npt.NDArray[np.float64]:
        had = np.asarray(getattr(last.scored, name))
        if had.shape != (len(last.classes), len(last.endpoints)) or had.size == 0:
            return np.asarray(getattr(nothing, name))
        return np.asarray(np.where(known, had[at], getattr(nothing, name)))

    return Scored(*(carried(name) for name in ("cost_s", "probability", "spread", "confidence")))


def _places(had: tuple[str, ...], now: tuple[str, ...]) -> npt.NDArray[np.intp]:
    known = {name: place for place, name in enumerate(had)}
    return np.array([known.get(name, -1) for name in now], dtype=np.intp)
