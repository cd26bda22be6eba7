"""One set out of the sets of several sources.

The first source in the policy's order that names an address says what its weight, zone and labels
are: an endpoint is one address, whatever number of sources and records name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attnroute.discovery.base import EndpointSet, EndpointSpec

__all__ = ["merge"]


def merge(sets: Iterable[EndpointSet], *, zone_label: str = "") -> EndpointSet:
    """The union of `sets`, in their order; every address once.

    zone_label: the label that holds the zone of an endpoint that names none; empty for none.
    """
    endpoints: dict[str, EndpointSpec] = {}
    for each in sets:
        for endpoint in each.endpoints:
            endpoints.setdefault(endpoint.address, endpoint)
    if not zone_label:
        return EndpointSet(tuple(endpoints.values()))
    return EndpointSet(
        tuple(
            endpoint
            if endpoint.zone
            else replace(endpoint, zone=endpoint.labels.get(zone_label, ""))
            for endpoint in endpoints.values()
        )
    )
