"""The model that joins `learned` while calls flow: put on a channel, fetched, swapped in, watched.

In the first half of the rounds `learned` goes by its table alone; then the default model is
published to the trainer's registry, from where both sidecars take it, and its gates decide what it
has to say. Nothing waits for it: a model that comes late or not at all is told at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnroute import bundle
from attnroute._proto.admin.v1 import admin_pb2
from attnroute.bundle.manifest import parse_version
from attnroute.registry.store import Store

__all__ = ["CHANNEL", "ModelResults", "Registry", "Swap", "default_bundle"]

CHANNEL = "canary"
NAME = "default"

MODELS = Path(__file__).resolve().parents[3] / "models"
"""Of the source tree; an installed package has none."""


def default_bundle(models: Path = MODELS) -> Path | None:
    """The newest version of the default model; None where there is none."""
    versions: list[tuple[tuple[int, int, int], Path]] = []
    for place in (models / NAME).glob("*"):
        try:
            versions.append((parse_version(place.name), place))
        except ValueError:
            continue
    return max(versions)[1] if versions else None


class Registry:
    """The trainer's directory of bundles, filled from `source` when it is time."""

    def __init__(self, directory: Path, source: Path) -> None:
        self.directory = directory
        self.version = source.name
        self._source = source

    def publish(self) -> None:
        """Has the channel point at the bundle; blocks on the disk. Raises BundleError and
        RegistryError."""
        store = Store(self.directory)
        made = bundle.read(self._source, expected_schema=None)
        store.add(made)
        store.point(
            NAME,
            CHANNEL,
            made.manifest.version,
            expected_generation=store.channel(NAME, CHANNEL).generation,
            reason="the demo's swap",
            operator=True,
        )

    def stable(self) -> str:
        """The version that the sidecars' gates have brought to `stable`; empty: none."""
        return Store(self.directory).channel(NAME, "stable").version


@dataclass(frozen=True, slots=True)
class Swap:
    """A model began to serve in a sidecar."""

    sidecar: int
    version: str
    at_s: float
    """Monotonic."""
    time_s: float
    """How much of `learned` was measured by then: its place on the plot."""


@dataclass(frozen=True, slots=True)
class ServingGate:
    """What the gate of the serving model said last."""

    version: str
    weight: float
    """0 to 1: how far the model is trusted against the table."""
    gain: float
    """gd over the table, nat a call."""
    steps: int


@dataclass
class ModelResults:
    """What the sidecars say of models. published: the version that the run put on the channel;
    empty: none."""

    published: str = ""
    stable: str = ""
    swaps: list[Swap] = field(default_factory=list)
    gates: dict[int, ServingGate] = field(default_factory=dict)
    """By sidecar: of the version that served `learned` last."""

    def take(
        self,
        sidecar: int,
        answer: admin_pb2.GetModelResponse,
        measured_s: Callable[[float], float],
    ) -> None:
        """measured_s: from a monotonic time to how much of `learned` was measured by then."""
        if answer.HasField("serving"):
            serving = answer.serving
            last = [swap for swap in self.swaps if swap.sidecar == sidecar]
            if not last or last[-1].version != serving.version:
                at_s = time.monotonic() - max(
                    0.0, time.time() - serving.changed_at.ToMicroseconds() / 1e6
                )
                self.swaps.append(Swap(sidecar, serving.version, at_s, measured_s(at_s)))
        for gate in answer.scorers:
            # Without a step it is where every gate starts.
            if gate.stage == "serving" and gate.steps:
                self.gates[sidecar] = ServingGate(gate.version, gate.weight, gate.gain, gate.steps)

    @property
    def words(self) -> str:
        """For the closing text."""
        if not self.published:
            return "no model: `models/default` is not here; `learned` went by its table alone"
        if not self.swaps:
            return f"model {self.published} was published, and no sidecar served it"
        first = min(self.swaps, key=lambda swap: swap.at_s)
        text = (
            f"model {first.version} was swapped in after {first.time_s:.1f} measured seconds of "
            "`learned`"
        )
        told = ", ".join(
            f"{gate.version} in sidecar {number} with {gate.weight:.2f}"
            for number, gate in sorted(self.gates.items())
        )
        text += f"; gate weights: {told}" if told else "; no gate has judged it"
        return f"{text}; `stable` is {self.stable}" if self.stable else text

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "published": self.published or None,
            "stable": self.stable or None,
            "swaps": [asdict(swap) for swap in self.swaps],
            "gates": [
                {"sidecar": number, **asdict(gate)} for number, gate in sorted(self.gates.items())
            ],
        }
