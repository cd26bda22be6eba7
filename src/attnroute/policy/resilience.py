"""Calls that are tried again, or twice at once: what `docs/resilience.md` describes, as written."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from attnroute.policy import scalars
from attnroute.policy.balancers import Share
from attnroute.policy.fields import Parsed, Strict, duration

__all__ = ["Hedge", "Retry", "RetryBudget", "hedge_json", "retry_json"]

_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_HOUR = timedelta(hours=1)
_U32_MAX = 2**32 - 1
_BACKOFF_GROWTH = 10
_QUANTILE = r"^p([5-9][0-9])(\.[0-9])?$"
_HEDGE_AT = "expected a percentile from `p50` to `p99.9`, or a duration such as `50ms`"

_Wait = Annotated[timedelta, duration(timedelta(0), _HOUR)]
_Span = Annotated[timedelta, duration(_MS, _HOUR)]

Status = Literal[
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]


def _hedge_at(value: object) -> float | timedelta:
    if isinstance(value, str) and re.fullmatch(_QUANTILE, value):
        return round(float(value[1:]) / 100, 3)
    try:
        after = scalars.parse_duration(value)
    except ValueError:
        raise ValueError(_HEDGE_AT) from None
    if not _MS <= after <= _HOUR or after % _MS:
        raise ValueError(_HEDGE_AT)
    return after


def _hedge_at_text(value: float | timedelta) -> str:
    if isinstance(value, timedelta):
        return scalars.format_duration(value)
    return f"p{value * 100:g}"


_HedgeAt = Annotated[
    float | timedelta,
    Parsed(
        _hedge_at,
        {
            "anyOf": [
                {"type": "string", "pattern": _QUANTILE},
                {"type": "string", "pattern": scalars.DURATION_PATTERN},
            ]
        },
        _hedge_at_text,
    ),
]


class RetryBudget(Strict):
    """How many retries there may be: a share of the calls of a time window, the running ones among
    them."""

    share: Share = Field(default=0.2, description="Share of the calls of the window.")
    window: Annotated[timedelta, duration(_SECOND, _HOUR)] = Field(
        default=timedelta(seconds=10), description="Length of the window."
    )
    floor: int = Field(
        default=3,
        ge=0,
        le=_U32_MAX,
        description="Retries in a window that are allowed however few calls there are.",
    )


class Retry(Strict):
    """Calls that fail are tried again, at another endpoint if there is one; `{}` switches it on."""

    max_attempts: int = Field(
        default=2, ge=2, le=5, description="Attempts of a call, the first one included."
    )
    on: tuple[Status, ...] = Field(
        default=("UNAVAILABLE",), min_length=1, description="Statuses that are tried again."
    )
    budget: RetryBudget = Field(default=RetryBudget(), description="How many retries there may be.")
    backoff: _Wait = Field(
        default=timedelta(milliseconds=25),
        description="Bound of the wait before the first retry, which doubles with each further "
        "one; the wait is drawn evenly from 0 to it.",
    )
    max_backoff: _Wait | None = Field(
        default=None, description="Where that bound stops; default 10 times `backoff`."
    )
    per_try_timeout: _Span | None = Field(
        default=None,
        description="Time from the start of an attempt to the head of its answer, also told to the "
        "endpoint; default the call's.",
    )


class Hedge(Strict):
    """Calls that take long are sent to another endpoint too; the first good answer wins."""

    at: _HedgeAt = Field(
        description="When: a percentile of the times that such calls take at this endpoint (`p95`; "
        "predicted where a model has scores, else measured; none is sent while too few are known), "
        "or a duration (`50ms`)."
    )
    max_share: Share = Field(
        default=0.05, description="Share of the calls that may have one; 10 more may come at once."
    )
    max_attempts: int = Field(
        default=2, ge=2, le=5, description="Attempts of a call, the first one included."
    )


def retry_json(retry: Retry | None) -> dict[str, Any] | None:
    """The form of `crates/dataplane/src/config/resilience.rs`."""
    if retry is None:
        return None
    longest = retry.max_backoff
    if longest is None:
        longest = retry.backoff * _BACKOFF_GROWTH
    own = retry.per_try_timeout
    return {
        "max_attempts": retry.max_attempts,
        "on": list(retry.on),
        "budget": {
            "share": retry.budget.share,
            "window_ms": retry.budget.window // _MS,
            "floor": retry.budget.floor,
        },
        "backoff_ms": retry.backoff // _MS,
        "max_backoff_ms": longest // _MS,
        "per_try_timeout_ms": None if own is None else own // _MS,
    }


def hedge_json(hedge: Hedge | None) -> dict[str, Any] | None:
    """The form of `crates/dataplane/src/config/resilience.rs`."""
    if hedge is None:
        return None
    at = (
        {"after_ms": hedge.at // _MS} if isinstance(hedge.at, timedelta) else {"quantile": hedge.at}
    )
    return {"at": at, "max_share": hedge.max_share, "max_attempts": hedge.max_attempts}
