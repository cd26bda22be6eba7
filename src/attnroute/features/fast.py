"""The table's sums with a shorter memory, whatever way they came.

A sidecar has its sums from the trainer and from its own windows, mixed; the trainer has them from
scrapes. What both see is the sums of the table now and a moment ago, and what has come since is the
difference: sums now less sums then, decayed. From it two more sums are kept, `fast` (6 s) and
`recent` (1.5 s). So serving and training cannot come to differ, and the exchange carries nothing
more.

Calls of an interval are taken to be spread over it, so that one interval of five seconds counts as
five of one. Pure: no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from attnroute.features.table import Array, Index, Sums

__all__ = ["FAST_S", "RECENT_S", "FastSums", "spread_weight"]

FAST_S = 6.0
"""Time constant of `fast`."""
RECENT_S = 1.5
"""Time constant of `recent`, the last window or two."""

_WINDOW_S = 1.0
# Less than this is what is left of rounding: sums travel as float32.
_CALLS_MIN = 1e-3


class FastSums:
    """decay_s: time constant of the sums that are looked at."""

    def __init__(self, decay_s: float = 10.0) -> None:
        self.fast = Sums.empty(0, 0)
        """[C, E] and [E] in the order of what was looked at last."""
        self.recent = Sums.empty(0, 0)
        self._before = Sums.empty(0, 0)
        self._decay_s = decay_s
        self._at_s = -math.inf

    def look(self, sums: Sums, now_s: float, restarted: Sequence[int] = ()) -> None:
        """Takes in the table's sums as they are now; classes and endpoints that are new stand
        behind those that were there. restarted: endpoints whose sums began anew."""
        for held in (self.fast, self.recent, self._before):
            _grow(held, sums.den.shape)
            for endpoint in restarted:
                held.forget_endpoint(endpoint)
        passed_s = now_s - self._at_s
        if passed_s <= 0:
            return
        if math.isinf(passed_s):
            # As much as the shorter memory would hold of a steady stream.
            self.fast = _scaled(sums, FAST_S / self._decay_s)
            self.recent = _scaled(sums, RECENT_S / self._decay_s)
        else:
            self._add(sums, passed_s)
        self._before, self._at_s = _scaled(sums, 1.0), now_s

    def _add(self, sums: Sums, passed_s: float) -> None:
        before = self._before
        before.decay(math.exp(-passed_s / self._decay_s))
        calls = sums.den - before.den
        came = calls > _CALLS_MIN
        endpoint_calls = sums.calls - before.calls
        endpoint_came = endpoint_calls > _CALLS_MIN
        more = Sums(
            np.where(came, sums.num_s - before.num_s, 0.0),
            np.where(came, calls, 0.0),
            np.where(endpoint_came, sums.busy_s - before.busy_s, 0.0),
            np.where(endpoint_came, endpoint_calls, 0.0),
        )
        # It was spread over the interval with the table's memory already.
        spread = spread_weight(passed_s, self._decay_s)
        for held, memory_s in ((self.fast, FAST_S), (self.recent, RECENT_S)):
            held.decay(math.exp(-passed_s / memory_s))
            weight = spread_weight(passed_s, memory_s) / spread
            for into, part in zip(_parts(held), _parts(more), strict=True):
                into += weight * part

    def arrange(self, rows: Index, columns: Index) -> None:
        """Puts classes and endpoints into another order: where each stood, -1 for new ones."""
        for name in ("fast", "recent", "_before"):
            setattr(self, name, _arranged(getattr(self, name), rows, columns))


def spread_weight(passed_s: float, memory_s: float) -> float:
    """What a call of an interval weighs at its end, when calls are spread over it, relative to one
    of an interval of 1 s: mean of e^(-t/memory) over the interval."""

    def mean(length_s: float) -> float:
        return memory_s / length_s * -math.expm1(-length_s / memory_s)

    return mean(passed_s) / mean(_WINDOW_S)


def _parts(sums: Sums) -> tuple[Array, Array, Array, Array]:
    return sums.num_s, sums.den, sums.busy_s, sums.calls


def _grow(sums: Sums, shape: tuple[int, ...]) -> None:
    """Makes room, at the end, without changing what is there."""
    rows = max(shape[0] - sums.den.shape[0], 0)
    columns = max(shape[1] - sums.den.shape[1], 0)
    if rows or columns:
        sums.num_s = np.pad(sums.num_s, ((0, rows), (0, columns)))
        sums.den = np.pad(sums.den, ((0, rows), (0, columns)))
        sums.busy_s = np.pad(sums.busy_s, (0, columns))
        sums.calls = np.pad(sums.calls, (0, columns))


def _scaled(sums: Sums, factor: float) -> Sums:
    return Sums(*(factor * part for part in _parts(sums)))


def _arranged(sums: Sums, rows: Index, columns: Index) -> Sums:
    fresh = Sums.empty(len(rows), len(columns))
    # Names that came since the last look have nothing yet.
    row = np.flatnonzero((rows >= 0) & (rows < sums.den.shape[0]))
    column = np.flatnonzero((columns >= 0) & (columns < sums.den.shape[1]))
    here, there = np.ix_(row, column), np.ix_(rows[row], columns[column])
    fresh.num_s[here], fresh.den[here] = sums.num_s[there], sums.den[there]
    fresh.busy_s[column] = sums.busy_s[columns[column]]
    fresh.calls[column] = sums.calls[columns[column]]
    return fresh
