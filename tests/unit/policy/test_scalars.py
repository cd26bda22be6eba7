"""Durations, sizes, addresses, authorities: what is read, and what the refusal says."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from attnroute.policy import scalars

US = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("250ms", 250_000),
        ("0", 0),
        (0, 0),
        ("0s", 0),
        ("1.5s", 1_500_000),
        ("1m30s", 90_000_000),
        ("1h2m3s4ms5us", 3_723_004_005),
        ("90m", 5_400_000_000),
        ("0.001ms", 1),
        ("10000h", 36_000_000_000_000),
    ],
)
def test_durations_that_are_read(text: object, microseconds: int) -> None:
    assert scalars.parse_duration(text) == microseconds * US


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("400", "needs a unit; write `400ms` or `400s`"),
        (400, "needs a unit; write `400ms` or `400s`"),
        (1.5, "needs a unit; write `1.5ms` or `1.5s`"),
        ("-1s", "cannot be negative"),
        (-5, "cannot be negative"),
        ("1h 30m", "no spaces; write `1h30m`"),
        (" 1s", "no spaces; write `1s`"),
        (".5s", "begins with a digit; write `0.5s`"),
        ("infinity", "is finite"),
        (float("inf"), "is finite"),
        (float("nan"), "is finite"),
        ("1d", "write days as hours"),
        ("5\u00b5s", "write `us` for microseconds"),
        ("99999999999999999999h", "ends at `10000h`"),
        ("9" * 60 + "h", "a few digits"),
        ("0.5us", "finest step of a duration is `1us`"),
        ("30s1m", "largest first"),
        ("1s1s", "largest first"),
        ("1S", "largest first"),
        ("", "largest first"),
        ("s", "largest first"),
        ("1e3s", "largest first"),
        ("\u0661s", "largest first"),
        (True, "expected a duration"),
        (None, "expected a duration"),
        ([], "expected a duration"),
    ],
)
def test_durations_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        scalars.parse_duration(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4MiB", 4 << 20), ("1.5KiB", 1536), ("100B", 100), ("7", 7), (12, 12), ("1GiB", 1 << 30)],
)
def test_sizes_that_are_read(text: object, size: int) -> None:
    assert scalars.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4MB", "write `4MiB`"),
        ("4kib", "write `4KiB`"),
        ("4k", "write `4KiB`"),
        ("4TiB", "the units of a size are"),
        ("0.3B", "whole number of bytes"),
        ("-1", "expected a size"),
        (-1, "cannot be negative"),
        (1.5, "expected a size"),
        (True, "expected a size"),
        ("", "expected a size"),
        ("9" * 60, "expected a size"),
    ],
)
def test_sizes_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        scalars.parse_size(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:50051", "10.0.0.1:50051"),
        ("10.0.0.1:0080", "10.0.0.1:80"),
        ("255.255.255.255:65535", "255.255.255.255:65535"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("[::1]:80", "[::1]:80"),
        ("[2001:DB8:0:0::1]:80", "[2001:db8::1]:80"),
        ("[::ffff:1.2.3.4]:80", "[::ffff:1.2.3.4]:80"),
        ("unix:/run/app.sock", "unix:/run/app.sock"),
        ("unix:/" + "x" * 106, "unix:/" + "x" * 106),
    ],
)
def test_addresses_have_one_spelling(text: str, address: str) -> None:
    assert scalars.parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost:80", "write `127.0.0.1:80`"),
        ("checkout:50051", "`dns: checkout:50051`"),
        ("checkout.shop.svc:50051", "`dns: checkout.shop.svc:50051`"),
        ("10.0.0.1", "write the IP address and the port"),
        (":80", "write the IP address and the port"),
        ("[::1]", "in `127.0.0.1:50051`"),
        ("::1:80", "stands in brackets"),
        ("10.0.0.1:70000", "port from 0 to 65535"),
        ("10.0.0.1:", "port from 0 to 65535"),
        ("10.0.0.1:-1", "port from 0 to 65535"),
        ("10.0.0.1:\u0668\u0660", "port from 0 to 65535"),
        ("10.0.0.256:80", "no IP address"),
        ("010.0.0.1:80", "no IP address"),
        ("10.1:80", "no IP address"),
        ("[fe80::1%eth0]:80", "expected `ip:port`"),
        ("http://10.0.0.1:80/", "without a scheme; write `10.0.0.1:80`"),
        ("unix:app.sock", "absolute path, as in `unix:/run"),
        ("unix:/run/dir/", "absolute path"),
        ("unix:/a\x00b", "absolute path"),
        ("unix:/" + "x" * 107, "at most 107 bytes, this one has 108"),
        ("unix:/" + "ü" * 54, "this one has 109"),
        ("", "expected `ip:port`"),
        ("a b:80", "expected `ip:port`"),
        (8080, "expected an address"),
        (None, "expected an address"),
    ],
)
def test_addresses_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        scalars.parse_address(text)
    assert says in str(caught.value)


def test_a_socket_path_is_taken_with_and_without_its_prefix() -> None:
    assert scalars.parse_socket_path("unix:/run/a.sock") == "/run/a.sock"
    assert scalars.parse_socket_path("/run/a.sock") == "/run/a.sock"
    with pytest.raises(ValueError, match=r"as in `/run/attnroute/app\.sock`"):
        scalars.parse_socket_path("a.sock")


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("Checkout", "checkout"),
        ("checkout:*", "checkout:*"),
        ("checkout.shop.svc.cluster.local:50051", "checkout.shop.svc.cluster.local:50051"),
        ("*", "*"),
        ("[::1]:80", "[::1]:80"),
        ("my_service", "my_service"),
    ],
)
def test_authorities_that_are_read(text: str, authority: str) -> None:
    assert scalars.parse_authority(text) == authority


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://checkout", "leave out the scheme"),
        ("*.shop", "never for a part of a name"),
        ("checkout:0", "a port from 1 to 65535"),
        ("checkout:99999", "a port from 1 to 65535"),
        ("a b", "expected `host`"),
        ("user@host", "expected `host`"),
        ("", "expected `host`"),
        ("x" * 256, "expected `host`"),
        (12, "put it in quotes"),
    ],
)
def test_authorities_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        scalars.parse_authority(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["/", "/shop.Checkout/Pay", "/shop.Checkout/", "/a%20b"])
def test_paths_that_are_read(text: str) -> None:
    assert scalars.parse_path(text) == text


@pytest.mark.parametrize("text", ["shop", "", "/a b", "/a?b", "/a#b", "/ü", "/a\n", 3, "/" * 1025])
def test_paths_that_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"path"):
        scalars.parse_path(text)


@pytest.mark.parametrize("text", ["a", "Shop-1.checkout_v2", "1e3", "x" * 253])
def test_names_that_are_read(text: str) -> None:
    assert scalars.parse_name(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", "a b", "a\n", "ü", "x" * 254, 7, "a/b"])
def test_names_that_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected a name"):
        scalars.parse_name(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cart:50051", "cart:50051"),
        ("Cart.Shop.svc.cluster.local.:1", "cart.shop.svc.cluster.local.:1"),
        ("_grpc._tcp.cart.shop", "_grpc._tcp.cart.shop"),
        ("a_b.example:65535", "a_b.example:65535"),
    ],
)
def test_dns_names_that_are_read(text: str, name: str) -> None:
    assert scalars.parse_dns_name(text) == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cart", "needs the port"),
        ("_grpc._tcp.cart:1", "write `_grpc._tcp.cart`"),
        ("10.0.0.1:1", "write `static: [10.0.0.1:1]`"),
        ("[::1]:1", "is an IP address"),
        ("cart:0", "from 1 to 65535"),
        ("cart:70000", "from 1 to 65535"),
        ("cart:", "from 1 to 65535"),
        (":1", "expected `host:port`"),
        ("a..b:1", "expected `host:port`"),
        ("-a:1", "expected `host:port`"),
        ("a b:1", "expected `host:port`"),
        ("x" * 64 + ":1", "expected `host:port`"),
        ("a." * 130 + "b:1", "expected `host:port`"),
        ("dns://cart:1", "expected `host:port`"),
        ("\u00fcber:1", "expected `host:port`"),
        (7, "put it in quotes"),
    ],
)
def test_dns_names_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        scalars.parse_dns_name(text)
