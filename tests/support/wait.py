"""Waiting for conditions instead of sleeping.

A timeout here only catches hangs; no test asserts a duration through it. Its length is one
environment variable, so that a slow machine needs no edit of the tests.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")

_POLL_INTERVAL_S = 0.01


def patience_s() -> float:
    """How long a test waits for something that must happen, in seconds."""
    return float(os.environ.get("ATTNROUTE_TEST_PATIENCE_S", "60"))


async def until(
    condition: Callable[[], object], what: str, *, timeout_s: float | None = None
) -> None:
    """Returns when `condition()` is true; fails with `what` when patience is over."""
    limit_s = patience_s() if timeout_s is None else timeout_s
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"waited {limit_s:g} s in vain for: {what}")
        await asyncio.sleep(_POLL_INTERVAL_S)


def until_blocking(
    condition: Callable[[], object], what: str, *, timeout_s: float | None = None
) -> None:
    """`until` for tests without an event loop."""
    limit_s = patience_s() if timeout_s is None else timeout_s
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"waited {limit_s:g} s in vain for: {what}")
        time.sleep(_POLL_INTERVAL_S)


async def patiently(awaitable: Awaitable[_T], what: str) -> _T:
    """The result of `awaitable`; fails with `what` when patience is over."""
    limit_s = patience_s()
    try:
        return await asyncio.wait_for(awaitable, limit_s)
    except TimeoutError:
        raise AssertionError(f"waited {limit_s:g} s in vain for: {what}") from None
