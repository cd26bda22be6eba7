"""`attnroute model`: bundles and the channels that point at them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attnroute.cli.admin import quiet_grpc

if TYPE_CHECKING:
    from attnroute.registry.operator import Registry
    from attnroute.registry.types import ChannelState

_T = TypeVar("_T")

_EPILOG = """\b
Examples:
  attnroute model list
  attnroute model show 1.4.0 --registry trainer:15020
  attnroute model verify models/default/1.4.0
  attnroute model promote 1.4.0
  attnroute model rollback
  attnroute model freeze --channel canary
"""


def _registry_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--registry",
        metavar="PLACE",
        default="127.0.0.1:15020",
        envvar="ATTNROUTE_REGISTRY",
        show_default=True,
        show_envvar=True,
        help="Address of a trainer, `host:port` or `unix:/path`, or a directory of bundles.",
    )(command)


def _name_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--name", default="default", show_default=True, help="Name of the model.", metavar="NAME"
    )(command)


def _channel_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--channel", default="stable", show_default=True, help="The channel.", metavar="CHANNEL"
    )(command)


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_key_option = click.option(
    "--public-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file: bundles need its signature.",
)


@click.group("model", epilog=_EPILOG)
def command() -> None:
    """Show bundles, check them, and move the channels that sidecars follow."""


@command.command("list", epilog="\b\nExamples:\n  attnroute model list --registry models --json\n")
@_registry_option
@click.option("--name", default="", help="Of this model only; default all.", metavar="NAME")
@_json_option
def list_command(*, registry: str, name: str, as_json: bool) -> None:
    """List the bundles that are kept, newest first, and where channels point."""
    from attnroute.cli.models import listing_document, listing_table
    from attnroute.cli.tables import make_console

    listing = _ask(registry, lambda place: place.listing(name))
    if as_json:
        click.echo(json.dumps(listing_document(listing), indent=2))
        return
    make_console().print(listing_table(listing))


@command.command(
    "show", epilog="\b\nExamples:\n  attnroute model show\n  attnroute model show 1.4.0 --json\n"
)
@click.argument("version", default="")
@_registry_option
@_name_option
@_channel_option
@_json_option
def show_command(*, version: str, registry: str, name: str, channel: str, as_json: bool) -> None:
    """Show what VERSION says of itself: manifest and card. Default: what the channel points at."""
    from attnroute.bundle import describe
    from attnroute.bundle.files import read_file
    from attnroute.bundle.manifest import CARD
    from attnroute.cli.models import bundle_document
    from attnroute.registry.operator import fetched

    async def look(place: Registry) -> tuple[dict[str, Any], str]:
        _, path = await fetched(place, name, version, channel=channel)
        described = describe(path)
        entry = described.files[CARD]
        card = read_file(path / CARD, bytes_max=entry.size_bytes, where=path)
        return bundle_document(described), card.decode("utf-8", "replace")

    document, card = _ask(registry, look)
    if as_json:
        click.echo(json.dumps({**document, "card": card}, indent=2))
        return
    click.echo(json.dumps(document, indent=2))
    click.echo(f"\n{card}", nl=False)


@command.command(
    "verify",
    epilog="\b\nExamples:\n  attnroute model verify models/default/1.4.0\n"
    "  attnroute model verify 1.4.0 --public-key model.key.pub\n\n\b\n"
    "Exit codes: 0 it would be taken, 2 it would be refused.\n",
)
@click.argument("bundle", metavar="VERSION|DIRECTORY", default="")
@_registry_option
@_name_option
@_channel_option
@_key_option
@_json_option
def verify_command(
    *,
    bundle: str,
    registry: str,
    name: str,
    channel: str,
    public_key: Path | None,
    as_json: bool,
) -> None:
    """Check a bundle as a sidecar of this build does before it takes one: hashes, signature,
    feature schema, operator set; then it is run: sizes, values, and what its probe says."""
    from attnroute.bundle import describe, read
    from attnroute.bundle.signature import load_public_key
    from attnroute.cli.models import bundle_document
    from attnroute.features.schema import schema_hash
    from attnroute.registry.operator import fetched
    from attnroute.scoring.attention import Model

    key = None if public_key is None else load_public_key(public_key)

    directory = Path(bundle) if bundle and Path(bundle).is_dir() else None

    async def check(place: Registry) -> dict[str, Any]:
        path = directory
        if path is None:
            _, path = await fetched(place, name, bundle, channel=channel)
        read_bundle = await asyncio.to_thread(read, path, expected_schema=schema_hash(), key=key)
        await asyncio.to_thread(Model, read_bundle)
        return bundle_document(describe(path))

    document = _ask(registry, check)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        signed = ", signed" if key is not None else ""
        click.echo(f"{document['name']} {document['version']}: good{signed}")


@command.command(
    "promote",
    epilog="\b\nExamples:\n  attnroute model promote\n"
    "  attnroute model promote 1.4.0 --channel canary --registry models\n",
)
@click.argument("version", default="")
@_registry_option
@_name_option
@_channel_option
@_json_option
def promote_command(*, version: str, registry: str, name: str, channel: str, as_json: bool) -> None:
    """Point a channel at VERSION, default what `canary` points at. A frozen channel moves too, and
    is not frozen any more."""
    from attnroute.registry.operator import promote

    _show(_ask(registry, lambda place: promote(place, name, channel, version)), as_json=as_json)


@command.command(
    "rollback",
    epilog="\b\nExamples:\n  attnroute model rollback\n  attnroute model rollback --no-freeze\n",
)
@_registry_option
@_name_option
@_channel_option
@click.option(
    "--freeze/--no-freeze",
    "keep",
    default=True,
    show_default=True,
    help="Whether the trainer may not move the channel afterwards.",
)
@_json_option
def rollback_command(*, registry: str, name: str, channel: str, keep: bool, as_json: bool) -> None:
    """Point a channel at the version that it pointed at before."""
    from attnroute.registry.operator import roll_back

    state = _ask(registry, lambda place: roll_back(place, name, channel, freeze=keep))
    _show(state, as_json=as_json)


@command.command(
    "freeze",
    epilog="\b\nExamples:\n  attnroute model freeze\n  attnroute model freeze --off\n",
)
@_registry_option
@_name_option
@_channel_option
@click.option("--off", is_flag=True, help="Let the trainer move it again.")
@_json_option
def freeze_command(*, registry: str, name: str, channel: str, off: bool, as_json: bool) -> None:
    """Let nobody but operators move a channel."""
    from attnroute.registry.operator import freeze

    state = _ask(registry, lambda place: freeze(place, name, channel, frozen=not off))
    _show(state, as_json=as_json)


@command.command(
    "keygen",
    epilog="\b\nExamples:\n  attnroute model keygen model.key\n\n\b\n"
    "The private half signs (`registry.signing_key` of the trainer's file, `model sign`), the\n"
    "public one, FILE.pub, goes to whoever checks.\n",
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def keygen_command(*, file: Path) -> None:
    """Make an ed25519 key in FILE and its public half in FILE.pub."""
    from attnroute.bundle.signature import write_key_pair

    click.echo(str(write_key_pair(file)))


@command.command(
    "sign",
    epilog="\b\nExamples:\n  attnroute model sign models/default/1.4.0 --key model.key\n",
)
@click.argument("bundle", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="PEM file with the private key.",
)
def sign_command(*, bundle: Path, key: Path) -> None:
    """Sign the bundle in a directory; a signature that is there is replaced."""
    from attnroute.bundle.signature import load_signing_key, sign_bundle

    sign_bundle(bundle, load_signing_key(key))
    click.echo(f"{bundle}: signed")


def _ask(place: str, question: Callable[[Registry], Awaitable[_T]]) -> _T:
    """What the registry at a place answers."""
    quiet_grpc()
    from attnroute.registry.operator import open_registry

    async def ask() -> _T:
        async with open_registry(place) as registry:
            return await question(registry)

    return asyncio.run(ask())


def _show(state: ChannelState, *, as_json: bool) -> None:
    from attnroute.cli.models import channel_document, channel_line

    if as_json:
        click.echo(json.dumps(channel_document(state), indent=2))
    else:
        click.echo(channel_line(state))
