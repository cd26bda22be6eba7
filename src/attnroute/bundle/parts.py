"""A model as it is shipped: a directory of three graphs, a manifest and a card, never changed.

`encode_endpoints.onnx` turns endpoint features into keys and values, `encode_classes.onnx` request
class features into queries, both cached by the sidecar; `score.onnx` turns them, with what the
table knows of each pair, into times, spreads and routing probabilities. The manifest is written
last and names the sha256 of everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FLAVOURS", "GRAPHS", "OPSET", "PROBE_INPUTS", "Bundle", "Manifest", "Probe", "Tensors"]

OPSET = 20
"""Operator set of the graphs: the one that is exported and the one that is accepted."""

GRAPHS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # E endpoints, C classes, H heads of width D, V values, F features; float32 throughout.
    "encode_endpoints.onnx": (("endpoint",), ("key", "value")),
    # endpoint [E, Fe] -> key [E, H, D], value [E, V]
    "encode_classes.onnx": (("request_class",), ("query",)),
    # request_class [C, Fc] -> query [C, H, D]
    "score.onnx": (
        ("query", "key", "value", "pair", "table_cost_s", "rtt_s", "mask"),
        ("cost_s", "spread", "probability"),
    ),
    # pair [C, E, Fp], table_cost_s [C, E], rtt_s [E], mask [E] (1 usable, 0 not) -> [C, E] each
}
"""Names of inputs and outputs of each graph, in order."""

FLAVOURS: Mapping[str, str] = {name.replace(".onnx", ".int8.onnx"): name for name in GRAPHS}
"""Graphs that a bundle may carry besides, with the graph that each can stand for."""

PROBE_INPUTS = ("endpoint", "request_class", "pair", "table_cost_s", "rtt_s", "mask")
"""Names of a probe's inputs; its outputs are those of `score.onnx`."""

Tensors = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Probe:
    """A batch with the outputs that training saw for it: features in, answers of score out."""

    inputs: Tensors
    """`endpoint`, `request_class`, `pair`, `table_cost_s`, `rtt_s`, `mask`."""
    outputs: Tensors
    """`cost_s`, `spread`, `probability`."""


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself."""

    name: str
    version: str
    """Semantic version: another feature schema is another major version."""
    feature_schema: str
    """`features.schema.schema_hash()` of what it was made for."""
    opset: int
    tolerance: float
    """How far the probe's outputs may be off, relative."""
    created_s: float
    """Unix time, for people."""
    trained: Mapping[str, object]
    """Command, seed, windows, hyper-parameters: enough to make it again."""
    metrics: Mapping[str, float]
    """Figures of the gates, parity included."""


@dataclass(frozen=True)
class Bundle:
    """A whole bundle in memory, verified if `read` made it."""

    manifest: Manifest
    graphs: Mapping[str, bytes]
    """By file name: the keys of GRAPHS, and any of FLAVOURS."""
    probe: Probe
    card: str
    """Markdown for people."""
