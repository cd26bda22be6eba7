"""The command `attnroute`: finds the sub-command, and turns what ends it into an exit code.

Sub-commands are modules that are imported when they are called, so that `attnroute check` starts
without gRPC and `attnroute --help` without any of them; their one-line helps stand here for that
reason. Exit codes: 0 fine, 1 the work failed, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from attnroute import __version__
from attnroute.errors import AttnrouteError, InvalidFileError

__all__ = ["EXIT_INTERRUPTED", "main", "run", "run_command"]

EXIT_INTERRUPTED = 130

# Name: what `attnroute --help` says. The module is `attnroute.cli.<name>`, the command `command`.
_COMMANDS = {
    "check": "Check policy files; list every problem with its place.",
    "demo": "Compare balancers on real calls, on this machine.",
    "drain": "Give an endpoint no new calls, for a while.",
    "explain": "Show the pick that would be made now, and why.",
    "endpoints": "Show what discovery and health see.",
    "model": "Show bundles, check them, and move channels.",
    "picks": "Show recorded picks with what each saw.",
    "pin": "Send calls to pinned endpoints only, for a while.",
    "replay": "Recompute recorded picks and say where they differ.",
    "schema": "Print the JSON Schema of a file format.",
    "sim": "Play a scenario with every balancer and compare them.",
    "sidecar": "Run the sidecar proxy until it is told to stop.",
    "trainer": "Run the trainer: the fleet's table, and the data to train on.",
    "undrain": "End the drain or the pin of an endpoint.",
    "wait": "Wait until the sidecar is ready.",
    "weights": "Show the weights in force, live.",
    "wrap": "Run a program with a sidecar of its own.",
}


class _Commands(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"attnroute.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


_EPILOG = """\b
Examples:
  attnroute check policy.yaml
  attnroute sidecar --config policy.yaml
  attnroute weights checkout --watch
"""


@click.command(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG
)
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Form of log lines on stderr; default text on a terminal, else json.",
)
@click.version_option(__version__, message="attnroute %(version)s")
@click.pass_context
def _attnroute(context: click.Context, *, log_format: str | None) -> None:
    """A gRPC sidecar proxy that learns where each call is served fastest.

    Data goes to stdout, logs and errors to stderr. NO_COLOR switches colours off.
    """
    context.obj = log_format


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line and exits with its code. arguments: without the program's name."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    return run_command(_attnroute, arguments)


def run_command(command: click.Command, arguments: Sequence[str] | None) -> int:
    """Runs one command and turns what ends it into an exit code and words on stderr."""
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="attnroute",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show(file=sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except InvalidFileError as error:
        # Each line begins with the file: an editor or a shell script can follow it.
        click.echo(str(error), err=True)
        return error.exit_code
    except AttnrouteError as error:
        click.echo(f"attnroute: {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # The reader has left, as `head` does. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    # click hands on the code of `Context.exit` here, and None from a command that came to its end.
    return result if isinstance(result, int) else 0
