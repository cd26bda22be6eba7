"""`attnroute replay`: recorded picks, computed again by the picker's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from attnroute.errors import RecordError

_EPILOG = """\b
Examples:
  attnroute picks cart --last 1000 --json > picks.jsonl && attnroute replay picks.jsonl
  attnroute picks cart --follow --json | attnroute replay -

\b
Exit code 1 if a pick differs from its record. A record holds every value that the pick read, so
that any machine comes to the same endpoint and the same costs, bit for bit.
"""


@click.command("replay", epilog=_EPILOG)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, and a last one.")
@click.pass_context
def command(context: click.Context, *, file: TextIO, as_json: bool) -> None:
    """Recompute the picks in FILE, JSON lines of `attnroute picks --json`, `-` for stdin."""
    same = different = skipped = 0
    for place, record in _records(file):
        again = _again(place, record)
        if again is None:
            skipped += 1
            continue
        same, different = same + again["identical"], different + (not again["identical"])
        if as_json:
            click.echo(json.dumps({"number": record.get("number"), **again}))
        elif not again["identical"]:
            numbers = len(again["differences"])
            click.echo(
                f"{place}: recorded {record['endpoint']}, computed {again['chosen']}, "
                f"{numbers} costs differ"
            )
    if as_json:
        click.echo(json.dumps({"identical": same, "different": different, "skipped": skipped}))
    else:
        click.echo(_verdict(same, different, skipped))
    if different:
        context.exit(1)


def _verdict(same: int, different: int, skipped: int) -> str:
    words = f"{same} picks identical, {different} different"
    return f"{words}, {skipped} of a balancer that is not replayed" if skipped else words


def _records(file: TextIO) -> Iterator[tuple[str, dict[str, Any]]]:
    name = Path(file.name).name if file.name != "<stdin>" else "-"
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{name}:{number}: no JSON: {error}") from error
        if not isinstance(record, dict) or not {"endpoint", "reason"} <= record.keys():
            raise RecordError(
                f"{name}:{number}: no recorded pick; expected a line of `attnroute picks --json`"
            )
        yield f"{name}:{number}", record


def _again(place: str, record: dict[str, Any]) -> dict[str, Any] | None:
    if record.get("learned") is None:
        return None
    from attnroute.dataplane import DataPlaneError, replay

    try:
        answer: dict[str, Any] = json.loads(replay(json.dumps(record).encode()))
    except DataPlaneError as error:
        raise RecordError(f"{place}: cannot be computed again: {error}") from error
    return answer
