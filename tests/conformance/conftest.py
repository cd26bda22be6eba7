"""Builds and runs the foreign peers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.peers import Command
from tests.support.echo_endpoint import ECHO, ROOT, endpoint_process

SOURCES = Path(__file__).parent
TOOLS = ROOT / ".tools" / "conformance"


def _program(name: str, what: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"the conformance run needs {what} on the PATH"
    return found


@pytest.fixture(scope="session")
def go_peer() -> Command:
    """The built grpc-go peer; a second build takes no time."""
    binary = TOOLS / "go-peer"
    TOOLS.mkdir(parents=True, exist_ok=True)
    go = _program("go", "Go 1.26 or newer")
    subprocess.run([go, "build", "-o", str(binary), "."], cwd=SOURCES / "go", check=True)
    return (str(binary),)


@pytest.fixture(scope="session")
def js_peer() -> Command:
    """The grpc-js peer with its packages, installed once for each lock file."""
    node, npm = _program("node", "Node 20 or newer"), _program("npm", "npm 10 or newer")
    folder, lock = TOOLS / "js", "package-lock.json"
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "node_modules" / "installed.json"
    wanted = (SOURCES / "js" / lock).read_bytes()
    for source in (SOURCES / "js").iterdir():
        shutil.copy(source, folder)
    if not installed.exists() or installed.read_bytes() != wanted:
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=folder, check=True)
        installed.write_bytes(wanted)
    return (node, str(folder / "peer.mjs"))


@pytest.fixture
def go_endpoint(go_peer: Command) -> Iterator[str]:
    """A running grpc-go endpoint."""
    with endpoint_process(*go_peer, "serve") as address:
        yield address


@pytest.fixture
def js_endpoint(js_peer: Command) -> Iterator[str]:
    """A running grpc-js endpoint."""
    with endpoint_process(*js_peer, "serve") as address:
        yield address


@pytest.fixture
def python_endpoint() -> Iterator[str]:
    """A running grpcio endpoint."""
    with endpoint_process(*ECHO) as address:
        yield address
