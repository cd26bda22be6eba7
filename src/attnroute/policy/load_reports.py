"""The keys of load reports and of the fleet: what docs/balancers.md says of both, as the operator
writes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from attnroute.policy.balancers import MetricName
from attnroute.policy.fields import Strict, duration

__all__ = ["Fleet", "LoadReports", "OutOfBand", "load_reports_json"]

OwnName = Literal[
    "attnroute.inflight",
    "attnroute.queue",
    "attnroute.concurrency",
    "attnroute.service_time_s",
    "attnroute.started_s",
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

    RESERVED: ClassVar[dict[str, str]] = {"trainer": "a later version"}

    sidecars: int = Field(
        default=4,
        ge=1,
        le=1_000_000,
        description="Sidecars that call the same services, this one included, as far as you know; "
        "`c3` takes each to have as many calls in flight as this one.",
    )


def load_reports_json(settings: LoadReports) -> dict[str, Any]:
    """In the form of the data plane; what is asked out of band stays in Python."""
    return {"names": dict(settings.names)}
