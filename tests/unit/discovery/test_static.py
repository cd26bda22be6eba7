"""The endpoints of the policy itself."""

from __future__ import annotations

from attnroute.discovery.base import EndpointSet, EndpointSpec, Resolver
from attnroute.discovery.static import StaticResolver


async def test_one_answer_and_the_end() -> None:
    endpoints = (EndpointSpec("10.0.0.1:1"), EndpointSpec("10.0.0.2:1", 2.0))
    resolver: Resolver = StaticResolver(endpoints)
    assert resolver.name == "static"
    assert [answer async for answer in resolver.watch()] == [EndpointSet(endpoints)]


async def test_an_empty_set_is_an_answer() -> None:
    assert [answer async for answer in StaticResolver(()).watch()] == [EndpointSet(())]
