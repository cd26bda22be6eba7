"""Access logs of sidecars as the input of a scenario: yesterday's traffic, played again.

A line is written when its call ends; what is played is when calls came, which is `ts` less
`latency_ms`. Several sidecars' logs are merged. The request classes are those of the log: every
method with every size of message that it has, by the ranges that the policy starts from.

What a call cost its endpoint stands in no access log, because its latency includes waiting. The
scenario says the mean; relative to it, a method costs what the median of its latencies says, and a
size what the median of (latency / median of the method) says. Medians, because a few calls that
waited long say much about the queue and little about the work.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from attnroute.errors import Problem, ScenarioError

__all__ = ["Traffic", "read_access_logs"]

CALLS_MAX = 5_000_000
"""Calls of all logs together; each is some 200 bytes of memory."""

SIZE_BOUNDS = (1 << 10, 1 << 14, 1 << 18)
"""Message bytes at which a range ends; the policy's default ranges of request classes."""

_SIZE_NAMES = ("..1024", "1024..16384", "16384..262144", "262144..")
_PREFIX_BYTES = 5
"""gRPC's own in front of a message."""
_PROBLEMS_MAX = 20


class _RowError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls in the order in which they came, as the simulator takes them."""

    methods: list[dict[str, Any]]
    message_sizes: list[dict[str, Any]]
    trace: dict[str, Any]
    """Columns `at_ms` (the first call at 0), `class` (method times sizes, plus size), `work_ms`
    (0: the scenario's law draws it)."""


@dataclass(frozen=True, slots=True)
class _Call:
    came_s: float
    method: str
    size: int
    answered_ms: float | None
    """Latency, of a success."""


def read_access_logs(paths: Sequence[Path], service: str | None) -> Traffic:
    """Reads logs of one service; `service` is needed where they hold calls of several.

    Raises ScenarioError with file and line of each mistake.
    """
    calls: dict[str, list[_Call]] = defaultdict(list)
    problems: list[Problem] = []
    count = 0
    for path in paths:
        for number, line in _lines(path):
            try:
                name, call = _row(line)
            except _RowError as error:
                problems.append(Problem(str(path), number, 1, str(error)))
                if len(problems) == _PROBLEMS_MAX:
                    raise ScenarioError(problems) from None
                continue
            count += 1
            if count > CALLS_MAX:
                message = f"more than {CALLS_MAX} calls in all; leave out files or lines"
                raise ScenarioError([Problem(str(path), number, 1, message)])
            if name is not None:  # else no service took the call
                calls[name].append(call)
    if problems:
        raise ScenarioError(problems)
    return _traffic(_of_service(calls, service, str(paths[0])))


def _of_service(calls: dict[str, list[_Call]], service: str | None, file: str) -> list[_Call]:
    names = ", ".join(f"`{name}`" for name in sorted(calls))
    if service is None and len(calls) == 1:
        return next(iter(calls.values()))
    if service in calls:
        return calls[service]
    if not calls:
        message = "no call of any service; log with `sample: 100%` while calls run"
    elif service is None:
        message = f"calls of {names}; name one in `load.access_log.service`"
    else:
        message = f"no call of service `{service}`, only of {names}; name one of these"
    raise ScenarioError([Problem(file, 1, 1, message)])


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                # One without an end is still being written.
                if line.strip() and line.endswith("\n"):
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        message = f"the access log cannot be read: {reason}; check `load.access_log`"
        raise ScenarioError([Problem(str(path), 1, 1, message)]) from None


def _row(line: str) -> tuple[str | None, _Call]:
    try:
        record = json.loads(line)
    except ValueError:
        raise _RowError("no JSON; expected the lines of an access log") from None
    if not isinstance(record, dict):
        raise _RowError("expected an object, as an access log has one a line")
    ended, service, method = (record.get(key) for key in ("ts", "service", "method"))
    try:
        ended_s = datetime.fromisoformat(ended if isinstance(ended, str) else "").timestamp()
    except (ValueError, OverflowError):
        message = f"`ts`: found `{ended}`, expected a time such as `2026-01-31T12:00:00.25Z`"
        raise _RowError(message) from None
    if not isinstance(method, str) or not (service is None or isinstance(service, str)):
        raise _RowError("`method` and `service` must be texts; is this an access log?")
    latency_ms = _number(record, "latency_ms")
    message_bytes = _number(record, "request_bytes") - _PREFIX_BYTES
    answered = record.get("grpc_status") == "OK"
    return service, _Call(
        came_s=ended_s - latency_ms / 1e3,
        method=method,
        size=bisect_right(SIZE_BOUNDS, message_bytes),
        answered_ms=latency_ms if answered else None,
    )


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not number or not math.isfinite(value) or value < 0:
        raise _RowError(f"`{key}`: found `{value}`, expected a number of 0 or more")
    return float(value)


def _traffic(calls: list[_Call]) -> Traffic:
    calls.sort(key=lambda call: call.came_s)
    first_s = calls[0].came_s
    methods, sizes = _kinds([call.method for call in calls]), _kinds([call.size for call in calls])
    costs = _medians((call.method, call.answered_ms) for call in calls)
    relative = _medians(
        (call.size, None if call.answered_ms is None else call.answered_ms / costs[call.method])
        for call in calls
        if call.method in costs
    )
    middle = statistics.median(costs.values()) if costs else 1.0
    places = {method: index for index, method in enumerate(methods)}
    size_places = {size: index for index, size in enumerate(sizes)}
    return Traffic(
        methods=[
            {"name": method, "popularity": count, "cost": costs.get(method, middle) / middle}
            for method, count in methods.items()
        ],
        message_sizes=[
            {"name": _SIZE_NAMES[size], "popularity": count, "cost": relative.get(size, 1.0)}
            for size, count in sizes.items()
        ],
        trace={
            "at_ms": [(call.came_s - first_s) * 1e3 for call in calls],
            "class": [places[call.method] * len(sizes) + size_places[call.size] for call in calls],
            "work_ms": [0.0] * len(calls),
        },
    )


_Kind = TypeVar("_Kind", str, int)


def _kinds(values: list[_Kind]) -> dict[_Kind, int]:
    """How often each stands there, in a fixed order."""
    return dict(sorted(Counter(values).items()))


def _medians(values: Iterator[tuple[_Kind, float | None]]) -> dict[_Kind, float]:
    """Median of what is above 0, of each kind that has it."""
    found: dict[_Kind, list[float]] = defaultdict(list)
    for kind, value in values:
        if value is not None and value > 0:
            found[kind].append(value)
    return {kind: statistics.median(each) for kind, each in found.items()}
