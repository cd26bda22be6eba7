"""The keys of load reports and of the fleet: what docs/balancers.md says of both, as the operator
writes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from attnroute.policy.balancers import MetricName
from attnroute.policy.fields import Parsed, Strict, duration
from attnroute.policy.scalars import parse_target

__all__ = ["Fleet", "LoadReports", "OutOfBand", "load_reports_json"]

OwnName = Literal[
    "attnroute.inflight",
    "attnroute.queue",
    "attnroute.concurrency",
    "attnroute.service_time_s",
    "attnroute.started_s",
]


TrainerAddress = Annotated[
    str, Parsed(parse_target, {"type": "string", "pattern": r"^(unix:/.+|.+:[0-9]{1,5})$"})
]


class OutOfBand(Strict):
    """Reports that endpoints send between calls, by `xds.service.orca.v3.OpenRcaService`."""

    interval: Annotated[timedelta, duration(timedelta(milliseconds=100), timedelta(hours=1))] = (
        Field(
            default=timedelta(seconds=1),
            description="How often each endpoint is asked to report; servers may do so less often.",
        )
    )
    max_endpoints: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Endpoints of the service that are asked, each over a connection of its own; "
        "how many are left out is `attnroute_out_of_band_left_out`.",
    )


class LoadReports(Strict):
    """Where load reports come from and how they are read."""

    names: dict[OwnName, MetricName] = Field(
        default_factory=dict,
        description="Under which name the application reports a value: `attnroute.inflight`, "
        "`.queue`, `.concurrency`, `.service_time_s` or `.started_s` to `named_metrics.<name>` or "
        "a field of the report; without it, or where a report lacks it, the name itself.",
    )
    out_of_band: OutOfBand | None = Field(
        default=None, description="Ask endpoints for reports between calls; off by default."
    )


class Fleet(Strict):
    """The other sidecars."""

    sidecars: int = Field(
        default=4,
        ge=1,
        le=1_000_000,
        description="Sidecars that call the same services, this one included, as far as you know; "
        "`c3` takes each to have as many calls in flight as this one. A trainer knows better.",
    )
    trainer: TrainerAddress | None = Field(
        default=None,
        description="Where services with `request_class` exchange what they measure with other "
        "sidecars: `fleet.address` of an `attnroute trainer`; default nowhere.",
    )
    training_series: int = Field(
        default=60_000,
        ge=1_000,
        le=10_000_000,
        description="Series at most on `/metrics/training`; beyond, the least called classes share "
        "`other` there, counted in `attnroute_training_classes_folded_total`.",
    )


def load_reports_json(settings: LoadReports) -> dict[str, Any]:
    """In the form of the data plane; what is asked out of band stays in Python."""
    return {"names": dict(settings.names)}
