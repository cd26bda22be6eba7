"""From the sources that a policy names to the resolvers that read them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial

from attnroute.clock import Clock
from attnroute.discovery.base import Resolver
from attnroute.discovery.file import FileResolver, Follow
from attnroute.discovery.sources import SourcePlan
from attnroute.discovery.static import StaticResolver
from attnroute.policy.load import LoadedPolicy, parse_endpoints
from attnroute.policy.schema import Service
from attnroute.policy.sources import DnsSource, EndpointSource

__all__ = ["Resolvers"]

FILE_REFRESH_S = 5.0
"""How often a file of endpoints is looked at besides the system's own change events."""


class Resolvers:
    """Builds resolvers on what all of them share."""

    def __init__(self, follow: Follow, own: Container[str], clock: Clock) -> None:
        """follow: how a file is followed; own: addresses of this process."""
        self._follow = follow
        self._own = own
        self._clock = clock

    def plans(self, loaded: LoadedPolicy) -> Mapping[str, SourcePlan]:
        """The sources of each service."""
        return {
            name: self._plan(service, loaded) for name, service in loaded.policy.services.items()
        }

    def _plan(self, service: Service, loaded: LoadedPolicy) -> SourcePlan:
        zone_label = service.locality.zone_label if service.locality else ""
        return SourcePlan(
            # A set that was too large is tried again once the limit is raised.
            identity=(service.endpoints, service.limits.max_endpoints, zone_label),
            make=partial(self._make_all, service, loaded),
            zone_label=zone_label,
        )

    def _make_all(self, service: Service, loaded: LoadedPolicy) -> list[Resolver]:
        endpoints_max = service.limits.max_endpoints
        return [self._make(source, loaded, endpoints_max) for source in service.endpoints]

    def _make(self, source: EndpointSource, loaded: LoadedPolicy, endpoints_max: int) -> Resolver:
        refresh_s = None if source.refresh is None else source.refresh.total_seconds()
        if source.static is not None:
            return StaticResolver(endpoint.spec() for endpoint in source.static)
        if source.dns is not None:
            return self._dns(source.dns, refresh_s, endpoints_max)
        assert source.file is not None, "the schema allows exactly one source"
        return FileResolver(
            loaded.resolve(source.file),
            refresh_s=FILE_REFRESH_S if refresh_s is None else refresh_s,
            follow=self._follow,
            parse=parse_endpoints,
        )

    def _dns(self, source: DnsSource, refresh_s: float | None, endpoints_max: int) -> Resolver:
        # Not before a policy asks for it: dnspython takes memory and time at the start.
        from attnroute.discovery.dns import DnsOptions, DnsResolver

        host, colon, port = source.name.rpartition(":")
        server = None
        if source.server is not None:
            server_host, _, server_port = source.server.rpartition(":")
            server = (server_host.strip("[]"), int(server_port))
        options = DnsOptions(
            host=host if colon else source.name,
            port=int(port) if colon else None,
            refresh_s=refresh_s,
            server=server,
            timeout_s=source.timeout.total_seconds(),
            hold_s=0.0 if source.on_empty == "empty" else source.hold_limit.total_seconds(),
            allow_loopback=source.allow_loopback,
            endpoints_max=endpoints_max,
        )
        return DnsResolver(options, own=self._own, clock=self._clock)
