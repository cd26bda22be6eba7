"""A sidecar's table of one service: what the trainer says of the fleet, and what it has seen since.

The trainer's sums hold every sidecar's windows, this one's up to the watermark. To them come the
own windows that are later. A sidecar without a trainer has own windows only; when its trainer is
gone, the fleet's sums decay and the own windows take their place, with no switch in between. What
another trainer says comes on top of what the first one said, which goes on decaying: a window is
sent to one trainer only, so nothing counts twice.

Pure: no socket, no clock. The exchange itself is `attnroute.fleet`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute.features.ledger import LEFT_OUT, Ledger
from attnroute.features.table import Array, Attribution, Index, Sums
from attnroute.features.window import FleetState, ServiceWindow, Split

__all__ = ["LATE_WINDOWS", "OwnWindow", "SharedTable"]

LATE_WINDOWS = 64
"""Own windows that are kept in case the trainer lacks them; older ones weigh under 0.2 %."""

CLASSES_MAX = 1024
ENDPOINTS_MAX = 20_000
"""Names over which a sidecar keeps sums: its own and those that only others have."""

SPLIT_S_MAX = 5.0
"""An older split says nothing of now: what a fleet calls moves within seconds."""


@dataclass(frozen=True)
class OwnWindow:
    """A window of this sidecar, numbered from 1."""

    number: int
    ended_s: float
    """Monotonic."""
    window: ServiceWindow
    attribution: Attribution


class SharedTable:
    """One service's sums. sidecars: M until a trainer says otherwise. decay_s: of the table."""

    def __init__(self, *, sidecars: int, decay_s: float, now_s: float) -> None:
        self.sidecars = sidecars
        self.ledger = Ledger(
            "fleet", "carried", "own", classes_max=CLASSES_MAX, endpoints_max=ENDPOINTS_MAX
        )
        self.trainer = b""
        self.watermark = 0
        self.updates = 0
        self.decay_s = decay_s
        self._at_s = now_s
        self._number = 0
        self._sequence = 0
        self._opened = False
        self._carried_from: set[bytes] = set()
        self._late: deque[OwnWindow] = deque(maxlen=LATE_WINDOWS)
        self._split: Split | None = None
        self._split_s = -math.inf
        self._rtt_s: dict[str, float] = {}
        self._concurrency: dict[str, float] = {}

    def observe(
        self, window: ServiceWindow, attribution: Attribution, now_s: float
    ) -> tuple[OwnWindow, Index, list[int]]:
        """Takes in an own window. Returns it with its number, the columns of its endpoints and
        the columns whose endpoint was restarted."""
        self._to(now_s)
        columns, restarted = self.ledger.columns(
            window.endpoints, window.started_s, now_s, restarts="any"
        )
        for column in restarted:
            self._concurrency.pop(self.ledger.endpoints[column], None)
        self.ledger.add("own", window, attribution, columns)
        self._number += 1
        own = OwnWindow(self._number, now_s, window, attribution)
        self._late.append(own)
        return own, columns, restarted

    def opened(self) -> None:
        """A stream to a trainer is open: its first update begins anew."""
        self._opened = True

    def late(self, after: int) -> list[OwnWindow]:
        """Own windows after that number which no trainer has, oldest first."""
        return [own for own in self._late if own.number > max(after, self.watermark)]

    def update(self, state: FleetState, now_s: float) -> bool:
        """Takes in an update. False if one before it is missing: the stream has to be opened again.
        One that comes again or too late changes nothing."""
        begins = self._opened and state.full
        if not begins:
            if state.sequence <= self._sequence and not self._opened:
                return True
            if state.sequence != self._sequence + 1 or state.full or self._opened:
                return False
        self._to(now_s)
        if begins and state.trainer != self.trainer:
            self._change_trainer(state.trainer)
        self._opened = False
        self._sequence = state.sequence
        self.updates += 1
        self._take(state, now_s)
        self._split, self._split_s = state.split, now_s
        if state.sidecars > 0:
            self.sidecars = state.sidecars
        if state.watermark > self.watermark:
            self.watermark = state.watermark
            self._rebuild_own(now_s)
        return True

    def sums(self, now_s: float) -> Sums:
        """Everything known, decayed to now, in the order of the ledger's names."""
        self._to(now_s)
        ledger = self.ledger
        return ledger.layer("fleet").plus(ledger.layer("carried")).plus(ledger.layer("own"))

    def split(self, now_s: float) -> Split | None:
        """The split that the last update carried; None if it carried none or is too old."""
        return self._split if now_s - self._split_s <= SPLIT_S_MAX else None

    def fleet_rtt_s(self, address: str) -> float:
        """Round trip to an endpoint as others of this zone measure it; NaN if unknown."""
        return self._rtt_s.get(address, math.nan)

    def fleet_concurrency(self, address: str) -> float:
        """What the fleet knows or has learned of an endpoint; NaN if nothing."""
        return self._concurrency.get(address, math.nan)

    def prune(
        self, classes: Collection[str], endpoints: Collection[str]
    ) -> tuple[Index, Index] | None:
        """Ledger.prune, and what else is kept by name."""
        kept = self.ledger.prune(classes, endpoints)
        if kept is not None:
            known = set(self.ledger.endpoints)
            for names in (self._rtt_s, self._concurrency):
                for gone in names.keys() - known:
                    del names[gone]
        return kept

    def _to(self, now_s: float) -> None:
        """Decays to now; time that seems to go back counts as none."""
        if now_s > self._at_s:
            self.ledger.decay(math.exp(-(now_s - self._at_s) / self.decay_s))
            self._at_s = now_s

    def _change_trainer(self, trainer: bytes) -> None:
        fleet, carried = self.ledger.layer("fleet"), self.ledger.layer("carried")
        if trainer in self._carried_from:
            # Back at a trainer whose sums are being carried: it tells them again itself.
            carried.decay(0.0)
            self._carried_from.clear()
        if self.trainer:
            for into, part in (
                (carried.num_s, fleet.num_s),
                (carried.den, fleet.den),
                (carried.busy_s, fleet.busy_s),
                (carried.calls, fleet.calls),
            ):
                into += part
            self._carried_from.add(self.trainer)
        fleet.decay(0.0)
        self.trainer = trainer

    def _take(self, state: FleetState, now_s: float) -> None:
        ledger = self.ledger
        columns, _ = ledger.columns(state.endpoints, state.started_s, now_s, restarts="newer")
        rows = ledger.rows(state.classes)
        fleet = ledger.layer("fleet")
        if state.full:
            fleet.decay(0.0)
        at = columns[state.cell_endpoint]
        known = at != LEFT_OUT
        places = rows[state.cell_class][known], at[known]
        fleet.num_s[places] = state.cell_s[known]
        fleet.den[places] = state.cell_calls[known]
        known = columns != LEFT_OUT
        fleet.busy_s[columns[known]] = state.busy_s[known]
        fleet.calls[columns[known]] = state.calls[known]
        self._note(self._rtt_s, state.endpoints, state.rtt_s, known)
        self._note(self._concurrency, state.endpoints, state.concurrency, known)

    @staticmethod
    def _note(
        into: dict[str, float],
        names: tuple[str, ...],
        values: Array,
        known: npt.NDArray[np.bool_],
    ) -> None:
        for index in np.flatnonzero(np.isfinite(values) & (values > 0) & known):
            into[names[index]] = float(values[index])

    def _rebuild_own(self, now_s: float) -> None:
        """What the trainer has of this sidecar is in its sums: only what is later stays apart."""
        self.ledger.layer("own").decay(0.0)
        while self._late and self._late[0].number <= self.watermark:
            self._late.popleft()
        for own in self._late:
            columns, _ = self.ledger.columns(
                own.window.endpoints, own.window.started_s, now_s, restarts="never"
            )
            weight = math.exp(-max(0.0, now_s - own.ended_s) / self.decay_s)
            self.ledger.add("own", own.window, own.attribution, columns, weight)
