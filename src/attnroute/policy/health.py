"""When an endpoint is left alone: what `docs/health.md` describes, as the operator writes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field

from attnroute.policy.balancers import Share
from attnroute.policy.fields import Parsed, Strict, duration

__all__ = [
    "GrpcHealth",
    "Health",
    "LatencyOutlier",
    "OutlierDetection",
    "SuccessRate",
    "health_json",
    "outlier_json",
]

_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)
_U32_MAX = 2**32 - 1

_Span = Annotated[timedelta, duration(_MS, 24 * _HOUR)]


def _number(least: float, most: float) -> Parsed:
    def parse(value: object) -> float:
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= most
        ):
            return float(value)
        raise ValueError(f"expected a number from {least:g} to {most:g}")

    return Parsed(parse, {"type": "number", "minimum": least, "maximum": most})


def _service_name(value: object) -> str:
    if isinstance(value, str) and len(value.encode()) <= 1024 and value.isprintable():
        return value
    raise ValueError("expected the name of a service, at most 1024 bytes")


class SuccessRate(Strict):
    """Ejects endpoints whose success rate is far below the others'."""

    stdev_factor: Annotated[float, _number(0.01, 100)] = Field(
        default=1.9, description="Standard deviations below the mean of all endpoints."
    )
    min_endpoints: int = Field(
        default=5, ge=2, le=_U32_MAX, description="Endpoints that must have enough calls."
    )
    min_calls: int = Field(
        default=100, ge=1, le=_U32_MAX, description="Calls in an interval that are enough."
    )


class LatencyOutlier(Strict):
    """Ejects endpoints whose latency is far above the others'."""

    factor: Annotated[float, _number(1.01, 1_000_000)] = Field(
        default=4.0, description="Times the median of all endpoints' mean latencies."
    )
    min_endpoints: int = Field(
        default=3, ge=2, le=_U32_MAX, description="Endpoints that must have enough calls."
    )
    min_calls: int = Field(
        default=20, ge=1, le=_U32_MAX, description="Successes in an interval that are enough."
    )


class OutlierDetection(Strict):
    """Endpoints whose calls go wrong get none for a while; `{}` switches it on."""

    consecutive_errors: int = Field(
        default=5,
        ge=0,
        le=_U32_MAX,
        description="Failures in a row that eject; 0 switches this criterion off.",
    )
    success_rate: SuccessRate | None = Field(
        default=None, description="Judge success rates each interval; default off."
    )
    latency: LatencyOutlier | None = Field(
        default=None, description="Judge latencies each interval; default off."
    )
    interval: _Span = Field(
        default=timedelta(seconds=10),
        description="Time between two judgements by success rate and latency.",
    )
    base_ejection: _Span = Field(
        default=timedelta(seconds=30),
        description="Length of the first ejection; it doubles with each further one.",
    )
    max_ejection: _Span = Field(default=timedelta(minutes=5), description="Longest ejection.")
    max_ejected: Share = Field(
        default=0.5,
        description="Share of the endpoints that may be ejected at once, judged after the "
        "ejection; a single endpoint never is.",
    )


class GrpcHealth(Strict):
    """Checks by `grpc.health.v1.Health/Check`; `{}` takes the defaults."""

    interval: Annotated[timedelta, duration(100 * _MS, 24 * _HOUR)] = Field(
        default=timedelta(seconds=5),
        description="Time between two checks of an endpoint, with 10 % jitter.",
    )
    timeout: _Span = Field(
        default=timedelta(seconds=1),
        description="From the begin of a check to its answer; an endpoint has one check at a time.",
    )
    unhealthy_after: int = Field(
        default=3,
        ge=1,
        le=_U32_MAX,
        description="Checks in a row without an answer that make an endpoint unhealthy; one that "
        "answers that it does not serve is so at once, as is one whose first check fails.",
    )
    healthy_after: int = Field(
        default=1,
        ge=1,
        le=_U32_MAX,
        description="Checks in a row that make an unhealthy endpoint healthy.",
    )
    service: Annotated[str, Parsed(_service_name, {"type": "string", "maxLength": 1024})] = Field(
        default="",
        description="Whose health is asked for, as the endpoint names it; empty: the whole "
        "server's.",
    )
    max_checks: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Checks of the service at a time; the others wait for their turn.",
    )


class Health(Strict):
    """Endpoints are asked for their health between calls."""

    grpc: GrpcHealth = Field(description="Ask by the gRPC health protocol.")


def health_json(health: Health | None) -> dict[str, Any] | None:
    """The form of `crates/dataplane/src/config/health.rs`."""
    if health is None:
        return None
    checks = health.grpc
    return {
        "interval_ms": checks.interval // _MS,
        "timeout_ms": checks.timeout // _MS,
        "unhealthy_after": checks.unhealthy_after,
        "healthy_after": checks.healthy_after,
        "service": checks.service,
        "max_checks": checks.max_checks,
    }


def outlier_json(outlier: OutlierDetection | None) -> dict[str, Any] | None:
    """The form of `crates/dataplane/src/config/health.rs`."""
    if outlier is None:
        return None
    rate, latency = outlier.success_rate, outlier.latency
    return {
        "consecutive_errors": outlier.consecutive_errors,
        "interval_ms": outlier.interval // _MS,
        "base_ejection_ms": outlier.base_ejection // _MS,
        "max_ejection_ms": outlier.max_ejection // _MS,
        "max_ejected": outlier.max_ejected,
        "success_rate": None if rate is None else rate.model_dump(),
        "latency": None if latency is None else latency.model_dump(),
    }
