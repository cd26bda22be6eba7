"""What the commands that run a process until it is told to stop share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def ports_file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--ports-file`; a directory that is not there is bad usage."""
    return click.option(
        "--ports-file",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_in_a_directory,
        help="Write the bound addresses there as JSON once ready.",
    )(command)


def _in_a_directory(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(
            f"directory `{path.parent}` does not exist; make it first", param_hint="--ports-file"
        )
    return path
