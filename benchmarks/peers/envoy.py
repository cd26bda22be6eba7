"""Envoy: one worker thread, LEAST_REQUEST over HTTP/2 endpoints.

Work that attnroute does not do is switched off, in Envoy's favour: request ids, its own headers,
access log, hot restart. Its statistics cannot be switched off and are part of what it is.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.h2load import AUTHORITY
from benchmarks.harness.process import Child
from benchmarks.peers import Launch, Peer, free_ports

_CONFIG = """\
static_resources:
  listeners:
    - name: bench
      address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": %(types)s.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: bench
                codec_type: HTTP2
                generate_request_id: false
                http2_protocol_options: {max_concurrent_streams: 10000}
                route_config:
                  virtual_hosts:
                    - name: bench
                      domains: [%(authority)s]
                      routes:
                        - match: {prefix: /}
                          route: {cluster: bench, timeout: 0s}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": %(types)s.filters.http.router.v3.Router
                      suppress_envoy_headers: true
  clusters:
    - name: bench
      type: STATIC
      lb_policy: LEAST_REQUEST
      connect_timeout: 2s
      circuit_breakers:
        thresholds: [{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": %(types)s.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config:
            http2_protocol_options: {max_concurrent_streams: 10000}
      load_assignment:
        cluster_name: bench
        endpoints:
          - lb_endpoints:
%(endpoints)s
"""
_TYPES = "type.googleapis.com/envoy.extensions"
_ENDPOINT = (
    "              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}"
)


def start(launch: Launch, stack: ExitStack) -> Peer:
    """Start Envoy."""
    (port,) = free_ports(1)
    text = _CONFIG % {
        "types": _TYPES,
        "port": port,
        "authority": AUTHORITY,
        "endpoints": "\n".join(_ENDPOINT % endpoint for endpoint in launch.endpoint_ports),
    }
    launch.directory.joinpath("envoy.yaml").write_text(text)
    argv = [str(launch.tools.envoy), "-c", "envoy.yaml", "--concurrency", "1"]
    argv += ["--disable-hot-restart", "--log-level", "warning"]
    child = Child("envoy", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    return Peer("envoy", port, child, text)
