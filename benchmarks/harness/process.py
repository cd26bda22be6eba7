"""Child processes: pinned to a core, measured, and gone when the run is.

A benchmark that leaves a busy loop behind spoils every later one. So each child is the leader of
its own session and is killed with its whole group, and the kernel kills it as well should the
runner itself die without a chance to clean up (`setpriv --pdeathsig`).

CPU time is read from the process's own CPU clock, in nanoseconds and with the time of threads that
have ended. `/proc/PID/stat` counts the same time in ticks of 10 ms, which would be 2 % of a
typical measurement; it is used for the split into user and kernel time alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError

STOP_TIMEOUT_S = 8.0
POLL_INTERVAL_S = 0.02


@dataclass(frozen=True)
class CpuTime:
    """CPU time of a process tree, in seconds since its start."""

    total_s: float
    user_s: float
    kernel_s: float

    def since(self, earlier: CpuTime) -> CpuTime:
        """The time spent between two readings."""
        return CpuTime(
            self.total_s - earlier.total_s,
            self.user_s - earlier.user_s,
            self.kernel_s - earlier.kernel_s,
        )


class Child:
    """One running child and everything it forks."""

    def __init__(self, name: str, argv: Sequence[str], *, core: int, directory: Path) -> None:
        """Start `argv` on `core`, with `directory` as its working folder and home of its log."""
        self.name = name
        self.log_path = directory / f"{name}.log"
        command = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core), *argv]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the leader."""
        return self._process.pid

    def pids(self) -> list[int]:
        """The leader and its descendants, whatever a proxy forks."""
        return process_tree(self.pid)

    def cpu(self) -> CpuTime:
        """CPU time of the whole tree."""
        pids = self.pids()
        split = [_user_kernel_s(pid) for pid in pids]
        return CpuTime(
            sum(_cpu_clock_s(pid) for pid in pids),
            sum(user for user, _ in split),
            sum(kernel for _, kernel in split),
        )

    def rss_bytes(self) -> int:
        """Resident memory of the whole tree; pages shared inside it count once per process."""
        return sum(_rss_bytes(pid) for pid in self.pids())

    def check_alive(self) -> None:
        """Raise BenchmarkError with the end of the log if the child has ended."""
        status = self._process.poll()
        if status is not None:
            tail = self.log_path.read_text(errors="replace")[-2000:].strip()
            raise BenchmarkError(f"`{self.name}` ended with status {status}; its log ends: {tail}")

    def stop(self) -> None:
        """SIGTERM, a bounded wait, then SIGKILL to the whole group. Safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def wait_until(ready: Callable[[], bool], *, what: str, child: Child, timeout_s: float) -> None:
    """Poll `ready` until it holds; raise BenchmarkError if `child` ends or time runs out."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        child.check_alive()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"`{child.name}` was not ready within {timeout_s:g} s: {what}")
        time.sleep(POLL_INTERVAL_S)


def process_tree(root: int) -> list[int]:
    """`root` and its living descendants, by parent ids in /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end between the listing and the look.
        with contextlib.suppress(OSError):
            parent = int(_stat_fields(int(entry.name))[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may hold any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _user_kernel_s(pid: int) -> tuple[float, float]:
    try:
        fields = _stat_fields(pid)
    except OSError:
        return 0.0, 0.0
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return int(fields[11]) * tick_s, int(fields[12]) * tick_s


def _cpu_clock_s(pid: int) -> float:
    # What clock_getcpuclockid(3) computes for another process: the complement of the pid, shifted
    # past the three bits that say "whole process, scheduler's clock" (2).
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return 0.0


def _rss_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def busy_loop(*, core: int, directory: Path, limit_s: int) -> Child:
    """A process that burns `core`, so that the proxy on it is the bottleneck of the run.

    It ends by itself after `limit_s` seconds of CPU time, whatever happens to the runner.
    """
    script = f"ulimit -t {limit_s}; while :; do :; done"
    return Child("busy-loop", ["sh", "-c", script], core=core, directory=directory)
