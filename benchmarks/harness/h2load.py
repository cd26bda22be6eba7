"""The load: h2load's command line, and what it prints.

h2load judges a call by its HTTP status, and a gRPC failure travels as HTTP 200. A call therefore
counts as good only if its message came back: the bytes of DATA frames, which h2load prints exactly,
divided by the size of one framed message.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.shapes import Shape
from benchmarks.harness.stats import quantile

AUTHORITY = "bench"
PATH = "/bench.Echo/Call"
MESSAGE = b"0123456789"
# Length-prefixed message of gRPC: one byte "not compressed", four bytes of length, the message.
FRAME = b"\x00" + len(MESSAGE).to_bytes(4, "big") + MESSAGE
LOAD_TIMEOUT_S = 60.0

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FINISHED = re.compile(r"^finished in ([0-9.]+)(us|ms|s), ", re.MULTILINE)
_REQUESTS = re.compile(
    r"^requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, "
    r"(\d+) failed, (\d+) errored, (\d+) timeout$",
    re.MULTILINE,
)
_DATA = re.compile(r"^traffic: .*\((\d+)\) data$", re.MULTILINE)


@dataclass(frozen=True)
class LoadResult:
    """One run of h2load.

    wall_s: from the first connection to the last answer, as h2load measures it.
    latencies_us: ascending, empty unless a log was asked for.
    """

    calls: int
    failed: int
    wall_s: float
    latencies_us: tuple[float, ...] = ()

    def latency_us(self, share: float) -> float:
        """A quantile of the latencies; ValueError without a log."""
        return quantile(self.latencies_us, share)


@dataclass(frozen=True)
class Exchange:
    """What one call sends and gets back.

    path: `:path` of the call.
    data: its body, framed messages as they go over the wire.
    answer_bytes: length of the body of a whole answer.
    """

    path: str
    data: Path
    answer_bytes: int


def parse_output(text: str, *, answer_bytes: int = len(FRAME)) -> LoadResult:
    """Read h2load's summary. Raises BenchmarkError if a part of it is missing."""
    finished = _FINISHED.search(text)
    requests = _REQUESTS.search(text)
    data = _DATA.search(text)
    if finished is None or requests is None or data is None:
        raise BenchmarkError(f"h2load printed no summary that can be read: {text[-500:].strip()}")
    total, succeeded = int(requests[1]), int(requests[4])
    whole_answers = int(data[1]) // answer_bytes
    return LoadResult(
        calls=total,
        failed=total - min(succeeded, whole_answers),
        wall_s=float(finished[1]) * _SECONDS[finished[2]],
    )


def parse_log(lines: Iterable[str]) -> tuple[float, ...]:
    """Latencies of the answered calls in us, ascending, from `--log-file`.

    A line holds start time, HTTP status (-1 for a failed stream) and microseconds, tab-separated.
    """
    latencies = []
    for line in lines:
        fields = line.rstrip("\n").split("\t")
        if len(fields) < 3:
            raise BenchmarkError(f"h2load's log has a line of {len(fields)} columns: `{line}`")
        if fields[1] == "200":
            latencies.append(float(fields[2]))
    return tuple(sorted(latencies))


def load_command(
    binary: Path, shape: Shape, *, calls: int, port: int, exchange: Exchange, log: Path | None
) -> list[str]:
    """Command line that makes `calls` unary calls of `shape` against 127.0.0.1:`port`."""
    command = [str(binary), "-t", "1", "-n", str(calls)]
    command += ["-c", str(shape.connections), "-m", str(shape.streams), "-d", str(exchange.data)]
    for header in (f":authority: {AUTHORITY}", "content-type: application/grpc", "te: trailers"):
        command += ["-H", header]
    if log is not None:
        command += ["--log-file", str(log)]
    return [*command, f"http://127.0.0.1:{port}{exchange.path}"]


@dataclass(frozen=True)
class Loader:
    """h2load, pinned to `core`; its files live in `directory`."""

    binary: Path
    core: int
    directory: Path

    def run(
        self, shape: Shape, *, calls: int, port: int, exchange: Exchange | None = None
    ) -> LoadResult:
        """Make the calls and wait for them; BenchmarkError if h2load fails or hangs.

        exchange: what each sends and gets; a small message both ways unless it says otherwise.
        """
        if exchange is None:
            frame = self.directory / "frame.bin"
            frame.write_bytes(FRAME)
            exchange = Exchange(PATH, frame, len(FRAME))
        log = self.directory / "calls.log" if shape.latency else None
        if log is not None:
            log.unlink(missing_ok=True)
        command = load_command(
            self.binary, shape, calls=calls, port=port, exchange=exchange, log=log
        )
        try:
            done = subprocess.run(
                ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(self.core), *command],
                capture_output=True,
                text=True,
                timeout=LOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(
                f"h2load did not finish {calls} calls of `{shape.name}` in {LOAD_TIMEOUT_S:g} s"
            ) from error
        if done.returncode != 0:
            raise BenchmarkError(f"h2load ended with {done.returncode}: {done.stderr[-500:]}")
        result = parse_output(done.stdout, answer_bytes=exchange.answer_bytes)
        if log is None:
            return result
        with log.open() as lines:
            latencies = parse_log(lines)
        return LoadResult(result.calls, result.failed, result.wall_s, latencies)
