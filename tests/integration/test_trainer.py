"""The trainer as a process, and its two sources beside each other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_server import HttpPeer, http_peer, page
from tests.support.prometheus import PROMTOOL, prometheus
from tests.support.sidecar import http_get
from tests.support.trainer import MINIMAL, trainer_process
from tests.support.wait import patience_s, until
from tests.support.windows import attributed, service_window

from attnroute.clock import SystemClock
from attnroute.features.view import SharedTable
from attnroute.features.window import BUCKETS
from attnroute.fleet.client import FleetClient, Identity
from attnroute.policy.trainer import load_trainer
from attnroute.telemetry.increases import Increases
from attnroute.telemetry.training import EndpointLabels, TrainingPage
from attnroute.trainer import Trainer

A, B = "10.0.0.1:1", "10.0.0.2:1"
GET, PUT = "/cart/Get;bytes=..1024", '/cart/Put;bytes=unknown;x-tier="gold"'
CLOCK = SystemClock()


class Silent:
    """Counts nothing."""

    def fleet_connected(self, service: str, *, connected: bool) -> None: ...
    def fleet_updated(self, service: str, sidecars: int) -> None: ...
    def fleet_failed(self, service: str, reason: str) -> None: ...
    def fleet_gone(self, service: str) -> None: ...


def test_it_serves_ends_and_says_so(tmp_path: Path) -> None:
    with trainer_process(tmp_path, MINIMAL) as (process, ports):
        assert http_get(ports["http"], "/readyz").json()["ready"] is True
        assert http_get(ports["http"], "/healthz").status == 200
        assert b"attnroute trainer" in http_get(ports["http"], "/").body

        async def exchange() -> None:
            tables = [SharedTable(sidecars=4, decay_s=10.0, now_s=CLOCK.now_s()) for _ in range(2)]
            clients = [
                FleetClient(ports["fleet"], Identity(bytes([n]) * 16, "0"), CLOCK, Silent())
                for n in range(2)
            ]
            window = service_window({(GET, A): (100, 1.0)})
            for client, table in zip(clients, tables, strict=True):
                client.replace({"cart": table}, {})
            tables[0].observe(window, attributed(window), CLOCK.now_s())
            clients[0].announce("cart")
            await until(lambda: tables[1].ledger.classes == [GET], "the other's window")
            for client in clients:
                await client.close()

        asyncio.run(exchange())
        text = http_get(ports["http"], "/metrics").body.decode()
        values = {
            (sample.name, sample.labels.get("service", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert values["attnroute_trainer_fleet_windows_total", "cart"] == 1
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True,
            check=False, timeout=patience_s(),
        )  # fmt: skip
        assert checked.returncode == 0, checked.stdout + checked.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience_s()) == 0


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("sorce: {}\n", 2, "did you mean `source`?"),
        (
            MINIMAL + "source: {prometheus: {url: 'https://p', tls: {ca_file: none.pem}}}\n",
            1,
            "cannot be used",
        ),
    ],
)
def test_it_does_not_start_with_what_it_cannot_use(
    tmp_path: Path, text: str, code: int, words: str
) -> None:
    file = tmp_path / "trainer.yaml"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "attnroute", "trainer", "--config", str(file)],
        capture_output=True, text=True, check=False, timeout=patience_s() * 2,
    )  # fmt: skip
    assert done.returncode == code
    assert words in done.stderr


# Both sources beside each other.


class Sidecar:
    """A page for training that a test fills, served over HTTP."""

    def __init__(self, peer: HttpPeer) -> None:
        self.peer = peer
        self.restart("first")

    def restart(self, name: str) -> None:
        self.page = TrainingPage(sidecar_id=name, zone="eu-1a", version="0.1.0")

    def window(self, calls: Mapping[tuple[str, str], int]) -> None:
        cells = {at: (float(count), count * 0.0123) for at, count in calls.items()}
        window = service_window(cells, rtt_s={A: 0.001}, concurrency={B: 4.0})
        buckets = np.zeros((len(cells), BUCKETS), dtype=np.uint32)
        buckets[:, 11] = window.cells.calls.astype(np.uint32)
        window = replace(window, buckets=buckets, errors=window.cells.calls * 2)
        labels = [EndpointLabels("eu-1a", "rack=7")] * len(window.endpoints)
        self.page.add("cart", window, np.full(len(window.endpoints), 0.25), labels)
        self.show()

    def show(self) -> None:
        self.peer.answer = page(self.page.render(), Content_Type="text/plain; version=0.0.4")


def total(kept: list[Increases]) -> dict[Any, Any]:
    """Everything that went up, with the last word on gauges."""
    sums: dict[Any, Any] = {}
    for one in kept:
        for part in (one.cells, one.buckets, one.inflight_s):
            for at, value in part.items():
                sums[at] = sums.get(at, 0.0) + value
        for name, gauge in (("rtt", one.rtt_s), ("c", one.concurrency), ("info", one.info)):
            sums.update({(name, at): value for at, value in gauge.items()})
    return sums


def same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return one.keys() == other.keys() and all(
        (one[at] == other[at]) if isinstance(one[at], tuple) else np.allclose(one[at], other[at])
        for at in one
    )


async def test_both_sources_give_the_same_sums(tmp_path: Path) -> None:
    """Through a restart, an outage, labels that clash with the target's, and two copies."""
    async with http_peer(page(b"")) as peer:
        sidecar = Sidecar(peer)
        sidecar.window({(GET, A): 5, (PUT, B): 7})
        labels = [
            {"service": "web", "endpoint": "http", "replica": "a"},
            {"service": "web", "endpoint": "http", "replica": "b"},
        ]
        path = "/metrics/training"
        with prometheus(tmp_path, peer.address, path=path, labels=labels) as server:
            direct: list[Increases] = []
            stored: list[Increases] = []
            sources = {
                "scrape": (f"{{sidecars: ['{peer.address}']}}", direct),
                "prometheus": (f"{{url: 'http://{server.address}'}}", stored),
            }
            trainers = {}
            for name, (settings, _) in sources.items():
                file = tmp_path / f"{name}.yaml"
                file.write_text(f"{MINIMAL}source: {{{name}: {settings}}}\n")
                trainers[name] = Trainer(load_trainer(file), CLOCK)

            async def look() -> None:
                for name, (_, into) in sources.items():
                    into.append(await trainers[name].look())

            async def both_have(calls: int) -> None:
                async def reached() -> bool:
                    await look()
                    return all(
                        sum(one.calls for one in into) >= calls for _, into in sources.values()
                    )

                end_s = CLOCK.now_s() + patience_s()
                while not await reached():
                    assert CLOCK.now_s() < end_s, (calls, total(direct), total(stored))

            await until(lambda: server.value("up") == 2, "the first scrapes")
            while not all(any(one.pages for one in into) for _, into in sources.values()):
                await look()
            sidecar.window({(GET, A): 3, (PUT, B): 1})
            await both_have(4)
            sidecar.window({(GET, A): 2, (PUT, B): 1})
            await both_have(7)
            # Nobody answers for a while; what was counted meanwhile is not lost.
            peer.answer = page(b"down", status="503 Service Unavailable")
            await until(lambda: server.value("up") == 0, "the outage")
            await look()
            sidecar.window({(GET, A): 4, (PUT, B): 1})
            await both_have(12)
            # Another process: its counters begin at 0.
            sidecar.restart("second")
            sidecar.window({(GET, A): 6, (PUT, B): 2})
            await both_have(20)
            sidecar.window({(GET, A): 1, (PUT, B): 2})
            await both_have(23)
            assert total(direct)["cart", GET, A][1] == 3 + 2 + 4 + 6 + 1
            assert total(direct)["cart", PUT, B][5] == 2 * (1 + 1 + 1 + 2 + 2)
            assert total(direct)["cart", PUT][11] == 7
            assert total(direct)["info", ("cart", A)] == ("eu-1a", "", "rack=7")
            assert same(total(direct), total(stored)), (total(direct), total(stored))
            for trainer in trainers.values():
                assert trainer.kept
                await trainer.close()


