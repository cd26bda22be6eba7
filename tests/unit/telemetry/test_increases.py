"""What counters went up by, from pages that are whole, late, doubled, restarted or wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from attnroute.telemetry.increases import (
    CELL_COLUMNS,
    FORGET_S,
    IncreaseBook,
    LabelRules,
    Page,
    Sample,
)
from attnroute.telemetry.training import BOUNDS_S

COUNT = "attnroute_training_latency_seconds_count"
BUCKET = "attnroute_training_class_latency_seconds_bucket"
CELL = ("cart", "get", "a:1")
LABELS = {"service": "cart", "request_class": "get", "endpoint": "a:1"}


def page(
    at_s: float, value: float | None, *, target: str = "one", replica: str = "",
    more: Sequence[Sample] = (), labels: Mapping[str, str] = LABELS,
) -> Page:  # fmt: skip
    samples = [] if value is None else [Sample(COUNT, labels, value)]
    return Page(target, at_s, [*samples, *more], replica)


def take(book: IncreaseBook, *pages: Page, now_s: float = 0.0) -> float:
    """The calls that went up with these pages."""
    book.take(pages, now_s)
    return book.gather().calls


def test_a_counter_that_restarts_a_series_that_begins_and_a_gap() -> None:
    book = IncreaseBook()
    assert take(book, page(0, 100)) == 0  # a first sample says nothing
    assert take(book, page(5, 160)) == 60
    assert take(book, page(10, 20)) == 20  # restarted: the new value
    assert take(book, page(15, 80)) == 60
    other = Sample(COUNT, {**LABELS, "endpoint": "b:1"}, 500)
    assert take(book, page(20, 80, more=[other])) == 0
    book.take([page(45, 90, more=[Sample(COUNT, other.labels, 510)])], 45)
    gathered = book.gather()
    assert gathered.calls == 20
    assert gathered.span_s == 25  # five scrapes are missing: real time
    assert list(gathered.cells) == [CELL, ("cart", "get", "b:1")]
    assert gathered.cells[CELL][CELL_COLUMNS.index("latency_seconds_count")] == 10


def test_a_page_that_comes_again_or_too_late_says_nothing() -> None:
    book = IncreaseBook()
    assert take(book, page(0, 100), page(5, 110)) == 10
    assert take(book, page(5, 110)) == 0
    assert take(book, page(4, 300)) == 0
    assert take(book, page(10, 112)) == 2
    assert book.dropped["repeated"] == 2


def test_pages_of_one_answer_may_come_in_any_order() -> None:
    book = IncreaseBook()
    pages = [page(10, 130), page(0, 100), page(15, 10), page(5, 120)]
    assert take(book, *pages) == 20 + 10 + 10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_number_of_calls_is_unknown(value: float) -> None:
    book = IncreaseBook()
    assert take(book, page(0, 100)) == 0
    assert take(book, page(5, value)) == 0
    assert take(book, page(10, 130)) == 30
    assert book.dropped["not_finite"] == 1


def test_a_series_that_was_missing_goes_on() -> None:
    book = IncreaseBook()
    take(book, page(0, 100))
    assert take(book, page(5, None, more=[sidecar("x")])) == 0
    assert take(book, page(10, 130)) == 30
    assert take(book, page(15, None, more=[sidecar("x")])) == 0
    assert take(book, page(20, 3)) == 3
    # Missing for long, it is a new one.
    for at_s in (FORGET_S + 10, FORGET_S * 2 + 20):
        book.take([page(at_s, None, more=[sidecar("x")])], at_s)
    assert take(book, page(FORGET_S * 2 + 25, 4000), now_s=FORGET_S * 2) == 0


def test_a_page_with_nothing_of_ours_is_none() -> None:
    book = IncreaseBook()
    take(book, page(0, 100))
    book.take([page(5, None), page(6, None, more=[Sample("up", {}, 1.0)])], 6.0)
    assert book.gather().pages == 0
    assert take(book, page(10, 130)) == 30


def test_sidecars_add_up_and_one_that_is_gone_is_forgotten() -> None:
    book = IncreaseBook()
    take(book, page(0, 100), page(0, 5, target="two"))
    assert take(book, page(5, 110), page(5, 6, target="two"), now_s=5) == 11
    assert book.targets == 2
    assert take(book, page(10, 111), now_s=FORGET_S + 6) == 1
    assert book.targets == 1
    assert take(book, page(2000, 9, target="two"), now_s=FORGET_S + 6) == 0


def test_a_clock_that_goes_back_costs_one_increase() -> None:
    """Twelve hours on and back again."""
    book = IncreaseBook()
    take(book, page(0, 100))
    assert take(book, page(43_200, 110)) == 10
    assert take(book, page(10, 120)) == 0
    assert take(book, page(15, 130)) == 10
    assert book.dropped["clock"] == 1


def test_copies_of_a_page_count_once() -> None:
    book = IncreaseBook()
    take(book, page(0, 100, replica="a"), page(1, 101, replica="b"))
    assert take(book, page(5, 110, replica="a"), page(6, 111, replica="b")) == 10
    assert book.dropped["replica"] == 2
    # The first one is gone: the other takes its place, from where the first one stood.
    assert take(book, page(11, 121, replica="b")) == 11
    # Back again: its page was taken a little before the other's.
    assert take(book, page(11.5, 120, replica="a")) == 0
    assert take(book, page(16, 130, replica="a")) == 10


def test_a_doubled_series_counts_once() -> None:
    book = IncreaseBook()
    again = Sample(COUNT, LABELS, 500.0)
    take(book, page(0, 100, more=[again]))
    assert take(book, page(5, 110, more=[again])) == 10
    assert book.dropped["twice"] == 2


def sidecar(name: str) -> Sample:
    return Sample("attnroute_sidecar_info", {"sidecar_id": name}, 1.0)


def test_a_restarted_sidecar_that_has_counted_past_the_old_value() -> None:
    book = IncreaseBook()
    take(book, page(0, 100, more=[sidecar("x")]))
    assert take(book, page(5, 110, more=[sidecar("x")])) == 10
    assert take(book, page(10, 150, more=[sidecar("y")])) == 150


def histogram(*counts: float, bounds: Sequence[str] = ()) -> list[Sample]:
    """Cumulative counts; the rest stays at the last one."""
    texts = list(bounds) or [*map(str, BOUNDS_S), "+Inf"]
    values = [*counts, *[counts[-1]] * (len(texts) - len(counts))]
    labels = {"service": "cart", "request_class": "get"}
    return [
        Sample(BUCKET, {**labels, "le": text}, value)
        for text, value in zip(texts, values, strict=True)
    ]


def buckets(book: IncreaseBook, *pages: Page) -> list[float] | None:
    book.take(pages, 0.0)
    found = book.gather().buckets.get(("cart", "get"))
    return None if found is None else found[:4].tolist()


def test_buckets_go_up() -> None:
    book = IncreaseBook()
    assert buckets(book, page(0, None, more=histogram(1, 3, 3))) is None
    assert buckets(book, page(5, None, more=histogram(1, 4, 6))) == [0, 1, 2, 0]
    assert buckets(book, page(10, None, more=histogram(0, 1))) == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "broken",
    [
        histogram(3, 2),
        histogram(1, 2)[:-1],
        histogram(1, 2)[:-2],
        histogram(1, math.nan),
        histogram(1, 2, bounds=["0.1", "+Inf"]),
        histogram(1, 2, bounds=["x", *map(str, BOUNDS_S[1:]), "+Inf"]),
        [*histogram(1, 2), Sample(BUCKET.replace("bucket", "count"),
                                  {"service": "cart", "request_class": "get"}, 7.0)],
    ],
)  # fmt: skip
def test_a_broken_histogram_is_dropped_and_the_next_good_one_is_a_first(
    broken: list[Sample],
) -> None:
    book = IncreaseBook()
    buckets(book, page(0, 100, more=histogram(1, 3)))
    book.take([page(5, 110, more=broken)], 0.0)
    gathered = book.gather()
    assert gathered.buckets == {}
    assert gathered.calls == 10  # the rest of the page counts
    assert book.dropped["histogram"] == 1
    assert buckets(book, page(10, None, more=histogram(2, 5))) is None
    assert buckets(book, page(15, None, more=histogram(2, 6))) == [0, 1, 0, 0]


def test_the_order_and_the_spelling_of_bounds_do_not_matter() -> None:
    book = IncreaseBook()
    spelled = [*(f"{bound:.12f}" for bound in BOUNDS_S), "inf"]
    buckets(book, page(0, None, more=histogram(1, 3)))
    again = histogram(2, 6, bounds=spelled)[::-1]
    assert buckets(book, page(5, None, more=again)) == [1, 2, 0, 0]


def test_gauges_and_what_is_known_of_endpoints() -> None:
    at = {"service": "cart", "endpoint": "a:1"}
    one = [
        Sample("attnroute_endpoint_rtt_seconds", at, 0.002),
        Sample("attnroute_endpoint_concurrency", at, 4.0),
        Sample(
            "attnroute_endpoint_info", {**at, "zone": "z", "incarnation": "5.0", "labels": "a=b"}, 1
        ),
        Sample("attnroute_endpoint_inflight_seconds_total", at, 1.0),
    ]
    two = [
        Sample("attnroute_endpoint_rtt_seconds", at, 0.001),
        Sample("attnroute_endpoint_concurrency", at, math.nan),
        Sample("attnroute_endpoint_inflight_seconds_total", at, 2.5),
    ]
    book = IncreaseBook()
    book.take([page(0, None, more=one), page(5, None, more=two)], 0.0)
    gathered = book.gather()
    place = ("cart", "a:1")
    assert gathered.rtt_s == {place: 0.001}
    assert gathered.concurrency == {place: 4.0}
    assert gathered.info == {place: ("z", "5.0", "a=b")}
    assert gathered.inflight_s == {place: 1.5}
    assert gathered.pages == 2
    assert book.gather().pages == 0


def test_labels_that_a_server_changed_on_the_way() -> None:
    rules = LabelRules(frozenset({"replica"}), {"request_class": "klass"})
    plain = {"__name__": COUNT, **LABELS, "instance": "i", "job": "j"}
    expected = (dict(LABELS), "instance=i,job=j", "")
    assert LabelRules().split(plain) == expected
    changed = {
        "__name__": COUNT, "exported_service": "cart", "service": "the-target",
        "exported_endpoint": "a:1", "endpoint": "http", "klass": "get", "instance": "i",
        "replica": "r-2",
    }  # fmt: skip
    ours, target, replica = rules.split(changed)
    assert ours == dict(LABELS)
    assert target == "endpoint=http,instance=i,service=the-target"
    assert replica == "replica=r-2"
    # A family that has no endpoint: the label is the target's, as with the others.
    ours, target, _ = rules.split(
        {"__name__": BUCKET, "exported_service": "cart", "service": "the-target",
         "endpoint": "http", "klass": "get", "instance": "i", "le": "1.0"}
    )  # fmt: skip
    assert ours == {"service": "cart", "request_class": "get", "le": "1.0"}
    assert target == "endpoint=http,instance=i,service=the-target"


def test_both_bounds_are_the_same_numbers() -> None:
    assert np.isclose([float(str(bound)) for bound in BOUNDS_S], BOUNDS_S, rtol=0, atol=0).all()
