"""`attnroute picks`: recorded picks with what each saw."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click

from attnroute.cli.admin import admin_option, open_client

if TYPE_CHECKING:
    from attnroute._proto.admin.v1 import admin_pb2 as pb

_EPILOG = """\b
Examples:
  attnroute picks cart
  attnroute picks cart --follow
  attnroute picks cart --last 100 --json | jq -s 'map(.endpoint) | group_by(.) | map(length)'

\b
The policy key `picks.sample` says which share of the calls is recorded, 1% by default.
"""


@click.command("picks", epilog=_EPILOG)
@click.argument("service")
@click.option(
    "--last",
    type=click.IntRange(min=1, max=1_000),
    default=20,
    show_default=True,
    help="How many of those recorded so far.",
)
@click.option("--follow", is_flag=True, help="Go on, with each new one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@admin_option
def command(*, service: str, last: int, follow: bool, as_json: bool, admin: str) -> None:
    """Show picks of SERVICE that were recorded: whom they chose among whom, and why.

    In brackets: calls in flight at each candidate when the pick was made.
    """
    with open_client(admin) as client:
        answer = client.list_picks(service, last)
        for pick in answer.picks:
            _show(pick, as_json=as_json)
        if not follow:
            if not answer.picks:
                click.echo("no pick is recorded; `picks.sample` says which are", err=True)
            return
        number = answer.number
        with closing(client.watch_picks(service, number)) as picks:
            for pick in picks:
                _show(pick, as_json=as_json)


def _show(pick: pb.Pick, *, as_json: bool) -> None:
    from attnroute.cli.tables import pick_document, pick_line

    click.echo(json.dumps(pick_document(pick)) if as_json else pick_line(pick))
    sys.stdout.flush()
