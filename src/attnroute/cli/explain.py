"""`attnroute explain`: the pick that would be made now, and every term of every cost."""

from __future__ import annotations

import json

import click

from attnroute.cli.admin import admin_option, open_client

_EPILOG = """\b
Examples:
  attnroute explain cart --method /shop.Cart/Get
  attnroute explain cart --method /shop.Cart/Get --message-bytes 2000 --header x-tier=gold
  attnroute explain cart --method /shop.Cart/Get --json | jq '.endpoints[] | .terms.cost_queue_s'

\b
Nothing is picked or counted. docs/model.md has the formula of each term.
"""


@click.command("explain", epilog=_EPILOG)
@click.argument("service")
@click.option("--method", required=True, help="Path of the call, `/package.Service/Method`.")
@click.option(
    "--message-bytes",
    type=click.IntRange(min=0),
    help="Size of its first message; without: not known when the pick is made.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A request header.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@admin_option
def command(
    *,
    service: str,
    method: str,
    message_bytes: int | None,
    headers: tuple[str, ...],
    as_json: bool,
    admin: str,
) -> None:
    """Show which endpoint of SERVICE such a call would be sent to now, and why."""
    parsed = dict(map(_header, headers))
    with open_client(admin) as client:
        answer = client.explain(service, method, message_bytes=message_bytes, headers=parsed)
        # Only a score table has scorers beside it.
        gates = client.get_model().scorers if answer.table_epoch else []
    scorers = [gate for gate in gates if gate.service == service]
    from attnroute.cli.explained import explain_document, explain_lines, explain_table
    from attnroute.cli.gates import gates_document, with_gates
    from attnroute.cli.tables import make_console

    if as_json:
        document = {**explain_document(answer), "scorers": gates_document(scorers)}
        click.echo(json.dumps(document))
        return
    console = make_console()
    console.print(with_gates(explain_table(answer), scorers))
    for line in explain_lines(answer):
        console.print(line, highlight=False)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"found `{text}`, expected `name=value`", param_hint="--header")
    return name, value
