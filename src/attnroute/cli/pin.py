"""`attnroute pin`: calls go to this endpoint and to other pinned ones only, for a while."""

from __future__ import annotations

from datetime import timedelta

import click

from attnroute.cli.admin import admin_option, open_client
from attnroute.cli.overrides import for_option, service_option, show

_EPILOG = """\b
Examples:
  attnroute pin 10.0.0.1:50051 --for 5m
  attnroute pin 10.0.0.1:50051 --service cart --json

\b
`attnroute undrain ENDPOINT` ends a pin as it ends a drain.
"""


@click.command("pin", epilog=_EPILOG)
@click.argument("endpoint")
@service_option
@for_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@admin_option
def command(*, endpoint: str, service: str, duration: timedelta, as_json: bool, admin: str) -> None:
    """Send the calls of a service to ENDPOINT, and to others that are pinned too.

    Without effect while none of the pinned endpoints is usable.
    """
    with open_client(admin) as client:
        name = service or client.service_of(endpoint)
        show(client.pin(name, endpoint, duration=duration), as_json=as_json)
