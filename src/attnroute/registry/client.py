"""A sidecar's way to bundles: what its channel points at, verified, from a registry or a directory.

A source never raises for what others did wrong: a registry that is gone, slow or says nonsense, a
bundle that is damaged or of another schema are counted, and what serves goes on serving. What was
fetched stays on the own disk, and a fetch goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.bundle import DEFAULT_LIMITS, Bundle, BundleLimits, read
from attnroute.errors import BundleError, RegistryError
from attnroute.logs import fields
from attnroute.registry.cache import Cache
from attnroute.registry.fetch import CHANNEL_OPTIONS, DamagedError, Fetcher
from attnroute.registry.messages import SERVICE, MessageError, read_channel
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "BundleSource",
    "DirectorySource",
    "Patience",
    "RegistrySource",
    "SourceEvents",
    "Trust",
    "Update",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """A channel's bundle, verified and in memory."""

    state: ChannelState
    bundle: Bundle


class BundleSource(Protocol):
    """Where a sidecar's bundles come from."""

    def updates(self) -> AsyncIterator[Update]:
        """Each bundle that the channel comes to point at; never ends, never raises."""
        ...

    async def close(self) -> None: ...


class SourceEvents(Protocol):
    """What is counted."""

    def registry_connected(self, *, connected: bool) -> None: ...
    def registry_failed(self, reason: str) -> None: ...
    def registry_fetched(self, fetched_bytes: int) -> None: ...
    def bundle_refused(self, version: str, problem: str) -> None: ...


@dataclass(frozen=True)
class Trust:
    """What a bundle has to be."""

    schema: str | None
    """Feature schema of this build; None takes any."""
    limits: BundleLimits = DEFAULT_LIMITS
    key: Ed25519PublicKey | None = None
    """Whose signature it needs; None takes any."""


@dataclass(frozen=True)
class Patience:
    """How long a registry is waited for and left alone, in seconds. Each pause is drawn from 80 to
    120 %."""

    first_s: float = 1.0
    growth: float = 1.6
    most_s: float = 60.0
    message_s: float = 10.0
    """For the next part of a file, and for a channel's first word."""
    fetch_s: float = 120.0
    """For one file; a slower one goes on after a pause."""
    poll_s: float = 1.0
    """How often a directory is looked at."""


class _Pauses:
    def __init__(self, patience: Patience, rng: random.Random) -> None:
        self._patience = patience
        self._rng = rng
        self._next_s = patience.first_s

    def reset(self) -> None:
        self._next_s = self._patience.first_s

    async def wait(self) -> None:
        await asyncio.sleep(self._next_s * self._rng.uniform(0.8, 1.2))
        self._next_s = min(self._next_s * self._patience.growth, self._patience.most_s)


class DirectorySource:
    """Bundles in a directory that somebody mounts or fills. root: holds the directory `name`."""

    def __init__(
        self,
        root: Path,
        name: str,
        channel: str,
        trust: Trust,
        events: SourceEvents,
        *,
        patience: Patience = Patience(),
        rng: random.Random | None = None,
    ) -> None:
        self._store = Store(root, limits=trust.limits)
        self._name = name
        self._channel = channel
        self._trust = trust
        self._events = events
        self._patience = patience
        self._rng = rng or random.Random()

    async def updates(self) -> AsyncGenerator[Update, None]:
        """attnroute.registry.client.BundleSource."""
        pauses = _Pauses(self._patience, self._rng)
        taken: tuple[str, str] | None = None
        refused: ChannelState | None = None
        while True:
            try:
                state = await asyncio.to_thread(self._store.channel, self._name, self._channel)
            except (RegistryError, BundleError, OSError) as error:
                self._failed("directory", error)
                await pauses.wait()
                continue
            self._events.registry_connected(connected=True)
            pauses.reset()
            if state.version and (state.version, state.manifest_sha256) != taken:
                try:
                    path = self._store.path(self._name, state.version)
                    bundle = await asyncio.to_thread(_read, path, state, self._trust)
                except (BundleError, RegistryError, DamagedError) as error:
                    # A directory may be half copied, so that it is looked at again; said once.
                    if state != refused:
                        refused = state
                        _refuse(self._events, state, error)
                else:
                    taken = state.version, state.manifest_sha256
                    yield Update(state, bundle)
            await asyncio.sleep(self._patience.poll_s)

    async def close(self) -> None:
        """Nothing is open."""

    def _failed(self, reason: str, error: Exception) -> None:
        self._events.registry_connected(connected=False)
        self._events.registry_failed(reason)
        logger.debug("the directory of bundles fails", extra=fields(problem=str(error)))


