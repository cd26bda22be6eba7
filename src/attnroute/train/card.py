"""The card of a bundle: what a person should know before serving it."""

from __future__ import annotations

from collections.abc import Mapping

from attnroute.bundle import Manifest

__all__ = ["card", "online_card"]


def card(manifest: Manifest, held_out: int, trained: int) -> str:
    """Markdown. held_out, trained: numbers of worlds."""
    figures = "\n".join(f"| `{name}` | {value:.6g} |" for name, value in manifest.metrics.items())
    paragraphs = [
        f"# {manifest.name} {manifest.version}",
        (
            f"The attention router, trained on {trained} random simulated services and judged on "
            f"{held_out} others. It has seen no real service: what it knows is how far the table, "
            "similar endpoints and similar methods can be trusted. Each sidecar's gate decides how "
            "much of it is served, and a trainer goes on from it."
        ),
        (
            f"- Made by: `{manifest.trained['command']}`\n"
            f"- Feature schema: `{manifest.feature_schema}`; opset {manifest.opset}.\n"
            "- Not in its data: real traffic, more than 60 endpoints, labels that say something."
        ),
        f"| figure | value |\n|---|---|\n{figures}",
        (
            "`gain_*`: loss of the table less that of the model on the next scrape, in nats a call "
            '(docs/model.md, "Gate"); above 0 the model is better. `parity`: largest difference '
            "between onnxruntime and torch."
        ),
    ]
    return "\n\n".join(paragraphs) + "\n"


def online_card(name: str, metrics: Mapping[str, float], scrapes: int) -> str:
    """Of a bundle that a trainer made beside a fleet."""
    figures = "\n".join(f"| `{key}` | {value:.6g} |" for key, value in metrics.items())
    return (
        f"# {name}\n\nTrained beside a fleet on {scrapes} scrapes of its services, each judged "
        f"before it was learned from.\n\n| figure | value |\n|---|---|\n{figures}\n"
    )
