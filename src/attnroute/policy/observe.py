"""What the policy says about looking at single calls: recorded picks, access log and spans."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from attnroute.policy import scalars
from attnroute.policy.balancers import Share
from attnroute.policy.fields import Parsed, Secret, Strict

__all__ = ["AccessLog", "Picks", "Tracing"]


def _output(value: object) -> str:
    if value in ("stdout", "stderr"):
        return str(value)
    if isinstance(value, str) and "/" in value and not value.endswith("/") and "\0" not in value:
        return value
    raise ValueError("expected `stdout`, `stderr` or the path of a file with a `/` in it")


Output = Annotated[str, Parsed(_output, {"type": "string", "minLength": 1})]


def _collector(value: object) -> str:
    target = scalars.parse_authority(value)
    if target.rpartition(":")[2].isdecimal():
        return target
    raise ValueError("expected `host:port`; the usual port of OTLP over gRPC is 4317")


def _metadata_key(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(_METADATA_KEY, value) and len(value) <= 128:
        return value
    raise ValueError("expected the name of a header in lower case, not of binary metadata")


_METADATA_KEY = r"(?!grpc-)(?!.*-bin$)[a-z0-9][a-z0-9._-]*"
_COLLECTOR_SCHEMA = {"type": "string", "pattern": r"^.+:[0-9]{1,5}$"}

Collector = Annotated[str, Parsed(_collector, _COLLECTOR_SCHEMA)]
MetadataKey = Annotated[
    str, Parsed(_metadata_key, {"type": "string", "pattern": f"^{_METADATA_KEY}$"})
]


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


class Tracing(Strict):
    """A span per sampled call, exported by OTLP over gRPC. Needs the extra `attnroute[otel]`."""

    otlp: Collector = Field(description="`host:port` of the collector, spoken to in plain text.")
    sample: Share = Field(
        default=0.01,
        description="Share of the calls; those of traces that their caller does not record get "
        "none.",
    )
    headers: dict[MetadataKey, Secret] = Field(
        default_factory=dict,
        max_length=32,
        description="Metadata of each message to the collector, such as a token; never shown.",
    )
