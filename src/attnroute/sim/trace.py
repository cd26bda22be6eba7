"""Recorded calls as the input of a scenario.

One JSON object a line, in the order of time:

    {"ts": 1735689600.125, "method": "/shop.Checkout/Pay", "message_size": "small",
     "service_time_ms": 12.5}

`ts` in seconds from any origin; `method` and `message_size` by their names in the scenario, the
first of each where they are missing; `service_time_ms` on a worker of speed 1 without affinity,
drawn from the scenario's law where it is missing or 0. Other keys are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnroute.errors import Problem, ScenarioError

__all__ = ["read_trace"]

_PROBLEMS_MAX = 20


class _RowError(Exception):
    pass


def read_trace(path: Path, methods: Sequence[str], sizes: Sequence[str]) -> dict[str, Any]:
    """The trace as the columns that the simulator takes; the first call comes at 0.

    Raises ScenarioError with the line of each mistake.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise ScenarioError(
            [Problem(str(path), 1, 1, f"the trace cannot be read: {reason}; check `load.trace`")]
        ) from None
    places = (
        {name: index for index, name in enumerate(methods)},
        {name: index for index, name in enumerate(sizes)},
    )
    rows: list[tuple[float, int, float]] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(line, *places)
            if rows and row[0] < rows[-1][0]:
                raise _RowError("`ts` goes back; sort the file by `ts`")
            rows.append(row)
        except _RowError as error:
            problems.append(Problem(str(path), number, 1, str(error)))
            if len(problems) == _PROBLEMS_MAX:
                break
    if problems:
        raise ScenarioError(problems)
    if not rows:
        raise ScenarioError([Problem(str(path), 1, 1, "the trace has no calls")])
    first = rows[0][0]
    return {
        "at_ms": [(at - first) * 1_000 for at, _, _ in rows],
        "class": [request_class for _, request_class, _ in rows],
        "work_ms": [work_ms for _, _, work_ms in rows],
    }


def _row(line: str, methods: dict[str, int], sizes: dict[str, int]) -> tuple[float, int, float]:
    try:
        record = json.loads(line)
    except ValueError:
        raise _RowError("no JSON; expected one object a line") from None
    if not isinstance(record, dict):
        raise _RowError('expected an object such as `{"ts": 0.125, "method": "/shop.Cart/Add"}`')
    at = _number(record, "ts")
    if at is None:
        raise _RowError("the key `ts` is missing; write seconds as a number")
    place = _place(record, "method", methods) * len(sizes) + _place(record, "message_size", sizes)
    return at, place, _number(record, "service_time_ms") or 0.0


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise _RowError(f"`{key}`: found `{value}`, expected a number of 0 or more")
    return float(value)


def _place(record: dict[str, Any], key: str, known: dict[str, int]) -> int:
    name = record.get(key)
    if name is None:
        return 0
    if name not in known:
        names = ", ".join(f"`{each}`" for each in list(known)[:8])
        raise _RowError(f"`{key}`: found `{name}`, the scenario has {names}; list it there")
    return known[name]
