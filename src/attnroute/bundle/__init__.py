"""A model as it is shipped: a directory of three graphs, a manifest and a card, never changed.

    <name>/<version>/encode_endpoints.onnx  encode_classes.onnx  score.onnx
                     probe.npz              card.md              manifest.sig  manifest.json

`write` makes it appear whole or not at all. `read` takes it into memory once, checks everything
that can be checked without running a graph, and never looks at the directory again: what happens
to the files afterwards cannot reach a model that runs. What needs a session (shapes, finite
outputs, parity with the probe) is checked by who runs it.
"""

from attnroute.bundle.parts import (
    FLAVOURS,
    GRAPHS,
    OPSET,
    PROBE_INPUTS,
    Bundle,
    Manifest,
    Probe,
    Tensors,
)
from attnroute.bundle.read import (
    DEFAULT_LIMITS,
    BundleLimits,
    Description,
    FileEntry,
    describe,
    read,
)
from attnroute.bundle.write import write

__all__ = [
    "DEFAULT_LIMITS",
    "FLAVOURS",
    "GRAPHS",
    "OPSET",
    "PROBE_INPUTS",
    "Bundle",
    "BundleLimits",
    "Description",
    "FileEntry",
    "Manifest",
    "Probe",
    "Tensors",
    "describe",
    "read",
    "write",
]
