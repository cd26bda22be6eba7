"""Reading a bundle: once, into memory, and only if everything that it says of itself is so."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnroute.bundle import manifest as manifests
from attnroute.bundle.files import read_file
from attnroute.bundle.graph import GraphError, read_graph
from attnroute.bundle.manifest import CARD, MANIFEST, PROBE, SIGNATURE, FileEntry
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
from attnroute.bundle.signature import is_signed
from attnroute.errors import BundleError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["DEFAULT_LIMITS", "BundleLimits", "Description", "FileEntry", "describe", "read"]

SIGNATURE_BYTES_MAX = 1 << 10


@dataclass(frozen=True)
class BundleLimits:
    """What a bundle may hold."""

    bytes: int = 32 << 20
    """Of all its files but the manifest."""


DEFAULT_LIMITS = BundleLimits()


@dataclass(frozen=True)
class Description:
    """A manifest that was read, and checked for what it says, not for what it names."""

    manifest: Manifest
    files: Mapping[str, FileEntry]
    data: bytes
    """The manifest's bytes."""
    signature: bytes | None
    """Of `manifest.sig`, where there is one."""

    @property
    def sha256(self) -> str:
        """Of the manifest, hex: it names every byte of the bundle."""
        return hashlib.sha256(self.data).hexdigest()


def describe(path: Path, *, limits: BundleLimits = DEFAULT_LIMITS) -> Description:
    """Reads the manifest of the bundle at `path` alone. Raises BundleError."""
    data = read_file(path / MANIFEST, bytes_max=manifests.MANIFEST_BYTES_MAX, where=path)
    manifest, files = manifests.parse(data, path)
    total = sum(entry.size_bytes for entry in files.values())
    if total > limits.bytes:
        raise BundleError(
            f"{path}: its files have {total} bytes, at most {limits.bytes} are allowed; raise "
            "`max_bytes` if the bundle is right"
        )
    signature = None
    if os.path.lexists(path / SIGNATURE):
        signature = read_file(path / SIGNATURE, bytes_max=SIGNATURE_BYTES_MAX, where=path)
    return Description(manifest, files, data, signature)


def read(
    path: Path,
    *,
    expected_schema: str | None,
    limits: BundleLimits = DEFAULT_LIMITS,
    key: Ed25519PublicKey | None = None,
) -> Bundle:
    """The bundle in the directory `path`, verified: types and sizes of its files before they are
    read, then signature (where `key` is given), sha256, feature schema, operator set, the names of
    inputs and outputs, and the probe's shape. expected_schema: None takes any.

    Takes time and memory bounded by `limits`. Raises BundleError, whose message says what was
    found, what was expected and what to do.
    """
    described = describe(path, limits=limits)
    manifest = described.manifest
    if key is not None:
        _check_signature(path, described, key)
    if expected_schema is not None and manifest.feature_schema != expected_schema:
        raise BundleError(
            f"{path}: it was made for feature schema `{manifest.feature_schema[:16]}`, this build "
            f"has `{expected_schema[:16]}`; train a bundle with this version of attnroute"
        )
    contents = {}
    for name, entry in described.files.items():
        data = read_file(
            path / name, bytes_max=limits.bytes, where=path, expected_bytes=entry.size_bytes
        )
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise BundleError(
                f"{path}: `{name}` has sha256 `{found[:16]}`, the manifest says "
                f"`{entry.sha256[:16]}`; it was changed or damaged: publish the bundle again"
            )
        contents[name] = data
    graphs = {name: contents[name] for name in (*GRAPHS, *FLAVOURS) if name in contents}
    for name, data in graphs.items():
        _check_graph(path, name, data, manifest.opset)
    try:
        card = contents[CARD].decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: `{CARD}` is no UTF-8 text ({error}); write it anew") from error
    return Bundle(manifest, graphs, _probe(path, contents[PROBE], limits), card)


def _check_signature(path: Path, described: Description, key: Ed25519PublicKey) -> None:
    if described.signature is None:
        raise BundleError(
            f"{path}: it has no `{SIGNATURE}`, and a public key is configured; sign it with "
            "`attnroute model sign`, or configure no key"
        )
    if not is_signed(described.data, described.signature, key):
        raise BundleError(
            f"{path}: `{SIGNATURE}` was not made for this `{MANIFEST}` with the configured key; "
            "sign it with the key whose public half is configured, or do not trust it"
        )


