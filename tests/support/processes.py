"""Which processes run, and which descend from which, as /proc has it."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    found = _stat(pid)
    return found is not None and found[0] != "Z"


def descendants(pid: int) -> set[int]:
    """Pids of all running children, their children and so on, whatever session they are in."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))) is not None:
            children.setdefault(found[1], []).append(int(entry.name))
    seen: set[int] = set()
    open_pids = [pid]
    while open_pids:
        for child in children.get(open_pids.pop(), []):
            if child not in seen:
                seen.add(child)
                open_pids.append(child)
    return {child for child in seen if alive(child)}


def command_line(pid: int) -> str:
    """Arguments joined by blanks; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, parent's pid)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, blanks and parentheses included.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)
