"""Endpoints that come and go all the time, and sets of thousands, cost no call."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from typing import Self

from tests.support.dataplane import data_plane, endpoint_set
from tests.support.raw_h2 import RawConnection
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.wait import until

CHANGES = 100
CHANGE_INTERVAL_S = 0.06
"""1,000 changes a minute."""


class _Load:
    """Calls without a pause; every status is kept."""

    def __init__(self, client: RawConnection, at_once: int = 8) -> None:
        self._client = client
        self._at_once = at_once
        self._stop = False
        self.statuses: list[int | None] = []

    async def _loop(self) -> None:
        while not self._stop:
            self.statuses.append((await open_call(self._client).until_done()).grpc_status)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._loop()) for _ in range(self._at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def test_a_thousand_changes_a_minute_fail_no_call() -> None:
    draw = random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(raw_server(answer())) for _ in range(8)]
        addresses = [server.address for server in servers]
        members = addresses[:4]
        plane = await stack.enter_async_context(data_plane(members))
        client = await stack.enter_async_context(raw_client(plane.address))
        async with _Load(client) as load:
            for _ in range(CHANGES):
                began_s = time.monotonic()
                absent = [address for address in addresses if address not in members]
                if len(members) <= 2 or (absent and draw.random() < 0.5):
                    members.append(draw.choice(absent))
                else:
                    members.remove(draw.choice(members))
                plane.apply_endpoints(members)
                await asyncio.sleep(max(0.0, began_s + CHANGE_INTERVAL_S - time.monotonic()))
        assert len(load.statuses) > CHANGES
        assert set(load.statuses) == {0}
        assert all(server.streams for server in servers)


async def test_a_change_among_ten_thousand_endpoints_delays_no_pick() -> None:
    """The next snapshot is built beside the one that picks read: calls go on meanwhile."""
    async with (
        raw_server(answer()) as server,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        crowd = [(f"127.{1 + n // 65_536}.{n // 256 % 256}.{n % 256}:9", 0.0) for n in range(9_998)]
        sets = [
            endpoint_set([(server.address, 1.0), *crowd, (f"127.200.0.{turn % 2 + 1}:9", 0.0)])
            for turn in range(2)
        ]
        changes = 0
        stop = threading.Event()

        def change() -> None:
            nonlocal changes
            while not stop.is_set():
                plane.plane.apply_endpoints("test", sets[changes % 2])
                changes += 1

        changing = threading.Thread(target=change)
        async with _Load(client, at_once=1) as load:
            changing.start()
            try:
                await until(lambda: changes >= 20, "20 changes")
            finally:
                stop.set()
                await asyncio.to_thread(changing.join)
            calls = len(load.statuses)
        assert set(load.statuses) == {0}
        # One call at a time: if a pick waited for a change, there would be one call a change. That
        # it has nothing to build after one, `crates/dataplane/tests/pick_allocations.rs` counts.
        assert calls > 2 * changes, (calls, changes)
