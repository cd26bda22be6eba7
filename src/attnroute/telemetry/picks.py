"""The last recorded picks of every service, for whoever wants to look at them.

The data plane hands each record out once; here they are kept, a bounded number per service, under
numbers that only rise. A watcher is a number: whoever does not read holds nothing, and finds out
from the numbers what it missed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

__all__ = ["PickHistory", "PickRecord"]

_TAKE_ROWS = 4_096


class DecisionSource(Protocol):
    """The part of the data plane this module reads."""

    def take_decisions(self, max_rows: int) -> tuple[bytes, int]: ...


@dataclass(frozen=True, slots=True)
class PickRecord:
    """One recorded pick. number: rises by 1 with each record of its service, from 1.

    row: what the data plane told (`Decision::describe` in crates/dataplane/src/decisions.rs).
    """

    number: int
    row: dict[str, Any]


class PickHistory:
    """Keeps recorded picks; made and used on one event loop."""

    def __init__(self, source: DecisionSource, keep: int) -> None:
        """keep: records per service."""
        self._source = source
        self._keep = keep
        self._kept: dict[str, deque[PickRecord]] = {}
        self._numbers: dict[str, int] = {}
        self._dropped = 0

    def number(self, service: str) -> int:
        """Of the newest record of a service; 0 before the first."""
        return self._numbers.get(service, 0)

    @property
    def dropped(self) -> int:
        """Records that were lost before they got here."""
        return self._dropped

    def configure(self, keep: int, services: Collection[str]) -> None:
        """Follows the policy: how many are kept, and of which services."""
        if keep != self._keep:
            self._keep = keep
            self._kept = {name: deque(kept, maxlen=keep) for name, kept in self._kept.items()}
        for gone in self._kept.keys() - set(services):
            del self._kept[gone], self._numbers[gone]

    def pull(self) -> None:
        """Takes over what was recorded since; to be called about once a second."""
        while True:
            data, self._dropped = self._source.take_decisions(_TAKE_ROWS)
            rows: list[dict[str, Any]] = json.loads(data)
            for row in rows:
                service = row["service"]
                number = self._numbers[service] = self.number(service) + 1
                kept = self._kept.setdefault(service, deque(maxlen=self._keep))
                kept.append(PickRecord(number, row))
            if len(rows) < _TAKE_ROWS:
                return

    def last(self, service: str, count: int) -> Sequence[PickRecord]:
        """The newest records of a service, oldest first."""
        kept = self._kept.get(service, deque())
        return list(islice(kept, max(len(kept) - count, 0), None))

    def after(self, service: str, number: int, count: int) -> Sequence[PickRecord]:
        """At most `count` of the records of a service that came after a number, oldest first."""
        kept = self._kept.get(service, deque())
        newer = [record for record in reversed(kept) if record.number > number]
        return newer[::-1][:count]
