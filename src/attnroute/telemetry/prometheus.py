"""Pages of sidecars as a Prometheus server stored them: the source for fleets that have one.

A range of raw samples is asked for, not `increase()`, which extrapolates: samples of one scrape
share their time, so each scrape is put together again as the page that it was, and read as if it
had been scraped here. A time without the server loses nothing, as the range then reaches back.
Nothing is asked of its clock but order.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from attnroute.telemetry.fetch import Fetcher, FetchError
from attnroute.telemetry.increases import LabelRules, Page, Sample

__all__ = ["RANGE_S_MAX", "PrometheusSource", "read_answer"]

RANGE_S_MAX = 600.0
"""How far back is asked at most after a time without the server."""

_NAMES = (
    "attnroute_training_.+|attnroute_sidecar_info|"
    "attnroute_endpoint_(inflight_seconds_total|rtt_seconds|concurrency|info)"
)


class PrometheusSource:
    """Asks one server. url: its root, with any prefix; selector: more label matchers of PromQL."""

    name = "prometheus"

    def __init__(
        self,
        url: str,
        fetcher: Fetcher,
        now_s: Callable[[], float],
        *,
        interval_s: float,
        selector: str = "",
        rules: LabelRules | None = None,
    ) -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query"
        self._fetcher = fetcher
        self._now_s = now_s
        self._interval_s = interval_s
        self._selector = selector
        self._rules = rules or LabelRules()
        self._answered_s = -math.inf

    async def pages(self) -> tuple[list[Page], Mapping[str, int]]:
        """The pages since the last good answer and a little before, and how often what went wrong,
        by reason."""
        asked_s = self._now_s()
        since_s = asked_s - self._answered_s
        range_s = min(RANGE_S_MAX, max(since_s if math.isfinite(since_s) else 0.0, 0.0))
        # Samples come late: two more intervals, and some for scrapes that differ from ours.
        range_ms = int((range_s + 2 * self._interval_s + 10.0) * 1000)
        matchers = f'__name__=~"{_NAMES}"' + (f",{self._selector}" if self._selector else "")
        try:
            body = await self._fetcher.fetch(
                self._url,
                accept="application/json",
                form={"query": f"{{{matchers}}}[{range_ms}ms]"},
            )
            pages, failures = await asyncio.to_thread(read_answer, body, self._rules)
        except FetchError as error:
            return [], {error.reason: 1}
        if pages:
            self._answered_s = asked_s
        return pages, failures

    async def close(self) -> None:
        """Ends the connections."""
        await self._fetcher.close()


def read_answer(body: bytes, rules: LabelRules) -> tuple[list[Page], Mapping[str, int]]:
    """The pages in an answer of the query API; none unless it says that it is one.

    Returns also what was odd about it: `partial` (the server warned), `empty`, `series` (one that
    cannot be read). Raises FetchError.
    """
    try:
        answer = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FetchError("protocol", f"the answer is no JSON: {error}") from error
    if not isinstance(answer, dict) or answer.get("status") != "success":
        said = answer.get("error", "") if isinstance(answer, dict) else ""
        raise FetchError("error", f"the server says that the query failed: {str(said)[:200]}")
    data = answer.get("data")
    if not isinstance(data, dict) or data.get("resultType") != "matrix":
        raise FetchError("protocol", "the answer is no matrix of samples")
    failures: dict[str, int] = {}
    if answer.get("warnings"):
        failures["partial"] = 1
    pages: dict[tuple[str, str, float], list[Sample]] = {}
    for series in data.get("result") or ():
        try:
            _sort_in(pages, series, rules)
        except (KeyError, TypeError, ValueError, AttributeError):
            failures["series"] = failures.get("series", 0) + 1
    if not pages:
        failures["empty"] = 1
    return [
        Page(target, at_s, samples, replica) for (target, replica, at_s), samples in pages.items()
    ], failures


def _sort_in(
    pages: dict[tuple[str, str, float], list[Sample]], series: Any, rules: LabelRules
) -> None:
    metric: dict[str, str] = series["metric"]
    name = metric["__name__"]
    labels, target, replica = rules.split(metric)
    for at, text in series["values"]:
        at_s, value = float(at), float(text)
        if math.isfinite(at_s):
            pages.setdefault((target, replica, at_s), []).append(Sample(name, labels, value))


def _no_constant(name: str) -> float:
    raise ValueError(f"`{name}` is no number of JSON")
