"""Every log line that asks for action is explained in docs/operations.md, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = re.compile(r'logger\.(?:warning|error|exception)\(\s*"([^"%]+)"')
RUST = re.compile(r'tracing::(?:warn|error)!\((?:[^"]*,\s*)?"([^"]+)"\)')


def messages() -> set[str]:
    # The demo speaks to a person at a terminal and has no log.
    python = [
        path
        for path in (ROOT / "src/attnroute").rglob("*.py")
        if not path.is_relative_to(ROOT / "src/attnroute/demo")
    ]
    rust = list((ROOT / "crates/dataplane/src").rglob("*.rs"))
    found = {match for path in python for match in PYTHON.findall(path.read_text())}
    return found | {match for path in rust for match in RUST.findall(path.read_text())}


def documented() -> set[str]:
    text = (ROOT / "docs/operations.md").read_text()
    table = text.partition("\n## Log\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {message for row in rows for message in re.findall(r"`([^`]+)`", row)}


def test_log_lines_that_ask_for_action_are_explained() -> None:
    assert "policy rejected; the last good one stays in force" in messages()
    assert "cannot connect" in messages()
    assert documented() - {"file:line:column: ..."} == messages()
