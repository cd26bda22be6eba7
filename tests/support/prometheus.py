"""A real Prometheus that scrapes one target; `scripts/fetch-debs prometheus` unpacks it."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sidecar import http_get
from tests.support.wait import patience_s, until_blocking

_ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = _ROOT / ".tools" / "bin" / "prometheus"
PROMTOOL = _ROOT / ".tools" / "prometheus" / "usr" / "bin" / "promtool"


@dataclass
class Prometheus:
    """Its HTTP API."""

    address: str = ""
    lines: list[str] = field(default_factory=list)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query: one entry per series, `metric` and `value`."""
        path = f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        answer = http_get(self.address, path).json()
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        """The sum over the series of an instant query."""
        return sum(float(series["value"][1]) for series in self.query(expression))

    def target(self) -> dict[str, Any]:
        """State of the only target, `health` and `lastError` among it."""
        answer = http_get(self.address, "/api/v1/targets").json()
        (target,) = answer["data"]["activeTargets"]
        return dict(target)


@contextmanager
def prometheus(
    directory: Path,
    target: str,
    *,
    path: str = "/metrics",
    labels: Sequence[Mapping[str, str]] = ({},),
) -> Iterator[Prometheus]:
    """Runs while the context does and scrapes `target` (`ip:port`) five times a second, once for
    each set of labels that its copy of the target carries."""
    assert PROMETHEUS.exists(), "run `scripts/fetch-debs prometheus`"
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
        "scrape_configs": [
            {
                "job_name": "sidecar",
                "metrics_path": path,
                "static_configs": [{"targets": [target], "labels": each} for each in labels],
            }
        ],
    }
    file = directory / "prometheus.yml"
    file.write_text(json.dumps(config))
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Prometheus()
    reader = threading.Thread(target=_collect, args=(process, running.lines), daemon=True)
    reader.start()
    try:
        running.address = address = _bound(running.lines)
        until_blocking(lambda: http_get(address, "/-/ready").status == 200, "Prometheus")
        yield running
    finally:
        process.terminate()
        process.wait(patience_s())
        reader.join(patience_s())


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stderr is not None
    with process.stderr as stream:
        lines.extend(stream)


def _bound(lines: list[str]) -> str:
    pattern = re.compile(r'msg="Listening on" address=(\S+)')
    until_blocking(lambda: pattern.search("".join(list(lines))), "Prometheus to listen")
    found = pattern.search("".join(list(lines)))
    assert found is not None
    return found[1]
