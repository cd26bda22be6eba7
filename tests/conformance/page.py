"""docs/conformance.md from the results of a conformance run.

`python -m tests.conformance.page RESULTS.xml PAGE.md` reads pytest's JUnit file. The page is
committed, since the run needs peers that `make test` does without; a test holds it to the suites
that exist and to `FORWARD_BEHAVIOUR`.
"""

from __future__ import annotations

import ast
import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FORWARD_BEHAVIOUR = 4
"""Raise it by hand with each change of what clients or endpoints can see of the forward path: the
page is out of date until the conformance run was made again."""

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Row:
    """One check of a suite: passed is False for failures and errors."""

    suite: str
    name: str
    passed: bool
    seconds: float


def suites() -> dict[str, list[str]]:
    """What exists: the checks of every `check_*.py` beside this file, by suite."""
    found = {}
    for path in sorted(FOLDER.glob("check_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = [n.name for n in functions if n.name.startswith("test_")]
        found[path.stem.removeprefix("check_")] = [_readable(name) for name in names]
    return found


def _readable(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def read_results(xml: str) -> list[Row]:
    """Rows of a JUnit file that pytest wrote."""
    rows = []
    for case in ElementTree.fromstring(xml).iter("testcase"):
        suite = case.attrib["classname"].rpartition(".")[2].removeprefix("check_")
        bad = {"failure", "error", "skipped"} & {child.tag for child in case}
        seconds = float(case.attrib.get("time", "0"))
        rows.append(Row(suite, _readable(case.attrib["name"]), not bad, seconds))
    return rows


def page(rows: Iterable[Row], facts: Mapping[str, str]) -> str:
    """The whole page."""
    lines = [
        "# Conformance",
        "",
        "Foreign gRPC peers through a real `attnroute sidecar`, each run compared with the same",
        "calls without it; the interop suite of gRPC in every listener mode; h2spec; 10,000 idle",
        "connections. Written by `make conformance`.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "| suite | check | result | seconds |",
        "|---|---|---|---|",
    ]
    for row in rows:
        result = "passed" if row.passed else "**failed**"
        lines.append(f"| {row.suite} | {row.name} | {result} | {row.seconds:.1f} |")
    return "\n".join(lines) + "\n"


def recorded(text: str) -> tuple[int, set[tuple[str, str]]]:
    """`FORWARD_BEHAVIOUR` of a page and the (suite, check) pairs it says passed."""
    behaviour = re.search(r"^- FORWARD_BEHAVIOUR: (\d+)$", text, flags=re.MULTILINE)
    passed = re.findall(r"^\| (\S+) \| (.+?) \| passed \|", text, flags=re.MULTILINE)
    return int(behaviour[1]) if behaviour else 0, set(passed)


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _written(pattern: str, *path: str) -> str:
    """A version, from the file that fixes it."""
    found = re.search(pattern, FOLDER.joinpath(*path).read_text(encoding="utf-8"))
    return found[1] if found else "unknown"


def facts_of_this_run() -> dict[str, str]:
    """Commit, date, machine and versions."""
    changed = _output("git", "status", "--porcelain", "--", "src", "crates", "tests")
    commit = _output("git", "rev-parse", "--short=12", "HEAD") + (" and changes" if changed else "")
    kernel = platform.release().split("-")[0]
    peers = [f"grpcio {importlib.metadata.version('grpcio')}"]
    tools = ROOT / ".tools" / "conformance"
    peers.append(f"grpc-go {_output(str(tools / 'go-peer'), 'version')}")
    peers.append(f"grpc-js {_output('node', str(tools / 'js' / 'peer.mjs'), 'version')}")
    java = _written(r"<version>([0-9.]+)</version>\s*</dependency>", "java", "pom.xml")
    h2spec = _written(r"summerwind/h2spec v([0-9.]+)", "go", "go.mod")
    peers += [f"grpc-java {java}", f"h2spec {h2spec}"]
    return {
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {kernel}",
        "peers": ", ".join(peers),
        "FORWARD_BEHAVIOUR": str(FORWARD_BEHAVIOUR),
    }


def main(arguments: Sequence[str]) -> int:
    """Writes the page."""
    results, target = Path(arguments[0]), Path(arguments[1])
    rows = read_results(results.read_text(encoding="utf-8"))
    target.write_text(page(rows, facts_of_this_run()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
