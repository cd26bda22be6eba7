"""Values that several parts exchange. Frozen: what was handed over does not change under anyone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EndpointSpec", "FileContent", "FileUnreadable"]


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One endpoint as a source of endpoints describes it.

    address: `ip:port`, `[ip6]:port` or `unix:/path`; the endpoint's identity.
    static_weight: 0..1,000,000, relative to the other endpoints; 0 takes no new calls.
    zone: empty where unknown.
    labels: free words of the operator.
    priority: calls go to the lowest number of which enough endpoints are well.
    """

    address: str
    static_weight: float = 1.0
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class FileContent:
    """What a followed file holds now that it has come to rest."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FileUnreadable:
    """A followed file cannot be read, or does not come to rest; `reason` says why."""

    reason: str
