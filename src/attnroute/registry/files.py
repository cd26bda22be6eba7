"""Small files that several processes read and change: replaced whole, under a lock of the system.

A lock that a process holds goes with the process, however it ends, so that a killed publisher
blocks nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnroute.bundle.files import read_file
from attnroute.bundle.write import sync_directory, write_file
from attnroute.errors import BundleError, RegistryError

__all__ = ["UNFINISHED_FILE", "locked", "read_json", "write_json"]

FILE_BYTES_MAX = 64 << 10
LOCK_WAIT_S = 10.0
UNFINISHED_FILE = ".file-"

_LOCK_POLL_S = 0.01


@contextmanager
def locked(directory: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Holds the lock of a directory; RegistryError if somebody else keeps it for too long."""
    try:
        handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RegistryError(
            f"{directory}: cannot be changed: {error.strerror}; see that it exists and is writable"
        ) from error
    try:
        end_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise RegistryError(
                        f"{directory}: another process has held `.lock` for {wait_s:g} s; see "
                        "what it is, and try again"
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file. Raises RegistryError for anything else."""
    if not path.exists():
        return None
    try:
        document = json.loads(read_file(path, bytes_max=FILE_BYTES_MAX, where=path.parent))
    except (ValueError, RecursionError, BundleError) as error:
        if not path.exists():
            return None
        raise RegistryError(f"{path}: cannot be read: {error}; point the channel anew") from error
    if not isinstance(document, dict):
        raise RegistryError(f"{path}: is no JSON object; point the channel anew")
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replaces a file whole. Raises RegistryError if the disk does not take it; then the old one
    stays."""
    fresh = path.with_name(f"{UNFINISHED_FILE}{uuid.uuid4().hex}")
    try:
        try:
            write_file(fresh, (json.dumps(document, indent=2) + "\n").encode())
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise RegistryError(
            f"{path}: cannot be written: {error.strerror}; see that the directory is writable and "
            "the disk has space"
        ) from error
