"""Which of several trainers publishes: one, by compare-and-set on a file, with no common clock.

The leader changes the file again and again. Who waits takes its place after it has seen no change
for a lease, measured by its own clock: wall clocks of machines need not agree. A leader that was
stopped for longer than that finds out before it publishes anything, since each publication checks
the file under the same lock.
"""

from __future__ import annotations

from pathlib import Path

from attnroute.clock import Clock
from attnroute.registry.files import locked, read_json, write_json

__all__ = ["LEASE_S", "Leader", "leads"]

LEASE_S = 15.0
_FILE = "leader.json"


def leads(directory: Path, holder: str) -> bool:
    """Whether `holder` leads now. The caller holds the directory's lock."""
    document = read_json(directory / _FILE)
    return document is not None and document.get("holder") == holder


class Leader:
    """One trainer's part. directory: of the model's name; holder: unique to this process; who: for
    people."""

    def __init__(
        self, directory: Path, holder: str, clock: Clock, *, who: str = "", lease_s: float = LEASE_S
    ) -> None:
        self._directory = directory
        self._holder = holder
        self._clock = clock
        self._who = who
        self._lease_s = lease_s
        self._seen: tuple[object, object, object] | None = None
        self._seen_s = 0.0
        self.other = ""
        """Who leads instead, for people."""

    def renew(self) -> bool:
        """Takes the place if it is free, keeps it if it is ours; whether this one leads. Call it
        several times a lease. Raises RegistryError if the directory cannot be changed."""
        with locked(self._directory):
            document = read_json(self._directory / _FILE) or {}
            holder = document.get("holder")
            now_s = self._clock.now_s()
            if holder and holder != self._holder:
                state = holder, document.get("term"), document.get("beat")
                if state != self._seen:
                    self._seen, self._seen_s = state, now_s
                if now_s - self._seen_s < self._lease_s:
                    self.other = str(document.get("who", ""))
                    return False
            term, beat = _number(document.get("term")), _number(document.get("beat"))
            if holder != self._holder:
                term += 1
            self._write(self._holder, term, beat + 1)
        self.other = ""
        return True

    def resign(self) -> None:
        """Leaves the place to whoever comes next."""
        with locked(self._directory):
            document = read_json(self._directory / _FILE) or {}
            if document.get("holder") == self._holder:
                self._write("", _number(document.get("term")), _number(document.get("beat")) + 1)

    def _write(self, holder: str, term: int, beat: int) -> None:
        write_json(
            self._directory / _FILE,
            {"holder": holder, "who": self._who if holder else "", "term": term, "beat": beat},
        )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
