"""The endpoint of large messages: nghttpd, which answers a call once it has read all of it.

(nginx, the endpoint of small ones, answers before it has read the body and resets the rest.) What
it answers with are files, read again for each call from memory of the system.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.process import Child
from benchmarks.peers import Launch, free_ports

# Of a stream and of a connection, as powers of 2: what a gRPC server grants at high bandwidth.
STREAM_WINDOW_BITS = 20
CONNECTION_WINDOW_BITS = 24
SUFFIX = "grpc"


def start_file_endpoint(launch: Launch, stack: ExitStack, htdocs: Path) -> tuple[Child, int]:
    """Start it on `launch.core` with the answers in `htdocs`; returns its process and port.

    Files end in `.grpc`, which makes them `application/grpc`, with a trailer `grpc-status: 0`.
    """
    (port,) = free_ports(1)
    types = launch.directory / "mime.types"
    types.write_text(f"application/grpc {SUFFIX}\n")
    argv = [str(launch.tools.nghttpd), "--no-tls", "-a", "127.0.0.1", "-d", str(htdocs)]
    argv += ["--trailer", "grpc-status: 0", "--mime-types-file", str(types), "-m", "1000"]
    argv += ["-w", str(STREAM_WINDOW_BITS), "-W", str(CONNECTION_WINDOW_BITS), str(port)]
    child = Child("endpoint", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    return child, port
