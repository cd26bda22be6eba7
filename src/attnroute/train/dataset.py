"""The scrapes that training learns from, on disk: append-only, checked, bounded.

A directory of segments, `00000001.log` and on. A record is its length, its sha256 and the scrape.
It is written with one call and flushed to the disk, so a writer that is killed leaves at most a
torn record at the end of the last segment: it is cut off when the log is opened again, counted.
A record whose checksum is wrong ends its segment for a reader, counted too; what comes after it
cannot be told apart from noise. When the whole is larger than its limit the oldest segment goes.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from attnroute.errors import AttnrouteError
from attnroute.train.scrapes import Scrape, decode, encode

__all__ = ["DatasetError", "ScrapeLog"]

_HEAD = struct.Struct("<4sI32s")
_MAGIC = b"ATSC"
RECORD_BYTES_MAX = 64 << 20
"""65,536 cells take 6 MB."""


class DatasetError(AttnrouteError):
    """A log that cannot be written or read."""


class ScrapeLog:
    """bytes_max: of all segments together. segment_bytes: a new one is begun beyond."""

    def __init__(
        self, directory: Path, *, bytes_max: int = 256 << 20, segment_bytes: int = 16 << 20
    ) -> None:
        self.directory = directory
        self.torn = 0
        """Records that were not whole, ever since it was opened."""
        self.dropped_segments = 0
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, max(1, bytes_max // 2))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            segments = self._segments()
            self._number = int(segments[-1].stem) if segments else 1
            self._cut()
            self._file = self._path(self._number).open("ab")
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, scrape: Scrape) -> None:
        """Writes a scrape behind the others. Raises DatasetError; then nothing is left of it."""
        content = encode(scrape)
        record = _HEAD.pack(_MAGIC, len(content), hashlib.sha256(content).digest()) + content
        at = self._file.tell()
        try:
            self._file.write(record)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            # What is half there would hide what comes behind it.
            self._file.close()
            os.truncate(self._path(self._number), at)
            self._file = self._path(self._number).open("ab")
            raise self._failed(error) from error
        if self._file.tell() >= self._segment_bytes:
            self._file.close()
            self._number += 1
            self._file = self._path(self._number).open("ab")
        self._bound()

    def read(self) -> Iterator[Scrape]:
        """Every whole scrape, oldest first."""
        for path in self._segments():
            yield from (scrape for scrape, _ in self._records(path))

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(path.stat().st_size for path in self._segments())

    def close(self) -> None:
        """Ends writing."""
        self._file.close()

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08}.log"

    def _segments(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*.log") if path.stem.isdigit())

    def _records(self, path: Path) -> Iterator[tuple[Scrape, int]]:
        """Whole records with the place behind each."""
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                found = self._record(file, head)
                if found is None:
                    self.torn += 1
                    return
                yield found, file.tell()

    @staticmethod
    def _record(file: BinaryIO, head: bytes) -> Scrape | None:
        if len(head) < _HEAD.size:
            return None
        magic, size, digest = _HEAD.unpack(head)
        if magic != _MAGIC or size > RECORD_BYTES_MAX:
            return None
        content = file.read(size)
        if len(content) < size or hashlib.sha256(content).digest() != digest:
            return None
        try:
            return decode(content)
        except (ValueError, KeyError, TypeError):
            return None

    def _cut(self) -> None:
        """Takes what is torn off the last segment."""
        path = self._path(self._number)
        if not path.exists():
            return
        end = max((behind for _, behind in self._records(path)), default=0)
        if end < path.stat().st_size:
            os.truncate(path, end)

    def _bound(self) -> None:
        segments = self._segments()
        total = sum(path.stat().st_size for path in segments)
        for path in segments[:-1]:
            if total <= self._bytes_max:
                return
            total -= path.stat().st_size
            path.unlink()
            self.dropped_segments += 1

    def _failed(self, error: OSError) -> DatasetError:
        return DatasetError(
            f"{self.directory}: scrapes cannot be kept: {error.strerror or error}; free space or "
            "name another directory"
        )
