"""What an operator does with bundles, the same on a directory and on a trainer's registry."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from attnroute.errors import RegistryError
from attnroute.registry.remote import RemoteRegistry
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState, Listing

__all__ = ["Registry", "fetched", "freeze", "is_address", "open_registry", "promote", "roll_back"]

_ADDRESS = re.compile(r"unix:.+|[^/]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


class Registry(Protocol):
    """A place of bundles. Methods raise RegistryError and BundleError."""

    async def listing(self, name: str = "") -> Listing: ...
    async def fetch(self, state: ChannelState) -> Path: ...
    async def point(
        self,
        name: str,
        channel: str,
        version: str,
        *,
        expected_generation: int,
        reason: str,
        frozen: bool,
    ) -> ChannelState: ...


class _Directory:
    def __init__(self, root: Path) -> None:
        self._store = Store(root)

    async def listing(self, name: str = "") -> Listing:
        if not self._store.root.is_dir():
            raise RegistryError(
                f"{self._store.root}: there is no such directory; name one that holds "
                "`<name>/<version>/`, or the address of a trainer"
            )
        return await asyncio.to_thread(self._store.listing, name)

    async def fetch(self, state: ChannelState) -> Path:
        return self._store.path(state.name, state.version)

    async def point(
        self,
        name: str,
        channel: str,
        version: str,
        *,
        expected_generation: int,
        reason: str,
        frozen: bool,
    ) -> ChannelState:
        return await asyncio.to_thread(
            lambda: self._store.point(
                name,
                channel,
                version,
                expected_generation=expected_generation,
                reason=reason,
                operator=True,
                frozen=frozen,
            )
        )


def is_address(where: str) -> bool:
    """Whether it is the address of a registry; else it is a directory."""
    return _ADDRESS.fullmatch(where) is not None


@asynccontextmanager
async def open_registry(where: str) -> AsyncIterator[Registry]:
    """The registry at `host:port` or `unix:/path`, or the directory of that name."""
    if not is_address(where):
        yield _Directory(Path(where))
        return
    async with RemoteRegistry(where) as remote:
        yield remote


async def promote(registry: Registry, name: str, channel: str, version: str = "") -> ChannelState:
    """Points a channel at a version, by default at what `canary` has; it is not frozen then."""
    listing = await registry.listing(name)
    if not version:
        version = _state(listing, name, "canary").version
        if not version:
            raise RegistryError(
                f"channel `canary` of `{name}` points nowhere; say which version is meant"
            )
    now = _state(listing, name, channel)
    return await registry.point(
        name,
        channel,
        version,
        expected_generation=now.generation,
        reason="promoted by an operator",
        frozen=False,
    )


async def roll_back(registry: Registry, name: str, channel: str, *, freeze: bool) -> ChannelState:
    """Points a channel at the version that it pointed at before, and freezes it there, so that the
    trainer does not bring back what an operator took away."""
    listing = await registry.listing(name)
    now = _state(listing, name, channel)
    there = {bundle.version for bundle in listing.bundles if bundle.name == name}
    before = next((version for version in now.previous if version in there), "")
    if not before:
        raise RegistryError(
            f"channel `{channel}` of `{name}` points at `{now.version or 'nothing'}` and has no "
            "version before it; promote one"
        )
    return await registry.point(
        name,
        channel,
        before,
        expected_generation=now.generation,
        reason=f"rolled back from {now.version} by an operator",
        frozen=freeze,
    )


async def freeze(registry: Registry, name: str, channel: str, *, frozen: bool) -> ChannelState:
    """Lets nobody but operators move a channel, or anybody again."""
    now = _state(await registry.listing(name), name, channel)
    if not now.version:
        raise RegistryError(f"channel `{channel}` of `{name}` points nowhere; promote a version")
    return await registry.point(
        name,
        channel,
        now.version,
        expected_generation=now.generation,
        reason="frozen by an operator" if frozen else "thawed by an operator",
        frozen=frozen,
    )


async def fetched(
    registry: Registry, name: str, version: str = "", *, channel: str = "stable"
) -> tuple[ChannelState, Path]:
    """The files of a version, by default of what a channel points at."""
    listing = await registry.listing(name)
    state = _state(listing, name, channel)
    version = version or state.version
    for bundle in listing.bundles:
        if (bundle.name, bundle.version) == (name, version):
            state = ChannelState(name, "", 0, version, bundle.manifest_sha256)
            return state, await registry.fetch(state)
    known = ", ".join(bundle.version for bundle in listing.bundles[:5]) or "none"
    raise RegistryError(
        f"there is no version `{version}` of `{name}`; there are: {known}"
        if version
        else f"channel `{channel}` of `{name}` points nowhere; say which version is meant"
    )


def _state(listing: Listing, name: str, channel: str) -> ChannelState:
    for state in listing.channels:
        if (state.name, state.channel) == (name, channel):
            return state
    return ChannelState(name, channel)