def _check_graph(path: Path, name: str, data: bytes, declared: int) -> None:
    try:
        graph = read_graph(data)
    except GraphError as error:
        raise BundleError(f"{path}: `{name}` is no ONNX model: {error}; export it again") from error
    if graph.opset != OPSET or declared != OPSET:
        raise BundleError(
            f"{path}: `{name}` has opset {graph.opset}, the manifest says {declared}, this build "
            f"accepts {OPSET}; export with `opset_version={OPSET}`"
        )
    inputs, outputs = GRAPHS[FLAVOURS.get(name, name)]
    for kind, found, expected in (
        ("inputs", graph.inputs, inputs),
        ("outputs", graph.outputs, outputs),
    ):
        if set(found) != set(expected) or len(found) != len(expected):
            raise BundleError(
                f"{path}: `{name}` has the {kind} {_listed(found)}, expected {_listed(expected)}; "
                "export it with this version of attnroute"
            )
    if graph.external:
        raise BundleError(
            f"{path}: weights of `{name}` lie in other files; export with `external_data=False`"
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name[:80]}`" for name in names[:16]) or "none"


def _probe(path: Path, data: bytes, limits: BundleLimits) -> Probe:
    outputs = GRAPHS["score.onnx"][1]
    try:
        arrays = _arrays(data, limits)
    except Exception as error:  # foreign bytes, through two libraries
        raise BundleError(f"{path}: `{PROBE}` cannot be read: {error}; export it again") from error
    expected = {f"input.{name}" for name in PROBE_INPUTS}
    expected |= {f"output.{name}" for name in outputs}
    if arrays.keys() != expected:
        raise BundleError(
            f"{path}: `{PROBE}` holds {_listed(tuple(sorted(arrays)))}, expected "
            f"{_listed(tuple(sorted(expected)))}; export it again"
        )
    probe = Probe(
        {name: arrays[f"input.{name}"] for name in PROBE_INPUTS},
        {name: arrays[f"output.{name}"] for name in outputs},
    )
    problem = _shape_problem(probe)
    if problem:
        raise BundleError(f"{path}: `{PROBE}`: {problem}; export it again")
    return probe


def _arrays(data: bytes, limits: BundleLimits) -> dict[str, np.ndarray]:
    """Arrays of an archive that is not larger unpacked than a bundle may be."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > limits.bytes:
            raise ValueError(f"it has more than {limits.bytes} bytes unpacked")
        arrays = {}
        for entry in entries:
            # No objects: unpickling runs what the file says.
            with archive.open(entry) as file:
                arrays[entry.filename.removesuffix(".npy")] = np.lib.format.read_array(
                    file, allow_pickle=False
                )
    return arrays


def _shape_problem(probe: Probe) -> str:
    """What contradicts GRAPHS' shapes; empty if nothing does."""
    arrays: Tensors = {**probe.inputs, **probe.outputs}
    for name, array in arrays.items():
        if array.dtype != np.float32:
            return f"`{name}` is of `{array.dtype}`, expected float32"
    if arrays["endpoint"].ndim != 2 or arrays["request_class"].ndim != 2:
        return "`endpoint` and `request_class` need two dimensions"
    endpoints, classes = len(arrays["endpoint"]), len(arrays["request_class"])
    pairs = (classes, endpoints)
    shapes: dict[str, tuple[int, ...]] = {
        "rtt_s": (endpoints,),
        "mask": (endpoints,),
        "table_cost_s": pairs,
        **dict.fromkeys(probe.outputs, pairs),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"`{name}` has the shape {arrays[name].shape}, expected {shape}"
    if arrays["pair"].ndim != 3 or arrays["pair"].shape[:2] != pairs:
        return f"`pair` has the shape {arrays['pair'].shape}, expected {pairs} and features"
    if not all(np.isfinite(array).all() for array in probe.outputs.values()):
        return "an output is not finite"
    return ""
