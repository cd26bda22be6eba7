"""Spans on the control side: batches, outages, what happens without the SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.support.wait import until

from attnroute.errors import StartError
from attnroute.telemetry.traces import Collector, Traces, open_exporter

COLLECTOR = Collector("127.0.0.1:1", "1.0", {"token": "hidden"})


class Source:
    def __init__(self, count: int) -> None:
        self.left = count

    def take_spans(self, max_rows: int) -> bytes:
        taken = min(self.left, max_rows)
        self.left -= taken
        return json.dumps([{} for _ in range(taken)]).encode()


class Counts:
    def __init__(self) -> None:
        self.results: Counter[str] = Counter()

    def spans(self, result: str, count: int) -> None:
        self.results[result] += count


class Fake:
    """An exporter that takes what it is told to take."""

    def __init__(self, collector: Collector = COLLECTOR) -> None:
        self.collector = collector
        self.takes = True
        self.messages: list[int] = []
        self.closed = 0

    def export(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        self.messages.append(len(rows))
        return self.takes

    def close(self) -> None:
        self.closed += 1


async def test_what_ended_is_sent_in_messages_of_a_size() -> None:
    source, counts, exporter = Source(1_100), Counts(), Fake()
    traces = Traces(source, counts)
    traces.use(exporter)
    running = asyncio.create_task(traces.run())
    await until(lambda: not source.left, "everything taken")
    running.cancel()
    await traces.close()
    assert exporter.messages == [512, 512, 76]
    assert counts.results == {"exported": 1_100}
    await until(lambda: exporter.closed == 1, "the end of the exporter")


async def test_a_collector_that_refuses_gets_one_message_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, counts, exporter = Source(2_000), Counts(), Fake()
    exporter.takes = False
    traces = Traces(source, counts)
    traces.use(exporter)
    await traces._on_thread()
    await traces._on_thread()
    assert exporter.messages == [512, 512]
    assert counts.results == {"failed": 1_024}
    assert [record.message for record in caplog.records] == ["cannot export spans"]
    exporter.takes = True
    await traces._on_thread()
    exporter.takes, source.left = False, 1
    await traces._on_thread()
    assert len(caplog.records) == 2
    await traces.close()


async def test_the_exporter_of_the_same_collector_stays() -> None:
    traces = Traces(Source(0), Counts())
    assert await traces.prepare(None) is None
    exporter = Fake()
    traces.use(exporter)
    kept = await traces.prepare(Collector("127.0.0.1:1", "1.0", {"token": "hidden"}))
    assert kept is exporter
    traces.use(kept)
    other = await traces.prepare(Collector("127.0.0.1:2", "1.0"))
    assert other is not None
    assert other is not exporter
    traces.use(other)
    await until(lambda: exporter.closed == 1, "the end of the first exporter")
    await traces.close()
    assert exporter.closed == 1


def test_headers_are_in_no_text() -> None:
    assert "hidden" not in repr(COLLECTOR)


def test_without_the_extra_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(StartError, match=r"`tracing` needs the extra `otel`.*attnroute\[otel\]"):
        open_exporter(COLLECTOR)
