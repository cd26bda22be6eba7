"""A run as data: what it was, each single measurement, and the configurations used.

Nothing here is summarised: tables and plots are made from these files by `benchmarks/report.py`,
so a question that comes up later can be asked of an old run.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness.machine import Machine

FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """One shape of load through one proxy in one round.

    cpu_s, user_s, kernel_s: CPU time of the proxy during the load; zero for `direct`.
    p50_us, p99_us: latency as the client sees it, only where the shape is for latency.
    foreign_share: CPU time of everything else on the machine over what the cores could give.
    stolen_share: the same for time that the hypervisor took away.
    """

    round: int
    peer: str
    shape: str
    calls: int
    failed: int
    wall_s: float
    cpu_s: float
    user_s: float
    kernel_s: float
    p50_us: float | None
    p99_us: float | None
    foreign_share: float
    stolen_share: float

    @property
    def cpu_us_per_call(self) -> float:
        """CPU time of the proxy per call."""
        return self.cpu_s * 1e6 / self.calls

    @property
    def calls_per_s(self) -> float:
        """Good calls per second."""
        return (self.calls - self.failed) / self.wall_s


@dataclass(frozen=True)
class MemorySample:
    """Resident memory of one proxy at one moment: `loaded`, `idle-100` or `touched-100`."""

    round: int
    peer: str
    moment: str
    rss_bytes: int


@dataclass(frozen=True)
class Method:
    """What was asked for; enough to run it again."""

    rounds: int
    calls: int
    peers: tuple[str, ...]
    shapes: tuple[str, ...]
    endpoints: int
    message_bytes: int
    proxy_core: int
    load_core: int
    complete: bool


@dataclass(frozen=True)
class Run:
    """One whole run."""

    format: int
    started: str
    duration_s: float
    commit: str
    command: str
    machine: Machine
    versions: dict[str, str]
    method: Method
    configs: dict[str, str]
    samples: tuple[Sample, ...]
    memory: tuple[MemorySample, ...]

    def of(self, peer: str, shape: str) -> list[Sample]:
        """Samples of one proxy and shape, by round."""
        return [sample for sample in self.samples if (sample.peer, sample.shape) == (peer, shape)]

    def memory_of(self, peer: str, moment: str) -> list[MemorySample]:
        """Memory readings of one proxy, by round."""
        return [entry for entry in self.memory if (entry.peer, entry.moment) == (peer, moment)]


_ADAPTER = TypeAdapter(Run)


def write_run(run: Run, path: Path) -> None:
    """Write as JSON, one measurement per line, so that a diff of two runs can be read."""
    plain = dataclasses.asdict(run)
    rows = {key: plain.pop(key) for key in ("samples", "memory")}
    text = json.dumps(plain, indent=1)[:-2]
    for key, entries in rows.items():
        lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
        text += f',\n "{key}": [\n{lines}\n ]'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n}\n")


def read_run(path: Path) -> Run:
    """Raises pydantic.ValidationError for a file that is none, ValueError for another format."""
    run = _ADAPTER.validate_json(path.read_bytes())
    if run.format != FORMAT:
        raise ValueError(
            f"{path.name}: found format `{run.format}`, this build reads `{FORMAT}`; run it again"
        )
    return run


def newest_run(directory: Path) -> Path | None:
    """The latest result file; names begin with their time."""
    return max(directory.glob("*.json"), default=None)
