"""`attnroute schema`: the JSON Schema of a file format, for editors and for CI."""

from __future__ import annotations

import json

import click

_EPILOG = """\b
Examples:
  attnroute schema policy > policy.schema.json
  attnroute schema trainer > trainer.schema.json
  attnroute schema scenario > scenario.schema.json

\b
An editor with the YAML language server then helps with a first line of
  # yaml-language-server: $schema=policy.schema.json
"""


@click.command("schema", epilog=_EPILOG)
@click.argument(
    "format_name", metavar="FORMAT", type=click.Choice(["policy", "trainer", "scenario"])
)
def command(*, format_name: str) -> None:
    """Print the JSON Schema of a file format: `policy`, `trainer` or `scenario`."""
    if format_name == "scenario":
        from attnroute.sim.schema import json_schema
    elif format_name == "trainer":
        from attnroute.policy.trainer import json_schema
    else:
        from attnroute.policy.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
