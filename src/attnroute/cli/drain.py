"""`attnroute drain`: no new calls for an endpoint, for a while."""

from __future__ import annotations

from datetime import timedelta

import click

from attnroute.cli.admin import admin_option, open_client
from attnroute.cli.overrides import DurationParameter, for_option, service_option, show

_EPILOG = """\b
Examples:
  attnroute drain 10.0.0.1:50051
  attnroute drain 10.0.0.1:50051 --service cart --for 30m --wait 20s
  attnroute drain 10.0.0.1:50051 --admin unix:/run/attnroute/admin.sock --json

\b
Exits with 1 if calls were still in flight when --wait was over.
"""


@click.command("drain", epilog=_EPILOG)
@click.argument("endpoint")
@service_option
@for_option
@click.option(
    "--wait",
    type=DurationParameter(),
    default="0s",
    show_default=True,
    help="Wait so long for its calls in flight to end.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@admin_option
@click.pass_context
def command(
    context: click.Context,
    *,
    endpoint: str,
    service: str,
    duration: timedelta,
    wait: timedelta,
    as_json: bool,
    admin: str,
) -> None:
    """Give ENDPOINT no new calls; those in flight go on."""
    with open_client(admin) as client:
        name = service or client.service_of(endpoint)
        answer = client.drain(name, endpoint, duration=duration, wait=wait)
    show(answer, as_json=as_json, note=f"; {answer.in_flight} in flight")
    if wait and answer.in_flight:
        context.exit(1)
