"""`attnroute schema`: the JSON Schema of a file format, for editors and for CI."""

from __future__ import annotations

import json

import click

_EPILOG = """\b
Examples:
  attnroute schema policy > policy.schema.json

\b
An editor with the YAML language server then helps with a first line of
  # yaml-language-server: $schema=policy.schema.json
"""


@click.command("schema", epilog=_EPILOG)
@click.argument("format_name", metavar="FORMAT", type=click.Choice(["policy"]))
def command(*, format_name: str) -> None:
    """Print the JSON Schema of a file format: `policy`."""
    assert format_name == "policy", "the only choice"
    from attnroute.policy.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
