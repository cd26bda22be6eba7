"""Files as operators and their tools change them, and what a follower of one has seen."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Generic, TypeVar

from tests.support.wait import until

_T = TypeVar("_T")

# For tests that must not depend on the system's change events, and for those that must.
POLL_OFTEN_S = 0.05
POLL_NEVER_S = 3_600.0


class Seen(Generic[_T]):
    """What an async generator has yielded so far."""

    def __init__(self) -> None:
        self.items: list[_T] = []

    @property
    def last(self) -> _T | None:
        return self.items[-1] if self.items else None

    async def wait_for(self, item: _T) -> None:
        """Returns when `item` is what was yielded last."""
        await until(lambda: self.last == item, f"{item!r} to be seen last, not {self.items!r}")

    async def wait_count(self, count: int) -> None:
        await until(lambda: len(self.items) >= count, f"{count} items, not {self.items!r}")


@contextlib.asynccontextmanager
async def collecting(generator: AsyncIterator[_T]) -> AsyncIterator[Seen[_T]]:
    """Collects what `generator` yields until the block ends; a fault of it fails the test."""
    seen: Seen[_T] = Seen()

    async def collect() -> None:
        async for item in generator:
            seen.items.append(item)

    task = asyncio.create_task(collect())
    try:
        yield seen
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if isinstance(generator, AsyncGenerator):
            await generator.aclose()


def replace(path: Path, content: bytes | str) -> None:
    """Writes under another name and renames: no reader sees a part."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.rename(path)


class MountedFile:
    """A file as a ConfigMap mounts it: two symbolic links away, the directory swapped as one."""

    def __init__(self, directory: Path, name: str, content: str) -> None:
        self._directory = directory
        self._name = name
        self._version = 0
        self._swap(content)
        (directory / name).symlink_to(Path("..data") / name)

    @property
    def path(self) -> Path:
        return self._directory / self._name

    def _swap(self, content: str) -> None:
        self._version += 1
        version = self._directory / f"..version-{self._version}"
        version.mkdir()
        (version / self._name).write_text(content)
        link = self._directory / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self._directory / "..data")
        old = self._directory / f"..version-{self._version - 1}"
        if old.exists():
            (old / self._name).unlink()
            old.rmdir()

    def update(self, content: str) -> None:
        self._swap(content)


def write(path: Path, content: bytes) -> None:
    """Truncates and writes, as most editors and shells do."""
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.mkdir()


def touch_later(path: Path) -> None:
    """New times, same content."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
