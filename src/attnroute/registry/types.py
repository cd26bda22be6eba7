"""What a registry says: which bundles there are and where its channels point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnroute.bundle import FileEntry

__all__ = ["CHANNELS", "ChannelState", "Listed", "Listing"]

CHANNELS = ("stable", "canary")
"""What the trainer moves. An operator may make others."""


@dataclass(frozen=True)
class ChannelState:
    """Where a channel points."""

    name: str
    channel: str
    generation: int = 0
    """One more with each change; 0: nobody has pointed it anywhere."""
    version: str = ""
    """Empty: nowhere."""
    manifest_sha256: str = ""
    frozen: bool = False
    """Nobody but an operator moves it."""
    reason: str = ""
    previous: tuple[str, ...] = ()
    """Versions it pointed at before, the last one first."""


@dataclass(frozen=True)
class Listed:
    """A bundle that is kept."""

    name: str
    version: str
    manifest_sha256: str
    feature_schema: str
    created_s: float
    files: Mapping[str, FileEntry]
    """Everything of it, the manifest last."""


@dataclass(frozen=True)
class Listing:
    """A whole registry, or what it has of one name."""

    bundles: tuple[Listed, ...]
    """Newest first."""
    channels: tuple[ChannelState, ...]
