"""What the trainer and its training process say to each other. Loads no torch: the trainer does
not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnroute.bundle import Bundle
from attnroute.telemetry.increases import Increases

__all__ = ["Began", "Candidate", "Look", "Refused", "Settings", "Trained", "Wanted"]


@dataclass(frozen=True)
class Settings:
    """The first message."""

    directory: Path
    """State and scrapes; a process that starts here goes on from them."""
    name: str = "default"
    seed: int = 0
    steps: int = 25
    replay: int = 60
    threads: int = 1
    dataset_bytes: int = 256 << 20
    start: Path | None = None
    """A bundle whose weights it begins with where it has no state."""
    log_format: str = "json"


@dataclass(frozen=True)
class Look:
    """What one look at the source brought. at_s: Unix time."""

    at_s: float
    increases: Increases


@dataclass(frozen=True)
class Wanted:
    """The trainer could publish a bundle now; answered with Candidate or Refused."""


@dataclass(frozen=True)
class Began:
    """It is ready. cycles: that it had trained before."""

    cycles: int


@dataclass(frozen=True)
class Trained:
    """A cycle is over: one for each service with calls, at each look."""

    cycle: int
    seconds: float
    """With what it took to keep the scrape and the state."""
    loss: float
    gain: float
    """Of the model over the table on what it had not seen, nats a call; NaN without calls."""
    gate: float
    """The weight that a sidecar's gate would give it."""
    collapsed: bool
    """Its probabilities have fallen onto few endpoints."""
    rebalanced: bool
    rss_bytes: int


@dataclass(frozen=True)
class Candidate:
    """A bundle that has passed its gates; its version is the publisher's to give."""

    bundle: Bundle


@dataclass(frozen=True)
class Refused:
    """There is none. reason: what gate it did not pass."""

    reason: str
