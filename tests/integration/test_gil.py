"""A stalled Python side costs no call: nothing on the path of a call waits for the interpreter."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time

import pytest
from tests.support.dataplane import data_plane
from tests.support.echo_endpoint import ECHO, endpoint_process
from tests.support.loadgen import LoadProcess, percentile

STALL_S = 10
CONTROL_S = 5.0
RATE = 150.0
MARGIN_S = 0.5
"""Far below the stall and far above what a busy machine adds to a call."""


def _hold_the_gil(seconds: int) -> tuple[float, float]:
    """Sleeps inside C without releasing the interpreter lock; returns when it began and ended."""
    began_s = time.monotonic()
    ctypes.PyDLL(None).sleep(seconds)  # PyDLL, unlike CDLL, keeps the lock during the call
    return began_s, time.monotonic()


@pytest.mark.alone
async def test_no_call_fails_while_python_is_stalled() -> None:
    with endpoint_process(*ECHO) as endpoint:
        await _stall_under_load(endpoint)


async def _stall_under_load(endpoint: str) -> None:
    async with data_plane([endpoint]) as plane:
        seconds = CONTROL_S + STALL_S + 2
        load = await LoadProcess.start(plane.address, seconds=seconds, rate=RATE)
        started_s = time.monotonic()
        await asyncio.sleep(CONTROL_S)
        stall: list[tuple[float, float]] = []
        thread = threading.Thread(target=lambda: stall.append(_hold_the_gil(STALL_S)))
        beats = [time.monotonic()]
        thread.start()
        while thread.is_alive():
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)
        thread.join()
        done = await load.result()
        longest_gap_s = max(b - a for a, b in zip(beats, [*beats[1:], beats[-1]], strict=True))
        assert longest_gap_s > STALL_S - 1, "the interpreter was never stalled: the test is void"
        failed = [row for row in done if row.status != "OK"]
        assert not failed, f"{len(failed)} of {len(done)} calls failed, the first: {failed[0]}"
        (began_s, ended_s) = stall[0]
        control = [r.latency_s for r in done if 1 <= r.due_s < began_s - started_s - 0.2]
        stalled = [
            r.latency_s
            for r in done
            if began_s - started_s + 0.2 <= r.due_s < ended_s - started_s - 0.2
        ]
        assert len(stalled) > RATE * STALL_S * 0.8
        before_s, during_s = percentile(control, 0.99), percentile(stalled, 0.99)
        assert during_s < 3 * before_s + MARGIN_S, (
            f"p99 {during_s * 1e3:.1f} ms while stalled, {before_s * 1e3:.1f} ms before"
        )
        await plane.until_ended(len(done) + 1, grpc_status="OK")
