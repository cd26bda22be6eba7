"""Several scorers, one answer: each by its own gate times its confidence, the table the rest.

a_j = w_j c_j/max(1, sum_j w_j c_j), a_0 = 1 - sum a_j, S = exp(sum_j a_j ln S_j). A scorer that
says something else than the table by more than a factor of 4 on more than a fifth of the traffic is
in conflict: counted, and its weight capped until its gate has been positive for five steps. One
that raises, returns what has the wrong shape, or values that cannot be true, is at fault: after
three times in a row it is benched for a minute, and each time it is benched again for twice as
long, up to a quarter of an hour.

A scorer may be seated without a say, to be judged on the same windows (`shadow`), or with a share
of its say (`canary`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attnroute.features.split import over
from attnroute.logs import fields
from attnroute.scoring.base import Scored, Scorer, ScoringInput
from attnroute.scoring.guardrail import (
    Gate,
    GateParameters,
    blend_costs,
    blend_probabilities,
    repaired_costs,
    repaired_probabilities,
    table_probabilities,
)

__all__ = ["TABLE_SPREAD", "Arbiter", "Blended", "Seat"]

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

TABLE_SPREAD = float(np.exp(-0.5))
"""Spread while no scorer knows better: where the network starts, too."""

FAULTS_MAX = 3
BENCH_S = 60.0
BENCH_MAX_S = 900.0

GAIN_MIN = 1e-6
"""gd that is more than what rounding to float32 leaves of none."""

WEIGHT_SHOWN_MIN = 0.01
"""A scorer with less is not named as one of those whose scores are in force."""


@dataclass
class Seat:
    """One scorer and how far it is trusted."""

    scorer: Scorer
    gate: Gate
    say: float = 1.0
    """Share of its weight that counts: 0 in shadow, the canary share, else 1."""
    conflicts: int = 0
    faults: int = 0
    """Ever."""
    repaired: int = 0
    """Values replaced by the table's, ever."""
    benched: int = 0
    """How often it was benched, ever."""
    in_conflict: bool = False
    on_bench: bool = False
    benched_until_s: float = -np.inf
    good_steps: int = 0
    """Steps of the gate in a row with a gain over the table."""
    bad_steps: int = 0
    """The same with a loss that halves its weight."""
    _faults_in_a_row: int = 0
    _bench_s: float = BENCH_S
    _raw_s: Array | None = field(default=None, repr=False)
    _sure: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), repr=False)

    @property
    def weight(self) -> float:
        """w in force, before `say`."""
        if self.on_bench:
            return 0.0
        weight = self.gate.weight
        return min(weight, self.gate.parameters.conflict_weight_max) if self.in_conflict else weight

    def judge(self, calls: Array, x_s: Array, table_cost_s: Array, at: tuple[Index, Index]) -> None:
        """Takes a window before it is learned from; at: where its cells stood in what was scored
        last."""
        if self._raw_s is None:
            return
        # Where it had nothing to say there is nothing to judge.
        said = self._sure[at]
        raw_s = self._raw_s[at][said]
        step = self.gate.observe(calls[said], x_s[said], table_cost_s[said], raw_s)
        if step is not None:
            self.good_steps = self.good_steps + 1 if self.gate.gd > GAIN_MIN else 0
            self.bad_steps = self.bad_steps + 1 if self.gate.weight < 0.5 else 0
            if self.good_steps >= self.gate.parameters.conflict_steps:
                self.in_conflict = False

    def ask(self, given: ScoringInput, now_s: float) -> Scored | None:
        """What the scorer says now; None if it says nothing that can be used."""
        self._raw_s = None
        self.on_bench = now_s < self.benched_until_s
        if self.on_bench:
            return None
        try:
            scored = self.scorer.score(given)
            _check_shapes(scored, given.table_cost_s.shape)
        except Exception:
            logger.exception("a scorer failed", extra=fields(scorer=self.scorer.info.name))
            self._fault(now_s)
            return None
        self._raw_s = np.asarray(scored.cost_s, dtype=np.float64)
        # One that is not finite counts as none when it is blended, and is judged all the same.
        self._sure = np.asarray(scored.confidence) != 0.0
        return scored

    def note_repaired(self, values: int, now_s: float) -> None:
        """So many of the values that were asked for last could not be true."""
        self.repaired += values
        if values:
            self._fault(now_s)
        else:
            self._faults_in_a_row = 0
            if now_s - self.benched_until_s > self._bench_s:
                self._bench_s = BENCH_S

    def _fault(self, now_s: float) -> None:
        self.faults += 1
        self._faults_in_a_row += 1
        if self._faults_in_a_row < FAULTS_MAX:
            return
        self._faults_in_a_row = 0
        self.benched += 1
        if self.benched > 1 and now_s - self.benched_until_s <= self._bench_s:
            self._bench_s = min(2.0 * self._bench_s, BENCH_MAX_S)
        self.benched_until_s = now_s + self._bench_s

    def compare(self, cost_s: Array, table_cost_s: Array, traffic: Array) -> None:
        """Whether it contradicts the table. traffic: [C, E], calls."""
        total = traffic.sum()
        p = self.gate.parameters
        far = np.abs(np.log(cost_s / table_cost_s)) > np.log(p.conflict_factor)
        if total > 0 and float(traffic[far].sum()) > p.conflict_traffic * float(total):
            self.conflicts += 1
            self.in_conflict = True
            self.good_steps = 0


