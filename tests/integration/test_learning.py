"""A sidecar's learning side on real calls: the page for training, and the exchange with others."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.support.prometheus import PROMTOOL
from tests.support.sidecar import Sidecar, http_get, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.trainer import MINIMAL, trainer_process
from tests.support.wait import patience_s

CALLS = 20


def policy(address: str, trainer: str = "", extra: str = "") -> str:
    fleet = f"fleet: {{trainer: '{trainer}'}}\n" if trainer else ""
    return minimal_policy(address, extra=f"    request_class: {{}}\n{fleet}{extra}")


def call(sidecar: Sidecar, count: int = CALLS) -> None:
    with sync_channel(sidecar.address) as channel:
        for _ in range(count):
            unary(channel)


def training(sidecar: Sidecar, name: str) -> float:
    """Sum of the samples of that name on the page for training."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(sidecar.get("/metrics/training").body.decode())
        for sample in family.samples
        if sample.name == f"attnroute_{name}"
    )


def counted(*sidecars: Sidecar) -> bool:
    """Whether the trainer counts them all: each has called within its last three seconds, however
    slow the machine is."""
    for sidecar in sidecars:
        call(sidecar, 1)
    return all(
        sidecar.metric("attnroute_fleet_connected") == 1
        and sidecar.metric("attnroute_fleet_sidecars") == len(sidecars)
        for sidecar in sidecars
    )


def scraped(trainer: str, sidecars: int) -> bool:
    page = http_get(trainer, "/metrics").body.decode()
    return f"attnroute_trainer_source_sidecars {sidecars}.0" in page


def test_calls_stand_on_the_page_for_training(tmp_path: Path) -> None:
    with sync_peer() as peer, Sidecar(tmp_path, policy(peer.address)) as sidecar:
        call(sidecar)
        count = "training_latency_seconds_count"
        sidecar.until(lambda: training(sidecar, count) == CALLS, "the window")
        assert training(sidecar, "training_class_latency_seconds_count") == CALLS
        assert 0 < training(sidecar, "training_latency_seconds_sum") < CALLS * patience_s()
        assert training(sidecar, "training_errors_total") == 0
        assert training(sidecar, "endpoint_info") == 1
        answer = sidecar.get("/metrics/training")
        assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=answer.body, capture_output=True, check=False,
            timeout=patience_s(),
        )  # fmt: skip
        assert checked.returncode == 0, checked.stdout + checked.stderr
        # A reload that takes the classes away takes their series, too.
        sidecar.write_policy(minimal_policy(peer.address))
        sidecar.until(lambda: training(sidecar, count) == 0, "the reload")
        assert "attnroute_window_failures_total{" not in sidecar.get("/metrics").body.decode()


def test_learned_balances_by_what_is_published(tmp_path: Path) -> None:
    with sync_peer() as one, sync_peer() as two:
        text = minimal_policy(one.address, two.address, extra="    balancer: {type: learned}\n")
        with Sidecar(tmp_path, text) as sidecar:
            call(sidecar)
            published = partial(sidecar.metric, "attnroute_scores_published_total")
            before = published()
            sidecar.until(lambda: published() > before + 1, "the scores after the calls")
            call(sidecar)
            by_fallback = sidecar.metric("attnroute_picks_total", reason="fallback_expired")
            assert by_fallback == 0
            assert sidecar.metric("attnroute_picks_total") == 2 * CALLS
            assert sidecar.metric("attnroute_scores_failures_total", reason="error") == 0
            assert sidecar.metric("attnroute_window_failures_total") == 0
            assert training(sidecar, "training_latency_seconds_count") >= CALLS


def test_sidecars_learn_from_each_other_and_outlive_their_trainer(tmp_path: Path) -> None:
    one_place, two_place = tmp_path / "one", tmp_path / "two"
    for place in (one_place, two_place):
        place.mkdir()
    # A socket of the test's own can be bound again, which a port that others may take cannot.
    trainer = f"unix:{tmp_path}/t"
    served = MINIMAL.replace("127.0.0.1:0", trainer, 1)
    served += "source: {scrape: {interval: 200ms, timeout: 4s}}\n"
    with (
        sync_peer() as peer,
        Sidecar(one_place, policy(peer.address, trainer)) as one,
        Sidecar(two_place, policy(peer.address, trainer)) as two,
    ):
        for _ in range(2):  # the second time after it was killed
            with trainer_process(tmp_path, served) as (_, ports):
                one.until(partial(counted, one, two), "both sidecars")
                page = http_get(ports["http"], "/metrics").body.decode()
                assert 'attnroute_trainer_fleet_sidecars{service="cart"}' in page
                # It finds the sidecars' pages by itself.
                one.until(partial(scraped, ports["http"], 2), "scrapes")
            one.until(lambda: one.metric("attnroute_fleet_connected") == 0, "its loss")
            call(one, 1)
        assert one.metric("attnroute_window_failures_total") == 0
