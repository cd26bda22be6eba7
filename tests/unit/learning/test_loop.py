"""The tick over the compiled picker: windows into tables, the page and the exchange."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from attnroute.clock import ManualClock
from attnroute.dataplane import Picker, StaleEpochError
from attnroute.features.merge import FleetTable, Subscriber
from attnroute.features.window import ServiceWindow
from attnroute.scoring.loop import ScoreLoop, ServicePlan
from attnroute.scoring.windows import WindowReader

MS = 1_000_000
SECOND = 1_000 * MS
PLAN = ServicePlan(scored=True, concurrency=None, sidecars=4)
GET = "/cart/Get;bytes=..1024"


class Plane:
    """One service of a data plane, by the picker without sockets. `lists_lag` makes the lists of
    endpoints and classes those of a moment before."""

    def __init__(self) -> None:
        config = {"name": "cart", "authorities": [], "balancer": {"type": "learned"},
                  "request_class": {}}  # fmt: skip
        self.picker = Picker(json.dumps(config).encode(), 7)
        self.now_ns = 0
        self.listed: list[dict[str, Any]] = []
        self.epoch = 0
        self.lists_taken = 0
        self.broken = False
        self.refuses: Exception | None = None
        self.published: list[dict[str, Any]] = []
        self.apply("10.0.0.1:80", "10.0.0.2:80")

    def apply(self, *addresses: str) -> None:
        self.listed = [
            {"address": address, "static_weight": 1.0, "zone": "z", "labels": {"b": "2", "a": "1"}}
            for address in addresses
        ]
        rows = [{"address": address} for address in addresses]
        self.epoch = self.picker.apply_endpoints(json.dumps({"endpoints": rows}).encode())

    def call(self, latency_ns: int = 10 * MS, status: int = 0, path: str = "/cart/Get") -> None:
        index, _ = self.picker.pick(self.now_ns, path=path, message_bytes=10)
        self.picker.finished(index, self.now_ns + latency_ns, latency_ns, status)

    def classes(self, _service: str) -> tuple[int, bytes]:
        self.lists_taken += 1
        return self.picker.classes()

    def endpoints(self, _service: str) -> tuple[int, bytes]:
        self.lists_taken += 1
        return self.epoch, json.dumps(self.listed).encode()

    def publish_scores(self, service: str, **scores: Any) -> int:
        assert service == "cart"
        if self.refuses:
            raise self.refuses
        self.published.append(scores)
        return self.picker.publish_scores(now_ns=self.now_ns, **scores)

    def take_window(self, _service: str) -> tuple[int, int, int, bytes, bytes]:
        if self.broken:
            raise RuntimeError("no")
        self.now_ns += SECOND
        return self.picker.take_window(self.now_ns)


class Record:
    """Sink and events."""

    def __init__(self) -> None:
        self.windows: list[ServiceWindow] = []
        self.labels: list[Any] = []
        self.failures: list[tuple[str, str]] = []
        self.gone: list[str] = []
        self.kept: list[str] = []
        self.announced: list[str] = []
        self.scored: list[str] = []

    def add(self, service: str, window: ServiceWindow, inflight_s: Any, labels: Any) -> None:
        assert inflight_s.shape == (len(window.endpoints),)
        self.windows.append(window)
        self.labels.append(labels)

    def keep(self, services: Iterable[str]) -> None:
        self.kept = list(services)

    def scores_published(self, service: str) -> None:
        self.scored.append(service)

    def scores_failed(self, service: str, reason: str) -> None:
        self.failures.append((service, reason))

    def learning_begins(self, service: str) -> None:
        assert service == "cart"

    def window_failed(self, service: str, reason: str) -> None:
        self.failures.append((service, reason))

    def cells_dropped(self, service: str, count: int) -> None:
        self.failures.append((service, f"{count} cells"))

    def learning_gone(self, service: str) -> None:
        self.gone.append(service)


def loop(plane: Plane) -> tuple[ScoreLoop, Record, ManualClock]:
    record, clock = Record(), ManualClock()
    made = ScoreLoop(plane, clock, record, record, record.announced.append)
    made.configure({"cart": PLAN})
    return made, record, clock


def test_calls_reach_the_table_and_the_page() -> None:
    plane = Plane()
    ticking, record, clock = loop(plane)
    plane.call()  # the first of its class counts in `other`
    ticking.window()
    for _ in range(6):
        plane.call()
    plane.call(status=14)
    clock.advance(1.0)
    ticking.window()
    last = record.windows[-1]
    assert last.classes == ("other", GET)
    assert last.endpoints == ("10.0.0.1:80", "10.0.0.2:80")
    assert last.cells.calls.sum() == 6
    assert last.errors.sum() == 1
    assert last.cells.latency_s.sum() == pytest.approx(0.06)
    assert last.buckets.sum() == 6
    assert last.length_s == pytest.approx(1.0)
    assert [(one.zone, one.labels) for one in record.labels[-1]] == [("z", "a=1,b=2")] * 2
    table = ticking.tables()["cart"]
    assert table.sums(1.0).calls.sum() == pytest.approx(6 + 0.904837, rel=1e-5)
    assert record.announced == ["cart", "cart"]
    assert record.failures == []


def test_lists_are_read_only_when_they_changed() -> None:
    plane = Plane()
    ticking, record, _ = loop(plane)
    plane.call()
    ticking.window()
    first = plane.lists_taken
    for _ in range(5):
        ticking.window()
    assert plane.lists_taken == first
    plane.apply("10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
    ticking.window()
    assert plane.lists_taken == first + 1
    assert record.windows[-1].endpoints == ("10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
    plane.call(path="/cart/Put")
    ticking.window()
    assert plane.lists_taken == first + 2
    assert record.windows[-1].classes[-1] == "/cart/Put;bytes=..1024"


def test_a_window_whose_endpoints_are_not_known_any_more_is_left_out() -> None:
    plane = Plane()
    ticking, record, _ = loop(plane)
    ticking.window()
    plane.apply("10.0.0.9:80")
    plane.epoch += 1  # it has changed again
    ticking.window()
    assert record.failures == [("cart", "lost")]
    plane.epoch -= 1
    ticking.window()
    assert record.windows[-1].endpoints == ("10.0.0.9:80",)


def test_a_fault_costs_one_tick(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    plane = Plane()
    ticking, record, _ = loop(plane)
    plane.broken = True
    ticking.window()
    assert record.failures == [("cart", "error")]
    plane.broken = False
    plane.call()
    ticking.window()
    assert len(record.windows) == 1
    assert record.windows[0].cells.calls.sum() == 1


def test_a_reload_keeps_what_was_learned_where_the_service_stays() -> None:
    plane = Plane()
    ticking, record, _ = loop(plane)
    for _ in range(4):
        plane.call()
    ticking.window()
    table = ticking.tables()["cart"]
    assert table.sidecars == 4
    ticking.configure({"cart": replace(PLAN, concurrency=3.0, sidecars=9)})
    assert ticking.tables()["cart"] is table
    assert table.sidecars == 9
    ticking.configure({})
    assert ticking.tables() == {}
    assert record.gone == ["cart"]
    assert record.kept == []
    ticking.window()
    ticking.configure({"cart": PLAN})
    assert ticking.tables()["cart"] is not table


def test_a_service_that_was_removed_and_came_back_is_another_one() -> None:
    first, second = Plane(), Plane()
    second.apply("10.0.0.7:80", "10.0.0.8:80")
    reader = WindowReader(first)
    taken = reader.take("cart")
    assert taken is not None
    reader.forget("cart")
    reader._source = second
    again = reader.take("cart")
    assert again is not None
    assert again.layout.endpoints == ("10.0.0.7:80", "10.0.0.8:80")
    assert reader.lost == 0


def test_scores_of_each_window_reach_the_picker() -> None:
    plane = Plane()
    ticking, record, _ = loop(plane)
    ticking.window()
    for _ in range(3):
        plane.call()
        ticking.window()
    assert record.scored == ["cart"] * 4
    assert record.failures == []
    last = plane.published[-1]
    assert last["cost_s"].shape == (2, 2)
    assert (last["sidecars"], last["model"]) == (4, "")
    _, reason = plane.picker.pick(plane.now_ns, path="/cart/Get", message_bytes=10)
    assert reason not in ("fallback_expired", "least_request")


def test_a_service_that_balances_otherwise_is_learned_from_and_not_published() -> None:
    plane = Plane()
    ticking, record, _ = loop(plane)
    ticking.configure({"cart": replace(PLAN, scored=False)})
    plane.call()
    ticking.window()
    ticking.fleet_spoke()
    assert len(record.windows) == 1
    assert plane.published == []


def test_what_the_fleet_says_is_published_once() -> None:
    plane = Plane()
    ticking, record, clock = loop(plane)
    plane.call()
    ticking.window()
    ticking.fleet_spoke()
    assert len(record.scored) == 1
    table = ticking.tables()["cart"]
    fleet, stream = (
        FleetTable(trainer=b"t" * 16, now_s=0.0, classes_max=8, endpoints_max=8),
        Subscriber(b"s" * 16, ""),
    )
    table.opened()
    assert table.update(fleet.update(stream, 0.0), clock.now_s())
    ticking.fleet_spoke()
    ticking.fleet_spoke()
    assert len(record.scored) == 2
    ticking.window()  # has just been published
    assert len(record.scored) == 2
    ticking.window()  # the fleet is silent
    assert len(record.scored) == 3


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StaleEpochError("changed"), "stale_epoch"), (ValueError("no"), "error")],
)
def test_scores_that_are_not_taken_are_counted(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    plane = Plane()
    ticking, record, _ = loop(plane)
    plane.call()
    plane.refuses = error
    ticking.window()
    assert record.failures == [("cart", reason)]
    assert record.scored == []
    plane.refuses = None
    ticking.window()
    assert record.scored == ["cart"]


def test_an_endpoint_set_that_changed_since_the_window_keeps_the_scores_before() -> None:
    plane = Plane()
    ticking, record, clock = loop(plane)
    plane.call()
    ticking.window()
    plane.apply("10.0.0.2:80", "10.0.0.3:80")
    table = ticking.tables()["cart"]
    fleet = FleetTable(trainer=b"t" * 16, now_s=0.0, classes_max=8, endpoints_max=8)
    table.opened()
    assert table.update(fleet.update(Subscriber(b"s" * 16, ""), 0.0), clock.now_s())
    ticking.fleet_spoke()
    assert record.failures == [("cart", "stale_epoch")]
    ticking.window()
    assert record.scored == ["cart"] * 2
