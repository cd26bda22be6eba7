"""One set out of the sets of several sources.

The first source in the policy's order that names an address says what its weight, zone and labels
are: an endpoint is one address, whatever number of sources and records name it.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnroute.discovery.base import EndpointSet, EndpointSpec

__all__ = ["merge"]


def merge(sets: Iterable[EndpointSet]) -> EndpointSet:
    """The union of `sets`, in their order; every address once."""
    endpoints: dict[str, EndpointSpec] = {}
    for each in sets:
        for endpoint in each.endpoints:
            endpoints.setdefault(endpoint.address, endpoint)
    return EndpointSet(tuple(endpoints.values()))
