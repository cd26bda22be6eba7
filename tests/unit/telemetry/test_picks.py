"""Recorded picks: kept per service, in order, bounded, with numbers that show what was missed."""

from __future__ import annotations

from typing import Any

from tests.support.fake_plane import FakePlane

from attnroute.telemetry.picks import PickHistory


def world(keep: int = 3) -> tuple[FakePlane, PickHistory]:
    plane = FakePlane("cart", "other")
    return plane, PickHistory(plane, keep)


def rows(service: str, *methods: str) -> list[dict[str, Any]]:
    return [{"service": service, "method": method} for method in methods]


def methods(history: PickHistory, service: str, count: int) -> list[str]:
    return [record.row["method"] for record in history.last(service, count)]


def test_the_newest_are_kept_per_service_oldest_first() -> None:
    plane, history = world()
    plane.decisions = rows("cart", "a", "b") + rows("other", "x") + rows("cart", "c", "d")
    history.pull()
    assert methods(history, "cart", 10) == ["b", "c", "d"]
    assert methods(history, "cart", 2) == ["c", "d"]
    assert methods(history, "other", 10) == ["x"]
    assert methods(history, "gone", 10) == []
    assert (history.number("cart"), history.number("other"), history.number("gone")) == (4, 1, 0)


def test_a_watcher_goes_on_after_its_number_and_sees_gaps() -> None:
    plane, history = world()
    plane.decisions = rows("cart", "a")
    history.pull()
    plane.decisions = rows("cart", "b", "c")
    history.pull()
    assert [record.number for record in history.after("cart", 1, 100)] == [2, 3]
    assert [record.number for record in history.after("cart", 1, 1)] == [2]
    plane.decisions = rows("cart", "d", "e", "f")
    history.pull()
    assert [record.number for record in history.after("cart", 1, 100)] == [4, 5, 6]
    assert history.after("cart", 6, 100) == []


def test_everything_is_taken_however_much_there_is() -> None:
    plane, history = world(keep=100_000)
    plane.decisions = rows("cart", *("m" for _ in range(10_000)))
    history.pull()
    assert history.number("cart") == 10_000
    assert plane.decisions == []


def test_the_policy_can_keep_less_and_drop_services() -> None:
    plane, history = world()
    plane.decisions = rows("cart", "a", "b", "c") + rows("other", "x")
    history.pull()
    history.configure(2, ["cart"])
    assert methods(history, "cart", 10) == ["b", "c"]
    assert methods(history, "other", 10) == []
    plane.decisions = rows("cart", "d")
    history.pull()
    assert methods(history, "cart", 10) == ["c", "d"]
