"""Bundles that a sidecar fetched, on its own disk: what is there need not be fetched again, and
serves when the registry is gone at a start.

The same layout as a registry's, so that the same code writes it. A file that is on its way lies in
a directory of its own, named by the manifest's sha256, and goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from attnroute.bundle import BundleLimits, FileEntry
from attnroute.bundle import manifest as manifests
from attnroute.bundle.files import read_file
from attnroute.bundle.manifest import MANIFEST
from attnroute.bundle.write import UNFINISHED, install
from attnroute.errors import BundleError, ConflictError, RegistryError
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

__all__ = ["KEEP", "Cache", "Partial"]

KEEP = 3
"""Bundles of one name that stay: what serves, what served before, what comes next."""


class Partial:
    """A bundle that is being fetched. Methods block on the disk; OSError goes through."""

    def __init__(self, directory: Path, target: Path, sha256: str, limits: BundleLimits) -> None:
        self._directory = directory
        self._target = target
        self._sha256 = sha256
        self._limits = limits
        self._lock = -1

    def open(self) -> bool:
        """Makes it this one's; False while another sidecar on this machine fetches the same."""
        name = f"{self._directory.name}.lock"
        handle = os.open(
            self._directory.with_name(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._directory.mkdir(exist_ok=True)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:
            os.close(handle)
            raise
        self._lock = handle
        return True

    def close(self) -> None:
        """Leaves what came so far to whoever goes on with it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def have(self, name: str) -> int:
        """Bytes of a file that are here already."""
        path = self._directory / name
        return path.stat().st_size if path.is_file() and not path.is_symlink() else 0

    def append(self, name: str, data: bytes) -> None:
        """The next bytes of a file."""
        with (self._directory / name).open("ab") as file:
            file.write(data)

    def drop(self, name: str) -> None:
        """Begins a file anew."""
        (self._directory / name).unlink(missing_ok=True)

    def is_right(self, name: str, entry: FileEntry) -> bool:
        """Whether a file is whole and what it should be; else it begins anew."""
        try:
            data = read_file(
                self._directory / name,
                bytes_max=max(self._limits.bytes, manifests.MANIFEST_BYTES_MAX),
                where=self._directory,
                expected_bytes=entry.size_bytes,
            )
        except BundleError:
            data = b""
        if hashlib.sha256(data).hexdigest() == entry.sha256:
            return True
        self.drop(name)
        return False

    def manifest_is_right(self) -> bool:
        """The same for the manifest, whose sha256 names the bundle."""
        return self.is_right(MANIFEST, FileEntry(self.have(MANIFEST), self._sha256))

    def files(self) -> dict[str, FileEntry]:
        """What the manifest names. Raises BundleError."""
        data = read_file(
            self._directory / MANIFEST,
            bytes_max=manifests.MANIFEST_BYTES_MAX,
            where=self._target,
        )
        manifest, files = manifests.parse(data, self._target)
        total = sum(entry.size_bytes for entry in files.values())
        if total > self._limits.bytes:
            raise BundleError(
                f"{self._target}: its files have {total} bytes, at most {self._limits.bytes} are "
                "allowed; raise `max_bytes` if the bundle is right"
            )
        if (manifest.name, manifest.version) != (self._target.parent.name, self._target.name):
            raise BundleError(
                f"{self._target}: its manifest is that of `{manifest.name}` `{manifest.version}`; "
                "publish it as what it is"
            )
        return files

    def finish(self) -> Path:
        """Puts the whole bundle in its place; another one that lies there gives way."""
        try:
            install(self._directory, self._target)
        except ConflictError:
            gone = self._target.with_name(f"{UNFINISHED}old-{self._sha256[:16]}")
            shutil.rmtree(gone, ignore_errors=True)
            self._target.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            install(self._directory, self._target)
        return self._target


class Cache:
    """A directory of one sidecar, or of several on one machine."""

    def __init__(self, directory: Path, name: str, limits: BundleLimits) -> None:
        self._store = Store(directory, limits=limits)
        self._name = name
        self._limits = limits

    def find(self, state: ChannelState) -> Path | None:
        """The bundle that a channel points at, if it is here whole."""
        try:
            listed = self._store.listed(self._name, state.version)
        except (BundleError, RegistryError):
            return None
        if listed.manifest_sha256 != state.manifest_sha256:
            return None
        return self._store.path(self._name, state.version)

    def partial(self, state: ChannelState) -> Partial:
        """What is here of it."""
        self._store.prepare(self._name)
        target = self._store.path(self._name, state.version)
        directory = target.parent / f"{UNFINISHED}{state.manifest_sha256[:32]}"
        return Partial(directory, target, state.manifest_sha256, self._limits)

    def forget(self, state: ChannelState) -> None:
        """Removes a bundle that turned out damaged."""
        shutil.rmtree(self._store.path(self._name, state.version), ignore_errors=True)

    def last(self, channel: str) -> ChannelState:
        """Where the channel pointed when it was last taken."""
        return self._store.channel(self._name, channel)

    def taken(self, state: ChannelState) -> None:
        """A bundle was taken; the oldest others go."""
        self._store.prepare(self._name)
        last = self._store.channel(self._name, state.channel)
        if last.version != state.version or last.manifest_sha256 != state.manifest_sha256:
            self._store.point(
                self._name,
                state.channel,
                state.version,
                expected_generation=last.generation,
                reason=state.reason,
            )
        self._store.prune(self._name, KEEP)
