"""Training while traffic flows: it goes on after every end, and what it publishes is a bundle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from tests.support.looks import look, looks
from tests.support.processes import alive
from tests.support.wait import until

from attnroute.bundle import Bundle, write
from attnroute.model.export import bundle_of
from attnroute.model.network import Router
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