async def test_without_its_source_the_last_good_intervals_stay(tmp_path: Path) -> None:
    async with http_peer(page(b"")) as peer:
        sidecar = Sidecar(peer)
        file = tmp_path / "trainer.yaml"
        source = f"{{scrape: {{sidecars: ['{peer.address}'], interval: 100ms}}}}"
        file.write_text(f"{MINIMAL}keep: 3\nsource: {source}\n")
        trainer = Trainer(load_trainer(file), CLOCK)

        def metric(name: str, **labels: str) -> float:
            return sum(
                sample.value
                for family in text_string_to_metric_families(trainer.exposition().decode())
                for sample in family.samples
                if sample.name == f"attnroute_trainer_{name}"
                and labels.items() <= sample.labels.items()
            )

        for calls in (9, 2, 3, 4, 5):  # the first page only says where the counters stand
            sidecar.window({(GET, A): calls})
            await trainer.look()
        assert [one.calls for one in trainer.kept] == [3, 4, 5]
        for answer in (
            page(b"down", status="503 Service Unavailable"),
            page(bytes(range(256)) * 9),
            page(b""),
        ):
            peer.answer = answer
            await trainer.look()
        sidecar.show()
        await until(lambda: metric("source_stale") == 1, "staleness")
        assert (await trainer.look()).calls == 0
        assert metric("source_stale") == 0
        assert metric("source_looks_total", result="failed") == 3
        assert metric("source_failures_total", reason="status") == 1
        assert metric("source_failures_total", reason="line") > 0
        assert metric("observed_calls_total") == 14
        await trainer.close()
