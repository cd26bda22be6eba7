"""Every log line and every metric that asks for action is explained, and no other line is."""

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


TROUBLE = re.compile(
    r"fail|error|drop|refused|rejected|stale|_hits|panic|ejec|unhealthy|silence|void|malformed"
    r"|evict|folded|left_out|_shed|age_seconds|held"
)
"""Names of metrics that say that something is wrong, or may be."""


def metrics(section: str) -> set[str]:
    """Names in the first column, of the tables before or in `What to do when`."""
    tables, _, signs = (ROOT / "docs/metrics.md").read_text().partition("\n## What to do when\n")
    rows = {"tables": tables, "signs": signs}[section].splitlines()
    cells = [line.split("|")[1] for line in rows if line.startswith("| `attnroute_")]
    if section == "tables":
        return {name for cell in cells for name in re.findall(r"`(attnroute_\w+)`", cell)}
    names = set()
    for cell in cells:
        first, *others = re.findall(r"`(\w+)", cell)
        names.add(first)
        # `_evictions_total` behind another name stands for one with the same beginning.
        for other in others:
            begun = re.sub(r"_[a-z]+_total$", "", first)
            names.add(f"{begun}{other}" if other.startswith("_") else other)
    return names


def test_metrics_that_say_that_something_is_wrong_say_what_to_do() -> None:
    troubles = {name for name in metrics("tables") if TROUBLE.search(name)}
    assert "attnroute_limit_hits_total" in troubles
    assert troubles - metrics("signs") == set()


def test_what_to_do_names_metrics_that_exist() -> None:
    # Those of the trainer stand in tables of another form; a test of the trainer has them.
    known = metrics("tables") | {"attnroute_trainer_source_stale"}
    signs = {name for name in metrics("signs") if name.startswith("attnroute_")}
    assert signs - known == set()
