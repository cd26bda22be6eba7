"""Overrides of operators: they go with every set, end by themselves, and leave nothing behind."""

from __future__ import annotations

import json

import pytest
from tests.support.fake_plane import FakePlane, spec

from attnroute.clock import ManualClock
from attnroute.dataplane import ConfigError
from attnroute.discovery.overrides import EndpointUnknownError, Overrides, TooManyOverridesError

FIRST, SECOND = "10.0.0.1:1", "10.0.0.2:1"


def encoded(*addresses: str) -> bytes:
    return json.dumps({"endpoints": [spec(address) for address in addresses]}).encode()


def in_plane(plane: FakePlane) -> dict[str, str | None]:
    return {
        entry["address"]: entry.get("override") for entry in json.loads(plane.endpoints("cart")[1])
    }


def world() -> tuple[FakePlane, ManualClock, Overrides]:
    plane, clock = FakePlane("cart", "other"), ManualClock()
    overrides = Overrides(plane, clock)
    overrides.apply_endpoints("cart", encoded(FIRST, SECOND))
    return plane, clock, overrides


def test_an_override_is_in_the_set_until_it_expires() -> None:
    plane, clock, overrides = world()
    active, epoch = overrides.set("cart", FIRST, "drain", 60)
    assert (active.kind, active.expires_at_s) == ("drain", clock.wall_s() + 60)
    assert epoch == plane.endpoints("cart")[0]
    assert in_plane(plane) == {FIRST: "drain", SECOND: None}
    clock.advance(59.9)
    overrides.expire()
    assert in_plane(plane)[FIRST] == "drain"
    clock.advance(0.1)
    overrides.expire()
    assert in_plane(plane) == {FIRST: None, SECOND: None}
    assert overrides.of("cart") == {}


def test_a_later_one_replaces_and_clear_ends() -> None:
    plane, _clock, overrides = world()
    overrides.set("cart", FIRST, "drain", 60)
    overrides.set("cart", FIRST, "pin", 60)
    assert in_plane(plane)[FIRST] == "pin"
    overrides.clear("cart", FIRST)
    assert in_plane(plane)[FIRST] is None


def test_a_new_set_keeps_the_override_of_an_endpoint_that_comes_back() -> None:
    plane, _clock, overrides = world()
    overrides.set("cart", FIRST, "drain", 60)
    overrides.apply_endpoints("cart", encoded(SECOND))
    assert in_plane(plane) == {SECOND: None}
    overrides.apply_endpoints("cart", encoded(FIRST, SECOND))
    assert in_plane(plane)[FIRST] == "drain"


def test_an_endpoint_that_left_can_still_be_cleared() -> None:
    plane, _clock, overrides = world()
    overrides.set("cart", FIRST, "drain", 60)
    overrides.apply_endpoints("cart", encoded(SECOND))
    overrides.clear("cart", FIRST)
    overrides.apply_endpoints("cart", encoded(FIRST, SECOND))
    assert in_plane(plane)[FIRST] is None


@pytest.mark.parametrize("service", ["cart", "other"])
def test_an_unknown_endpoint_is_refused(service: str) -> None:
    _plane, _clock, overrides = world()
    with pytest.raises(EndpointUnknownError):
        overrides.set(service, "10.9.9.9:1", "pin", 60)
    with pytest.raises(EndpointUnknownError):
        overrides.clear(service, "10.9.9.9:1")


def test_what_the_data_plane_refuses_changes_nothing() -> None:
    plane, _clock, overrides = world()
    plane.refuse["cart"] = "not today"
    with pytest.raises(ConfigError):
        overrides.set("cart", FIRST, "drain", 60)
    assert overrides.of("cart") == {}


def test_services_that_go_take_their_overrides_along() -> None:
    plane, _clock, overrides = world()
    overrides.set("cart", FIRST, "drain", 60)
    overrides.keep(["other"])
    overrides.apply_endpoints("cart", encoded(FIRST))
    assert in_plane(plane)[FIRST] is None


def test_their_number_is_limited() -> None:
    plane = FakePlane("cart")
    overrides = Overrides(plane, ManualClock(), overrides_max=2)
    many = ["10.1.0.1:1", "10.1.0.2:1", "10.1.0.3:1"]
    overrides.apply_endpoints("cart", encoded(*many))
    for address in many[:-1]:
        overrides.set("cart", address, "drain", 60)
    with pytest.raises(TooManyOverridesError):
        overrides.set("cart", many[-1], "drain", 60)
    overrides.set("cart", many[0], "pin", 60)
    assert in_plane(plane) == {many[0]: "pin", many[1]: "drain", many[2]: None}
