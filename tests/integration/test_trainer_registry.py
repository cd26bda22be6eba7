"""A trainer that keeps and serves bundles, and moves channels by what gates of sidecars say."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.bundles import SCHEMA, make_bundle, version
from tests.support.registry import FAST, Events, Follower, following
from tests.support.sidecar import http_get
from tests.support.trainer import MINIMAL, trainer_process
from tests.support.wait import patience_s, until
from tests.support.windows import attributed, service_window

from attnroute.bundle.signature import load_public_key, write_key_pair
from attnroute.clock import SystemClock
from attnroute.errors import RegistryError
from attnroute.features.view import SharedTable
from attnroute.fleet.client import FleetClient, Identity
from attnroute.fleet.messages import ModelReport
from attnroute.registry.client import RegistrySource, Trust
from attnroute.registry.remote import RemoteRegistry
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

CLOCK = SystemClock()
REGISTRY = MINIMAL + "registry: {directory: models}\n"


class Silent:
    """Counts nothing."""

    def fleet_connected(self, service: str, *, connected: bool) -> None: ...
    def fleet_updated(self, service: str, sidecars: int) -> None: ...
    def fleet_failed(self, service: str, reason: str) -> None: ...
    def fleet_gone(self, service: str) -> None: ...


def metric(address: str, name: str, **labels: str) -> float:
    text = http_get(address, "/metrics").body.decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"attnroute_trainer_{name}" and labels.items() <= sample.labels.items()
    )


def point(store: Store, channel: str, to: str) -> None:
    now = store.channel("default", channel)
    store.point(
        "default", channel, to, expected_generation=now.generation, reason="test", operator=True
    )


@asynccontextmanager
async def sidecar(address: str, cache: Path, channel: str) -> AsyncIterator[Follower]:
    source = RegistrySource(
        address, "default", channel, Trust(SCHEMA), Events(), cache=cache, patience=FAST,
        rng=random.Random(1),
    )  # fmt: skip
    async with following(source) as follower:
        yield follower


@asynccontextmanager
async def gate(address: str, number: int, report: ModelReport) -> AsyncIterator[None]:
    """A sidecar whose gate says this each second, as far as the trainer can see."""
    table = SharedTable(sidecars=4, decay_s=10.0, now_s=CLOCK.now_s())
    client = FleetClient(
        address, Identity(bytes([number]) * 16, "0"), CLOCK, Silent(), models=lambda _: (report,)
    )
    client.replace({"cart": table}, {})
    window = service_window({("/cart/Get;bytes=..1024", "10.0.0.1:1"): (100, 1.0)})

    async def speak() -> None:
        while True:
            table.observe(window, attributed(window), CLOCK.now_s())
            client.announce("cart")
            await asyncio.sleep(0.2)

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def test_gates_promote_what_sidecars_fetch(tmp_path: Path) -> None:
    """One address serves the exchange and the registry; what the gates of the canary say of a
    bundle decides whether the others get it."""
    store = Store(tmp_path / "models")

    async def scene(address: str, http: str) -> None:
        async with (
            sidecar(address, tmp_path / "c", "canary") as canary,
            sidecar(address, tmp_path / "s", "stable") as stable,
        ):
            store.add(make_bundle(version(0)))
            point(store, "canary", version(0))
            await canary.until(version(0))
            assert stable.versions == []
            good = ModelReport("default", version(0), 0.01, 0.98, 5, serving=False)
            async with gate(address, 1, good):
                await stable.until(version(0))
            store.add(make_bundle(version(1)))
            point(store, "canary", version(1))
            await canary.until(version(1))
            bad = ModelReport("default", version(1), -0.9, 0.0, 5, serving=False)
            async with gate(address, 1, bad), gate(address, 2, bad):
                await canary.until(version(0))
            assert stable.versions == [version(0)]
            await until(lambda: metric(http, "registry_streams") == 2, "two watches")
            assert metric(http, "registry_sent_bytes_total") > 0
            assert metric(http, "publisher_leads") == 1
            assert metric(http, "channel_moves_total", channel="stable", reason="promoted") == 1
            assert metric(http, "channel_moves_total", channel="canary", reason="taken") == 1
            assert metric(http, "model_info", channel="stable", version=version(0)) == 1

    with trainer_process(tmp_path, REGISTRY) as (process, ports):
        asyncio.run(scene(ports["fleet"], ports["http"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience_s()) == 0


def test_a_killed_trainer_stops_no_sidecar_and_its_place_is_taken(tmp_path: Path) -> None:
    store = Store(tmp_path / "models")
    store.add(make_bundle(version(0)))
    point(store, "stable", version(0))
    text = REGISTRY.replace("127.0.0.1:0", f"unix:{tmp_path}/fleet", 1)

    async def scene() -> None:
        address = f"unix:{tmp_path}/fleet"
        async with sidecar(address, tmp_path / "cache", "stable") as follower:
            with trainer_process(tmp_path, text) as (process, _):
                await follower.until(version(0))
                process.kill()
            store.add(make_bundle(version(1)))
            point(store, "stable", version(1))
            with trainer_process(tmp_path, text):
                await follower.until(version(1))
            assert follower.versions == [version(0), version(1)]

    asyncio.run(scene())


@pytest.mark.parametrize(("allowed", "words"), [("true", ""), ("false", "set `registry.allow_ch")])
def test_changes_over_the_wire(tmp_path: Path, allowed: str, words: str) -> None:
    store = Store(tmp_path / "models")
    store.add(make_bundle(version(0)))

    async def move(address: str) -> ChannelState:
        async with RemoteRegistry(address) as remote:
            return await remote.point(
                "default", "stable", version(0), expected_generation=0, reason="x", frozen=True
            )

    text = MINIMAL + f"registry: {{directory: models, allow_changes: {allowed}}}\n"
    with trainer_process(tmp_path, text) as (_, ports):
        if words:
            with pytest.raises(RegistryError, match=words):
                asyncio.run(move(ports["fleet"]))
        else:
            assert asyncio.run(move(ports["fleet"])).frozen
    assert store.channel("default", "stable").frozen is (allowed == "true")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("{directory: models, signing_key: none.pem}", "`none.pem` cannot be opened: No such"),
        ("{directory: trainer.yaml}", "cannot be used as a registry"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, keys: str, words: str) -> None:
    with (
        pytest.raises(AssertionError) as caught,
        trainer_process(tmp_path, f"{MINIMAL}registry: {keys}\n"),
    ):
        pass
    assert words in str(caught.value)
    assert "trainer.yaml:3:" in str(caught.value)


def test_a_signing_key_is_taken(tmp_path: Path) -> None:
    load_public_key(write_key_pair(tmp_path / "key"))
    text = MINIMAL + "registry: {directory: models, signing_key: key}\n"
    with trainer_process(tmp_path, text) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience_s()) == 0
