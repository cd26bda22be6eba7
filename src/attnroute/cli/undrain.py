"""`attnroute undrain`: ends an override before its time."""

from __future__ import annotations

import click

from attnroute.cli.admin import admin_option, open_client
from attnroute.cli.overrides import service_option, show

_EPILOG = """\b
Examples:
  attnroute undrain 10.0.0.1:50051
  attnroute undrain 10.0.0.1:50051 --service cart --json
"""


@click.command("undrain", epilog=_EPILOG)
@click.argument("endpoint")
@service_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@admin_option
def command(*, endpoint: str, service: str, as_json: bool, admin: str) -> None:
    """End the drain or the pin of ENDPOINT."""
    with open_client(admin) as client:
        name = service or client.service_of(endpoint)
        show(client.clear_override(name, endpoint), as_json=as_json)
