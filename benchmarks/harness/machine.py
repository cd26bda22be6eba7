"""What a result was measured on, and whether anything else ran meanwhile."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.tools import ROOT


@dataclass(frozen=True)
class Machine:
    """The machine, without anything that identifies it."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    system: str
    congestion_control: str

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        names = _pairs(Path("/proc/cpuinfo"), ":")
        memory = _pairs(Path("/proc/meminfo"), ":")["MemTotal"]
        system = _pairs(Path("/etc/os-release"), "=").get("PRETTY_NAME", "unknown")
        congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
        return cls(
            cpu=names.get("model name", "unknown"),
            cores=os.cpu_count() or 1,
            memory_gib=round(int(memory.split()[0]) / 1024**2, 1),
            # Without the suffix of whoever built it.
            kernel=os.uname().release.partition("-")[0],
            system=system.strip('"'),
            congestion_control=congestion.read_text().strip() if congestion.exists() else "unknown",
        )


def _pairs(path: Path, separator: str) -> dict[str, str]:
    """Key and value of each line; the first of a repeated key stays."""
    found: dict[str, str] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(separator)
            found.setdefault(key.strip(), value.strip())
    return found


def commit() -> str:
    """The commit that is measured, with `+` if what it forwards with was changed since."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", "crates", "src", "Cargo.toml", "Cargo.lock")
    return f"{head or 'unknown'}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class CoreTime:
    """Busy and stolen seconds of all cores since boot, from /proc/stat."""

    busy_s: float
    stolen_s: float

    @classmethod
    def now(cls) -> CoreTime:
        """The first line of /proc/stat: user nice system idle iowait irq softirq steal ..."""
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
        return cls.parse(line)

    @classmethod
    def parse(cls, line: str) -> CoreTime:
        """Guest time is part of user time already and stays out."""
        fields = [int(field) for field in line.split()[1:9]]
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _iowait, irq, softirq, stolen = fields
        return cls((user + nice + system + irq + softirq) * tick_s, stolen * tick_s)
