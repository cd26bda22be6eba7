"""What `drain`, `undrain` and `pin` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from attnroute.policy.scalars import parse_duration

if TYPE_CHECKING:
    from attnroute._proto.admin.v1 import admin_pb2 as pb


class DurationParameter(click.ParamType[timedelta]):
    """A duration as policies write it."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """The value as a timedelta; a usage error for anything that is no duration."""
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(f"found `{value}`: {error}", param, ctx)


def service_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--service`."""
    return click.option(
        "--service",
        default="",
        help="Service of the endpoint; needed where several have it.",
        metavar="S",
    )(command)


def for_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option `--for`."""
    return click.option(
        "--for",
        "duration",
        type=DurationParameter(),
        default="10m",
        show_default=True,
        help="When it ends by itself, 1s to 24h.",
    )(command)


def show(
    answer: pb.SetOverrideResponse | pb.DrainResponse, *, as_json: bool, note: str = ""
) -> None:
    """Prints what is in force now."""
    from attnroute.cli.tables import override_document, override_line

    if as_json:
        click.echo(json.dumps(override_document(answer), indent=2))
    else:
        click.echo(override_line(answer) + note)
