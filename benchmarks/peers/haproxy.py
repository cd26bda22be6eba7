"""HAProxy: one thread, leastconn over HTTP/2 endpoints, connections shared between clients."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.process import Child
from benchmarks.peers import Launch, Peer, free_ports

_CONFIG = """\
global
    nbthread 1
    maxconn 4096
    tune.h2.max-concurrent-streams 10000

defaults
    mode http
    timeout connect 2s
    timeout client 1h
    timeout server 1h

frontend bench
    bind 127.0.0.1:%(port)d proto h2
    default_backend endpoints

backend endpoints
    balance leastconn
    http-reuse always
%(endpoints)s
"""


def start(launch: Launch, stack: ExitStack) -> Peer:
    """Start HAProxy in the foreground (`-db`)."""
    (port,) = free_ports(1)
    text = _CONFIG % {
        "port": port,
        "endpoints": "\n".join(
            f"    server e{index} 127.0.0.1:{endpoint} proto h2"
            for index, endpoint in enumerate(launch.endpoint_ports)
        ),
    }
    launch.directory.joinpath("haproxy.cfg").write_text(text)
    argv = [str(launch.tools.haproxy), "-db", "-f", "haproxy.cfg"]
    child = Child("haproxy", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    return Peer("haproxy", port, child, text)
