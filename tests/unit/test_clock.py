"""Both clocks behave alike."""

from __future__ import annotations

import pytest

from attnroute.clock import Clock, ManualClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_time_does_not_go_back(clock: Clock) -> None:
    first = clock.now_s()
    assert clock.now_s() >= first
    assert clock.wall_s() > 1_600_000_000


def test_manual_time_moves_only_when_told_to() -> None:
    clock = ManualClock(now_s=5.0, wall_s=100.0)
    clock.advance(2.5)
    assert (clock.now_s(), clock.wall_s()) == (7.5, 102.5)


def test_manual_time_refuses_to_go_back() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        ManualClock().advance(-1)
