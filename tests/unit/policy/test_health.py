"""Health checks and outlier detection in the policy, and as the data plane is handed them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.policies import loaded, problems, with_service

from attnroute.policy.compile import compile_policy
from attnroute.policy.health import (
    GrpcHealth,
    Health,
    LatencyOutlier,
    OutlierDetection,
    SuccessRate,
    health_json,
    outlier_json,
)

ROOT = Path(__file__).parents[3]


def service(rest: str) -> dict[str, Any]:
    config = json.loads(compile_policy(loaded(with_service(rest))))
    compiled: dict[str, Any] = config["services"][0]
    return compiled


def rust_defaults(struct: str) -> dict[str, float | None]:
    source = (ROOT / "crates/dataplane/src/config/health.rs").read_text()
    match = re.search(rf"impl Default for {struct} \{{.*?Self \{{(.*?)\}}", source, re.DOTALL)
    assert match is not None
    fields = re.findall(r"(\w+): ([0-9_.]+|None),", match[1])
    return {name: None if value == "None" else float(value) for name, value in fields}


def test_it_is_off_unless_it_is_written() -> None:
    compiled = service("limits: {}")
    assert compiled["outlier_detection"] is None
    assert compiled["grpc_health"] is None
    assert compiled["panic_threshold"] == 0.5


def test_defaults_are_those_of_the_data_plane() -> None:
    assert outlier_json(OutlierDetection()) == rust_defaults("OutlierConfig")
    checks = health_json(Health(grpc=GrpcHealth()))
    assert checks == {**rust_defaults("GrpcHealthConfig"), "service": ""}
    assert SuccessRate().model_dump() == rust_defaults("SuccessRateConfig")
    assert LatencyOutlier().model_dump() == rust_defaults("LatencyOutlierConfig")


def test_durations_become_milliseconds_and_shares_fractions() -> None:
    compiled = service(
        "panic_threshold: 0%, outlier_detection: {consecutive_errors: 0, interval: 1s, "
        "base_ejection: 2s, max_ejection: 1m, max_ejected: 34%, latency: {factor: 3}, "
        "success_rate: {min_calls: 7}}"
    )
    assert compiled["panic_threshold"] == 0
    assert compiled["outlier_detection"] == {
        "consecutive_errors": 0,
        "interval_ms": 1_000,
        "base_ejection_ms": 2_000,
        "max_ejection_ms": 60_000,
        "max_ejected": 0.34,
        "latency": {"factor": 3.0, "min_endpoints": 3, "min_calls": 20},
        "success_rate": {"stdev_factor": 1.9, "min_endpoints": 5, "min_calls": 7},
    }


def test_health_checks_are_handed_down_in_milliseconds() -> None:
    compiled = service(
        "health: {grpc: {interval: 1s, timeout: 1.5s, unhealthy_after: 2, healthy_after: 4, "
        "service: shop.Cart, max_checks: 7}}"
    )
    assert compiled["grpc_health"] == {
        "interval_ms": 1_000,
        "timeout_ms": 1_500,
        "unhealthy_after": 2,
        "healthy_after": 4,
        "service": "shop.Cart",
        "max_checks": 7,
    }


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("health: {}", "4:17: `health` in `services.cart` lacks the key `grpc`"),
        (
            "health: {grpc: {interval: 10ms}}",
            (
                "4:35: `interval` in `services.cart.health.grpc`: found `10ms`, expected a "
                "duration from `100ms` to `24h`"
            ),
        ),
        (
            f"health: {{grpc: {{service: {'a' * 1025}}}}}",
            (
                f"4:34: `service` in `services.cart.health.grpc`: found `{'a' * 60}...`, expected "
                "the name of a service, at most 1024 bytes"
            ),
        ),
        (
            "outlier_detection: {max_ejected: 120%}",
            (
                "4:42: `max_ejected` in `services.cart.outlier_detection`: found `120%`, expected "
                "a share from `0%` to `100%`, or from 0 to 1"
            ),
        ),
        (
            "outlier_detection: {latency: {factor: 1}}",
            (
                "4:47: `factor` in `services.cart.outlier_detection.latency`: found `1`, expected "
                "a number from 1.01 to 1e+06"
            ),
        ),
        (
            "outlier_detection: {base_ejection: 10m}",
            (
                "4:44: `base_ejection` in `services.cart.outlier_detection`: `10m` exceeds "
                "`max_ejection`, `5m` (default); change one"
            ),
        ),
    ],
)
def test_mistakes_have_their_place(rest: str, message: str) -> None:
    assert problems(with_service(rest)) == [message]
