"""How the rollout of models stands: what it goes by, and what admin and metrics tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnroute.scoring.arbiter import Seat
from attnroute.scoring.attention import AttentionScorer, Model
from attnroute.scoring.beside import BesideScorer

__all__ = [
    "Deployed",
    "KvState",
    "RolloutPlan",
    "RolloutState",
    "ScorersState",
    "SeatState",
    "Stage",
    "Standing",
    "Verdict",
    "seat_state",
]

Stage = Literal["loading", "shadow", "canary", "serving", "retired", "refused", "rolled_back"]


@dataclass(frozen=True)
class RolloutPlan:
    """What the policy says."""

    min_interval_s: float = 60.0
    """Between two bundles that are taken."""
    steps: int = 3
    """Steps of the gate in a row with a gain, in shadow and again as canary."""
    canary: float = 0.2
    """Share of its weight that a canary has; 0: none, it serves when shadow is over."""
    judge_limit_s: float = 600.0
    """A candidate that has not shown a gain by then is refused."""
    load_limit_s: float = 60.0
    """For making and trying a model."""
    run_limit_s: float = 0.05
    """CPU time of a scoring run at 100 endpoints and 64 classes."""
    budget_s: float = 0.02
    """How long the tick waits for a scoring run."""
    int8: bool = False
    kv_rows: int = 4096


@dataclass
class Standing:
    """A bundle and how far it came."""

    name: str
    version: str
    sha256: str
    """Of its manifest."""
    stage: Stage
    reason: str
    changed_at_s: float
    """Unix time."""


@dataclass
class Deployed:
    """A model that is made: its scorers by service, and where they sit."""

    standing: Standing
    model: Model
    scorers: dict[str, BesideScorer] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)
    """gd of services at which it was judged before."""
    began_s: float = 0.0
    """Monotonic: when its stage began."""


@dataclass(frozen=True)
class RolloutState:
    """What admin and metrics tell."""

    serving: Deployed | None
    candidate: Deployed | None
    previous: Standing | None
    waiting: str
    """Version that waits for its turn; empty: none."""
    frozen: bool
    history: tuple[Standing, ...]
    """Newest first."""
    ends: Mapping[tuple[str, str], int]
    """How often a bundle came to an end, by stage and cause."""


@dataclass(frozen=True)
class Verdict:
    """What the gate of one service says of one bundle, for whoever moves channels."""

    name: str
    version: str
    gain: float
    """gd, nat a call: above 0 its costs fit better than the table's."""
    weight: float
    """Of the gate, 0 to 1; 0 where the bundle was ended for what it did."""
    windows: int
    """That the gate has judged."""
    serving: bool
    """It has a say; else it only watches, or is over."""


@dataclass(frozen=True)
class KvState:
    """Of a K/V table."""

    hits: int
    misses: int
    evicted: int
    usage: float
    """Rows kept over those that may be."""


@dataclass(frozen=True)
class SeatState:
    """One scorer at one service."""

    service: str
    scorer: str
    version: str
    stage: str
    """`serving`, `canary`, `shadow` or `plugin`."""
    weight: float
    """Of the gate, in [0, 1], before the share of a stage."""
    say: float
    """That share: what counts is their product."""
    gd: float
    """Gain over the table, nat a call."""
    steps: int
    in_conflict: bool
    on_bench: bool
    faults: int
    repaired: int
    conflicts: int
    benched: int
    runs: int
    skipped: int
    late: int
    took_s: float
    """Of all finished runs."""
    kv: KvState | None
    """Of endpoints; None for a plug-in."""


@dataclass(frozen=True)
class ScorersState:
    """Every scorer of the sidecar beside the table."""

    rollout: RolloutState
    seats: tuple[SeatState, ...]
    source: str
    """Where bundles come from; empty: no model is configured."""
    channel: str


def seat_state(service: str, seat: Seat, stage: str) -> SeatState:
    """How a seat stands."""
    beside = seat.scorer
    assert isinstance(beside, BesideScorer), "a sidecar's scorers are all beside its control thread"
    info, scorer = beside.info, beside.scorer
    kv = None
    if isinstance(scorer, AttentionScorer):
        table = scorer.endpoints
        kv = KvState(table.hits, table.misses, table.evicted, table.usage)
    return SeatState(
        service=service,
        scorer=info.name,
        version=info.version,
        stage=stage,
        weight=seat.weight,
        say=seat.say,
        gd=seat.gate.gd,
        steps=seat.gate.steps,
        in_conflict=seat.in_conflict,
        on_bench=seat.on_bench,
        faults=seat.faults,
        repaired=seat.repaired,
        conflicts=seat.conflicts,
        benched=seat.benched,
        runs=beside.runs,
        skipped=beside.skipped,
        late=beside.late,
        took_s=beside.took_s,
        kv=kv,
    )
