"""Request classes of the policy: what docs/model.md says of them, as the operator writes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from attnroute.policy.balancers import HeaderName
from attnroute.policy.fields import Strict, duration, size

__all__ = ["RequestClass", "request_class_json"]

_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)
_BUCKETS_MAX = 15


def _rising(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("expected bounds that rise; sort them and remove what stands twice")
    return bounds


_Rises: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _rising

Sizes = Annotated[
    tuple[Annotated[int, size(1, 2**32 - 1)], ...],
    Field(max_length=_BUCKETS_MAX),
    AfterValidator(_Rises),
]
Deadlines = Annotated[
    tuple[Annotated[timedelta, duration(_MS, 24 * _HOUR)], ...],
    Field(max_length=_BUCKETS_MAX),
    AfterValidator(_Rises),
]


class RequestClass(Strict):
    """How the calls of a service are told apart."""

    message_bytes_buckets: Sizes = Field(
        default=(1 << 10, 16 << 10, 256 << 10),
        description="Bounds between sizes of a call's first message; empty: sizes tell nothing "
        "apart.",
    )
    headers: Annotated[tuple[HeaderName, ...], Field(max_length=8)] = Field(
        default=(), description="Request headers whose values tell calls apart."
    )
    priority_header: HeaderName | None = Field(
        default=None, description="Request header that holds the priority of a call; default none."
    )
    deadline_buckets: Deadlines = Field(
        default=(),
        description="Bounds between times to the deadline; empty: deadlines tell nothing apart.",
    )
    max_classes: int = Field(
        default=256,
        ge=1,
        le=256,
        description="Classes, `other` included, which takes the calls of all further ones; at most "
        "65,536 divided by the number of endpoints.",
    )


def request_class_json(request_class: RequestClass | None) -> dict[str, Any] | None:
    """In the form of the data plane."""
    if request_class is None:
        return None
    return {
        "message_bytes_buckets": list(request_class.message_bytes_buckets),
        "headers": list(request_class.headers),
        "priority_header": request_class.priority_header,
        "deadline_buckets_ms": [bound // _MS for bound in request_class.deadline_buckets],
        "max_classes": request_class.max_classes,
    }
