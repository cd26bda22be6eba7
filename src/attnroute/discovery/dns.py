"""Endpoints from DNS: the addresses of a name (A, AAAA), or of the targets of an SRV name.

Asked again when the records expire, or at the policy's interval. What can go wrong is told apart:
no answer or an unreadable one says nothing about the set (`error`); an answer without records, or
that there is no such name, is believed only if the policy says so or after a while (`empty`); an
answer that names this process, a loopback address or more than the limit is not believed at all
(`refused`). dnspython rather than getaddrinfo, which hides the lifetime of records and calls an
error what is an empty answer.

A name whose A records came while its AAAA query failed keeps the AAAA records known before: half an
answer is no reason to drop the other half. The same holds for the targets of an SRV name.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Container, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from attnroute.clock import Clock
from attnroute.discovery.base import (
    EndpointSet,
    EndpointSpec,
    FailureKind,
    Resolved,
    ResolveFailure,
)

__all__ = ["DnsOptions", "DnsResolver"]

TTL_MIN_S = 1.0
TTL_MAX_S = 300.0
"""Records are asked for again after their lifetime, but within these bounds: a lifetime of 0 must
not make a storm of queries, and one of a week not a set that nobody can change."""

RETRY_MIN_S = 0.5
RETRY_MAX_S = 5.0
"""Wait after a query that gave no set, doubled each time; shorter if records expire sooner."""

TRY_TIMEOUT_S = 1.0
"""Wait for one packet before the next try, since UDP loses some."""

SRV_TARGETS_MAX = 256
"""Targets of one SRV name: each costs two queries."""

_QUERIES_AT_ONCE = 16
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_FAMILIES = (dns.rdatatype.A, dns.rdatatype.AAAA)


@dataclass(frozen=True, kw_only=True)
class DnsOptions:
    """What is asked, whom, and what is believed.

    host: a name; with `port` its addresses are the endpoints, without it is an SRV name.
    refresh_s: time between two queries; None goes by the lifetime of the records.
    server: `ip:port` of the DNS server; None takes those of the system.
    hold_s: how long answers without records leave the last set in force; 0 empties it at once.
    endpoints_max: an answer with more is refused.
    """

    host: str
    port: int | None
    refresh_s: float | None = None
    server: tuple[str, int] | None = None
    timeout_s: float = 3.0
    hold_s: float = 3600.0
    allow_loopback: bool = False
    endpoints_max: int = 10_000


class _FailedError(Exception):
    """A query that gave no records."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: FailureKind = kind


@dataclass(frozen=True)
class _Target:
    """One SRV record."""

    host: str
    port: int
    weight: float
    priority: int = 0


_Item = TypeVar("_Item", _IpAddress, _Target)


@dataclass(frozen=True)
class _Records(Generic[_Item]):
    """The addresses of one name, or the targets of an SRV name; `ttl_s` of the shortest-lived."""

    items: tuple[_Item, ...]
    ttl_s: float


