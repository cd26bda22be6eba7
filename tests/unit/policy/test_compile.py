"""What the data plane is handed."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.dataplane import endpoint_set
from tests.support.policies import MINIMAL, loaded, with_service
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from attnroute.dataplane import DataPlane, Picker
from attnroute.policy.balancers import BALANCER_NAMES
from attnroute.policy.compile import CONFIG_VERSION, compile_policy
from attnroute.policy.load import load_policy
from attnroute.policy.load_reports import Fleet
from attnroute.policy.outward import (
    Connection,
    ServiceLimits,
    Waiting,
    connection_json,
    limits_json,
    waiting_json,
)
from attnroute.policy.schema import Limits, Timeouts

ROOT = Path(__file__).parents[3]
NO_RULES: dict[str, Any] = {"pin": [], "sticky": None, "max_share": None, "explore": 0.0}

ONCE: dict[str, Any] = {"idempotent": False, "retry": None, "hedge": None}
NO_ROUTE: dict[str, Any] = {"wait_for_ready": None, "rules": NO_RULES} | ONCE


def compiled(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(compile_policy(loaded(text)))
    return document


def test_smallest_policy() -> None:
    config = compiled(MINIMAL)
    assert config["version"] == CONFIG_VERSION
    assert config["listeners"] == [
        {
            "name": "explicit-0",
            "mode": "explicit",
            "address": "127.0.0.1:15001",
            "service": None,
            "inbound": None,
            "source": "policy.yaml:2:31",
        }
    ]
    (service,) = config["services"]
    assert service["name"] == "checkout"
    assert service["authorities"] == ["checkout", "checkout:*"]
    assert service["balancer"] == {
        "type": "least_request",
        "choice_count": "all",
        "with_replacement": False,
    }
    assert service["routes"] == []


def test_durations_become_milliseconds_and_sizes_bytes() -> None:
    config = compiled(
        MINIMAL
        + """\
    connection: {connect_timeout: 1m30s, backoff_base: 0.25s, backoff_max: 1h, max_streams: 7}
    routes:
      - {match: {path: /a/b}, timeout: 1.5s}
      - {match: {path_prefix: /a/}}
data_plane: {threads: 2, busy_poll: 50us}
limits:
  max_header_list_bytes: 128KiB
  stream_window_bytes: 1.5MiB
  resets: {share: 50%, burst: 7}
  control_frames: {per_second: 0}