def _check_shapes(scored: Scored, shape: tuple[int, ...]) -> None:
    for name in ("cost_s", "probability", "spread", "confidence"):
        found = np.shape(getattr(scored, name))
        if found != shape:
            raise ValueError(f"`{name}` has shape `{found}`, expected `{shape}`")


@dataclass(frozen=True)
class Blended:
    """What is served, [C, E] each; model: the scorers with a say, empty for the table alone."""

    cost_s: Array
    probability: Array
    spread: Array
    model: str


class Arbiter:
    """The scorers of one service, each with a gate of its own."""

    def __init__(
        self, scorers: Sequence[Scorer] = (), parameters: GateParameters | None = None
    ) -> None:
        self.parameters = parameters or GateParameters()
        self.seats: list[Seat] = []
        for scorer in scorers:
            self.seat(scorer)

    def seat(self, scorer: Scorer, *, say: float = 1.0, gd: float = 0.0) -> Seat:
        """Seats a scorer. say: share of its weight that counts; gd: what its gate had reached."""
        seat = Seat(scorer, Gate(gd, self.parameters), say=say)
        self.seats.append(seat)
        return seat

    def follow(self, parameters: GateParameters) -> None:
        """Goes by other constants from now on; gates keep what they have reached."""
        self.parameters = parameters
        for seat in self.seats:
            seat.gate.parameters = parameters

    def unseat(self, seat: Seat) -> None:
        """Takes a scorer away; nothing if it is not seated."""
        if seat in self.seats:
            self.seats.remove(seat)

    @property
    def needs_facts(self) -> bool:
        """Whether a scorer is made for features."""
        return any(seat.scorer.info.feature_schema for seat in self.seats)

    def judge(self, calls: Array, x_s: Array, table_cost_s: Array, at: tuple[Index, Index]) -> None:
        """Gates every scorer on a window: calls, x_s, table_cost_s (S0 in force when it began),
        [n]; at: places of its cells in what was scored last."""
        for seat in self.seats:
            seat.judge(calls, x_s, table_cost_s, at)

    def blend(self, given: ScoringInput, now_s: float) -> Blended:
        """Asks every scorer and blends what they say by weight and confidence."""
        table_s = given.table_cost_s
        table_p = table_probabilities(given.rtt_s, table_s, given.usable)
        if given.split is not None:
            table_p = over(given.split, given.classes, given.endpoints, table_p)
        costs, probabilities, spreads, says, names = [], [], [], [], []
        for seat in self.seats:
            scored = seat.ask(given, now_s)
            if scored is None:
                continue
            cost_s, bad_costs = repaired_costs(scored.cost_s, table_s)
            probability, bad_rows = repaired_probabilities(scored.probability, table_p)
            seat.note_repaired(bad_costs + bad_rows, now_s)
            seat.compare(cost_s, table_s, given.calls)
            if seat.say == 0.0:
                continue
            confidence = np.nan_to_num(scored.confidence, nan=0.0, posinf=0.0, neginf=0.0)
            costs.append(cost_s)
            probabilities.append(probability)
            spread = np.where(
                np.isfinite(scored.spread) & (scored.spread > 0), scored.spread, TABLE_SPREAD
            )
            spreads.append(spread)
            weight = seat.say * seat.weight
            says.append(weight * np.clip(confidence, 0.0, 1.0))
            if weight >= WEIGHT_SHOWN_MIN:
                info = seat.scorer.info
                names.append(f"{info.name}-{info.version}")
        total = sum(says, np.zeros_like(table_s))
        shares = [say / np.maximum(1.0, total) for say in says]
        spread = np.full_like(table_s, TABLE_SPREAD)
        for part, share in zip(spreads, shares, strict=True):
            spread = spread + share * (part - TABLE_SPREAD)
        return Blended(
            blend_costs(table_s, costs, shares) if costs else table_s,
            blend_probabilities(table_p, probabilities, shares) if costs else table_p,
            spread,
            "+".join(names),
        )
