"""The policy as the data plane takes it: the JSON of `crates/dataplane/src/config.rs`.

Every key there has its unit in its name, so this is where durations become milliseconds. The schema
admits only whole steps of those units, so nothing is rounded. What stays in Python (`admin`,
`drain`, `endpoints`) is left out.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from attnroute.policy.balancers import balancer_json
from attnroute.policy.health import health_json, outlier_json
from attnroute.policy.listeners import listener_json
from attnroute.policy.load import LoadedPolicy
from attnroute.policy.load_reports import load_reports_json
from attnroute.policy.outward import connection_json, limits_json, waiting_json
from attnroute.policy.request_class import request_class_json
from attnroute.policy.resilience import hedge_json, retry_json
from attnroute.policy.schema import Route, Service

__all__ = ["CONFIG_VERSION", "compile_policy"]

CONFIG_VERSION = 1
"""Must equal the data plane's: both ship in one package."""


def compile_policy(loaded: LoadedPolicy) -> bytes:
    """JSON for `DataPlane(config)` and `DataPlane.apply_policy`. The same policy at the same
    places gives the same bytes."""
    policy = loaded.policy
    config = {
        "version": CONFIG_VERSION,
        "threads": policy.data_plane.threads,
        "busy_poll_us": policy.data_plane.busy_poll // timedelta(microseconds=1),
        "listeners": [
            listener_json(listener, _source(loaded, index))
            for index, listener in enumerate(policy.listeners)
        ],
        "services": [
            _service(name, service, policy.fleet.sidecars)
            for name, service in policy.services.items()
        ],
        "limits": policy.limits.model_dump(),
        "timeouts": {
            "handshake_ms": _ms(policy.timeouts.handshake),
            "header_block_ms": _ms(policy.timeouts.header_block),
            "stalled_stream_ms": _ms(policy.timeouts.stalled_stream),
        },
        "picks": {"sample": policy.picks.sample, "keep": policy.picks.keep},
        "tracing": {"sample": 0.0 if policy.tracing is None else policy.tracing.sample},
        "access_log": None
        if policy.access_log is None
        else {
            "sample": policy.access_log.sample,
            "output": policy.access_log.target(loaded.resolve),
        },
    }
    return json.dumps(config, separators=(",", ":"), allow_nan=False).encode()


def _source(loaded: LoadedPolicy, index: int) -> str:
    """Where the address of a listener is written, for the message of a busy port."""
    line, column = loaded.position(("listeners", index, "address"))
    return f"{loaded.path}:{line}:{column}"


def _service(name: str, service: Service, sidecars: int) -> dict[str, Any]:
    return {
        "name": name,
        "authorities": list(service.authorities),
        "balancer": balancer_json(service.balancer),
        # The label is read before a set reaches the data plane.
        "locality": _locality(service),
        "outlier_detection": outlier_json(service.outlier_detection),
        "grpc_health": health_json(service.health),
        "panic_threshold": service.panic_threshold,
        "slow_start": {
            "window_ms": _ms(service.slow_start.window),
            "aggression": service.slow_start.aggression,
        },
        "sidecars": sidecars,
        "request_class": request_class_json(service.request_class),
        "concurrency": service.concurrency,
        "load_reports": load_reports_json(service.load_reports),
        "strip_load_reports": service.strip_load_reports,
        "limits": limits_json(service.limits),
        "connection": connection_json(service.connection),
        "waiting": waiting_json(service.waiting),
        "routes": [_route(route) for route in service.routes],
    }


def _locality(service: Service) -> dict[str, Any] | None:
    """The preference for a zone, where there is one."""
    locality = service.locality
    if locality is None:
        return None
    default = service.balancer.type != "learned"
    preferred = default if locality.prefer is None else locality.prefer
    return locality.model_dump(include={"own_zone", "min_healthy"}) if preferred else None


def _route(route: Route) -> dict[str, Any]:
    return {
        "match": route.match.model_dump(exclude_none=True),
        "timeout_ms": None if route.timeout is None else _ms(route.timeout),
        "wait_for_ready": route.wait_for_ready,
        "rules": route.rules.model_dump(),
        "idempotent": route.idempotent,
        "retry": retry_json(route.retry),
        "hedge": hedge_json(route.hedge),
    }


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
