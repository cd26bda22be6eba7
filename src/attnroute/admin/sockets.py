"""Binding the sockets of the admin interfaces, with errors an operator can act on."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnroute.errors import StartError

UNIX = "unix:"
"""How the address of a Unix socket begins; a path follows."""


@contextmanager
def private_mode() -> Iterator[None]:
    """Files made inside have mode 0600 from their first moment; chmod would come too late."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def bind_tcp(address: str) -> tuple[socket.socket, int]:
    """A listening socket on `ip:port` and its real port; raises OSError."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), int(port)))
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    return bound, bound.getsockname()[1]


def bind_unix(path: Path) -> socket.socket:
    """A listening socket at `path` that only our user may open; raises OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with private_mode():
            bound.bind(str(path))
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    return bound


def clear_stale_socket(path: Path, source: str) -> None:
    """Removes a Unix socket nobody listens on; raises StartError for anything else at `path`."""
    if not path.parent.is_dir():
        raise StartError(f"{source}: directory `{path.parent}` of socket `{path}` does not exist")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{source}: `{path}` exists and is no socket; move it or use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise StartError(f"{source}: cannot take over socket `{path}`: {error}") from error
    raise StartError(f"{source}: another process listens on `unix:{path}`; stop it first")
