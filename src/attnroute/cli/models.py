"""Bundles and channels as tables and as JSON documents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from attnroute.bundle import Description
from attnroute.registry.types import ChannelState, Listing

__all__ = [
    "bundle_document",
    "channel_document",
    "channel_line",
    "listing_document",
    "listing_table",
]


def listing_table(listing: Listing) -> Table:
    """One row per bundle, with the channels that point at it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "version"):
        table.add_column(heading, no_wrap=True)
    table.add_column("KiB", justify="right", no_wrap=True)
    for heading in ("made", "schema", "channels"):
        table.add_column(heading, no_wrap=heading != "channels")
    for bundle in listing.bundles:
        channels = [
            state.channel + (" (frozen)" if state.frozen else "")
            for state in listing.channels
            if (state.name, state.version) == (bundle.name, bundle.version)
        ]
        size_bytes = sum(entry.size_bytes for entry in bundle.files.values())
        table.add_row(
            bundle.name,
            bundle.version,
            f"{size_bytes / 1024:.0f}",
            _time(bundle.created_s),
            bundle.feature_schema[:12],
            ", ".join(channels) or "-",
        )
    return table


def listing_document(listing: Listing) -> dict[str, Any]:
    """Everything that is known of a registry."""
    return {
        "bundles": [
            {
                "name": bundle.name,
                "version": bundle.version,
                "manifest_sha256": bundle.manifest_sha256,
                "feature_schema": bundle.feature_schema,
                "created": _time(bundle.created_s),
                "files": {
                    path: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
                    for path, entry in bundle.files.items()
                },
            }
            for bundle in listing.bundles
        ],
        "channels": [channel_document(state) for state in listing.channels],
    }


def channel_document(state: ChannelState) -> dict[str, Any]:
    """Where a channel points."""
    return {
        "name": state.name,
        "channel": state.channel,
        "generation": state.generation,
        "version": state.version,
        "manifest_sha256": state.manifest_sha256,
        "frozen": state.frozen,
        "reason": state.reason,
        "previous": list(state.previous),
    }


def channel_line(state: ChannelState) -> str:
    """The same for people."""
    frozen = ", frozen" if state.frozen else ""
    before = f" (before: {state.previous[0]})" if state.previous else ""
    return f"{state.name} {state.channel}: {state.version}{frozen}{before}"


def bundle_document(described: Description) -> dict[str, Any]:
    """What a bundle says of itself."""
    manifest = described.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "manifest_sha256": described.sha256,
        "feature_schema": manifest.feature_schema,
        "opset": manifest.opset,
        "tolerance": manifest.tolerance,
        "created": _time(manifest.created_s),
        "signed": described.signature is not None,
        "trained": dict(manifest.trained),
        "metrics": dict(manifest.metrics),
        "files": {
            name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
            for name, entry in described.files.items()
        },
    }


def _time(unix_s: float) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "-"
