"""The addresses of this very process, which it must never dial.

A sidecar that takes itself for an endpoint sends every call round in a circle until something runs
out. The address of a listener may come back from any source, by mistake or from a poisoned answer,
so every set is held against the addresses that are bound here before it counts.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

__all__ = ["OwnAddresses"]


class OwnAddresses:
    """What this process is bound to: `ip:port`, `[ip6]:port` or `unix:/path`."""

    def __init__(self) -> None:
        self._exact: frozenset[str] = frozenset()
        self._any_host: frozenset[int] = frozenset()

    def replace(self, addresses: Iterable[str]) -> None:
        """Takes the addresses that are bound, or will be; port 0 stands for none."""
        exact, any_host = set(), set()
        for address in addresses:
            host, port = _split(address)
            if port == 0:
                continue
            if host is not None and host.is_unspecified:
                any_host.add(port)
            exact.add(address)
        self._exact, self._any_host = frozenset(exact), frozenset(any_host)

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, str):
            return False
        if address in self._exact:
            return True
        host, port = _split(address)
        return host is not None and port in self._any_host and _is_local(str(host))


def _split(
    address: str,
) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address | None, int]:
    """Host and port; no host and port -1 for a Unix socket."""
    if address.startswith("unix:"):
        return None, -1
    host, _, port = address.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")), int(port)


def _is_local(host: str) -> bool:
    """Whether the address belongs to this machine: only such a one can be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
