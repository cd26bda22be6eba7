"""The small languages inside the policy: durations, sizes, addresses, authorities, names.

Each is a pair of pure functions, text to value and back. A parser raises ValueError with the second
half of a message ("expected ...; write ..."): whoever knows the field and the text puts the first
half in front. Everything here refuses what it would have to guess: a bare number is no duration,
`KB` is no size, a host name is no address.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from fractions import Fraction

__all__ = [
    "AUTHORITY_PATTERN",
    "DNS_NAME_PATTERN",
    "DURATION_PATTERN",
    "NAME_PATTERN",
    "SIZE_PATTERN",
    "format_duration",
    "format_size",
    "parse_address",
    "parse_authority",
    "parse_dns_name",
    "parse_duration",
    "parse_name",
    "parse_path",
    "parse_size",
    "parse_socket_path",
    "parse_text",
    "port_of",
]

_DURATION_UNITS_US = {"h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_SIZE_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_OTHER_SIZE_UNITS = {"k": "KiB", "kb": "KiB", "m": "MiB", "mb": "MiB", "g": "GiB", "gb": "GiB"}

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(h|ms|m|s|us))+$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB)$"
DNS_NAME_PATTERN = r"^([A-Za-z0-9._-]+:[0-9]{1,5}|_[A-Za-z0-9._-]+)$"
NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
AUTHORITY_PATTERN = r"^(\*|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(\*|[0-9]{1,5}))?)$"

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|us)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_NAME = re.compile(NAME_PATTERN)
_AUTHORITY = re.compile(AUTHORITY_PATTERN)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4_ADDRESS = re.compile(
    rf"({_OCTET}(?:\.{_OCTET}){{3}}):([1-5]?[0-9]{{1,4}})",
)

# A duration or size longer than this is a mistake whatever it says; it also keeps the arithmetic
# on digits small.
_LENGTH_MAX = 40
# sun_path holds 108 bytes on Linux, the terminating zero included.
_SOCKET_PATH_BYTES_MAX = 107
_TEXT_LENGTH_MAX = 1_024


def parse_duration(value: object) -> timedelta:
    """`250ms`, `1.5s`, `1m30s`, `0`. Exact to the microsecond; at most 10,000 hours."""
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError("expected a duration such as `250ms`, `2s` or `1m30s`")
    text = str(value)
    if text == "0":
        return timedelta(0)
    if len(text) > _LENGTH_MAX:
        raise ValueError("expected a duration of a few digits such as `250ms` or `2s`")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise ValueError(f"a duration needs a unit; write `{text}ms` or `{text}s`")
    return timedelta(microseconds=_duration_us(text))


def _duration_us(text: str) -> int:
    total, at, last_unit_us = Fraction(0), 0, None
    for part in _DURATION_PART.finditer(text):
        unit_us = _DURATION_UNITS_US[part[2]]
        if part.start() != at or (last_unit_us is not None and unit_us >= last_unit_us):
            break
        total += Fraction(part[1]) * unit_us
        at, last_unit_us = part.end(), unit_us
    if at != len(text) or not text:
        raise ValueError(_duration_hint(text))
    if total > 10_000 * _DURATION_UNITS_US["h"]:
        raise ValueError("a duration ends at `10000h`")
    if total.denominator != 1:
        raise ValueError("the finest step of a duration is `1us`")
    return int(total)


def _duration_hint(text: str) -> str:
    bare = text.strip()
    if bare.startswith("-"):
        return "a duration cannot be negative; write `0` or more"
    if re.search(r"\s", text):
        return f"a duration has no spaces; write `{''.join(text.split())}`"
    if bare.startswith("."):
        return f"a duration begins with a digit; write `0{bare}`"
    if bare.lower() in {"inf", "infinity", "infinite", "nan", ".inf", ".nan", "never", "none"}:
        return "a duration is finite; write one such as `250ms`, `2s` or `1m30s`"
    if re.fullmatch(r"[0-9.]+(d|days?|w)", bare):
        return "the units are `us`, `ms`, `s`, `m` and `h`; write days as hours such as `24h`"
    if re.fullmatch(r"[0-9.]+(\u00b5s|\u03bcs)", bare):
        return "the units are `us`, `ms`, `s`, `m` and `h`; write `us` for microseconds"
    return (
        "expected numbers with the units `h`, `m`, `s`, `ms`, `us`, largest first, such as "
        "`250ms`, `2s` or `1m30s`"
    )


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads as the same value."""
    rest = value // timedelta(microseconds=1)
    if rest == 0:
        return "0s"
    parts = []
    for unit, unit_us in _DURATION_UNITS_US.items():
        count, rest = divmod(rest, unit_us)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(value: object) -> int:
    """`4MiB`, `1.5KiB`, `100B`, or a plain number of bytes. Returns bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("a size cannot be negative; write `0` or more")
        return value
    if not isinstance(value, str):
        raise ValueError("expected a size such as `64KiB` or `4MiB`, or a whole number of bytes")
    match = _SIZE.fullmatch(value) if len(value) <= _LENGTH_MAX else None
    if match is None:
        raise ValueError("expected a size such as `64KiB` or `4MiB`, or a whole number of bytes")
    number, unit = match[1], match[2] or "B"
    if unit not in _SIZE_UNITS:
        known = next((name for name in _SIZE_UNITS if name.lower() == unit.lower()), None)
        better = known or _OTHER_SIZE_UNITS.get(unit.lower())
        hint = f"; write `{number}{better}`" if better else ""
        raise ValueError(f"the units of a size are `B`, `KiB`, `MiB` and `GiB`{hint}")
    size = Fraction(number) * _SIZE_UNITS[unit]
    if size.denominator != 1:
        raise ValueError("a size is a whole number of bytes")
    return int(size)


def format_size(value: int) -> str:
    """In the largest unit that divides it; `parse_size` reads it back as the same value."""
    for unit, factor in _SIZE_UNITS.items():
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return "0B"


def parse_address(value: object) -> str:
    """`ip:port`, `[ip6]:port` or `unix:/path`, in one spelling for each address."""
    if not isinstance(value, str):
        raise ValueError("expected an address such as `127.0.0.1:50051` or `unix:/path`")
    if value.startswith("unix:"):
        return f"unix:{_socket_path(value.removeprefix('unix:'), 'unix:')}"
    if match := _IPV4_ADDRESS.fullmatch(value):  # by far the most frequent, and a long list of them
        return f"{match[1]}:{int(match[2])}"
    host, colon, port_text = value.rpartition(":")
    port = _port(port_text) if colon else None
    ip = _ip(host)
    if port is None or ip is None:
        raise ValueError(_address_hint(value, host, port))
    if isinstance(ip, ipaddress.IPv4Address):
        return f"{ip}:{port}"
    # Spelled out because it changed between Python versions; the data plane writes it like this.
    text = f"::ffff:{ip.ipv4_mapped}" if ip.ipv4_mapped else str(ip)
    return f"[{text}]:{port}"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        if host.startswith("[") and host.endswith("]") and "%" not in host:
            return ipaddress.IPv6Address(host[1:-1])
        return ipaddress.IPv4Address(host)
    except ValueError:
        return None


def _port(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65_535:
        return None
    return int(text)


def _address_hint(value: str, host: str, port: int | None) -> str:
    expected = "expected `ip:port` or `unix:/path`"
    if "://" in value:
        return f"{expected} without a scheme; write `{value.split('://', 1)[1].rstrip('/')}`"
    if value.count(":") > 1 and not value.startswith("["):
        return f"{expected}; an IPv6 address stands in brackets, as in `[::1]:50051`"
    if _ip(value) is not None or (value and not host):
        return f"{expected}; write the IP address and the port, as in `127.0.0.1:50051`"
    if _ip(host) is not None:
        return f"{expected} with a port from 0 to 65535"
    if port is None:
        return expected
    if host.lower() == "localhost":
        return f"{expected}, and `localhost` is a name; write `127.0.0.1:{port}`"
    if re.fullmatch(r"[0-9.]+", host):
        return f"{expected}, and `{host}` is no IP address"
    if _HOST.fullmatch(host):
        return (
            f"{expected}, and `{host}` is a name; write its IP address, or, for the endpoints of "
            f"a service, `dns: {host}:{port}`"
        )
    return expected


def parse_target(value: object) -> str:
    """What is dialled: `host:port`, where the host may be a name, `[ip6]:port` or `unix:/path`."""
    expected = "expected `host:port` or `unix:/path`"
    if not isinstance(value, str):
        raise ValueError(f"{expected}; put it in quotes")
    host, colon, port = value.rpartition(":")
    if colon and _HOST.fullmatch(host) and _port(port):
        return value
    if value.startswith(("unix:", "[")):
        return parse_address(value)
    raise ValueError(expected)


def parse_dns_name(value: object) -> str:
    """`host:port`, or the name of SRV records, `_service._proto.host`. Returns it in lower case."""
    expected = "expected `host:port`, or an SRV name such as `_grpc._tcp.cart.example`"
    if not isinstance(value, str):
        raise ValueError(f"{expected}; put it in quotes")
    host, colon, port_text = value.rpartition(":")
    if not colon:
        host = value
        if not host.startswith("_"):
            raise ValueError(f"{expected}; a name of addresses needs the port of the endpoints")
    elif host.startswith("_"):
        raise ValueError(f"{expected}; SRV records have ports of their own, write `{host}`")
    elif not _port(port_text):
        raise ValueError(f"{expected} with a port from 1 to 65535")
    if _ip(host) is not None or _ip(f"[{host.strip('[]')}]") is not None:
        raise ValueError(f"{expected}, and `{host}` is an IP address; write `static: [{value}]`")
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not _HOST.fullmatch(host) or not all(0 < len(x) < 64 for x in labels):
        raise ValueError(expected)
    return value.lower()


def port_of(address: str) -> int | None:
    """The port of an address in the spelling of `parse_address`; None for a Unix socket."""
    return None if address.startswith("unix:") else int(address.rpartition(":")[2])


def parse_socket_path(value: object) -> str:
    """An absolute path, with or without `unix:`. Returns the path."""
    if not isinstance(value, str):
        raise ValueError("expected the absolute path of a Unix socket")
    return _socket_path(value.removeprefix("unix:"), "")


def _socket_path(path: str, prefix: str) -> str:
    length = len(path.encode("utf-8", "surrogatepass"))
    if not path.startswith("/") or path.endswith("/") or not path.isprintable():
        raise ValueError(f"expected an absolute path, as in `{prefix}/run/attnroute/app.sock`")
    if length > _SOCKET_PATH_BYTES_MAX:
        raise ValueError(
            f"the path of a Unix socket has at most {_SOCKET_PATH_BYTES_MAX} bytes, this one has "
            f"{length}"
        )
    return path


def parse_authority(value: object) -> str:
    """`host`, `host:port`, `host:*` or `*`, as in `:authority`. Returns it in lower case."""
    if not isinstance(value, str):
        raise ValueError("expected a host as clients dial it; put it in quotes")
    match = _AUTHORITY.fullmatch(value)
    if match is None or len(value) > 255:
        hint = ""
        if "://" in value:
            hint = "; leave out the scheme"
        elif "*" in value:
            hint = "; `*` stands for a whole port or for everything, never for a part of a name"
        raise ValueError(f"expected `host`, `host:port`, `host:*` or `*`{hint}")
    port = match[4]
    if port not in (None, "*") and not 1 <= int(port) <= 65_535:
        raise ValueError("expected a port from 1 to 65535, or `*`")
    return value.lower()


def parse_name(value: object) -> str:
    """The name of a service or listener; it becomes a metric label."""
    if not isinstance(value, str):
        raise ValueError("expected a name; put it in quotes")
    if not _NAME.fullmatch(value):
        raise ValueError(
            "expected a name of at most 253 letters, digits, `.`, `_` and `-` that begins and "
            "ends with a letter or digit"
        )
    return value


def parse_path(value: object) -> str:
    """A gRPC path or its beginning: `/package.Service/Method`."""
    if not isinstance(value, str):
        raise ValueError("expected a path such as `/shop.Checkout/Pay`")
    if not value.startswith("/"):
        raise ValueError(f"a path begins with `/`; write `/{value}`")
    if not re.fullmatch(r"/[!-~]*", value) or "?" in value or "#" in value:
        raise ValueError("a path has only visible ASCII characters, and neither `?` nor `#`")
    if len(value) > _TEXT_LENGTH_MAX:
        raise ValueError(f"a path has at most {_TEXT_LENGTH_MAX} characters")
    return value


def parse_text(value: object) -> str:
    """Free text of one line: a zone, the value of a label."""
    if not isinstance(value, str):
        raise ValueError("expected text; put it in quotes")
    if len(value) > _TEXT_LENGTH_MAX:
        raise ValueError(f"expected text of at most {_TEXT_LENGTH_MAX} characters")
    if not value.isprintable():
        raise ValueError("expected one line of printable text")
    return value
