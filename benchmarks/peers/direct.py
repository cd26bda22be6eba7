"""No proxy at all: what the load side costs and can give."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.peers import Launch, Peer


def start(launch: Launch, stack: ExitStack) -> Peer:
    """Calls go straight to the first endpoint."""
    del stack
    return Peer("direct", launch.endpoint_ports[0], None, "")
