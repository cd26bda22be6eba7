"""Routes that try calls again, in the form of the data plane, and what it counted of them."""

from __future__ import annotations

from typing import Any

from tests.support.dataplane import DataPlaneHarness

AMPLE: dict[str, Any] = {"share": 1.0, "floor": 1_000}
"""A budget that no test uses up."""


def retried(**retry: Any) -> dict[str, Any]:
    """A service whose every call may be tried again; keys of `retry` beside an ample budget and
    waits of at most 1 ms."""
    retry = {"budget": AMPLE, "backoff_ms": 1, "max_backoff_ms": 1, **retry}
    return {"routes": [{"match": {"path_prefix": "/"}, "idempotent": True, "retry": retry}]}


def hedged(**hedge: Any) -> dict[str, Any]:
    """A service whose every call may be hedged, however many are, after 50 ms unless told."""
    hedge = {"at": {"after_ms": 50}, "max_share": 1.0, **hedge}
    return {"routes": [{"match": {"path_prefix": "/"}, "idempotent": True, "hedge": hedge}]}


def retries(plane: DataPlaneHarness) -> dict[str, int]:
    """Retries by reason, without zeros."""
    return _by_reason(plane, "attnroute_retries_total")


def refused(plane: DataPlaneHarness) -> dict[str, int]:
    """Retries that were not made, by reason, without zeros."""
    return _by_reason(plane, "attnroute_retries_refused_total")


def attempts_at(plane: DataPlaneHarness, endpoint: str) -> dict[str, int]:
    """Ended attempts of an endpoint by status."""
    samples = plane.metrics().of("attnroute_endpoint_requests_total", endpoint=endpoint)
    return {sample.labels["grpc_status"]: int(sample.value) for sample in samples if sample.value}


def _by_reason(plane: DataPlaneHarness, name: str) -> dict[str, int]:
    samples = plane.metrics().of(name)
    return {sample.labels["reason"]: int(sample.value) for sample in samples if sample.value}
