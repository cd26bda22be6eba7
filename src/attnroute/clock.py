"""Time as an argument: whatever decides by time takes a `Clock`, so that a test can turn it.

Two readings, because they answer different questions: `now_s` measures intervals and never goes
back, `wall_s` says when something happened and may jump when the machine's clock is set.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Source of time."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary origin."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class ManualClock:
    """Stands still until it is told otherwise."""

    def __init__(self, *, now_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._wall_s

    def advance(self, seconds: float) -> None:
        """Moves both readings on. Raises ValueError for a negative step: time does not go back."""
        if seconds < 0:
            raise ValueError(f"cannot advance by `{seconds}` s, expected 0 or more")
        self._now_s += seconds
        self._wall_s += seconds
