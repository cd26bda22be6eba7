"""The last recorded picks of every service, for whoever wants to look at them.

The data plane keeps a bounded number per service, under numbers that only rise, and writes them out
when somebody asks. A watcher is a number: whoever does not read holds nothing, and finds out from
the numbers what it missed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["PickHistory", "PickRecord"]


class PickSource(Protocol):
    """The part of the data plane this module reads."""

    def recorded_picks(self, service: str, after: int, count: int) -> tuple[bytes, int, int]: ...


@dataclass(frozen=True, slots=True)
class PickRecord:
    """One recorded pick. number: rises by 1 with each record of its service, from 1.

    row: what the data plane told (`Decision::describe` in crates/dataplane/src/decisions.rs).
    """

    number: int
    row: dict[str, Any]


class PickHistory:
    """Reads recorded picks. Raises what the data plane raises for a service it does not have."""

    def __init__(self, source: PickSource) -> None:
        self._source = source
        self._dropped = 0

    def number(self, service: str) -> int:
        """Of the newest record of a service; 0 before the first."""
        _, newest, self._dropped = self._source.recorded_picks(service, 0, 0)
        return newest

    @property
    def dropped(self) -> int:
        """Picks of any service that were not recorded because records were being read, as of the
        last look."""
        return self._dropped

    def last(self, service: str, count: int) -> Sequence[PickRecord]:
        """The newest records of a service, oldest first."""
        return self.after(service, max(self.number(service) - count, 0), count)

    def after(self, service: str, number: int, count: int) -> Sequence[PickRecord]:
        """At most `count` of the records of a service that came after a number and are still kept,
        oldest first."""
        data, _, self._dropped = self._source.recorded_picks(service, number, count)
        rows: list[dict[str, Any]] = json.loads(data)
        return [PickRecord(row["number"], row) for row in rows]
