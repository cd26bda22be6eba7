"""`attnroute trainer`: runs the learning side of a fleet."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from attnroute.cli.admin import quiet_grpc

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
@click.option(
    "--ports-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the bound addresses there as JSON once ready.",
)
@click.pass_context
def command(context: click.Context, *, config: Path, ports_file: Path | None) -> None:
    """Run the trainer: the exchange between sidecars, and the data to train on."""
    quiet_grpc()
    from attnroute.logs import choose_format
    from attnroute.trainer import Options, run

    if ports_file is not None and not ports_file.parent.is_dir():
        raise click.BadParameter(
            f"directory `{ports_file.parent}` does not exist; make it first",
            param_hint="--ports-file",
        )
    log_format = choose_format(context.obj, sys.stderr)
    sys.exit(run(Options(config=config, ports_file=ports_file, log_format=log_format)))
