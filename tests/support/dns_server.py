"""A real DNS server for tests (dnslib) on 127.0.0.1, whose answers a test scripts.

UDP and TCP on one port that the system picks. What it answers is replaced as a whole by `zone`, and
`asked` counts the questions, so that a test waits for a query instead of sleeping.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, SRV, A, DNSError, DNSRecord
from dnslib.server import DNSHandler, DNSLogger, DNSServer

Zone = Mapping[str, Sequence[Any]]
"""Name without its last dot -> records."""


def a(address: str) -> A:
    return A(address)


def aaaa(address: str) -> AAAA:
    return AAAA(tuple(ipaddress.IPv6Address(address).packed))


def srv(target: str, port: int, *, priority: int = 10, weight: int = 0) -> SRV:
    return SRV(priority=priority, weight=weight, port=port, target=target)


def cname(target: str) -> CNAME:
    return CNAME(target)


@dataclass
class DnsServer:
    """Answers NOERROR for names of the zone, NXDOMAIN for others, unless told otherwise."""

    zone: Zone = field(default_factory=dict)
    ttl_s: int = 60
    status: str = "NOERROR"
    """What every question gets: `SERVFAIL`, `REFUSED`; `NOERROR` looks into the zone."""
    failing_types: frozenset[str] = frozenset()
    """Types that get SERVFAIL."""
    tamper: Callable[[Any], Any] | None = None
    """Last word on a reply."""
    silent: bool = False
    asked: int = 0
    port: int = 0
    _servers: list[DNSServer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def resolve(self, request: Any, _handler: Any) -> Any:
        """dnslib calls this for every question, on a thread of its own."""
        with self._lock:
            self.asked += 1
        reply = request.reply()
        question = str(request.q.qname).rstrip(".").lower()
        kind = QTYPE[request.q.qtype]
        if self.silent:
            raise DNSError("dnslib then sends nothing")
        if self.status != "NOERROR" or kind in self.failing_types:
            status = self.status if self.status != "NOERROR" else "SERVFAIL"
            reply.header.rcode = getattr(RCODE, status)
            return reply
        if question not in self.zone:
            reply.header.rcode = RCODE.NXDOMAIN
            return reply
        for record in self.zone[question]:
            name = type(record).__name__
            if name in (kind, "CNAME"):
                reply.add_answer(RR(question, getattr(QTYPE, name), rdata=record, ttl=self.ttl_s))
            if name == "CNAME":
                target = str(record.label).rstrip(".")
                for other in self.zone.get(target, ()):
                    if type(other).__name__ == kind:
                        reply.add_answer(
                            RR(target, getattr(QTYPE, kind), rdata=other, ttl=self.ttl_s)
                        )
        return self.tamper(reply) if self.tamper else reply

    def __enter__(self) -> Self:
        self.port = _free_port()
        for tcp in (False, True):
            server = DNSServer(
                _Quiet(self),
                address="127.0.0.1",
                port=self.port,
                tcp=tcp,
                logger=_NO_LOG,
                handler=_Handler,
            )
            server.start_thread()
            self._servers.append(server)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()
            server.server.server_close()
            server.thread.join()
        self._servers.clear()


class _Handler(DNSHandler):  # type: ignore[misc]
    """Cuts long answers over UDP, so that the client asks again over TCP.

    dnslib's own way leaves the question out of the cut answer, which nobody believes then.
    """

    def get_reply(self, data: bytes) -> bytes:
        reply: bytes = super().get_reply(data)
        if self.protocol == "tcp" or len(reply) <= 512:
            return reply
        cut = DNSRecord.parse(data).reply()
        cut.header.tc = 1
        packed: bytes = cut.pack()
        return packed


class _Quiet:
    """What dnslib needs of a resolver."""

    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def resolve(self, request: Any, handler: Any) -> Any:
        return self._server.resolve(request, handler)


_NO_LOG = DNSLogger(log="-request,-reply,-truncated,-error,-recv,-send,-data", logf=lambda _: None)


def _free_port() -> int:
    """One that is free for both protocols."""
    while True:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        ):
            tcp.bind(("127.0.0.1", 0))
            port: int = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
