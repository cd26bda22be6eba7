"""Which balancers the demo compares, as data: a key for machines, a label, the policy's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balancer:
    """One row of the closing table."""

    key: str
    label: str
    policy: str
    """Value of the policy key `balancer`, in YAML."""


BALANCERS = (
    Balancer("round_robin", "round_robin", "{type: round_robin}"),
    Balancer(
        "least_request_2", "least_request (2 choices)", "{type: least_request, choice_count: 2}"
    ),
    Balancer(
        "least_request_all", "least_request (all)", "{type: least_request, choice_count: all}"
    ),
    Balancer("learned", "learned", "{type: learned}"),
)

LEARNED = "learned"
BEATEN_BY_LEARNED = ("round_robin", "least_request_all")
"""Balancers that `learned` has to beat in mean and p99, else the demo ends with exit code 1."""

MISSING = (
    "a model that is trained on the calls of the demo (docs/models.md: how a trainer does it)",
)
"""What later versions add to the comparison; said at the end of every run."""
