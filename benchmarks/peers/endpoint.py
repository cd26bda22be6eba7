"""The endpoints behind every proxy: one nginx worker, one HTTP/2 port each, a fixed answer.

The cheapest correct gRPC answer there is, so that the load side saturates as late as possible: it
shares its core with the client, and whatever it takes the client cannot use.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.h2load import FRAME
from benchmarks.harness.process import Child
from benchmarks.peers import Launch, free_ports

# nginx takes the NUL bytes of the frame as they are; the quotes and the backslash it would not.
_CONFIG = """\
daemon off;
master_process off;
pid nginx.pid;
error_log stderr crit;
worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  http2_max_concurrent_streams 10000;
  default_type application/grpc;
  add_trailer grpc-status 0 always;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {
    %(listen)s
    location / { return 200 "%(frame)s"; }
  }
}
"""


def start_endpoints(launch: Launch, stack: ExitStack, *, count: int) -> tuple[Child, list[int]]:
    """Start `count` endpoints on `launch.core`; returns their process and ports."""
    ports = free_ports(count)
    text = _CONFIG % {
        "listen": "\n    ".join(f"listen 127.0.0.1:{port} http2 backlog=4096;" for port in ports),
        "frame": FRAME.decode("latin-1"),
    }
    launch.directory.joinpath("nginx.conf").write_text(text, encoding="latin-1")
    argv = [
        str(launch.tools.nginx),
        "-p",
        str(launch.directory),
        "-c",
        "nginx.conf",
        "-e",
        "stderr",
    ]
    child = Child("endpoints", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    return child, ports
