"""What a Prometheus server answers, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.support.http_server import http_peer, page
from tests.support.wait import patience_s

from attnroute.clock import ManualClock
from attnroute.telemetry.fetch import Fetcher, FetchError, FetchLimits
from attnroute.telemetry.increases import IncreaseBook, LabelRules
from attnroute.telemetry.prometheus import RANGE_S_MAX, PrometheusSource, read_answer

COUNT = "attnroute_training_latency_seconds_count"


def series(values: list[list[Any]], **labels: str) -> dict[str, Any]:
    metric = {"__name__": COUNT, "service": "cart", "request_class": "get", "endpoint": "a:1",
              "instance": "i"}  # fmt: skip
    return {"metric": metric | labels, "values": values}


def answer(*results: Any, **others: Any) -> bytes:
    data = {"resultType": "matrix", "result": list(results)}
    return json.dumps({"status": "success", "data": data} | others).encode()


def read(*results: Any, **others: Any) -> tuple[float, Mapping[str, int]]:
    """The calls in an answer, and what was odd about it."""
    pages, failures = read_answer(answer(*results, **others), LabelRules(frozenset({"replica"})))
    book = IncreaseBook()
    book.take(pages, 0.0)
    return book.gather().calls, failures


def test_samples_of_a_range_add_up() -> None:
    assert read(series([[1.0, "10"], [2.0, "15"], [3.5, "4"]])) == (9.0, {})


def test_copies_count_once() -> None:
    one = series([[1.0, "10"], [6.0, "15"]], replica="a")
    two = series([[2.0, "11"], [7.0, "16"]], replica="b")
    assert read(one, two) == (5.0, {})


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5"])
def test_values_that_are_none(value: str) -> None:
    assert read(series([[1.0, "10"], [2.0, value], [3.0, "12"]])) == (2.0, {})


def test_a_series_that_cannot_be_read_loses_only_itself() -> None:
    bad: list[Any] = [
        None, 5, {}, {"metric": {}}, {"metric": {"__name__": COUNT}, "values": 5},
        series([["x", "1"]]), series([[1.0, "one"]]), series([[1.0]]), series([[1.0, None]]),
        {"metric": 5, "values": []},
    ]  # fmt: skip
    good = series([[1.0, "10"], [2.0, "15"]])
    calls, failures = read(*bad, good)
    assert calls == 5
    assert failures == {"series": len(bad)}


def test_oddities_are_told() -> None:
    assert read() == (0.0, {"empty": 1})
    good = series([[1.0, "10"], [2.0, "15"]])
    assert read(good, warnings=["a store is down"]) == (5.0, {"partial": 1})
    assert read(good, infos=["x"]) == (5.0, {})


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b"5", b"null", b"{}", b"\xff\xfe", b"[" * 100_000,
        b'{"status":"error","errorType":"timeout","error":"query timed out"}',
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":[NaN]}}',
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(FetchError):
        read_answer(body, LabelRules())


def test_an_answer_without_results_is_empty() -> None:
    body = b'{"status":"success","data":{"resultType":"matrix","result":null}}'
    assert read_answer(body, LabelRules()) == ([], {"empty": 1})


async def test_a_time_without_the_server_is_made_up_for() -> None:
    clock = ManualClock()
    good = page(answer(series([[1.0, "10"], [2.0, "15"]])))
    async with http_peer(good) as peer, Fetcher(FetchLimits(patience_s(), 1 << 20, 0)) as fetcher:
        source = PrometheusSource(
            f"http://{peer.address}/prefix/", fetcher, clock.now_s, interval_s=5.0,
            selector='job="x"',
        )  # fmt: skip

        async def asked_range_s() -> float:
            await source.pages()
            request = peer.requests[-1]
            assert (request.method, request.path) == ("POST", "/prefix/api/v1/query")
            (query,) = parse_qs(request.body.decode())["query"]
            assert query.startswith('{__name__=~"attnroute_training_.+|')
            assert ',job="x"}[' in query
            return float(query.rpartition("[")[2].removesuffix("ms]")) / 1000

        usual_s = await asked_range_s()
        assert usual_s == 20.0
        clock.advance(5.0)
        assert await asked_range_s() == 25.0
        # Five minutes without it.
        peer.answer = page(b"down", status="503 Service Unavailable")
        for _ in range(60):
            clock.advance(5.0)
            pages, failures = await source.pages()
            assert (pages, failures) == ([], {"status": 1})
        peer.answer = good
        assert await asked_range_s() == 320.0
        peer.answer = page(answer())
        clock.advance(5.0)
        assert (await source.pages())[1] == {"empty": 1}
        clock.advance(10_000.0)
        peer.answer = good
        assert await asked_range_s() == RANGE_S_MAX + 20.0
        assert await asked_range_s() == 20.0
        peer.answer = page(b'{"status":"error","error":"no"}')
        assert await source.pages() == ([], {"error": 1})
