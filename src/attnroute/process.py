"""What every long-running process of the package shares: how it stops, how its background tasks
stay up, and how it tells others where it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from attnroute.logs import fields

__all__ = ["StopSignals", "allow_open_files", "announce_ports", "keep_running"]

logger = logging.getLogger(__name__)

OPEN_FILES_MAX = 1 << 20
"""What is asked for where the system sets no limit; the kernel's own limit for one process."""

RESTART_DELAY_S = 5.0
PORTS_RETRY_S = 1.0


def allow_open_files(wanted: int) -> None:
    """Raises the soft limit of open files as far as it goes, since each connection is one and the
    usual soft limit is 1,024 for programs that cannot count any further. Warns if `wanted` remains
    out of reach: a connection beyond the limit is not even refused, it waits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = hard if hard != resource.RLIM_INFINITY else max(soft, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
    if soft != resource.RLIM_INFINITY and soft < wanted:
        logger.warning(
            "fewer files may be open than connections", extra=fields(open_files=soft, wanted=wanted)
        )


class StopSignals:
    """SIGTERM and SIGINT as something to wait for; the first drains, the second cuts it short."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._received: list[signal.Signals] = []
        self._changed = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)
        # Until a policy is in force there is nothing to reload, but the signal must not kill.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def _receive(self, number: signal.Signals) -> None:
        self._received.append(number)
        self._changed.set()

    async def first(self) -> signal.Signals:
        """Waits for the first one."""
        await self._wait_for(1)
        return self._received[0]

    async def second(self) -> signal.Signals:
        """Waits for the second one."""
        await self._wait_for(2)
        return self._received[1]

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Waits for `work`, but not once a signal came: then it is cancelled."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.first())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _wait_for(self, count: int) -> None:
        while len(self._received) < count:
            self._changed.clear()
            await self._changed.wait()


async def keep_running(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Starts `work` again when it fails: a fault in one task of the control side must not end the
    others, and the data plane depends on none."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception(
                "a control task failed; it starts again", extra=fields(task=work.__name__)
            )
        else:
            return
        await asyncio.sleep(RESTART_DELAY_S)


async def announce_ports(path: Path, ports: Mapping[str, object]) -> None:
    """Writes the ports file; whoever waits for it waits until the disk takes it."""
    while True:
        try:
            _write_ports(path, ports)
        except OSError as error:
            logger.warning(
                "cannot write the ports file; it is tried again",
                extra=fields(path=str(path), reason=error.strerror or str(error)),
            )
            await asyncio.sleep(PORTS_RETRY_S)
        else:
            return


def _write_ports(path: Path, ports: Mapping[str, object]) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(json.dumps({**ports, "pid": os.getpid()}) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
