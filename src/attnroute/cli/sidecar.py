"""`attnroute sidecar`: runs the proxy."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from attnroute.cli.admin import quiet_grpc
from attnroute.cli.process import ports_file_option

_EPILOG = """\b
Examples:
  attnroute sidecar --config policy.yaml
  attnroute sidecar --config policy.yaml --ports-file /run/attnroute/ports.json

\b
Signals: HUP reloads the policy (so does a change of the file), TERM drains and ends with 0,
INT drains and ends with 130, a second TERM or INT ends open calls now.
"""


@click.command("sidecar", epilog=_EPILOG)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The policy file.",
)
@ports_file_option
@click.pass_context
def command(context: click.Context, *, config: Path, ports_file: Path | None) -> None:
    """Run the sidecar proxy until it is told to stop."""
    quiet_grpc()
    from attnroute.logs import choose_format
    from attnroute.sidecar import Options, run

    log_format = choose_format(context.obj, sys.stderr)
    sys.exit(run(Options(config=config, ports_file=ports_file, log_format=log_format)))
