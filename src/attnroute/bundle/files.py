"""Files that may be anything: read whole, once, and only if they are files of a bounded size.

A path that an operator or a peer named may be a pipe that never ends, a directory, two gigabytes of
zeros or a loop of links. The open does not block, the type and the size are those of what was
opened, and no more is read than was allowed. Nothing is mapped: a mapped file that is cut short
ends the process with a bus error (cases MD-10).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from attnroute.errors import BundleError

__all__ = ["read_file"]

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_file(
    path: Path, *, bytes_max: int, where: Path, expected_bytes: int | None = None
) -> bytes:
    """The content of a regular file. bytes_max: of the file; expected_bytes: what the manifest says
    of it. where: begins the message of a BundleError, which says what was found instead."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise BundleError(
            f"{where}: `{path.name}` cannot be opened: {error.strerror}; expected a file that "
            "this process may read"
        ) from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            kind = next((name for test, name in _KINDS if test(state.st_mode)), "no file")
            raise BundleError(
                f"{where}: `{path.name}` is {kind}, expected a file; publish the bundle again"
            )
        if expected_bytes is not None and state.st_size != expected_bytes:
            raise BundleError(
                f"{where}: `{path.name}` has {state.st_size} bytes, the manifest says "
                f"{expected_bytes}; publish the bundle again"
            )
        if state.st_size > bytes_max:
            raise BundleError(
                f"{where}: `{path.name}` has {state.st_size} bytes, at most {bytes_max} are "
                "allowed; raise `max_bytes` if the bundle is right"
            )
        return _read(handle, min(state.st_size, bytes_max), path, where)
    finally:
        os.close(handle)


def _read(handle: int, size: int, path: Path, where: Path) -> bytes:
    """Exactly what the size promised: a file that shrinks or grows meanwhile is none of ours."""
    parts: list[bytes] = []
    left = size + 1
    while left:
        try:
            part = os.read(handle, min(left, 1 << 20))
        except OSError as error:
            raise BundleError(
                f"{where}: `{path.name}` cannot be read: {error.strerror}; expected a whole file"
            ) from error
        if not part:
            break
        parts.append(part)
        left -= len(part)
    if left != 1:
        raise BundleError(
            f"{where}: `{path.name}` changed while it was read; publish the bundle again"
        )
    return b"".join(parts)
