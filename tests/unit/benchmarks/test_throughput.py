"""Bodies, ratios and the verdict of the throughput scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness.h2load import FRAME
from benchmarks.scenarios.throughput import (
    KINDS,
    MIB,
    OWN,
    Kind,
    Sample,
    bodies,
    exchange,
    is_short,
    summary,
)


def samples(own: list[float], envoy: list[float], nginx: list[float]) -> list[Sample]:
    rates = {OWN: own, "envoy": envoy, "nginx": nginx, "direct": [9e9] * len(own)}
    return [
        Sample(number, peer, "unary", rate, 1.0)
        for peer, by_round in rates.items()
        for number, rate in enumerate(by_round)
    ]


def test_a_body_is_whole_messages(tmp_path: Path) -> None:
    kind = Kind("two", 3, 2, 1, 1)
    kind.write(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == b"\0\0\0\0\3\0\0\0" * 2
    assert kind.body_bytes == 16


def test_the_large_body_goes_the_way_that_is_measured(tmp_path: Path) -> None:
    htdocs = bodies(tmp_path / "htdocs")
    kind = KINDS[0]
    up, down = exchange(htdocs, kind, "up"), exchange(htdocs, kind, "down")
    assert (up.data.stat().st_size, up.answer_bytes) == (MIB + 5, len(FRAME))
    assert (down.data.stat().st_size, down.answer_bytes) == (len(FRAME), MIB + 5)
    assert (htdocs / down.path.lstrip("/")).stat().st_size == MIB + 5


def test_the_best_peer_is_none_of_direct_and_ourselves() -> None:
    found = summary(samples([80e6, 82e6], [100e6, 101e6], [50e6, 50e6]), [OWN, "envoy", "nginx"])
    entry = found["unary"]
    assert isinstance(entry, dict)
    assert entry["best_peer"] == "envoy"
    assert entry["ratio"]["median"] == pytest.approx((0.8 + 82 / 101) / 2)


def is_own_short(own: list[float]) -> bool:
    found = summary(samples(own, [100e6] * 3, [50e6] * 3), [OWN, "envoy", "nginx"])
    return is_short(found["unary"])


def test_short_is_what_the_rounds_can_show() -> None:
    assert is_own_short([80e6, 80e6, 81e6])
    assert not is_own_short([95e6, 94e6, 95e6])
    assert not is_own_short([60e6, 120e6, 80e6]), "these rounds show nothing"
