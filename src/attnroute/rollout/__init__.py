"""Which model scores, and how it comes to."""

from attnroute.rollout.rollout import Rollout, RolloutError
from attnroute.rollout.states import (
    Deployed,
    KvState,
    RolloutPlan,
    RolloutState,
    ScorersState,
    SeatState,
    Standing,
    Verdict,
    seat_state,
)

__all__ = [
    "Deployed",
    "KvState",
    "Rollout",
    "RolloutError",
    "RolloutPlan",
    "RolloutState",
    "ScorersState",
    "SeatState",
    "Standing",
    "Verdict",
    "seat_state",
]
