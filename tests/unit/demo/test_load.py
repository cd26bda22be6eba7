"""The schedule of calls: the same seed makes the same calls, and they are what the world says."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest

from attnroute.demo.load import Arrival, arrivals
from attnroute.demo.messages import CallHead, Reply
from attnroute.demo.world import WORLDS

WORLD = WORLDS["mixed"]


def schedule(key: str, *, calls_per_s: float = 200.0, seconds: float = 30.0) -> list[Arrival]:
    return list(arrivals(WORLD, key, calls_per_s, seconds))


def test_same_key_same_calls() -> None:
    assert schedule("calls:1:0:slice:0") == schedule("calls:1:0:slice:0")


@pytest.mark.parametrize("key", ["calls:2:0:slice:0", "calls:1:1:slice:0", "calls:1:0:slice:1"])
def test_another_seed_round_or_client_makes_other_calls(key: str) -> None:
    assert schedule("calls:1:0:slice:0")[:10] != schedule(key)[:10]


def test_calls_come_in_order_and_in_time() -> None:
    offsets_s = [arrival.offset_s for arrival in schedule("k")]
    assert offsets_s == sorted(offsets_s)
    assert offsets_s[0] > 0.0
    assert offsets_s[-1] < 30.0


def test_rate_gaps_and_work_have_the_right_means() -> None:
    calls = schedule("k", calls_per_s=500.0, seconds=100.0)
    # 50,000 calls: one standard deviation of the count is 0.45 %, of the mean work 0.42 %.
    assert len(calls) == pytest.approx(50_000, rel=0.02)
    assert sum(call.work for call in calls) / len(calls) == pytest.approx(1.0, rel=0.03)
    gaps = [b.offset_s - a.offset_s for a, b in pairwise(calls)]
    # Of exponential gaps a share of 1/e is longer than the mean.
    assert sum(gap > 1 / 500 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.01)


def test_classes_are_as_popular_as_the_world_says() -> None:
    calls = schedule("k", calls_per_s=500.0, seconds=100.0)
    counts = Counter(call.class_index for call in calls)
    for index, request_class in enumerate(WORLD.classes):
        assert counts[index] / len(calls) == pytest.approx(request_class.popularity, abs=0.01)


def test_a_schedule_without_end_can_be_cut_anywhere() -> None:
    endless = arrivals(WORLD, "k", 200.0, float("inf"))
    assert list(islice(endless, 100)) == schedule("k")[:100]


@pytest.mark.parametrize("message_bytes", sorted({k.message_bytes for k in WORLD.classes}))
def test_a_call_survives_its_message(message_bytes: int) -> None:
    head = CallHead(slice_start_s=12345.678, work=0.25, round_number=7)
    message = head.message(message_bytes)
    assert len(message) == message_bytes
    assert CallHead.parse(message) == head


def test_a_short_message_is_refused() -> None:
    with pytest.raises(ValueError, match="10 bytes"):
        CallHead.parse(b"0123456789")


def test_an_answer_survives_its_message() -> None:
    reply = Reply(endpoint=11, wait_s=0.5, service_s=0.25)
    assert Reply.parse(reply.message()) == reply
