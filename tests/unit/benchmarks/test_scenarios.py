"""The verdicts of the scenarios, and what they read."""

from __future__ import annotations

import math

from benchmarks.harness.stats import paired_ratio
from benchmarks.scenarios.held_memory import REQUEST, request
from benchmarks.scenarios.junk_methods import limit_hits
from benchmarks.scenarios.learned_cost import is_above
from benchmarks.scenarios.slow_reader import GROWTH_MAX_BYTES, misses


def above(learned: list[float]) -> bool:
    ratio = paired_ratio(dict(enumerate(learned)), dict.fromkeys(range(len(learned)), 10.0))
    assert ratio is not None
    return is_above(ratio)


def test_a_ratio_is_above_only_where_the_rounds_show_it() -> None:
    assert above([11.0, 11.1, 10.9])
    assert not above([10.3, 10.4, 10.5])
    assert not above([9.0, 13.0, 11.0]), "these rounds show nothing"
    assert not above([20.0]), "one round shows nothing"


def test_a_slow_reader_may_cost_memory_and_time_up_to_the_targets() -> None:
    assert not misses(1e6, 1.1, 0.2)
    assert misses(GROWTH_MAX_BYTES, 1.1, 0.2)
    assert misses(1e6, 2.5, 0.3)
    assert not misses(1e6, 2.5, 0.6)
    assert not misses(1e6, 1.9, math.nan)


def test_hits_of_the_limit_of_classes_are_found_on_the_metrics_page() -> None:
    page = (
        'attnroute_limit_hits_total{limit="max_inflight"} 3\n'
        'attnroute_limit_hits_total{limit="max_classes"} 41\n'
    )
    assert limit_hits(page) == 41
    assert limit_hits("") == 0


def test_a_request_names_its_path() -> None:
    assert b"/a.B/C" in request("/a.B/C")
    assert request("/bench.Echo/Call") == REQUEST
