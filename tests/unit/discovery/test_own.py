"""What this process is bound to is known by every address that leads there."""

from __future__ import annotations

import pytest

from attnroute.discovery.own import OwnAddresses


@pytest.mark.parametrize(
    ("bound", "address", "own"),
    [
        ("127.0.0.1:15001", "127.0.0.1:15001", True),
        ("127.0.0.1:15001", "127.0.0.1:15002", False),
        ("127.0.0.1:15001", "127.0.0.2:15001", False),
        ("0.0.0.0:15001", "127.0.0.1:15001", True),
        ("0.0.0.0:15001", "127.0.0.2:15001", True),
        ("0.0.0.0:15001", "127.0.0.1:15002", False),
        # TEST-NET-1: of no machine.
        ("0.0.0.0:15001", "192.0.2.1:15001", False),
        ("[::]:15001", "127.0.0.1:15001", True),
        ("[::1]:15001", "[::1]:15001", True),
        ("unix:/run/a.sock", "unix:/run/a.sock", True),
        ("unix:/run/a.sock", "unix:/run/b.sock", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_an_address_is_recognized(bound: str, address: str, own: object) -> None:
    addresses = OwnAddresses()
    addresses.replace([bound])
    assert (address in addresses) is own


def test_the_newest_addresses_count() -> None:
    addresses = OwnAddresses()
    addresses.replace(["127.0.0.1:1", "0.0.0.0:2"])
    addresses.replace(["127.0.0.1:3"])
    assert "127.0.0.1:1" not in addresses
    assert "127.0.0.1:2" not in addresses
    assert "127.0.0.1:3" in addresses
