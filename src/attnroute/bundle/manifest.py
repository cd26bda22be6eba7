"""The manifest as JSON: what a bundle says of itself, and size and sha256 of its other files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attnroute.bundle.parts import FLAVOURS, GRAPHS, Manifest
from attnroute.errors import BundleError

__all__ = [
    "CARD",
    "FORMAT",
    "MANIFEST",
    "MANIFEST_BYTES_MAX",
    "NAME",
    "PROBE",
    "SIGNATURE",
    "FileEntry",
    "dump",
    "is_name",
    "parse",
    "parse_version",
]

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
PROBE = "probe.npz"
CARD = "card.md"

FORMAT = 1
"""Of the manifest. A reader refuses another one."""

MANIFEST_BYTES_MAX = 1 << 20
NAME = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"

_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")

REQUIRED = frozenset((*GRAPHS, PROBE, CARD))
ALLOWED = REQUIRED | FLAVOURS.keys()


@dataclass(frozen=True)
class FileEntry:
    """A file of a bundle as its manifest names it."""

    size_bytes: int
    sha256: str


def is_name(name: str) -> bool:
    """Whether a bundle may be called so: it is a part of paths."""
    return re.fullmatch(NAME, name) is not None


def parse_version(version: str) -> tuple[int, int, int]:
    """Major, minor, patch. Raises ValueError for anything but `1.4.0`."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"found version `{version}`, expected three numbers such as `1.4.0`")
    return int(match[1]), int(match[2]), int(match[3])


def dump(manifest: Manifest, files: Mapping[str, FileEntry]) -> bytes:
    """The content of `manifest.json`; ValueError for a number that is not finite."""
    document = {
        "format": FORMAT,
        "name": manifest.name,
        "version": manifest.version,
        "feature_schema": manifest.feature_schema,
        "opset": manifest.opset,
        "tolerance": manifest.tolerance,
        "created_s": manifest.created_s,
        "trained": dict(manifest.trained),
        "metrics": dict(manifest.metrics),
        "files": {
            name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
            for name, entry in sorted(files.items())
        },
    }
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def parse(data: bytes, where: Path) -> tuple[Manifest, dict[str, FileEntry]]:
    """Manifest and files. where: begins the message of a BundleError."""

    def not_a_number(text: str) -> float:
        raise ValueError(f"`{text}` is no number")

    try:
        document = json.loads(data, parse_constant=not_a_number)
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{where}: `{MANIFEST}` is no JSON ({error}); publish the bundle again"
        ) from error
    if not isinstance(document, dict):
        raise BundleError(f"{where}: `{MANIFEST}` is no JSON object; publish the bundle again")
    if document.get("format") != FORMAT:
        raise BundleError(
            f"{where}: `{MANIFEST}` has format `{document.get('format')}`, this build reads "
            f"{FORMAT}; use an attnroute of the version that made it"
        )
    try:
        return _manifest(document), _files(document)
    except ValueError as error:
        raise BundleError(f"{where}: `{MANIFEST}`: {error}; publish the bundle again") from error


def _manifest(document: Mapping[str, Any]) -> Manifest:
    name = _field(document, "name", "a name such as `default`", _text)
    if not is_name(name):
        raise ValueError(f"found name `{name}`, expected lower-case letters, digits, `.`, `_`, `-`")
    version = _field(document, "version", "a version such as `1.4.0`", _text)
    parse_version(version)
    return Manifest(
        name=name,
        version=version,
        feature_schema=_field(document, "feature_schema", "a hash", _text),
        opset=_field(document, "opset", "a whole number", _whole),
        tolerance=_field(document, "tolerance", "a number, at least 0", _positive),
        created_s=_field(document, "created_s", "a number, at least 0", _positive),
        trained=_field(document, "trained", "an object", _object),
        metrics={
            key: _field({key: value}, key, "a number", _number)
            for key, value in _field(document, "metrics", "an object", _object).items()
        },
    )


def _files(document: Mapping[str, Any]) -> dict[str, FileEntry]:
    listed = _field(document, "files", "an object", _object)
    if not listed.keys() >= REQUIRED or not listed.keys() <= ALLOWED:
        raise ValueError(
            f"it lists the files {_names(listed)}, expected {_names(REQUIRED)}"
            f" and none but {_names(FLAVOURS)} besides"
        )
    files = {}
    for name, entry in listed.items():
        if not isinstance(entry, dict):
            raise ValueError(f"the entry of `{name}` is no object")
        sha256 = _field(entry, "sha256", "64 hex digits", _text)
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"the sha256 of `{name}` is `{sha256[:80]}`, expected 64 hex digits")
        files[name] = FileEntry(_field(entry, "size_bytes", "a whole number", _whole), sha256)
    return files


def _names(names: Mapping[str, Any] | frozenset[str]) -> str:
    return ", ".join(f"`{name[:80]}`" for name in sorted(names)[:12]) or "none"


def _field(
    document: Mapping[str, Any], key: str, expected: str, take: Callable[[object], _T | None]
) -> _T:
    value = take(document.get(key))
    if value is None:
        raise ValueError(f"`{key}` is `{str(document.get(key))[:80]}`, expected {expected}")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return value if right and isinstance(value, int) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _positive(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
