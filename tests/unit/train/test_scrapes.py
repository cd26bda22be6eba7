"""What scrapes are made from, and that they survive their way to disk and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.support.scrapes import scrape

from attnroute.features.window import BUCKETS
from attnroute.telemetry.increases import Increases
from attnroute.train.dataset import DatasetError, ScrapeLog
from attnroute.train.scrapes import Scrape, decode, encode, merged, scrapes_of


def same(one: Scrape, other: Scrape) -> None:
    for part in fields(Scrape):
        if part.name == "cells":
            for name, value in vars(one.cells).items():
                assert (getattr(other.cells, name) == value).all(), name
        elif isinstance(value := getattr(one, part.name), np.ndarray):
            np.testing.assert_array_equal(getattr(other, part.name), value)
        else:
            assert getattr(other, part.name) == value, part.name


def test_increases_become_scrapes_by_service() -> None:
    increases = Increases(
        cells={
            ("cart", "/a", "e2"): np.array([0.5, 10.0, 0.0, 0.0, 0.3, 1.0]),
            ("cart", "/b", "e1"): np.array([0.2, 4.0, 0.1, 4.0, 0.1, 0.0]),
            ("stock", "/a", "e1"): np.array([0.1, 1.0, 0.0, 0.0, 0.1, 0.0]),
        },
        buckets={("cart", "/a"): np.arange(float(BUCKETS))},
        inflight_s={("cart", "e1"): 10.0},
        rtt_s={("cart", "e1"): 0.001},
        concurrency={("cart", "e2"): 4.0},
        info={("cart", "e1"): ("z1", "17.5", "disk=ssd,rack=r2"), ("cart", "e3"): ("", "", "")},
        pages=2,
        span_s=5.0,
    )
    cart, stock = scrapes_of(increases, 100.0)
    assert (cart.service, stock.service) == ("cart", "stock")
    assert cart.classes == ("/a", "/b")
    assert cart.endpoints == ("e1", "e2", "e3")
    assert cart.labels == ({"disk": "ssd", "rack": "r2", "zone": "z1"}, {}, {})
    assert cart.started_s.tolist() == [17.5, 0, 0]
    assert cart.inflight.tolist() == [2.0, 0, 0], "10 s of calls in 5 s"
    np.testing.assert_array_equal(cart.rtt_s, [0.001, np.nan, np.nan])
    np.testing.assert_array_equal(cart.concurrency, [np.nan, 4.0, np.nan])
    cells = {
        (cart.classes[row], cart.endpoints[column]): calls
        for row, column, calls in zip(
            cart.cells.request_class, cart.cells.endpoint, cart.cells.calls, strict=True
        )
    }
    assert cells == {("/a", "e2"): 10.0, ("/b", "e1"): 4.0}
    assert cart.cells.estimated_s.tolist() == [0.3, 0.1]
    assert cart.errors.tolist() == [1.0, 0.0]
    assert cart.buckets[0].tolist() == list(range(BUCKETS))
    assert not cart.buckets[1].any()


def test_increases_over_no_time_say_nothing() -> None:
    assert scrapes_of(Increases(cells={("s", "/a", "e"): np.ones(6)}), 1.0) == []


def test_a_scrape_comes_back_as_it_was() -> None:
    same(scrape(3), decode(encode(scrape(3))))


def test_scrapes_that_follow_each_other_add_up() -> None:
    both = merged([scrape(0), scrape(1)])
    assert both.length_s == 10.0
    assert both.at_s == 10.0
    total = scrape(0).cells.calls.sum() + scrape(1).cells.calls.sum()
    assert both.cells.calls.sum() == total
    assert both.buckets.sum() == total
    assert both.inflight.tolist() == [0.5] * 6


def test_a_log_keeps_scrapes_over_restarts(tmp_path: Path) -> None:
    for number in range(3):
        with ScrapeLog(tmp_path) as log:
            log.append(scrape(number))
    with ScrapeLog(tmp_path) as log:
        found = list(log.read())
    assert [one.at_s for one in found] == [5.0, 10.0, 15.0]
    same(scrape(1), found[1])


def test_a_torn_record_is_cut_off(tmp_path: Path) -> None:
    """What a killed writer leaves."""
    with ScrapeLog(tmp_path) as log:
        log.append(scrape(0))
        log.append(scrape(1))
    (segment,) = tmp_path.glob("*.log")
    whole = segment.read_bytes()
    for cut in (1, 10, 200):
        segment.write_bytes(whole[:-cut])
        with ScrapeLog(tmp_path) as log:
            assert log.torn == 1
            log.append(scrape(2))
            assert [one.at_s for one in log.read()] == [5.0, 15.0]


def test_a_wrong_checksum_ends_its_segment(tmp_path: Path) -> None:
    with ScrapeLog(tmp_path, segment_bytes=1) as log:
        for number in range(3):
            log.append(scrape(number))
    first = min(tmp_path.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(bytes(content))
    with ScrapeLog(tmp_path) as log:
        assert [one.at_s for one in log.read()] == [10.0, 15.0]
        assert log.torn == 1


def test_the_oldest_go_when_it_is_full(tmp_path: Path) -> None:
    size = len(encode(scrape(0)))
    with ScrapeLog(tmp_path, bytes_max=4 * size, segment_bytes=size) as log:
        for number in range(10):
            log.append(scrape(number))
        assert log.size_bytes <= 4 * size + 200
        assert log.dropped_segments > 0
        assert next(iter(log.read())).at_s > 25
        assert [one.at_s for one in log.read()][-1] == 50.0


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(DatasetError, match=r"file: scrapes cannot be kept: .*; free space or name"):
        ScrapeLog(place)
