"""The trainer's side of the training process: starts it, feeds it, hears it, starts it again.

Loads no torch. Nothing here waits for the process: what it is to look at waits in a bounded queue,
and a thread of its own writes it; another one reads what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from attnroute.logs import fields
from attnroute.train.messages import (
    Began,
    Candidate,
    Look,
    Refused,
    Settings,
    Trained,
    Wanted,
)

__all__ = ["TrainingEvents", "TrainingProcess"]

logger = logging.getLogger(__name__)

QUEUE_LOOKS = 12
"""A minute of looks waits for a process that exports, or is started; older ones go."""
PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 60.0
STOP_S = 5.0


class TrainingEvents(Protocol):
    """What is counted."""

    def training_done(self, trained: Trained) -> None: ...
    def training_dropped(self) -> None: ...
    def training_ended(self, reason: str) -> None: ...
    def trainer_limit(self, limit: str) -> None: ...


class TrainingProcess:
    """Made and used on one event loop. memory_bytes: the process is started again beyond.
    candidate: called with each answer to `want`, a bundle or why there is none."""

    def __init__(
        self,
        settings: Settings,
        events: TrainingEvents,
        *,
        memory_bytes: int,
        candidate: Callable[[Candidate | Refused], None],
        pause_s: float = PAUSE_FIRST_S,
    ) -> None:
        self._settings = settings
        self._events = events
        self._memory_bytes = memory_bytes
        self._candidate = candidate
        self._pause_s = pause_s
        self._looks: queue.Queue[Look | Wanted] = queue.Queue(QUEUE_LOOKS)
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._killed_for = ""
        self._wanted = False
        self.ready = False
        """It has begun, and hears what it is sent."""

    @property
    def pid(self) -> int:
        """Of the process that runs, 0 if none does."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process, and again whenever it ends."""
        self._task = asyncio.create_task(self._run_forever(), name="training process")

    def feed(self, look: Look) -> None:
        """Gives it something to learn from; the oldest that waits goes if there is too much."""
        while True:
            try:
                self._looks.put_nowait(look)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    if isinstance(self._looks.get_nowait(), Wanted):
                        self._wanted = False
                    else:
                        self._events.training_dropped()
            else:
                return

    def want(self) -> None:
        """Asks for a bundle, unless it was asked already."""
        if self.ready and not self._wanted:
            with contextlib.suppress(queue.Full):
                self._looks.put_nowait(Wanted())
                self._wanted = True

    async def stop(self) -> None:
        """Ends the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run_forever(self) -> None:
        pause_s = self._pause_s
        while True:
            trained = await self._run()
            reason, self._killed_for = self._killed_for or "exit", ""
            self._events.training_ended(reason)
            pause_s = self._pause_s if trained else min(2 * pause_s, PAUSE_MOST_S)
            logger.warning(
                "the training process ended; it starts again",
                extra=fields(reason=reason, in_s=pause_s),
            )
            await asyncio.sleep(pause_s)

    async def _run(self) -> bool:
        """One process, to its end; whether it trained anything."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._process = self._spawn(theirs.fileno())
        connection = Connection(ours.detach())
        ended = asyncio.Event()  # read by the threads too, which only look
        state = {"trained": False}

        def heard(message: object) -> None:
            state["trained"] = self._heard(message) or state["trained"]

        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    message = connection.recv()
                    loop.call_soon_threadsafe(heard, message)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        def write() -> None:
            with contextlib.suppress(OSError):
                connection.send(self._settings)
                while not ended.is_set():
                    with contextlib.suppress(queue.Empty):
                        connection.send(self._looks.get(timeout=0.2))

        threads = [
            threading.Thread(target=work, name=f"training {work.__name__}", daemon=True)
            for work in (read, write)
        ]
        for thread in threads:
            thread.start()
        try:
            await ended.wait()
        finally:
            ended.set()
            self.ready = False
            self._wanted = False
            await asyncio.shield(self._end(process, connection, threads))
        return state["trained"]

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        """Our own module, by the interpreter that runs this."""
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "attnroute.train.worker", str(descriptor)],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ, OMP_NUM_THREADS=str(self._settings.threads)),
        )

    async def _end(
        self,
        process: subprocess.Popen[bytes],
        connection: Connection,
        threads: list[threading.Thread],
    ) -> None:
        # The end of its line ends the process, a cycle that runs comes to its end first.
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)
        try:
            await asyncio.to_thread(process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        for thread in threads:
            await asyncio.to_thread(thread.join, STOP_S)
        connection.close()
        self._process = None

    def _heard(self, message: object) -> bool:
        if isinstance(message, Began):
            self.ready = True
            logger.info("training goes on", extra=fields(cycles=message.cycles))
        elif isinstance(message, Trained):
            self._events.training_done(message)
            if message.rss_bytes > self._memory_bytes and self._process is not None:
                self._events.trainer_limit("training.max_memory")
                self._killed_for = "memory"
                self._process.terminate()
            return True
        elif isinstance(message, Candidate | Refused):
            self._wanted = False
            self._candidate(message)
        return False
