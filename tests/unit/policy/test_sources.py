"""Sources of endpoints as the policy writes them, and as they come back."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from tests.support.policies import MINIMAL, loaded

from attnroute.policy.compile import compile_policy
from attnroute.policy.load import effective_yaml
from attnroute.policy.sources import DnsSource, EndpointSource


def sources(text: str) -> tuple[EndpointSource, ...]:
    policy = loaded(MINIMAL + f"  cart: {{endpoints: {text}}}\n").policy
    again = loaded(effective_yaml(policy)).policy
    assert again == policy, "the effective policy says something else"
    return policy.services["cart"].endpoints


def test_the_short_form_of_dns_has_every_default() -> None:
    (source,) = sources("{dns: Cart.shop:50051}")
    assert source.dns == DnsSource(name="cart.shop:50051")
    assert source.refresh is None
    assert source.dns.server is None
    assert (source.dns.on_empty, source.dns.hold_limit) == ("hold", timedelta(hours=1))
    assert source.dns.allow_loopback is False


def test_the_long_form_of_dns() -> None:
    (source,) = sources(
        "{dns: {name: _grpc._tcp.cart, server: 10.0.0.2:53, timeout: 500ms, on_empty: empty,"
        " allow_loopback: true}, refresh: 5s}"
    )
    assert source.dns == DnsSource(
        name="_grpc._tcp.cart",
        server="10.0.0.2:53",
        timeout=timedelta(milliseconds=500),
        on_empty="empty",
        allow_loopback=True,
    )
    assert source.refresh == timedelta(seconds=5)


def test_a_list_of_sources_keeps_its_order() -> None:
    static, dns, file = sources("[{static: [10.0.0.1:1]}, {dns: cart:1}, {file: a.yaml}]")
    assert static.static is not None
    assert dns.dns is not None
    assert file.file == "a.yaml"


@pytest.mark.parametrize("text", ["{static: []}", "[{static: []}]"])
def test_one_source_is_the_same_with_and_without_a_list(text: str) -> None:
    (source,) = sources(text)
    assert source.static == ()


def test_the_label_of_the_zone_stays_on_this_side() -> None:
    text = MINIMAL + "    locality: {own_zone: eu-1a, zone_label: topology/zone}\n"
    (service,) = json.loads(compile_policy(loaded(text)))["services"]
    assert set(service["locality"]) == {"own_zone", "min_healthy"}
