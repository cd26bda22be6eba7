"""What the commands that ask a running sidecar share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attnroute.admin.client import AdminClient


def admin_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--admin`. Repeats two constants of attnroute.admin.client, because `--help` need
    not load gRPC for them; a test holds them together."""
    return click.option(
        "--admin",
        metavar="ADDRESS",
        default="127.0.0.1:15010",
        envvar="ATTNROUTE_ADMIN",
        show_default=True,
        show_envvar=True,
        help="Admin gRPC address of the sidecar, `ip:port` or `unix:/path`.",
    )(command)


def quiet_grpc() -> None:
    """Keeps gRPC's core from writing lines of its own format to stderr; what matters in them we say
    ourselves. Works only before gRPC is imported. GRPC_VERBOSITY of the environment wins."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def open_client(address: str) -> AdminClient:
    """A client of the sidecar there; gRPC is loaded only now."""
    quiet_grpc()
    from attnroute.admin.client import AdminClient

    return AdminClient(address)
