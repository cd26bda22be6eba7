"""`attnroute weights`: where the calls of a service go now."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from attnroute.cli.admin import admin_option, open_client

if TYPE_CHECKING:
    from attnroute._proto.admin.v1 import admin_pb2 as pb

_EPILOG = """\b
Examples:
  attnroute weights cart
  attnroute weights cart --watch
  attnroute weights cart --json | jq '.classes[0].endpoints[] | {address, weight, share}'
"""


@click.command("weights", epilog=_EPILOG)
@click.argument("service")
@click.option(
    "--request-class",
    default="",
    help="Only this request class; default: every class.",
    metavar="C",
)
@click.option("--watch", is_flag=True, help="Go on, with each change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; with --watch one a line.")
@admin_option
def command(*, service: str, request_class: str, watch: bool, as_json: bool, admin: str) -> None:
    """Show the routing weights of SERVICE.

    A weight is the probability that the balancer gives an endpoint now; the share beside it is
    the measured fraction of the picks of the last 10 seconds.
    """
    with open_client(admin) as client:
        if not watch:
            answer = client.get_weights(service, request_class)
            _print_json(answer, indent=2) if as_json else _print_table(answer)
            return
        with closing(client.watch_weights(service, request_class)) as answers:
            if as_json:
                for answer in answers:
                    _print_json(answer)
            else:
                _show_live(answers)


def _print_json(answer: pb.GetWeightsResponse, indent: int | None = None) -> None:
    from attnroute.cli.tables import weights_document

    document: dict[str, Any] = weights_document(answer)
    # Each line at once: whoever reads a pipe waits for the change, not for a full buffer.
    click.echo(json.dumps(document, indent=indent))
    sys.stdout.flush()


def _print_table(answer: pb.GetWeightsResponse) -> None:
    from attnroute.cli.tables import make_console, weights_view

    make_console().print(weights_view(answer))


def _show_live(answers: Iterator[pb.GetWeightsResponse]) -> None:
    from rich.live import Live

    from attnroute.cli.tables import make_console, weights_view

    console = make_console()
    if not console.is_terminal:
        for answer in answers:
            console.print(weights_view(answer))
        return
    with Live(console=console, auto_refresh=False) as live:
        for answer in answers:
            live.update(weights_view(answer), refresh=True)
