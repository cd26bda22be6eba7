"""`attnroute trainer`: runs the learning side of a fleet."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from attnroute.cli.admin import quiet_grpc
from attnroute.cli.process import ports_file_option

_EPILOG = """\b
Examples:
  attnroute trainer --config trainer.yaml
  attnroute check --trainer trainer.yaml
  attnroute schema trainer > trainer.schema.json

\b
Signals: TERM ends with 0, INT with 130. Sidecars go on with what they know.
"""


@click.command("trainer", epilog=_EPILOG)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The trainer's file.",
)
@ports_file_option
@click.pass_context
def command(context: click.Context, *, config: Path, ports_file: Path | None) -> None:
    """Run the trainer: the exchange between sidecars, and the data to train on."""
    quiet_grpc()
    from attnroute.logs import choose_format
    from attnroute.trainer import Options, run

    log_format = choose_format(context.obj, sys.stderr)
    sys.exit(run(Options(config=config, ports_file=ports_file, log_format=log_format)))
