"""One thread that runs models beside the control thread, one run at a time.

A run that takes too long must hold up neither the tick nor the end of the process: nothing queues
behind it, and the thread is a daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Run", "ScoringWorker"]

_Result = TypeVar("_Result")


class Run(Generic[_Result]):
    """Work that was begun."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._done = threading.Event()
        self._found: list[_Result] = []
        self._error: Exception | None = None

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over, after that time at most."""
        return self._done.wait(timeout_s)

    def result(self) -> _Result:
        """What it returned; raises what it raised. Call it once it is over."""
        if self._error is not None:
            raise self._error
        return self._found[0]

    def do(self) -> None:
        """Works, in the thread."""
        try:
            self._found.append(self._work())
        except Exception as error:  # noqa: BLE001 - handed on by `result`
            self._error = error
        finally:
            self._done.set()


class ScoringWorker:
    """The thread begins with the first run and ends with `close`, or with the process."""

    def __init__(self, name: str = "attnroute-score") -> None:
        self._name = name
        self._queue: SimpleQueue[Run[Any] | None] = SimpleQueue()
        self._current: Run[Any] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], _Result]) -> Run[_Result] | None:
        """Begins work; None if what was begun before is not over yet."""
        if self._current is not None and not self._current.wait(0.0):
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        run = Run(work)
        self._current = run
        self._queue.put(run)
        return run

    def close(self) -> None:
        """Lets the thread end after the run that is under way; waits for nothing."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            run.do()
