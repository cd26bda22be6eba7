"""What the policy says about looking at single calls: recorded picks and the access log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnroute.policy.balancers import Share
from attnroute.policy.fields import Parsed, Strict

__all__ = ["AccessLog", "Picks"]


def _output(value: object) -> str:
    if value in ("stdout", "stderr"):
        return str(value)
    if isinstance(value, str) and "/" in value and not value.endswith("/") and "\0" not in value:
        return value
    raise ValueError("expected `stdout`, `stderr` or the path of a file with a `/` in it")


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
