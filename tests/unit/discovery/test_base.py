"""The form in which a set crosses to the data plane."""

from __future__ import annotations

import json

import pytest

from attnroute.dataplane import ConfigError, Picker
from attnroute.discovery.base import EndpointSet, EndpointSpec, encode_endpoints

SERVICE = b'{"name": "cart", "authorities": ["cart"]}'


def test_order_and_every_field_survive() -> None:
    encoded = encode_endpoints(
        EndpointSet(
            (
                EndpointSpec("10.0.0.2:1", 0.0, "eu", {"b": "2", "a": "ü"}, 7),
                EndpointSpec("unix:/run/a.sock"),
            )
        )
    )
    assert json.loads(encoded) == {
        "endpoints": [
            {
                "address": "10.0.0.2:1",
                "static_weight": 0.0,
                "zone": "eu",
                "labels": {"b": "2", "a": "ü"},
                "priority": 7,
            },
            {
                "address": "unix:/run/a.sock",
                "static_weight": 1.0,
                "zone": "",
                "labels": {},
                "priority": 0,
            },
        ]
    }


def test_no_number_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_endpoints(EndpointSet((EndpointSpec("10.0.0.1:1", float("nan")),)))


def test_the_picker_takes_it() -> None:
    picker = Picker(SERVICE, 1)
    picker.apply_endpoints(encode_endpoints(EndpointSet((EndpointSpec("10.0.0.1:1"),))))
    assert picker.pick(0)[0] == 0
    with pytest.raises(ConfigError):
        picker.apply_endpoints(encode_endpoints(EndpointSet((EndpointSpec("cart:1"),))))
