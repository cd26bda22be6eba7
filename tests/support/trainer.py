"""`attnroute trainer` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.wait import patience_s, until_blocking

__all__ = ["MINIMAL", "trainer_process"]

MINIMAL = 'fleet: {address: "127.0.0.1:0"}\nhttp: "127.0.0.1:0"\n'


@contextmanager
def trainer_process(directory: Path, text: str) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """`attnroute trainer` and its bound addresses."""
    file, ports = directory / "trainer.yaml", directory / "ports.json"
    file.write_text(text)
    ports.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "attnroute", "trainer", "--config", str(file),
         "--ports-file", str(ports)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until_blocking(lambda: ports.exists() or process.poll() is not None, "the ports file")
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        yield process, json.loads(ports.read_bytes())
    finally:
        process.kill()
        process.wait(patience_s())
        if process.stderr is not None:
            process.stderr.close()
