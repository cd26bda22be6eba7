"""Signatures over a manifest (ed25519, RFC 8032), which names the sha256 of everything else.

Keys are PEM files (PKCS 8 and SubjectPublicKeyInfo), as `openssl genpkey -algorithm ed25519` makes
them too. A signature is 64 bytes, base64 in a line.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnroute.bundle.files import read_file
from attnroute.bundle.manifest import MANIFEST, MANIFEST_BYTES_MAX, SIGNATURE, parse
from attnroute.errors import BundleError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

__all__ = [
    "is_signed",
    "load_public_key",
    "load_signing_key",
    "sign",
    "sign_bundle",
    "write_key_pair",
]

KEY_BYTES_MAX = 16 << 10


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The content of `manifest.sig`."""
    return base64.b64encode(key.sign(manifest)) + b"\n"


def is_signed(manifest: bytes, signature: bytes, key: Ed25519PublicKey) -> bool:
    """Whether `signature`, the content of `manifest.sig`, was made with the private half of key."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), manifest)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def sign_bundle(path: Path, key: Ed25519PrivateKey) -> None:
    """Signs the bundle in a directory, whole or not at all; the manifest itself does not change.
    Raises BundleError."""
    data = read_file(path / MANIFEST, bytes_max=MANIFEST_BYTES_MAX, where=path)
    parse(data, path)
    fresh = path / f".{SIGNATURE}.{os.getpid()}"
    try:
        fresh.write_bytes(sign(data, key))
        fresh.replace(path / SIGNATURE)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BundleError(
            f"{path}: cannot be signed: {error.strerror}; see that the directory is writable"
        ) from error


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file. Raises BundleError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = read_file(path, bytes_max=KEY_BYTES_MAX, where=path.parent)
    try:
        key = load_pem_private_key(data, password=None)
    except Exception as error:  # one kind for each way to be wrong
        raise _no_key(path, "private", str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", "it is of another kind")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises BundleError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = read_file(path, bytes_max=KEY_BYTES_MAX, where=path.parent)
    try:
        key = load_pem_public_key(data)
    except Exception as error:  # as above
        raise _no_key(path, "public", str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", "it is of another kind")
    return key


def write_key_pair(path: Path) -> Path:
    """Makes a key at `path`, mode 0600, and its public half at `path` + `.pub`, whose path it
    returns. Raises BundleError if one of them exists."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public_path = path.with_name(f"{path.name}.pub")
    for target, data, mode in ((path, private, 0o600), (public_path, public, 0o644)):
        try:
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except OSError as error:
            raise BundleError(
                f"{target}: cannot be made: {error.strerror}; name a file that does not exist in a "
                "directory that does"
            ) from error
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    return public_path


def _no_key(path: Path, half: str, reason: str) -> BundleError:
    return BundleError(
        f"{path}: holds no {half} ed25519 key ({reason}); expected a PEM file as "
        "`attnroute model keygen` makes it"
    )
