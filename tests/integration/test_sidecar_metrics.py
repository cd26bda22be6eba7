"""Metrics of a real sidecar, read by the official parser, promtool and a real Prometheus."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.support.models import write_small
from tests.support.prometheus import PROMTOOL, prometheus
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary

Start = Callable[..., Sidecar]

CALLS = 20
DOC = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def with_traffic(start_sidecar: Start, address: str, models: Path) -> Sidecar:
    """A sidecar that has seen good calls, a refused one, no load report, a failed reload, a bundle
    that serves, one that was overtaken and one in its shadow, and a channel that cannot be read.
    models: a directory of its own."""
    write_small(models, "1.0.0")
    extra = (
        "    load_reports: {out_of_band: {interval: 1s}}\n"
        "    request_class: {}\n"
        "    balancer: {type: learned}\n"
        "fleet: {trainer: '127.0.0.1:1'}\n"  # nobody listens on that port
        f"model: {{directory: {models}/default, rollout: {{min_interval: 0s, steps: 1000}}}}\n"
    )
    policy = minimal_policy(
        address,
        extra=extra,
        listeners="  - {mode: inbound, address: 127.0.0.1:0, target: 127.0.0.1:9, "
        "max_concurrency: 4}\n",
    )
    sidecar = start_sidecar(policy)
    # The peer does not serve it, so every family of it has a series.
    sidecar.until(lambda: sidecar.metric("attnroute_out_of_band_failures_total"), "a refusal")
    sidecar.until(lambda: sidecar.metric("attnroute_fleet_failures_total"), "another one")
    sidecar.until(lambda: sidecar.metric("attnroute_scores_published_total"), "scores")
    with sync_channel(sidecar.address) as channel:
        for _ in range(CALLS):
            unary(channel)
    with (
        sync_channel(sidecar.address, authority="nowhere") as channel,
        pytest.raises(grpc.RpcError),
    ):
        unary(channel)
    sidecar.until(lambda: sidecar.metric("attnroute_scorer_runs_total", stage="serving"), "runs")
    write_small(models, "1.1.0")
    sidecar.until(lambda: sidecar.metric("attnroute_model_info", version="1.1.0"), "a shadow")
    write_small(models, "1.2.0")
    sidecar.until(lambda: sidecar.metric("attnroute_model_ends_total"), "the end of a bundle")
    pointer = models / "default" / "channels" / "stable.json"
    pointer.parent.mkdir()
    pointer.write_text("not JSON")
    sidecar.until(lambda: sidecar.metric("attnroute_registry_failures_total"), "a failure")
    sidecar.write_policy(policy + "oddity: 1\n")
    sidecar.until(lambda: sidecar.metric("attnroute_policy_rejected") == 1, "the failed reload")
    return sidecar


def test_the_page_is_one_valid_exposition(start_sidecar: Start, tmp_path: Path) -> None:
    with sync_peer() as peer:
        sidecar = with_traffic(start_sidecar, peer.address, tmp_path)
        answer = sidecar.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
        families = sidecar.metrics()
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    twice = [
        name for name, count in Counter(family.name for family in families).items() if count > 1
    ]
    assert twice == []
    assert [family.name for family in families if family.type == "unknown"] == []
    assert [family.name for family in families if not family.documentation] == []
    samples = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families
        for sample in family.samples
    ]
    assert [sample for sample, count in Counter(samples).items() if count > 1] == []
    assert [name for name, _labels in samples if name.endswith("_created")] == []
    # Both halves of the page are there.
    names = {family.name for family in families}
    assert names >= {
        "attnroute_requests",
        "attnroute_request_duration_seconds",
        "attnroute_picks",
        "attnroute_endpoint_inflight",
        "attnroute_limit_hits",
        "attnroute_tick_duration_seconds",
        "attnroute_policy_info",
        "process_resident_memory_bytes",
    }


def test_nothing_has_labels_of_method_and_endpoint_at_once(
    start_sidecar: Start, tmp_path: Path
) -> None:
    with sync_peer() as peer:
        sidecar = with_traffic(start_sidecar, peer.address, tmp_path)
        for family in sidecar.metrics():
            for sample in family.samples:
                assert len({"method", "request_class", "endpoint"} & set(sample.labels)) <= 1


def test_docs_list_every_family_with_its_type_and_labels(
    start_sidecar: Start, tmp_path: Path
) -> None:
    rows = re.findall(
        r"^\| `(attnroute_\w+)` \| (\w+) \| ([\w, ]*)\|", DOC.read_text(), flags=re.MULTILINE
    )
    documented = {
        name: (kind, frozenset(labels.strip().split(", "))) for name, kind, labels in rows
    }
    documented = {name: (kind, labels - {""}) for name, (kind, labels) in documented.items()}
    with sync_peer() as peer:
        page = with_traffic(start_sidecar, peer.address, tmp_path).get("/metrics").body.decode()
    served = {
        name: (kind, labels_of(page, name))
        for name, kind in re.findall(r"^# TYPE (attnroute_\w+) (\w+)$", page, flags=re.MULTILINE)
    }
    assert documented == served


def labels_of(page: str, family: str) -> frozenset[str]:
    """Label names of a family's samples, without a histogram's own."""
    samples = re.findall(rf"^{family}(?:_bucket)?(?:{{(.*)}})? ", page, flags=re.MULTILINE)
    names = {name for labels in samples for name in re.findall(r'(\w+)="', labels)}
    return frozenset(names - {"le"})


def test_promtool_finds_nothing_to_complain_about(start_sidecar: Start, tmp_path: Path) -> None:
    assert PROMTOOL.exists(), "run `scripts/fetch-debs prometheus`"
    with sync_peer() as peer:
        page = with_traffic(start_sidecar, peer.address, tmp_path).get("/metrics").body
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=page, capture_output=True, check=False, timeout=60
    )
    assert (checked.stdout + checked.stderr).decode() == ""
    assert checked.returncode == 0


def test_a_real_prometheus_scrapes_it(start_sidecar: Start, tmp_path: Path) -> None:
    with sync_peer() as peer:
        sidecar = with_traffic(start_sidecar, peer.address, tmp_path)
        with prometheus(tmp_path, sidecar.http) as server:
            sidecar.until(lambda: server.value("up") == 1, "a scrape")
            assert server.target()["lastError"] == ""
            ok = 'attnroute_requests_total{service="cart",grpc_status="OK"}'
            assert server.value(ok) == CALLS
            assert server.value('attnroute_picks_total{service="cart"}') == CALLS
            count = 'attnroute_request_duration_seconds_count{service="cart"}'
            assert server.value(count) == CALLS
            buckets = 'attnroute_request_duration_seconds_bucket{service="cart"}'
            quantile = f"histogram_quantile(0.5, {buckets})"
            assert 0 < server.value(quantile) < 60
            assert server.value('attnroute_policy_reloads_total{result="rejected"}') == 1

            with sync_channel(sidecar.address) as channel:
                unary(channel)
            sidecar.until(lambda: server.value(ok) == CALLS + 1, "the next scrape")
            # Not one of the scrapes failed meanwhile.
            assert server.value("min_over_time(up[1m])") == 1
