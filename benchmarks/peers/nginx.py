"""nginx: one process, least_conn. Its gRPC side carries one call per connection at a time.

`max_fails=0`: an endpoint that answers before it has read the call's body resets the stream, which
nginx takes for a failure of the endpoint and would then refuse every call.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.process import Child
from benchmarks.peers import Launch, Peer, free_ports

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
  client_max_body_size 0;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream endpoints {
    least_conn;
%(endpoints)s
    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }
  server {
    listen 127.0.0.1:%(port)d http2 backlog=4096;
    location / { grpc_pass grpc://endpoints; }
  }
}
"""


def start(launch: Launch, stack: ExitStack) -> Peer:
    """Start nginx as one process: a worker would outlive a master that is killed."""
    (port,) = free_ports(1)
    text = _CONFIG % {
        "port": port,
        "endpoints": "\n".join(
            f"    server 127.0.0.1:{endpoint} max_fails=0;" for endpoint in launch.endpoint_ports
        ),
    }
    launch.directory.joinpath("nginx.conf").write_text(text)
    argv = [
        str(launch.tools.nginx),
        "-p",
        str(launch.directory),
        "-c",
        "nginx.conf",
        "-e",
        "stderr",
    ]
    child = Child("nginx", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    return Peer("nginx", port, child, text)
