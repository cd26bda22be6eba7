"""The scenario of swaps: which calls count as during one, and what is compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness.errors import BenchmarkError
from benchmarks.scenarios.swap import Rounds, started_calls


def test_calls_are_split_by_when_they_began() -> None:
    rounds = Rounds()
    rounds.add([(0.0, 10.0), (1.0, 20.0), (2.0, 30.0), (3.5, 40.0)], 1.0, 2.0)
    assert (rounds.control, rounds.swap) == ([[10.0, 40.0]], [[20.0, 30.0]])
    assert rounds.p99s_us([0]) == (40.0, 30.0)
    assert rounds.interval() == (0.75, 0.75)
    with pytest.raises(BenchmarkError, match="a round has 0 calls in its swap and 1 outside"):
        rounds.add([(0.0, 10.0)], 1.0, 2.0)


def test_the_log_says_when_a_call_began_and_what_it_took(tmp_path: Path) -> None:
    log = tmp_path / "calls.log"
    log.write_text("1700000000500000\t200\t150\n1700000001000000\t-1\t9\n")
    assert started_calls(log) == [(1700000000.5, 150.0)]
