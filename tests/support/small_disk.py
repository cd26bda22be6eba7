"""A disk that is soon full: a small file system in memory, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.wait import patience_s

ROOT = Path(__file__).resolve().parents[2]

__all__ = ["run_on_small_disk"]


def run_on_small_disk(
    code: str, at: Path, *, kib: int, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs Python code while `at` is a disk of so many KiB; what it wrote there is gone afterwards.
    Needs no root: a user namespace is made where there is none."""
    at.mkdir(parents=True, exist_ok=True)
    mount = f'mount -t tmpfs -o size={kib}k none "$0" && exec "$@"'
    return subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, str(at), sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, timeout=patience_s() * 2, cwd=ROOT,
    )  # fmt: skip
