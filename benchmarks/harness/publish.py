"""Write what is published of a run: the page, its plots, the configurations of the peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from benchmarks.harness import page
from benchmarks.harness.results import Run, newest_run, read_run
from benchmarks.harness.tools import ROOT

BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
CONFIG_FILES = {
    "attnroute": "attnroute.yaml",
    "envoy": "envoy.yaml",
    "haproxy": "haproxy.cfg",
    "nginx": "nginx.conf",
}


def main(argv: Sequence[str]) -> int:
    """Publish the given result or the newest. Exit code 2 if there is none that can be read."""
    if len(argv) > 1 or (argv and argv[0].startswith("-")):
        print("usage: benchmarks/report.py [RESULT.json]", file=sys.stderr)
        return 2
    path = Path(argv[0]) if argv else newest_run(RESULTS)
    if path is None:
        print("report: no result in `benchmarks/results`; run `make bench`", file=sys.stderr)
        return 2
    try:
        publish(path, BENCHMARKS)
    except (OSError, ValidationError, ValueError) as error:
        print(f"report: `{path}` cannot be read: {error}", file=sys.stderr)
        return 2
    return 0


def publish(result: Path, directory: Path) -> None:
    """Write README.md, plots and configurations of `result` below `directory`."""
    run = read_run(result)
    for name, text in published_files(run, result.name).items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        print(f"report: wrote {name}", file=sys.stderr)


def published_files(run: Run, result_name: str) -> dict[str, str]:
    """Everything that a run publishes: path below benchmarks/ and content."""
    plots = {f"results/plots/{name}.svg": text for name, text in page.plots(run).items()}
    configs = {
        f"peers/{CONFIG_FILES[name]}": text
        for name, text in run.configs.items()
        if name in CONFIG_FILES
    }
    readme = page.render(run, result_name=result_name, plots=sorted(plots))
    return {"README.md": readme, **plots, **configs}
