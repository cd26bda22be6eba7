"""A directory of bundles and channels, which several processes may read and change at once.

    <root>/<name>/<version>/            bundles, never changed
    <root>/<name>/channels/stable.json  where a channel points, replaced whole
    <root>/<name>/leader.json           who publishes

A change of a channel names the generation that it was decided on; where somebody else was faster it
is refused, and nothing is lost. Readers need no lock: what they open is whole.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attnroute.bundle import DEFAULT_LIMITS, Bundle, BundleLimits, FileEntry, describe, write
from attnroute.bundle.manifest import MANIFEST, SIGNATURE, is_name, parse_version
from attnroute.bundle.write import UNFINISHED
from attnroute.errors import BundleError, ConflictError, RegistryError
from attnroute.logs import fields
from attnroute.registry.files import UNFINISHED_FILE, locked, read_json, write_json
from attnroute.registry.leader import leads
from attnroute.registry.types import ChannelState, Listed, Listing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["PREVIOUS_MAX", "Store"]

logger = logging.getLogger(__name__)

PREVIOUS_MAX = 8
REASON_MAX = 500
UNFINISHED_S = 3_600.0
"""Nobody writes a bundle for an hour: what is older was left by a killed process."""


class Store:
    """Safe to use from several threads and processes. Methods block on the disk."""

    def __init__(
        self,
        root: Path,
        *,
        limits: BundleLimits = DEFAULT_LIMITS,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self._limits = limits
        self._wall_s = wall_s
        self._seen: dict[tuple[str, str, int], Listed] = {}

    def prepare(self, name: str) -> None:
        """Makes the directory of a name; from then on only channels say what is served."""
        try:
            (self._place(name) / "channels").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(
                f"{self.root}: cannot be used as a registry: {error.strerror}; name a directory "
                "that this process may write"
            ) from error
        self.clean(name)

    def names(self) -> tuple[str, ...]:
        """Names of models."""
        return tuple(entry.name for entry in self._entries(self.root) if is_name(entry.name))

    def versions(self, name: str) -> tuple[str, ...]:
        """Versions that are there, newest first."""
        found = []
        for entry in self._entries(self._place(name)):
            try:
                found.append((parse_version(entry.name), entry.name))
            except ValueError:
                continue
        return tuple(version for _, version in sorted(found, reverse=True))

    def path(self, name: str, version: str) -> Path:
        """Where a bundle is or would be. Raises RegistryError for what can be no version."""
        try:
            parse_version(version)
        except ValueError as error:
            raise RegistryError(f"{self.root / name}: {error}") from error
        return self._place(name) / version

    def listed(self, name: str, version: str) -> Listed:
        """A bundle as its manifest describes it. Raises BundleError, RegistryError."""
        path = self.path(name, version)
        try:
            changed_ns = (path / MANIFEST).stat().st_mtime_ns
        except OSError as error:
            raise RegistryError(
                f"{path}: there is no such bundle; `attnroute model list` shows what there is"
            ) from error
        known = self._seen.get((name, version, changed_ns))
        if known is not None:
            return known
        described = describe(path, limits=self._limits)
        manifest = described.manifest
        if (manifest.name, manifest.version) != (name, version):
            raise BundleError(
                f"{path}: its manifest is that of `{manifest.name}` `{manifest.version}`; put it "
                "where its name and version say"
            )
        files = dict(described.files)
        if described.signature is not None:
            files[SIGNATURE] = _entry(described.signature)
        files[MANIFEST] = _entry(described.data)
        listed = Listed(
            name, version, described.sha256, manifest.feature_schema, manifest.created_s, files
        )
        self._seen = {key: value for key, value in self._seen.items() if key[:2] != (name, version)}
        self._seen[name, version, changed_ns] = listed
        return listed

    def listing(self, name: str = "") -> Listing:
        """Everything, or what there is of one name. A bundle that is damaged is left out, with a
        line in the log."""
        bundles, channels = [], []
        for known in (name,) if name else self.names():
            for version in self.versions(known):
                try:
                    bundles.append(self.listed(known, version))
                except (BundleError, RegistryError) as error:
                    logger.warning("a bundle is not offered", extra=fields(problem=str(error)))
            channels += [self.channel(known, channel) for channel in self._channel_names(known)]
        return Listing(tuple(bundles), tuple(channels))

    def channel(self, name: str, channel: str) -> ChannelState:
        """Where a channel points. In a directory without `channels` that is the newest version, so
        that a directory of bundles alone works too. Raises RegistryError."""
        path = self._pointer(name, channel)
        document = read_json(path)
        if document is None:
            versions = () if path.parent.is_dir() else self.versions(name)
            if not versions:
                return ChannelState(name, channel)
            sha256 = self.listed(name, versions[0]).manifest_sha256
            return ChannelState(name, channel, 0, versions[0], sha256, reason="the newest version")
        try:
            state = ChannelState(
                name,
                channel,
                int(document["generation"]),
                str(document["version"]),
                str(document["manifest_sha256"]),
                bool(document["frozen"]),
                str(document["reason"]),
                tuple(str(version) for version in document["previous"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(
                f"{path}: `{error}` is missing or no value of it; point the channel anew"
            ) from error
        return state

    def add(
        self, bundle: Bundle, *, key: Ed25519PrivateKey | None = None, leader: str = ""
    ) -> Path:
        """Writes a bundle. leader: refused with ConflictError unless this holder leads, where one
        is named. Raises BundleError, ConflictError (that version exists), RegistryError."""
        name = bundle.manifest.name
        self.prepare(name)
        with locked(self._place(name)):
            self._check_leader(name, leader)
            return write(self.root, bundle, key=key)

    def point(
        self,
        name: str,
        channel: str,
        version: str,
        *,
        expected_generation: int,
        reason: str,
        operator: bool = False,
        frozen: bool = False,
        leader: str = "",
    ) -> ChannelState:
        """Points a channel at a version, if its generation is still the expected one.

        operator: may move a frozen channel, and freezes or thaws it by `frozen`. leader: as in
        `add`. Raises ConflictError if somebody else was faster, RegistryError if the channel is
        frozen or the bundle is not there, BundleError if it is damaged.
        """
        self.prepare(name)
        with locked(self._place(name)):
            self._check_leader(name, leader)
            now = self.channel(name, channel)
            if now.generation != expected_generation:
                raise ConflictError(
                    f"{self.root / name}: channel `{channel}` points at `{now.version}` in "
                    f"generation {now.generation} by now, not {expected_generation}; look again "
                    "and decide anew"
                )
            if now.frozen and not operator:
                raise RegistryError(
                    f"{self.root / name}: channel `{channel}` is frozen ({now.reason}); "
                    "`attnroute model freeze --off` lets it move again"
                )
            listed = self.listed(name, version)
            previous = now.previous
            if now.version and now.version != version:
                previous = (now.version, *(old for old in now.previous if old != now.version))
            state = ChannelState(
                name,
                channel,
                now.generation + 1,
                version,
                listed.manifest_sha256,
                frozen,
                reason[:REASON_MAX],
                tuple(old for old in previous if old != version)[:PREVIOUS_MAX],
            )
            self._write(state)
        return state

    def prune(self, name: str, keep: int) -> tuple[str, ...]:
        """Removes the oldest bundles but `keep` of them, none that a channel points at or pointed
        at last; returns the versions that are gone."""
        with locked(self._place(name)):
            held = set()
            for channel in self._channel_names(name):
                state = self.channel(name, channel)
                held |= {state.version, *state.previous[:1]}
            versions = self.versions(name)
            gone = [version for version in versions[keep:] if version not in held]
            for version in gone:
                # Its name goes first: a reader finds a whole bundle or none.
                fresh = self._place(name) / f"{UNFINISHED}{uuid.uuid4().hex}"
                try:
                    self.path(name, version).rename(fresh)
                except OSError as error:
                    raise RegistryError(
                        f"{self.path(name, version)}: cannot be removed: {error.strerror}; see "
                        "that the directory is writable"
                    ) from error
                shutil.rmtree(fresh, ignore_errors=True)
        return tuple(gone)

    def clean(self, name: str) -> None:
        """Removes what killed writers left."""
        place = self._place(name)
        for entry in (*self._entries(place), *self._entries(place / "channels")):
            try:
                if not entry.name.startswith((UNFINISHED, UNFINISHED_FILE)):
                    continue
                if self._wall_s() - entry.stat().st_mtime < UNFINISHED_S:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
            except OSError:
                continue  # somebody else removed it

    def _write(self, state: ChannelState) -> None:
        write_json(
            self._pointer(state.name, state.channel),
            {
                "generation": state.generation,
                "version": state.version,
                "manifest_sha256": state.manifest_sha256,
                "frozen": state.frozen,
                "reason": state.reason,
                "previous": list(state.previous),
                "moved_s": round(self._wall_s(), 3),
            },
        )

    def _check_leader(self, name: str, leader: str) -> None:
        if leader and not leads(self._place(name), leader):
            raise ConflictError(
                f"{self.root / name}: another trainer publishes here (`leader.json`); this one "
                "waits until that one is gone"
            )

    def _place(self, name: str) -> Path:
        if not is_name(name):
            raise RegistryError(
                f"{self.root}: `{name[:80]}` is no name of a model; expected lower-case letters, "
                "digits, `.`, `_`, `-`"
            )
        return self.root / name

    def _pointer(self, name: str, channel: str) -> Path:
        if not is_name(channel):
            raise RegistryError(
                f"{self.root / name}: `{channel[:80]}` is no name of a channel; `stable` and "
                "`canary` are"
            )
        return self._place(name) / "channels" / f"{channel}.json"

    def _channel_names(self, name: str) -> Iterator[str]:
        for entry in self._entries(self._place(name) / "channels"):
            if entry.suffix == ".json" and is_name(entry.stem):
                yield entry.stem

    def _entries(self, directory: Path) -> list[Path]:
        try:
            return sorted(directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise RegistryError(
                f"{directory}: cannot be listed: {error.strerror}; see that this process may read "
                "it"
            ) from error


def _entry(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())
