"""Writing a bundle: it appears whole under its name and version, or not at all, and never changes.

Everything is written into a directory beside its place, flushed to the disk, the manifest last, and
then renamed. A rename onto a directory that holds something fails, so that of two who write the
same version one is told. What a killed writer left behind is found by its name and removed by the
registry's store.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnroute.bundle import manifest as manifests
from attnroute.bundle.manifest import CARD, MANIFEST, PROBE, SIGNATURE, FileEntry
from attnroute.bundle.parts import FLAVOURS, GRAPHS, PROBE_INPUTS, Bundle, Probe
from attnroute.bundle.signature import sign
from attnroute.errors import BundleError, ConflictError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["UNFINISHED", "install", "sync_directory", "write", "write_file"]

UNFINISHED = ".new-"
"""How the name of a directory begins that is still written, or was left so."""


def write(directory: Path, bundle: Bundle, *, key: Ed25519PrivateKey | None = None) -> Path:
    """Writes `directory/<name>/<version>` and returns it; signed with `key` where one is given.

    Raises ConflictError where that version exists, BundleError where the bundle lacks something or
    the disk does not take it; then nothing is left.
    """
    where = directory / bundle.manifest.name / bundle.manifest.version
    contents = _contents(bundle, where)
    files = {
        name: FileEntry(len(data), hashlib.sha256(data).hexdigest())
        for name, data in contents.items()
    }
    try:
        manifest = manifests.dump(bundle.manifest, files)
    except (ValueError, TypeError) as error:
        raise BundleError(
            f"{where}: its manifest cannot be written as JSON: {error}; give plain values"
        ) from error
    # What would be refused when it is read is refused here, where somebody can do something.
    manifests.parse(manifest, where)
    if key is not None:
        contents[SIGNATURE] = sign(manifest, key)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        fresh = where.parent / f"{UNFINISHED}{uuid.uuid4().hex}"
        fresh.mkdir()
        try:
            for name, data in (*contents.items(), (MANIFEST, manifest)):
                write_file(fresh / name, data)
            install(fresh, where)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise BundleError(
            f"{where}: cannot be written: {error.strerror or error}; see that the directory is "
            "writable and the disk has space"
        ) from error
    return where


def install(fresh: Path, target: Path) -> None:
    """Renames a complete directory to its place. Raises ConflictError if there is one already."""
    sync_directory(fresh)
    try:
        fresh.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise ConflictError(
                f"{target}: exists already, and a bundle never changes; write another version"
            ) from error
        raise
    sync_directory(target.parent)


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and waits until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Waits until the disk has a directory's entries."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _contents(bundle: Bundle, where: Path) -> dict[str, bytes]:
    names = bundle.graphs.keys()
    if not names >= GRAPHS.keys() or not names <= GRAPHS.keys() | FLAVOURS.keys():
        raise BundleError(
            f"{where}: it has the graphs {', '.join(sorted(names)) or 'none'}, expected "
            f"{', '.join(GRAPHS)}; export them all"
        )
    return {**bundle.graphs, PROBE: _archive(bundle.probe, where), CARD: bundle.card.encode()}


def _archive(probe: Probe, where: Path) -> bytes:
    outputs = GRAPHS["score.onnx"][1]
    if set(probe.inputs) != set(PROBE_INPUTS) or set(probe.outputs) != set(outputs):
        raise BundleError(
            f"{where}: its probe has {sorted([*probe.inputs, *probe.outputs])}, expected "
            f"{[*PROBE_INPUTS, *outputs]}; export it with all of them"
        )
    buffer = io.BytesIO()
    arrays = {f"input.{name}": np.ascontiguousarray(probe.inputs[name]) for name in PROBE_INPUTS}
    arrays |= {f"output.{name}": np.ascontiguousarray(probe.outputs[name]) for name in outputs}
    # The same bundle gives the same bytes: numpy writes no times.
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
