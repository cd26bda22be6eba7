"""`attnroute wait`: returns when the sidecar is ready."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import click

from attnroute.cli.admin import admin_option, open_client
from attnroute.cli.overrides import DurationParameter

_EPILOG = """\b
Examples:
  attnroute wait && exec my-application
  attnroute wait --timeout 2m --admin unix:/run/attnroute/admin.sock

\b
Exits with 1 if the sidecar is not ready in time.
"""


@click.command("wait", epilog=_EPILOG)
@click.option(
    "--timeout",
    type=DurationParameter(),
    default="30s",
    show_default=True,
    help="How long to wait at most.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@admin_option
def command(*, timeout: timedelta, as_json: bool, admin: str) -> None:
    """Wait until the sidecar serves calls of every service."""
    began_s = time.monotonic()
    with open_client(admin) as client:
        client.wait_ready(timeout.total_seconds())
    waited_s = round(time.monotonic() - began_s, 3)
    if as_json:
        click.echo(json.dumps({"ready": True, "waited_s": waited_s}))
    else:
        click.echo(f"ready after {waited_s:g} s")
