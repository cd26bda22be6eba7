"""`python -m attnroute.train COMMAND`: models without a trainer process.

untrained DIRECTORY   writes a bundle whose answers are those of the table
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from attnroute.bundle import write
from attnroute.errors import AttnrouteError
from attnroute.model.export import bundle_of
from attnroute.model.network import Router

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m attnroute.train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    untrained = commands.add_parser("untrained", help="a bundle whose answers are the table's")
    untrained.add_argument("directory", type=Path)
    untrained.add_argument("--name", default="untrained")
    untrained.add_argument("--version", default="1.0.0")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        where = _untrained(given.directory, given.name, given.version)
    except AttnrouteError as error:
        logger.error("%s", error)
        return error.exit_code
    sys.stdout.write(f"{where}\n")
    return 0


def _untrained(directory: Path, name: str, version: str) -> Path:
    router = Router()
    bundle = bundle_of(
        router,
        name=name,
        version=version,
        trained={"command": "python -m attnroute.train untrained"},
        metrics={},
        card="# Untrained\n\nIts last layer is zero, so its S is the table's.\n",
    )
    return write(directory, bundle)


if __name__ == "__main__":
    sys.exit(main())
