"""Shares from sampled counters, and snapshots whose list and rows belong together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.support.fake_plane import FakePlane, spec

from attnroute.clock import ManualClock
from attnroute.dataplane import ENDPOINT_DTYPE
from attnroute.telemetry.snapshot import (
    SHARE_WINDOW_S,
    ShareWindow,
    SnapshotReader,
    Telemetry,
    picks_between,
)


def table(**picks: int) -> np.ndarray:
    """Rows with these ids (`e7` is 7) and picks."""
    made = np.zeros(len(picks), ENDPOINT_DTYPE)
    made["id"] = [int(name[1:]) for name in picks]
    made["picks"] = list(picks.values())
    return made


def test_picks_between_follows_ids_not_places() -> None:
    then, now = table(e1=10, e2=20, e3=30), table(e3=35, e1=10, e9=4)
    found = picks_between(then["id"], then["picks"], now["id"], now["picks"])
    assert found.tolist() == [5, 0, 4]


def test_picks_between_never_goes_below_zero() -> None:
    then, now = table(e1=10), table(e1=7)
    found = picks_between(then["id"], then["picks"], now["id"], now["picks"])
    assert found.tolist() == [0]


def test_picks_between_an_empty_and_a_full_set() -> None:
    empty, full = table(), table(e1=3)
    assert picks_between(empty["id"], empty["picks"], full["id"], full["picks"]).tolist() == [3]
    assert picks_between(full["id"], full["picks"], empty["id"], empty["picks"]).tolist() == []


def test_shares_are_of_the_last_ten_seconds() -> None:
    window = ShareWindow()
    # 100 picks a second for the first, then from 20 s on for the second only.
    for second in range(41):
        window.sample(second, table(e1=100 * min(second, 20), e2=100 * max(0, second - 20)))
    shares = window.shares(40.0, table(e1=2000, e2=2000))
    assert shares is not None
    assert shares.tolist() == [0.0, 1.0]


def test_shares_of_a_change_in_the_middle_of_the_window() -> None:
    window = ShareWindow()
    for second in range(26):
        window.sample(second, table(e1=100 * min(second, 20), e2=100 * max(0, second - 20)))
    shares = window.shares(25.0, table(e1=2000, e2=500))
    assert shares is not None
    assert shares.tolist() == pytest.approx([0.5, 0.5])


def test_no_picks_in_the_window_means_no_shares() -> None:
    window = ShareWindow()
    for second in range(30):
        window.sample(second, table(e1=100, e2=50))
    assert window.shares(30.0, table(e1=100, e2=50)) is None


def test_before_the_first_sample_everything_counts() -> None:
    shares = ShareWindow().shares(0.5, table(e1=3, e2=1))
    assert shares is not None
    assert shares.tolist() == [0.75, 0.25]


def test_an_endpoint_that_is_gone_does_not_count() -> None:
    window = ShareWindow()
    window.sample(0.0, table(e1=0, e2=0))
    shares = window.shares(5.0, table(e2=10))
    assert shares is not None
    assert shares.tolist() == [1.0]


def test_the_ring_is_bounded_however_often_it_is_sampled() -> None:
    window = ShareWindow()
    for step in range(10_000):
        window.sample(step * 0.01, table(e1=step))
    assert len(window) <= SHARE_WINDOW_S + 2


def test_reader_parses_a_set_once() -> None:
    plane = FakePlane("cart")
    plane.add("cart", "10.0.0.1:1", "10.0.0.2:1")
    reader = SnapshotReader(plane)
    first, second = reader.read("cart"), reader.read("cart")
    assert [endpoint.address for endpoint in first.endpoints] == ["10.0.0.1:1", "10.0.0.2:1"]
    assert second.endpoints is first.endpoints
    assert plane.lists_taken == 1


def test_reader_sees_the_new_set_and_zone() -> None:
    plane = FakePlane("cart")
    plane.add("cart", "10.0.0.1:1")
    reader = SnapshotReader(plane)
    reader.read("cart")
    new = [spec("10.0.0.3:1", zone="eu-1", labels={"a": "b"})]
    plane.apply_endpoints("cart", json.dumps({"endpoints": new}).encode())
    snapshot = reader.read("cart")
    assert snapshot.endpoint_epoch == 2
    assert snapshot.endpoints[0].zone == "eu-1"
    assert snapshot.endpoints[0].labels == {"a": "b"}


class RacingPlane(FakePlane):
    """Replaces the set between the two calls of the first reads."""

    races = 3

    def endpoints(self, service: str) -> tuple[int, bytes]:
        if self.races:
            self.races -= 1
            self.add(service, *(f"10.0.1.{index}:1" for index in range(self.races % 3 + 1)))
        return super().endpoints(service)


def test_rows_and_list_of_different_epochs_are_never_paired() -> None:
    plane = RacingPlane("cart")
    plane.add("cart", "10.0.0.1:1", "10.0.0.2:1")
    snapshot = SnapshotReader(plane).read("cart")
    assert plane.races == 0
    assert [endpoint.address for endpoint in snapshot.endpoints] == ["10.0.1.0:1"]
    assert len(snapshot.rows) == 1


def test_endless_change_is_an_error_and_not_a_hang() -> None:
    plane = RacingPlane("cart")
    plane.races = 1_000_000
    with pytest.raises(RuntimeError, match="changed during every read"):
        SnapshotReader(plane).read("cart")


def test_telemetry_forgets_services_that_are_gone() -> None:
    plane, clock = FakePlane("cart", "search"), ManualClock()
    for service in ("cart", "search"):
        plane.add(service, "10.0.0.1:1")
    telemetry = Telemetry(plane, clock)
    telemetry.sample(["cart", "search"])
    clock.advance(1.0)
    telemetry.sample(["cart"])
    plane.set("search", 0, picks=5)
    clock.advance(1.0)
    # Sampled anew, `search` has no older sample: its picks count from the beginning.
    shares = telemetry.shares(telemetry.read("search"))
    assert shares is not None
    assert shares.tolist() == [1.0]