timeouts: {handshake: 3s, header_block: 0, stalled_stream: 1m}
"""
    )
    assert (config["threads"], config["busy_poll_us"]) == (2, 50)
    assert config["limits"]["max_header_list_bytes"] == 128 << 10
    assert config["limits"]["stream_window_bytes"] == 3 << 19
    assert config["limits"]["resets"] == {"share": 0.5, "per_second": 1_000, "burst": 7}
    assert config["limits"]["control_frames"] == {"per_second": 0, "burst": 10_000}
    assert config["timeouts"] == {
        "handshake_ms": 3_000,
        "header_block_ms": 0,
        "stalled_stream_ms": 60_000,
    }
    (service,) = config["services"]
    expected = {
        "connect_timeout_ms": 90_000,
        "backoff_base_ms": 250,
        "backoff_max_ms": 3_600_000,
        "max_streams": 7,
    }
    assert service["connection"] == connection_json(Connection()) | expected
    assert service["routes"] == [
        {"match": {"path": "/a/b"}, "timeout_ms": 1_500} | NO_ROUTE,
        {"match": {"path_prefix": "/a/"}, "timeout_ms": None} | NO_ROUTE,
    ]


def test_balancers_in_the_form_of_the_data_plane() -> None:
    def balancer(text: str) -> object:
        return compiled(with_service(f"balancer: {text}"))["services"][0]["balancer"]

    assert balancer("{type: round_robin}") == {"type": "round_robin"}
    assert balancer("{type: least_request, choice_count: 3, with_replacement: true}") == {
        "type": "least_request",
        "choice_count": {"draws": 3},
        "with_replacement": True,
    }


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_defaults_of_balancers_are_the_data_planes(name: str) -> None:
    """What the schema sends when nothing is set, against what the data plane would take."""
    service = compiled(with_service(f"balancer: {{type: {name}}}"))["services"][0]
    struct = "".join(part.capitalize() for part in name.split("_")) + "Config"
    folder = ROOT / "crates/dataplane/src/config"
    source = "".join((folder / f"{name}.rs").read_text() for name in ("balancer", "learned"))
    match = re.search(
        rf"impl Default for {struct} \{{.*?Self \{{(.*?)\n? *\}}\n", source, re.DOTALL
    )
    sent = {key: value for key, value in service["balancer"].items() if key != "type"}
    if match is None:
        assert name in {"round_robin", "least_request", "random"}
        return
    words: dict[str, object] = {
        "None": None,
        "Vec::new()": [],
        "ProbeSource::Reports": "reports",
        "Selection::Live": "live",
        "true": True,
        "false": False,
        "Box::default()": {
            "type": "least_request",
            "choice_count": "all",
            "with_replacement": False,
        },
    }
    defaults = {
        key: words[value] if value in words else float(value.replace("_", ""))
        for key, value in re.findall(r"(\w+): ([^,}]+?),? *(?:\n|$)", match[1])
    }
    assert sent == defaults


def test_settings_of_balancers_and_of_slow_start() -> None:
    balancer = (
        "balancer: {type: weighted_round_robin, blackout: 0, expiration: 1m, update: 500ms, "
        "error_utilization_penalty: 2, metric_names: [named_metrics.fill]}"
    )
    slow_start = "slow_start: {window: 30s, aggression: 1.5}"
    service = compiled(with_service(f"{balancer}, {slow_start}"))["services"][0]
    assert service["balancer"] == {
        "type": "weighted_round_robin",
        "blackout_ms": 0,
        "expiration_ms": 60_000,
        "update_ms": 500,
        "error_utilization_penalty": 2,
        "metric_names": ["named_metrics.fill"],
    }
    assert service["slow_start"] == {"window_ms": 30_000, "aggression": 1.5}


def test_load_reports_and_the_fleet() -> None:
    (service,) = compiled(MINIMAL)["services"]
    assert service["sidecars"] == Fleet().sidecars
    assert service["load_reports"] == {"names": {}}
    assert service["strip_load_reports"] is False
    settings = (
        "strip_load_reports: true, load_reports: {out_of_band: {interval: 5s}, names: "
        "{attnroute.inflight: named_metrics.queue_length, attnroute.queue: cpu_utilization}}"
    )
    (service,) = compiled(with_service(settings) + "fleet: {sidecars: 7}\n")["services"]
    assert service["sidecars"] == 7
    # What is asked between calls is asked by Python.
    assert service["load_reports"] == {
        "names": {
            "attnroute.inflight": "named_metrics.queue_length",
            "attnroute.queue": "cpu_utilization",
        }
    }
    assert service["strip_load_reports"] is True


@pytest.mark.parametrize(("sidecars", "chosen"), [(1, 1), (10, 0)])
def test_c3_counts_the_sidecars_of_the_fleet(sidecars: int, chosen: int) -> None:
    """One call of ours in flight at endpoint 1, three calls reported by endpoint 0: q = 1 + M o +
    q_reported is 4 to 2 for one sidecar, 4 to 11 for ten."""
    text = with_service("balancer: {type: c3}") + f"fleet: {{sidecars: {sidecars}}}\n"
    (service,) = compiled(text)["services"]
    picker = Picker(json.dumps(service).encode(), 1)
    picker.apply_endpoints(endpoint_set(["10.0.0.1:1", "10.0.0.2:1"]))
    now_ns, latency_ns = 1_000_000_000, 20_000_000
    picked = {picker.pick(now_ns)[0] for _ in range(2)}
    assert picked == {0, 1}
    for index, calls in ((0, 3.0), (1, 0.0)):
        report = OrcaLoadReport(named_metrics={"attnroute.inflight": calls})
        picker.finished(index, now_ns, latency_ns, 0, report.SerializeToString())
    assert picker.pick(now_ns)[0] == 1
    assert picker.pick(now_ns)[0] == chosen


@pytest.mark.parametrize(
    ("balancer", "prefer", "preferred"),
    [
        ("least_request", "", True),
        ("learned", "", False),
        ("least_request", ", prefer: false", False),
        ("learned", ", prefer: true", True),
    ],
)
def test_the_own_zone_is_preferred_but_not_by_costs_that_know_the_way(
    balancer: str, prefer: str, *, preferred: bool
) -> None:
    service = compiled(
        with_service(f"balancer: {{type: {balancer}}}, locality: {{own_zone: a{prefer}}}")
    )["services"][0]
    assert service["locality"] == ({"own_zone": "a", "min_healthy": 0.7} if preferred else None)


def test_rules_and_zones_in_the_form_of_the_data_plane() -> None:
    service = compiled(
        with_service(
            "locality: {own_zone: a}, routes: [{match: {path: /a}, rules: {pin: ['10.0.0.1:1'], "
            "sticky: {header: x-user}, max_share: 50%, explore: 1%}}]"
        )
    )["services"][0]
    assert service["locality"] == {"own_zone": "a", "min_healthy": 0.7}
    assert service["routes"][0]["rules"] == {
        "pin": ["10.0.0.1:1"],
        "sticky": {"header": "x-user"},
        "max_share": 0.5,
        "explore": 0.01,
    }


def test_same_policy_gives_the_same_bytes() -> None:
    assert compile_policy(loaded(MINIMAL)) == compile_policy(loaded(MINIMAL))


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml", "file-endpoints.yaml"])
def test_data_plane_accepts_the_examples(name: str) -> None:
    DataPlane(compile_policy(load_policy(ROOT / "configs" / name)), 1)


def rust_defaults(struct: str, file: str = "config.rs") -> dict[str, float | None]:
    """The fields of `impl Default for <struct>` in a file of the data plane's configuration."""
    source = (ROOT / "crates/dataplane/src" / file).read_text()
    match = re.search(rf"impl Default for {struct} \{{.*?Self \{{(.*?)\}}", source, re.DOTALL)
    assert match is not None, f"{file} has no defaults of {struct}"
    values: dict[str, float | None] = dict.fromkeys(re.findall(r"(\w+): None", match[1]))
    for name, product in re.findall(r"(\w+): ([0-9_. *]+)", match[1]):
        value = 1.0
        for factor in product.split("*"):
            value *= float(factor)
        values[name] = value
    assert values
    return values


