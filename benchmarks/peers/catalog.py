"""Which proxies there are, in the order of the tables."""

from __future__ import annotations

from benchmarks.peers import Starter, attnroute, direct, envoy, haproxy, nginx

PEERS: dict[str, Starter] = {
    "direct": direct.start,
    "attnroute": attnroute.start,
    "envoy": envoy.start,
    "haproxy": haproxy.start,
    "nginx": nginx.start,
}
