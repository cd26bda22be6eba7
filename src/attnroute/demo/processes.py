"""Child processes of the demo: started, listened to, and gone in the end.

Each child leads a session of its own, so that a Ctrl-C in the terminal reaches the demo alone and
things end in order, and so that one signal reaches whatever a child left behind. The first line of
defence is standard input: a child ends when it closes, whatever became of the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attnroute.errors import AttnrouteError

_T = TypeVar("_T")

_LINE_LIMIT_BYTES = 4 * 1024 * 1024
_STDERR_TAIL_LINES = 12


class DemoError(AttnrouteError):
    """The demo cannot go on: a process ended, or a sidecar did not take a policy."""


@dataclass(frozen=True)
class Child:
    """One running process; `name` is for messages."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def send(self, line: bytes) -> None:
        """A line for its standard input; lost if it is gone, which `Children.guard` reports."""
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    async def line(self) -> dict[str, Any]:
        """Its next line of JSON. Raises DemoError at the end of its output."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise DemoError(await self.obituary())
        message: dict[str, Any] = json.loads(line)
        return message

    async def obituary(self) -> str:
        """Why it is gone, with the last lines it wrote."""
        code = await self.process.wait()
        text = self.log.read_text(errors="replace").strip()
        tail = "\n".join(text.splitlines()[-_STDERR_TAIL_LINES:])
        said = f"; its last words:\n{tail}" if tail else ""
        return f"{self.name} ended unexpectedly with exit code {code}{said}"

    async def stop(self, grace_s: float) -> int:
        """Closes its input, waits, then kills its whole session. Returns its exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return await self.process.wait()


class Children:
    """All child processes, in the order of their start."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []
        self._deaths: asyncio.Queue[Child] = asyncio.Queue()
        self._reporters: list[asyncio.Task[None]] = []

    async def start(self, name: str, module: str, *arguments: str) -> Child:
        """Runs `python -m module arguments`; standard error goes to a file in the log folder."""
        log = self._logs / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=_LINE_LIMIT_BYTES,
            )
        child = Child(name, process, log)
        self._children.append(child)
        self._reporters.append(asyncio.create_task(self._report_end(child)))
        return child

    async def guard(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Does the work. A child that ends meanwhile cancels it and raises DemoError."""
        working = asyncio.create_task(work)
        mourning = asyncio.create_task(self._deaths.get())
        try:
            await asyncio.wait((working, mourning), return_when=asyncio.FIRST_COMPLETED)
            if mourning.done():
                raise DemoError(await mourning.result().obituary())
            return working.result()
        finally:
            working.cancel()
            mourning.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _report_end(self, child: Child) -> None:
        await child.process.wait()
        self._deaths.put_nowait(child)

    async def stop(self, *, grace_s: float) -> list[str]:
        """The last started ends first, neighbours of one kind together.

        Returns a complaint for each that did not end by itself and well within the time.
        """
        for reporter in self._reporters:
            reporter.cancel()
        complaints = []
        for kind in reversed(_kinds(self._children)):
            codes = await asyncio.gather(*(child.stop(grace_s) for child in kind))
            complaints += [
                f"{child.name} ended with exit code {code} when it was asked to stop"
                for child, code in zip(kind, codes, strict=True)
                if code != 0
            ]
        self._children.clear()
        return complaints


def _kinds(children: Sequence[Child]) -> list[list[Child]]:
    """Runs of children whose names begin with the same word."""
    kinds: list[list[Child]] = []
    for child in children:
        if kinds and kinds[-1][0].name.split()[0] == child.name.split()[0]:
            kinds[-1].append(child)
        else:
            kinds.append([child])
    return kinds
