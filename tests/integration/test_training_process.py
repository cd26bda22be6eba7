"""Training while traffic flows: it goes on after every end, and what it publishes is a bundle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.http_server import http_peer, page
from tests.support.looks import look, looks
from tests.support.processes import alive, descendants
from tests.support.trainer import MINIMAL, trainer_process
from tests.support.wait import until
from tests.support.windows import service_window

from attnroute.bundle import Bundle, read, write
from attnroute.clock import SystemClock
from attnroute.features.schema import schema_hash
from attnroute.features.view import SharedTable
from attnroute.fleet.client import FleetClient, Identity
from attnroute.model.export import bundle_of
from attnroute.model.network import Router
from attnroute.registry.store import Store
from attnroute.telemetry.training import EndpointLabels, TrainingPage
from attnroute.train.messages import Candidate, Refused, Settings, Trained
from attnroute.train.process import QUEUE_LOOKS, TrainingProcess


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle to begin with, so that the graphs are exported once."""
    torch.manual_seed(3)
    bundle = bundle_of(
        Router(), name="start", version="1.0.0", trained={}, metrics={}, card="# start\n"
    )
    return write(tmp_path_factory.mktemp("start"), bundle)


def settings(directory: Path, start: Path | None = None, *, seed: int = 0) -> Settings:
    return Settings(directory, steps=2, seed=seed, start=start, log_format="text")


class Events:
    """Counts what the trainer counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cycles: list[int] = []
        self.found: list[Candidate | Refused] = []

    def training_done(self, trained: Trained) -> None:
        self.cycles.append(trained.cycle)

    def training_dropped(self) -> None:
        self.counts["dropped"] += 1

    def training_ended(self, reason: str) -> None:
        self.counts[reason] += 1

    def trainer_limit(self, limit: str) -> None:
        self.counts[limit] += 1


@asynccontextmanager
async def training(
    directory: Path, start: Path, *, memory_bytes: int = 8 << 30
) -> AsyncIterator[tuple[TrainingProcess, Events]]:
    events = Events()
    process = TrainingProcess(
        settings(directory, start),
        events,
        memory_bytes=memory_bytes,
        candidate=events.found.append,
        pause_s=0.05,
    )
    process.start()
    try:
        yield process, events
    finally:
        pid = process.pid
        await process.stop()
        assert not pid or not alive(pid)


class TestProcess:
    async def test_killed_while_it_trains(self, tmp_path: Path, start: Path) -> None:
        async with training(tmp_path, start) as (process, events):
            await until(lambda: process.ready, "a process that is ready")
            for one in looks(0, 5):
                process.feed(one)
            await until(lambda: events.cycles, "a cycle")
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: events.counts["exit"] == 1, "its end")
            done = max(events.cycles)
            await until(lambda: process.ready, "another process")
            process.feed(look(5))
            # It goes on from the last: cycles of before are not trained again from nothing.
            await until(lambda: events.cycles[-1] > done, "the next cycle")
            assert events.cycles[-1] <= 5

    async def test_a_bundle_is_asked_for(self, tmp_path: Path, start: Path) -> None:
        async with training(tmp_path, start) as (process, events):
            number = QUEUE_LOOKS + 5
            for one in looks(0, number):  # before it could begin: what waits is bounded
                process.feed(one)
            assert events.counts["dropped"] >= 4
            await until(lambda: len(events.cycles) >= QUEUE_LOOKS - 2, "what waited")
            while not any(isinstance(found, Candidate) for found in events.found):
                answers, cycles = len(events.found), len(events.cycles)
                process.feed(look(number))
                await until(lambda: len(events.cycles) > cycles, "a cycle")  # noqa: B023
                number += 1
                process.want()
                process.want()  # asked once
                await until(lambda: len(events.found) > answers, "an answer")  # noqa: B023
                assert len(events.found) == answers + 1
                assert number < 60
            found = events.found[-1]
            assert isinstance(found, Candidate)
            assert isinstance(found.bundle, Bundle)

    async def test_one_that_takes_too_much_memory(self, tmp_path: Path, start: Path) -> None:
        async with training(tmp_path, start, memory_bytes=1 << 20) as (process, events):
            await until(lambda: process.ready, "the process")
            for one in looks(0, 2):
                process.feed(one)
            await until(lambda: events.counts["memory"] == 1, "its end")
            assert events.counts["training.max_memory"] == 1
            await until(lambda: process.ready, "another process")


class Updates:
    """Counts what a trainer sends."""

    def __init__(self) -> None:
        self.count = 0

    def fleet_connected(self, service: str, *, connected: bool) -> None: ...
    def fleet_updated(self, service: str, sidecars: int) -> None:
        self.count += 1

    def fleet_failed(self, service: str, reason: str) -> None: ...
    def fleet_gone(self, service: str) -> None: ...


@asynccontextmanager
async def calls_on_a_page() -> AsyncIterator[str]:
    """The page for training of a sidecar with calls; yields its address."""
    training_page = TrainingPage(sidecar_id="one", zone="", version="0.1.0")
    async with http_peer(page(b"")) as peer:

        async def serve() -> None:
            number = 0
            while True:
                increases = look(number).increases
                cells = {key[1:]: (cell[1], cell[0]) for key, cell in increases.cells.items()}
                window = service_window(cells)
                labels = [EndpointLabels("", "")] * len(window.endpoints)
                training_page.add("cart", window, np.full(len(window.endpoints), 0.25), labels)
                peer.answer = page(training_page.render(), Content_Type="text/plain; version=0.0.4")
                number += 1
                await asyncio.sleep(0.1)

        task = asyncio.create_task(serve())
        try:
            yield peer.address
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_trainer_trains_publishes_and_goes_on_after_a_kill(
    tmp_path: Path, start: Path
) -> None:
    store = Store(tmp_path / "models")
    async with calls_on_a_page() as address:
        text = (
            MINIMAL + f"source: {{scrape: {{sidecars: ['{address}'], interval: 500ms}}}}\n"
            "registry: {directory: models}\npublishing: {interval: 1s}\n"
            f"training: {{start: '{start}', steps: 2}}\n"
        )

        def version() -> str:
            return store.channel("default", "canary").version

        with trainer_process(tmp_path, text) as (process, ports):
            await until(version, "a bundle that was trained and published")
            first = version()
            bundle = read(store.path("default", first), expected_schema=schema_hash())
            assert bundle.manifest.trained["command"] == "attnroute trainer"
            (child,) = descendants(process.pid)
            # A training process that never comes back stands for a cycle, or an export, that
            # takes long: the exchange goes on.
            os.kill(child, signal.SIGSTOP)
            updates = Updates()
            client = FleetClient(ports["fleet"], Identity(b"s" * 16, "0"), SystemClock(), updates)
            table = SharedTable(sidecars=4, decay_s=10.0, now_s=SystemClock().now_s())
            client.replace({"cart": table}, {})
            await until(lambda: updates.count >= 3, "three updates of the fleet")
            await client.close()
            os.kill(child, signal.SIGCONT)
            process.kill()
            await until(lambda: not alive(child), "the end of the training process")
        last = version()
        with trainer_process(tmp_path, text):
            await until(lambda: version() != last, "a bundle of the next process")
            trained = read(store.path("default", version()), expected_schema=schema_hash())
            cycles = int(str(bundle.manifest.trained["scrapes"]))
            assert int(str(trained.manifest.trained["scrapes"])) > cycles