def milliseconds(model: Timeouts) -> dict[str, int]:
    return {f"{name}_ms": value // timedelta(milliseconds=1) for name, value in model}


def test_defaults_are_those_of_the_data_plane() -> None:
    outward = "config/outward.rs"
    nested = {"resets", "control_frames"}
    assert Limits().model_dump(exclude=nested) == rust_defaults("Limits")
    assert Limits().resets.model_dump() == rust_defaults("ResetLimit")
    assert Limits().control_frames.model_dump() == rust_defaults("RateLimit")
    assert limits_json(ServiceLimits()) == rust_defaults("ServiceLimits", outward)
    keepalive = {"keepalive": rust_defaults("KeepaliveConfig", outward)}
    assert connection_json(Connection()) == rust_defaults("ConnectionConfig", outward) | keepalive
    words = {"when_full": "fail", "for_ready": False}
    assert waiting_json(Waiting()) == rust_defaults("WaitingConfig", outward) | words
    assert milliseconds(Timeouts()) == rust_defaults("Timeouts")


def test_retries_and_hedges_in_the_form_of_the_data_plane() -> None:
    text = (
        "routes: [{match: {path: /a}, idempotent: true, retry: {}}, "
        "{match: {path: /b}, idempotent: true, retry: {max_attempts: 3, on: [ABORTED, INTERNAL], "
        "budget: {share: 5%, window: 1m, floor: 0}, backoff: 1s, max_backoff: 2s, "
        "per_try_timeout: 50ms}}, "
        "{match: {path: /c}, idempotent: true, hedge: {at: p99.5}}, "
        "{match: {path: /d}, idempotent: true, hedge: {at: 50ms, max_share: 1, max_attempts: 3}}]"
    )
    routes = compiled(with_service(text))["services"][0]["routes"]
    assert [route["retry"] for route in routes] == [
        {
            "max_attempts": 2,
            "on": ["UNAVAILABLE"],
            "budget": {"share": 0.2, "window_ms": 10_000, "floor": 3},
            "backoff_ms": 25,
            "max_backoff_ms": 250,
            "per_try_timeout_ms": None,
        },
        {
            "max_attempts": 3,
            "on": ["ABORTED", "INTERNAL"],
            "budget": {"share": 0.05, "window_ms": 60_000, "floor": 0},
            "backoff_ms": 1_000,
            "max_backoff_ms": 2_000,
            "per_try_timeout_ms": 50,
        },
        None,
        None,
    ]
    assert [route["hedge"] for route in routes] == [
        None,
        None,
        {"at": {"quantile": 0.995}, "max_share": 0.05, "max_attempts": 2},
        {"at": {"after_ms": 50}, "max_share": 1.0, "max_attempts": 3},
    ]
    DataPlane(compile_policy(loaded(with_service(text))), 1)


def test_defaults_of_retries_are_the_data_planes() -> None:
    source = (ROOT / "crates/dataplane/src/config/resilience.rs").read_text()
    text = with_service("routes: [{match: {path: /a}, idempotent: true, retry: {}}]")
    retry = compiled(text)["services"][0]["routes"][0]["retry"]
    for key in ("max_attempts", "backoff_ms", "max_backoff_ms"):
        assert f"            {key}: {retry[key]},\n" in source
    budget = retry["budget"]
    for key, value in budget.items():
        assert f"            {key}: {value:_},\n" in source