class DnsResolver:
    """Yields the set of a name whenever it changes."""

    name = "dns"

    def __init__(self, options: DnsOptions, *, own: Container[str], clock: Clock) -> None:
        """own: addresses of this process."""
        self._options = options
        self._own = own
        self._clock = clock
        self._known: dict[tuple[str, dns.rdatatype.RdataType], tuple[_IpAddress, ...]] = {}
        self._slots = asyncio.Semaphore(_QUERIES_AT_ONCE)

    async def watch(self) -> AsyncIterator[Resolved]:
        said: Resolved | None = None
        empty_since_s: float | None = None
        retry_s = RETRY_MIN_S
        while True:
            wait_s = self._options.refresh_s
            try:
                found, ttl_s = await self._ask()
                answer: Resolved = found
                wait_s = wait_s or min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)
                empty_since_s, retry_s = None, RETRY_MIN_S
            except _FailedError as failed:
                answer = ResolveFailure(f"dns `{self._options.host}`: {failed}", failed.kind)
                now_s = self._clock.now_s()
                if failed.kind == "empty":
                    empty_since_s = now_s if empty_since_s is None else empty_since_s
                    if now_s - empty_since_s >= self._options.hold_s:
                        answer = EndpointSet(())
                wait_s = min(wait_s or RETRY_MAX_S, retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            if answer != said:
                said = answer
                yield answer
            await asyncio.sleep(wait_s)

    async def _ask(self) -> tuple[EndpointSet, float]:
        """The set as DNS has it now, and how long it holds, in seconds."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                endpoints, ttl_s = await self._endpoints(self._make_resolver())
        except TimeoutError:
            raise _FailedError("error", f"no answer within {self._options.timeout_s:g} s") from None
        if not endpoints:
            raise _FailedError("empty", "the answer holds no addresses")
        if len(endpoints) > self._options.endpoints_max:
            found, most = len(endpoints), self._options.endpoints_max
            raise _FailedError(
                "refused", f"{found} endpoints, but `limits.max_endpoints` is {most}; raise it"
            )
        return EndpointSet(tuple(endpoints)), ttl_s

    def _make_resolver(self) -> dns.asyncresolver.Resolver:
        """Made anew for each query, so that a change of the system's configuration counts."""
        server = self._options.server
        try:
            resolver = dns.asyncresolver.Resolver(configure=server is None)
        except (dns.exception.DNSException, OSError) as error:
            raise _FailedError("error", f"the system names no DNS server: {error}") from None
        if server is not None:
            resolver.nameservers, resolver.port = [server[0]], server[1]
        resolver.timeout = min(TRY_TIMEOUT_S, self._options.timeout_s / 2)
        resolver.lifetime = self._options.timeout_s
        return resolver

    async def _endpoints(
        self, resolver: dns.asyncresolver.Resolver
    ) -> tuple[list[EndpointSpec], float]:
        options = self._options
        if options.port is not None:
            records = await self._addresses(resolver, options.host)
            target = _Target(options.host, options.port, 1.0)
            return self._specs((ip, target) for ip in records.items), records.ttl_s
        targets = await self._targets(resolver, options.host)
        answers = await asyncio.gather(
            *(self._addresses(resolver, target.host) for target in targets.items),
            return_exceptions=True,
        )
        found: list[tuple[_IpAddress, _Target]] = []
        ttl_s = targets.ttl_s
        failure: _FailedError | None = None
        for target, answer in zip(targets.items, answers, strict=True):
            if isinstance(answer, _FailedError):
                # An error outweighs an empty answer: nobody knows that there is nothing.
                if failure is None or failure.kind == "empty":
                    failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.extend((ip, target) for ip in answer.items)
                ttl_s = min(ttl_s, answer.ttl_s)
        if not found and failure is not None:
            raise failure
        return self._specs(found), ttl_s

    def _specs(self, found: Iterable[tuple[_IpAddress, _Target]]) -> list[EndpointSpec]:
        """Endpoints in the order of their addresses, whatever order the server turns them in. One
        that several targets name has the best priority, and the largest weight there."""
        best: dict[tuple[int, int, int], tuple[int, float]] = {}
        for ip, target in found:
            key = (ip.version, int(ip), target.port)
            rank = (target.priority, -target.weight)
            best[key] = min(rank, best.get(key, rank))
        specs = []
        for (version, number, port), (priority, negative_weight) in sorted(best.items()):
            ip = ipaddress.IPv4Address(number) if version == 4 else ipaddress.IPv6Address(number)
            address = f"{ip}:{port}" if version == 4 else f"[{ip}]:{port}"
            self._check(ip, address)
            specs.append(EndpointSpec(address, -negative_weight, priority=priority))
        return specs

    def _check(self, ip: _IpAddress, address: str) -> None:
        """Refuses the whole answer for one bad address: who forged one may have forged all."""
        if address in self._own:
            reason = "is an address of this sidecar, which must not call itself"
        elif ip.is_loopback and not self._options.allow_loopback:
            reason = "is a loopback address; set `allow_loopback` if that is meant"
        elif ip.is_unspecified or ip.is_multicast or ip == ipaddress.IPv4Address("255.255.255.255"):
            reason = "is no address of one endpoint"
        elif ip.version == 6 and ip.is_link_local:
            reason = "is a link-local address, which only its own network can name"
        else:
            return
        raise _FailedError("refused", f"`{address}` {reason}")

    async def _addresses(
        self, resolver: dns.asyncresolver.Resolver, host: str
    ) -> _Records[_IpAddress]:
        answers = await asyncio.gather(
            *(self._query(resolver, host, family) for family in _FAMILIES), return_exceptions=True
        )
        items: list[_IpAddress] = []
        ttl_s, fresh = TTL_MAX_S, False
        failure: _FailedError | None = None
        for family, answer in zip(_FAMILIES, answers, strict=True):
            if isinstance(answer, _FailedError) and answer.kind == "error":
                failure = answer
                items.extend(self._known.get((host, family), ()))
            elif isinstance(answer, _FailedError):
                failure = failure or answer
                self._known.pop((host, family), None)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                ips = tuple(_plain(record.address) for record in answer)
                self._known[host, family] = ips
                items.extend(ips)
                ttl_s = min(ttl_s, answer.chaining_result.minimum_ttl)
                fresh = True
        if fresh:
            return _Records(tuple(items), ttl_s)
        assert failure is not None
        raise failure

    async def _targets(self, resolver: dns.asyncresolver.Resolver, name: str) -> _Records[_Target]:
        answer = await self._query(resolver, name, dns.rdatatype.SRV)
        records = list(answer)
        if len(records) > SRV_TARGETS_MAX:
            raise _FailedError(
                "refused", f"{len(records)} SRV targets, the limit is {SRV_TARGETS_MAX}"
            )
        # Priorities mean something within one set of records only: the best is 0, as elsewhere.
        best = min(record.priority for record in records)
        weighted = {record.priority for record in records if record.weight}
        targets = tuple(
            # RFC 2782: beside weights a weight of 0 means a very small share, not none.
            _Target(
                record.target.to_text(omit_final_dot=False),
                record.port,
                max(float(record.weight), 0.01) if record.priority in weighted else 1.0,
                record.priority - best,
            )
            for record in records
            if record.target.to_text() != "." and record.port
        )
        if not targets:
            raise _FailedError("empty", "the SRV records say that there is no such service")
        return _Records(targets, answer.chaining_result.minimum_ttl)

    async def _query(
        self, resolver: dns.asyncresolver.Resolver, name: str, kind: dns.rdatatype.RdataType
    ) -> dns.resolver.Answer:
        word = dns.rdatatype.to_text(kind)
        try:
            async with self._slots:
                answer = await resolver.resolve(
                    name, kind, raise_on_no_answer=False, search=self._options.server is None
                )
        except dns.resolver.NXDOMAIN:
            raise _FailedError("empty", "there is no such name") from None
        except dns.resolver.LifetimeTimeout:
            reason = f"no answer to {word} within {self._options.timeout_s:g} s"
            raise _FailedError("error", reason) from None
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise _FailedError("error", f"{word}: {_one_line(error)}") from None
        if not len(answer):
            raise _FailedError("empty", "the answer holds no records")
        return answer


def _plain(text: str) -> _IpAddress:
    """One spelling for one address: an IPv4 address in the clothes of IPv6 is that address."""
    ip = ipaddress.ip_address(text)
    return (isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped) or ip


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
