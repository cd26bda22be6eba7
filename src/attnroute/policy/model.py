"""The key `model`: where the attention router's bundles come from and how far each is trusted."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from attnroute.policy.balancers import Share
from attnroute.policy.fields import Strict, duration, size
from attnroute.policy.load_reports import TrainerAddress
from attnroute.policy.sources import FilePath, Text

__all__ = ["Model", "ModelRollout"]

_MS = timedelta(milliseconds=1)
_S = timedelta(seconds=1)
_HOUR = timedelta(hours=1)


class ModelRollout(Strict):
    """How a bundle comes to serve: docs/model.md, "Rollout"."""

    min_interval: Annotated[timedelta, duration(timedelta(0), 24 * _HOUR)] = Field(
        default=timedelta(seconds=60), description="Least time between two bundles that are taken."
    )
    steps: int = Field(
        default=3,
        ge=1,
        le=1_000,
        description="Steps of the gate in a row with a gain over the table that a bundle needs in "
        "shadow, and again as canary.",
    )
    canary: Share = Field(
        default=0.2,
        description="Share of its weight that a canary has; `0%`: it serves when shadow is over.",
    )
    judge_limit: Annotated[timedelta, duration(_S, 24 * _HOUR)] = Field(
        default=timedelta(minutes=10),
        description="A bundle that has not shown a gain by then is refused.",
    )


def _one_source() -> dict[str, Any]:
    return {"oneOf": [{"required": ["registry"]}, {"required": ["directory"]}]}


class Model(Strict):
    """Bundles that score beside the table, from a registry or a directory: exactly one of them."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"^x-": {}}} | _one_source())

    registry: TrainerAddress | None = Field(
        default=None,
        description="`fleet.address` of an `attnroute trainer` that keeps bundles.",
    )
    directory: FilePath | None = Field(
        default=None,
        description="Directory of versions, `bundles/default`, relative to the policy file; "
        "without channels beside it the newest version counts.",
    )
    name: Text = Field(
        default="default",
        description="Which model of the registry; of a directory its own name is the one.",
    )
    channel: Text = Field(default="stable", description="Which pointer to follow.")
    public_key: FilePath | None = Field(
        default=None,
        description="PEM file with an ed25519 key, relative to the policy file: bundles that it "
        "has not signed are refused; default: signatures are not looked at.",
    )
    cache: FilePath | None = Field(
        default=None,
        description="Where fetched bundles lie, so that a restart finds the last one without the "
        "registry, relative to the policy file; default: a temporary directory.",
    )
    max_bytes: Annotated[int, size(1 << 10, 1 << 30)] = Field(
        default=32 << 20, description="Size of a bundle."
    )
    flavour: Literal["float32", "int8"] = Field(
        default="float32",
        description="`int8` uses the int8 graphs of a bundle that has them, if they rank endpoints "
        "as the others do.",
    )
    budget: Annotated[timedelta, duration(timedelta(0), _S)] = Field(
        default=timedelta(milliseconds=20),
        description="How long a tick waits for a scoring run; one that takes longer serves the "
        "next tick.",
    )
    run_limit: Annotated[timedelta, duration(_MS, 10 * _S)] = Field(
        default=timedelta(milliseconds=50),
        description="CPU time of a scoring run at 100 endpoints and 64 classes; a bundle that "
        "takes more is refused.",
    )
    load_limit: Annotated[timedelta, duration(_S, _HOUR)] = Field(
        default=timedelta(seconds=60),
        description="Time for making a bundle ready; one that takes more is refused.",
    )
    kv_rows: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Encodings of endpoints, and of request classes, kept per service.",
    )
    rollout: ModelRollout = Field(
        default=ModelRollout(), description="How a bundle comes to serve."
    )
