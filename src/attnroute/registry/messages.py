"""What a registry says, as messages and back. Whatever comes from outside is checked here."""

from __future__ import annotations

import re

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.bundle import FileEntry
from attnroute.bundle.manifest import is_name, parse_version
from attnroute.registry.types import ChannelState, Listed, Listing

__all__ = [
    "CHUNK_BYTES",
    "MESSAGE_BYTES_MAX",
    "SERVICE",
    "MessageError",
    "channel_message",
    "listing_message",
    "read_channel",
    "read_listing",
    "reference",
]

SERVICE = pb.DESCRIPTOR.services_by_name["Registry"]
CHUNK_BYTES = 256 << 10
MESSAGE_BYTES_MAX = 4 << 20
"""Of one message; a list of a hundred bundles has some 100 KiB."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class MessageError(ValueError):
    """A message contradicts itself."""


def reference(name: str, version: str, manifest_sha256: str) -> pb.BundleRef:
    """What names a bundle."""
    return pb.BundleRef(name=name, version=version, manifest_sha256=manifest_sha256)


def channel_message(state: ChannelState) -> pb.ChannelState:
    """Where a channel points."""
    message = pb.ChannelState(
        name=state.name,
        channel=state.channel,
        generation=state.generation,
        frozen=state.frozen,
        reason=state.reason,
        previous=state.previous,
    )
    if state.version:
        message.bundle.CopyFrom(reference(state.name, state.version, state.manifest_sha256))
    return message


def read_channel(message: pb.ChannelState) -> ChannelState:
    """Where a channel points. Raises MessageError."""
    version, sha256 = "", ""
    if message.HasField("bundle"):
        version, sha256 = _checked(message.bundle)
        if message.bundle.name != message.name:
            raise MessageError(f"channel of `{message.name}` points at `{message.bundle.name}`")
    return ChannelState(
        message.name,
        message.channel,
        message.generation,
        version,
        sha256,
        message.frozen,
        message.reason,
        tuple(message.previous),
    )


def listing_message(listing: Listing) -> pb.ListResponse:
    """A whole registry."""
    return pb.ListResponse(
        bundles=[
            pb.Bundle(
                ref=reference(bundle.name, bundle.version, bundle.manifest_sha256),
                files=[
                    pb.File(path=path, size_bytes=entry.size_bytes, sha256=entry.sha256)
                    for path, entry in bundle.files.items()
                ],
                feature_schema=bundle.feature_schema,
                created_s=bundle.created_s,
            )
            for bundle in listing.bundles
        ],
        channels=[channel_message(state) for state in listing.channels],
    )


def read_listing(message: pb.ListResponse) -> Listing:
    """A whole registry. Raises MessageError."""
    bundles = []
    for bundle in message.bundles:
        version, sha256 = _checked(bundle.ref)
        files = {file.path: FileEntry(file.size_bytes, file.sha256) for file in bundle.files}
        bundles.append(
            Listed(bundle.ref.name, version, sha256, bundle.feature_schema, bundle.created_s, files)
        )
    return Listing(tuple(bundles), tuple(read_channel(state) for state in message.channels))


def _checked(ref: pb.BundleRef) -> tuple[str, str]:
    """Version and sha256 of a reference whose parts may become parts of paths."""
    try:
        parse_version(ref.version)
    except ValueError as error:
        raise MessageError(str(error)) from error
    if not is_name(ref.name):
        raise MessageError(f"`{ref.name[:80]}` is no name of a model")
    if not _SHA256.fullmatch(ref.manifest_sha256):
        raise MessageError(f"`{ref.manifest_sha256[:80]}` is no sha256")
    return ref.version, ref.manifest_sha256
