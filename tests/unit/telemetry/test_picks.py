"""Recorded picks as the data plane keeps them: in order, under numbers that show gaps."""

from __future__ import annotations

from typing import Any

from tests.support.fake_plane import PICKS_KEPT, FakePlane

from attnroute.telemetry.picks import PickHistory


def world(**methods: str) -> tuple[FakePlane, PickHistory]:
    plane = FakePlane("cart", "other")
    plane.picks = {service: rows(service, listed) for service, listed in methods.items()}
    return plane, PickHistory(plane)


def rows(service: str, methods: str) -> list[dict[str, Any]]:
    return [{"service": service, "method": method} for method in methods]


def methods(history: PickHistory, service: str, count: int) -> list[str]:
    return [record.row["method"] for record in history.last(service, count)]


def test_the_newest_of_a_service_oldest_first() -> None:
    _, history = world(cart="abcd", other="x")
    assert methods(history, "cart", 10) == ["a", "b", "c", "d"]
    assert methods(history, "cart", 2) == ["c", "d"]
    assert methods(history, "other", 10) == ["x"]
    assert methods(history, "gone", 10) == []
    assert (history.number("cart"), history.number("other"), history.number("gone")) == (4, 1, 0)


def test_a_watcher_goes_on_after_its_number_and_sees_gaps() -> None:
    plane, history = world(cart="abc")
    assert [record.number for record in history.after("cart", 1, 100)] == [2, 3]
    assert [record.number for record in history.after("cart", 1, 1)] == [2]
    plane.picks["cart"] += rows("cart", "m" * PICKS_KEPT)
    assert history.after("cart", 1, 100)[0].number == 4
    assert history.after("cart", 3 + PICKS_KEPT, 100) == []
