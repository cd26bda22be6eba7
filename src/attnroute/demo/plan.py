"""How the time of a run is divided.

Balancers take turns in short slices instead of one long run each, so that whatever else the machine
does hits all of them; each round begins with another one. A slice has three parts: a bridge, in
which a part of the load goes on while both sidecars take the next policy and the queues of the
balancer before run empty; time to settle; and the time that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnroute.demo.balancers import Balancer

SECONDS_DEFAULT = 120.0
SECONDS_MIN = 6.0
SECONDS_MAX = 24 * 3600.0

BRIDGE_LOAD = 0.3
"""Share of the load during a bridge: enough to put every reload under load."""

_SLICE_S = 10.0
_BRIDGE_SHARE, _BRIDGE_S_MAX = 0.1, 1.0
_SETTLE_SHARE, _SETTLE_S_MAX = 0.15, 1.5


@dataclass(frozen=True, slots=True)
class Slice:
    """One turn of one balancer. Slices of a round meet the same calls and the same weather."""

    number: int
    round_number: int
    balancer: Balancer


@dataclass(frozen=True, slots=True)
class Plan:
    """Every slice has the same parts."""

    slices: tuple[Slice, ...]
    rounds: int
    bridge_s: float
    """At least; longer while a policy is not in force or calls of the slice before are open."""
    settle_s: float
    measured_s: float

    @property
    def swap_number(self) -> int:
        """The slice before which the model is published: the first of the second half."""
        return self.rounds // 2 * (len(self.slices) // self.rounds)

    @property
    def loaded_s(self) -> float:
        """Full load: settling and measured."""
        return self.settle_s + self.measured_s


def make_plan(seconds: float, balancers: Sequence[Balancer]) -> Plan:
    """Divides about that many seconds of load into rounds of slices of about ten seconds."""
    rounds = max(1, round(seconds / (_SLICE_S * len(balancers))))
    slice_s = seconds / (rounds * len(balancers))
    bridge_s = min(_BRIDGE_S_MAX, _BRIDGE_SHARE * slice_s)
    settle_s = min(_SETTLE_S_MAX, _SETTLE_SHARE * slice_s)
    slices = [
        Slice(round_number * len(balancers) + turn, round_number, balancer)
        for round_number in range(rounds)
        for turn, balancer in enumerate(_rotated(balancers, round_number))
    ]
    return Plan(tuple(slices), rounds, bridge_s, settle_s, slice_s - bridge_s - settle_s)


def _rotated(balancers: Sequence[Balancer], by: int) -> list[Balancer]:
    start = by % len(balancers)
    return [*balancers[start:], *balancers[:start]]
