"""The proxies that are compared, one a file.

Each module writes the configuration of its proxy and starts it. Words that belong to a proxy
(cluster, upstream, server) stay in its module and its configuration.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.process import Child
from benchmarks.harness.tools import Tools


@dataclass(frozen=True)
class Launch:
    """Where and with what a peer starts.

    directory: its own, empty folder.
    endpoint_ports: ports on 127.0.0.1 that it forwards to.
    """

    tools: Tools
    directory: Path
    core: int
    endpoint_ports: tuple[int, ...]


@dataclass(frozen=True)
class Peer:
    """A started proxy.

    port: where clients call it, on 127.0.0.1.
    child: its process; None for direct calls.
    config: the configuration it runs with, as shown in the report.
    calls_counted: reads how many calls the proxy's own metrics counted, where that is checked.
    metrics: reads its metrics page, where there is one.
    """

    name: str
    port: int
    child: Child | None
    config: str
    calls_counted: Callable[[], int] | None = None
    metrics: Callable[[], str] | None = None


Starter = Callable[[Launch, ExitStack], Peer]


def free_ports(count: int) -> list[int]:
    """Ports that the system just picked. Held together while picking, so no two are the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [entry.getsockname()[1] for entry in sockets]