class RegistrySource:
    """Bundles of a registry at `address`, `host:port`; made and used on one event loop. cache: a
    directory of this sidecar's own, or shared by several of one machine."""

    def __init__(
        self,
        address: str,
        name: str,
        channel: str,
        trust: Trust,
        events: SourceEvents,
        *,
        cache: Path,
        patience: Patience = Patience(),
        rng: random.Random | None = None,
    ) -> None:
        self._name = name
        self._channel_name = channel
        self._trust = trust
        self._events = events
        self._patience = patience
        self._rng = rng or random.Random()
        self._cache = Cache(cache, name, trust.limits)
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._fetcher = Fetcher(
            self._channel,
            message_s=patience.message_s,
            fetch_s=patience.fetch_s,
            fetched=events.registry_fetched,
        )
        self._state: ChannelState | None = None
        self._moved = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    async def updates(self) -> AsyncGenerator[Update, None]:
        """attnroute.registry.client.BundleSource. The first one may be what the disk still has."""
        taken: tuple[str, str] | None = None
        last = await self._last()
        if last is not None:
            taken = last.state.version, last.state.manifest_sha256
            yield last
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch_forever(), name="registry watch")
        pauses = _Pauses(self._patience, self._rng)
        while True:
            await self._moved.wait()
            self._moved.clear()
            state = self._state
            if state is None or not state.version:
                continue
            if (state.version, state.manifest_sha256) == taken:
                continue
            try:
                bundle = await self._take(state)
            except (BundleError, RegistryError) as error:
                # The bytes are those that were published: asking again would bring them again.
                _refuse(self._events, state, error)
                await asyncio.to_thread(self._cache.forget, state)
                continue
            except (DamagedError, OSError, grpc.aio.AioRpcError) as error:
                self._events.registry_failed(_reason(error))
                logger.debug("a fetch stopped", extra=fields(problem=str(error)))
                self._moved.set()
                await pauses.wait()
                continue
            pauses.reset()
            taken = state.version, state.manifest_sha256
            yield Update(state, bundle)

    async def close(self) -> None:
        """Ends the watch and closes the connection."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._channel.close()

    async def _last(self) -> Update | None:
        """What the disk has of an earlier run."""
        try:
            state = await asyncio.to_thread(self._cache.last, self._channel_name)
            path = await asyncio.to_thread(self._cache.find, state) if state.version else None
            if path is None:
                return None
            return Update(state, await asyncio.to_thread(_read, path, state, self._trust))
        except (BundleError, RegistryError, DamagedError, OSError) as error:
            logger.debug("the cache has no bundle to begin with", extra=fields(problem=str(error)))
            return None

    async def _watch_forever(self) -> None:
        pauses = _Pauses(self._patience, self._rng)
        while True:
            before = self._state
            try:
                await self._watch()
                reason = "ended"
            except (grpc.aio.AioRpcError, TimeoutError, MessageError) as error:
                reason = _reason(error)
                logger.debug("the watch of a channel ended", extra=fields(problem=str(error)))
            except Exception:
                logger.exception("the watch of a channel failed; it is opened again")
                reason = "INTERNAL"
            self._events.registry_connected(connected=False)
            self._events.registry_failed(reason)
            if self._state is not before:
                pauses.reset()
            await pauses.wait()

    async def _watch(self) -> None:
        """One stream, until it ends."""
        method: grpc.aio.UnaryStreamMultiCallable[pb.WatchRequest, pb.ChannelState] = (
            self._channel.unary_stream(
                f"/{SERVICE.full_name}/Watch",
                request_serializer=pb.WatchRequest.SerializeToString,
                response_deserializer=pb.ChannelState.FromString,
            )
        )
        call = method(pb.WatchRequest(name=self._name, channel=self._channel_name))
        try:
            async with asyncio.timeout(self._patience.message_s):
                message = await call.read()
            while isinstance(message, pb.ChannelState):
                state = read_channel(message)
                if (state.name, state.channel) != (self._name, self._channel_name):
                    raise MessageError(f"it speaks of `{state.name}` `{state.channel}`")
                self._events.registry_connected(connected=True)
                self._state = state
                self._moved.set()
                message = await call.read()
        finally:
            call.cancel()

    async def _take(self, state: ChannelState) -> Bundle:
        """The bundle that a channel points at, from the disk or the registry."""
        path = await asyncio.to_thread(self._cache.find, state)
        if path is not None:
            with contextlib.suppress(BundleError, DamagedError):
                return await self._taken(path, state)
            # Damaged on the own disk, or no longer what is asked for: fetched once more.
            await asyncio.to_thread(self._cache.forget, state)
        try:
            partial = await asyncio.to_thread(self._cache.partial, state)
        except RegistryError as error:
            raise DamagedError("disk") from error
        if not await asyncio.to_thread(partial.open):
            raise DamagedError("busy")
        try:
            # Somebody else may have brought it meanwhile.
            path = await asyncio.to_thread(self._cache.find, state)
            if path is None:
                await self._fetcher.fetch(partial, state)
                path = await asyncio.to_thread(partial.finish)
        finally:
            partial.close()
        return await self._taken(path, state)

    async def _taken(self, path: Path, state: ChannelState) -> Bundle:
        bundle = await asyncio.to_thread(_read, path, state, self._trust)
        try:
            await asyncio.to_thread(self._cache.taken, state)
        except (RegistryError, BundleError, OSError) as error:
            # The bundle is in memory and right; only the next start does not find it.
            self._events.registry_failed("disk")
            logger.debug("the cache does not take it", extra=fields(problem=str(error)))
        return bundle


def _read(path: Path, state: ChannelState, trust: Trust) -> Bundle:
    bundle = read(path, expected_schema=trust.schema, limits=trust.limits, key=trust.key)
    manifest = bundle.manifest
    if (manifest.name, manifest.version) != (state.name, state.version):
        raise DamagedError("name")
    return bundle


def _refuse(events: SourceEvents, state: ChannelState, error: Exception) -> None:
    events.bundle_refused(state.version, str(error))
    logger.warning(
        "a bundle was refused; what serves goes on",
        extra=fields(version=state.version, channel=state.channel, problem=str(error)),
    )


def _reason(error: Exception) -> str:
    """A word for a metric."""
    if isinstance(error, grpc.aio.AioRpcError):
        return str(error.code().name)
    if isinstance(error, TimeoutError):
        return "silent"
    if isinstance(error, MessageError):
        return "malformed"
    if isinstance(error, OSError):
        return "disk"
    return str(error)
