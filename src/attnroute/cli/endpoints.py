"""`attnroute endpoints`: what discovery and connects see of a service."""

from __future__ import annotations

import json

import click

from attnroute.cli.admin import admin_option, open_client

_EPILOG = """\b
Examples:
  attnroute endpoints cart
  attnroute endpoints cart --json | jq '.endpoints[] | select(.state != "usable")'
"""


@click.command("endpoints", epilog=_EPILOG)
@click.argument("service")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@admin_option
def command(*, service: str, as_json: bool, admin: str) -> None:
    """Show the endpoints of SERVICE with their state and counters."""
    from attnroute.cli.tables import endpoints_document, endpoints_table, make_console

    with open_client(admin) as client:
        answer = client.list_endpoints(service)
    if as_json:
        click.echo(json.dumps(endpoints_document(answer), indent=2))
    else:
        make_console().print(endpoints_table(answer))
