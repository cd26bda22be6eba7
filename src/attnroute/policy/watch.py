"""Follows files by directory and content: what is reported has been the same at two looks.

Editors truncate and write, `kubectl` swaps a symbolic link two levels up, operators delete and copy
back. None of that shows in events alone, so events only say when to look; what counts is what is
read. A look is the content and the file's identity, sizes and times: a writer in a loop can show
the same half of a file twice, but not with the same times. Beside the events runs a slow poll,
which is all there is on file systems without events and for links whose target lies elsewhere.

The events come from one thread per directory, shared by everything followed in it. `watchfiles`
has an asynchronous interface as well, but it takes a worker of the event loop's pool for as long as
it watches, and with enough files there would be none left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import watchfiles

from attnroute.policy.load import POLICY_LIMITS
from attnroute.types import FileContent, FileUnreadable

__all__ = ["FileWatcher", "watch_policy"]

SETTLE_S = 0.25
"""Between two looks that must agree. Longer than the pauses of a writer that is merely slow; half a
second until a change is in force is nothing to an operator."""

RESTLESS_S = 10.0
"""A file that keeps changing for so long is reported as unreadable: no wait is silent."""

# The thread wakes this often to see whether it should end; it is also the time in which events are
# gathered.
_STEP_MS = 200
_GATHER_MS_MAX = 400
_SURE_AFTER_MS = 1_000


async def watch_policy(
    path: Path,
    *,
    poll_interval_s: float = 2.0,
    known_sha256: str = "",
    watcher: FileWatcher | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yields the content of a policy file each time it has changed and come to rest.

    Yields `b""` when the file is gone or unreadable, once; `load_policy(path, b"")` says why.
    A return to earlier content is a change like any other.

    known_sha256: of the content in force, so that a change before the first look is seen; without
    it the first look only sets the mark.
    watcher: shared with other followed files; without one this has its own.
    """
    watcher = watcher or FileWatcher()
    mark_only = not known_sha256
    following = watcher.follow(
        path,
        poll_interval_s=poll_interval_s,
        bytes_max=POLICY_LIMITS.bytes_max,
        known_sha256=known_sha256,
    )
    async with contextlib.aclosing(following) as looks:
        async for look in looks:
            if mark_only:
                mark_only = False
            elif isinstance(look, FileContent):
                yield look.content
            else:
                yield b""


class FileWatcher:
    """Follows any number of files; made and used on one event loop."""

    def __init__(self, *, settle_s: float = SETTLE_S, restless_s: float = RESTLESS_S) -> None:
        self._settle_s = settle_s
        self._restless_s = restless_s
        self._directories: dict[Path, _Directory] = {}

    async def follow(
        self, path: Path, *, poll_interval_s: float, bytes_max: int, known_sha256: str = ""
    ) -> AsyncGenerator[FileContent | FileUnreadable, None]:
        """Yields what the file holds at rest or why it cannot be read, at first and at each change.

        A file of more than bytes_max is read up to one byte more: its parser refuses it.
        known_sha256: content that need not be reported again.
        Ends only by cancellation or `aclose`.
        """
        last: object = known_sha256
        with self._changes(path.parent) as changed:
            while True:
                changed.event.clear()
                async for look in self._settled(path, bytes_max, last):
                    last = look.mark
                    yield look.result
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(poll_interval_s):
                        await changed.event.wait()
                changed.directory.renew()

    async def _settled(self, path: Path, bytes_max: int, last: object) -> AsyncIterator[_Look]:
        """The next look that differs from `last` and equals the one before; nothing if there is no
        difference. In between, once, that the file does not come to rest."""
        look = await asyncio.to_thread(_look, path, bytes_max)
        restless_at_s: float | None = asyncio.get_running_loop().time() + self._restless_s
        while look.mark != last:
            await asyncio.sleep(self._settle_s)
            again = await asyncio.to_thread(_look, path, bytes_max)
            if again.identity == look.identity:
                yield again
                return
            look = again
            if restless_at_s and asyncio.get_running_loop().time() > restless_at_s:
                restless_at_s = None
                reason = (
                    f"keeps changing, for {self._restless_s:g} s now; write it under another name "
                    "and rename it"
                )
                last = _RESTLESS
                yield _Look(last, None, FileUnreadable(reason))

    @contextlib.contextmanager
    def _changes(self, path: Path) -> Iterator[_Subscription]:
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories[path] = _Directory(path, asyncio.get_running_loop())
        subscription = _Subscription(directory)
        directory.events.add(subscription.event)
        try:
            yield subscription
        finally:
            directory.events.discard(subscription.event)
            if not directory.events:
                directory.stop()
                self._directories.pop(path, None)


_RESTLESS = object()


@dataclass(frozen=True, slots=True)
class _Look:
    mark: object
    """Differs where the result differs."""
    identity: object
    """Differs also if the same content was written again in between."""
    result: FileContent | FileUnreadable


def _look(path: Path, bytes_max: int) -> _Look:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            return _unreadable("is no regular file")
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
            seen = os.fstat(file.fileno())
    except OSError as error:
        return _unreadable(f"cannot be read: {error.strerror or error}")
    digest = hashlib.sha256(content).hexdigest()
    identity = (
        digest, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
    )  # fmt: skip
    return _Look(digest, identity, FileContent(content))


def _unreadable(reason: str) -> _Look:
    result = FileUnreadable(reason)
    return _Look(result, result, result)


class _Directory:
    """The thread that waits for events in one directory."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.events: set[asyncio.Event] = set()
        self._path = path
        self._loop = loop
        self._stop = threading.Event()
        self._watched: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self.renew()

    def renew(self) -> None:
        """Starts the thread if there is none, or if another directory has come under the path."""
        try:
            seen = self._path.stat()
        except OSError:
            return  # not there; the poll goes on and comes here again
        identity = (seen.st_dev, seen.st_ino)
        if self._thread is not None and self._thread.is_alive() and identity == self._watched:
            return
        self.stop()
        self._stop = threading.Event()
        self._watched = identity
        self._thread = threading.Thread(
            target=_watch, args=(self._path, self._stop, self._wake), name="attnroute-watch"
        )
        self._thread.start()

    def stop(self) -> None:
        """The thread ends by itself within a step; it is no daemon, so exit waits for it."""
        self._stop.set()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        for event in self.events:
            event.set()


@dataclass(frozen=True, slots=True)
class _Subscription:
    directory: _Directory
    event: asyncio.Event = field(default_factory=asyncio.Event)


def _watch(path: Path, stop: threading.Event, wake: Callable[[], None]) -> None:
    # Without events (no more inotify handles, an odd file system) the poll alone has to do.
    with contextlib.suppress(OSError, RuntimeError):
        for number, changes in enumerate(
            watchfiles.watch(
                path,
                watch_filter=None,
                debounce=_GATHER_MS_MAX,
                step=_STEP_MS,
                stop_event=stop,
                rust_timeout=_SURE_AFTER_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
                ignore_permission_denied=True,
            )
        ):
            # The first round says that events are on: what changed before may have had none.
            if changes or number == 0:
                wake()
