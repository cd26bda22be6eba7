"""What the policy says about looking at single calls: recorded picks and the access log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnroute.policy.fields import Parsed, Strict

__all__ = ["AccessLog", "Picks"]

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")

SHARE_PATTERN = r"^[0-9]+(\.[0-9]+)?%$"


def parse_share(value: object) -> float:
    """`5%` or 0..1 as a fraction. Raises ValueError."""
    share: float | None = None
    if isinstance(value, str) and len(value) <= 20 and (match := _PERCENT.fullmatch(value)):
        share = float(match[1]) / 100
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    if share is None or not 0 <= share <= 1:
        raise ValueError("expected a share from `0%` to `100%`, or a number from 0 to 1")
    return share


def format_share(value: float) -> str:
    """The shortest text that `parse_share` reads as the same value, as far as 15 digits go."""
    return f"{float(f'{value * 100:.13g}'):.15f}".rstrip("0").rstrip(".") + "%"


def _output(value: object) -> str:
    if value in ("stdout", "stderr"):
        return str(value)
    if isinstance(value, str) and "/" in value and not value.endswith("/") and "\0" not in value:
        return value
    raise ValueError("expected `stdout`, `stderr` or the path of a file with a `/` in it")


Share = Annotated[
    float,
    Parsed(
        parse_share,
        {
            "anyOf": [
                {"type": "string", "pattern": SHARE_PATTERN},
                {"type": "number", "minimum": 0, "maximum": 1},
            ]
        },
        format_share,
    ),
]
Output = Annotated[str, Parsed(_output, {"type": "string", "minLength": 1})]


class Picks(Strict):
    """Which picks are recorded, for `attnroute picks`."""

    sample: Share = Field(
        default=0.01, description="Share of the calls; `0%` records nothing and costs nothing."
    )
    keep: int = Field(
        default=1_000, ge=1, le=100_000, description="Recorded picks kept per service."
    )


class AccessLog(Strict):
    """One JSON line per sampled call. Off while the key is missing."""

    sample: Share = Field(default=1.0, description="Share of the calls.")
    output: Output = Field(
        default="stderr",
        description="`stdout`, `stderr` or the path of a file, relative to the policy file; "
        "SIGHUP opens it anew.",
    )

    def target(self, resolve: Callable[[str], Path]) -> str:
        """Where lines go, with a path made absolute by `resolve`."""
        return self.output if self.output in ("stdout", "stderr") else str(resolve(self.output))
