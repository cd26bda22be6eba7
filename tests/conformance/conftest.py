"""Builds and runs the foreign peers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.peers import Command
from tests.support.echo_endpoint import ECHO, ROOT, endpoint_process
from tests.support.wait import patience_s

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


def _go_tool(name: str, package: str) -> Command:
    """A program that `go.mod` names as a tool, at the version that stands there."""
    binary = TOOLS / name
    TOOLS.mkdir(parents=True, exist_ok=True)
    go = _program("go", "Go 1.26 or newer")
    subprocess.run([go, "build", "-o", str(binary), package], cwd=SOURCES / "go", check=True)
    return (str(binary),)


@pytest.fixture(scope="session")
def h2spec() -> Command:
    """The conformance tester of HTTP/2."""
    return _go_tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec")


@contextlib.contextmanager
def _server(*command: str, announces: str, **variables: str) -> Iterator[re.Match[str]]:
    """Runs a server that says in a line of its log that it listens; gives what matched there."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next((match for line in lines if (match := re.search(announces, line))), None)
        assert found is not None, f"{command} ended at once"
        # It goes on logging, and must not wait for a reader.
        reader = threading.Thread(target=process.stdout.read, daemon=True)
        reader.start()
        try:
            yield found
        finally:
            process.terminate()
            reader.join(patience_s())


@pytest.fixture(scope="session")
def interop_go_client() -> Command:
    """The client of gRPC's interop suite in Go."""
    return _go_tool("interop-client", "google.golang.org/grpc/interop/client")


@pytest.fixture
def interop_go_endpoint() -> Iterator[str]:
    """The running server of gRPC's interop suite in Go."""
    server = _go_tool("interop-server", "google.golang.org/grpc/interop/server")
    announces = r"interop server listening on \S*:(\d+)"
    with _server(
        *server, "--port=0", announces=announces, GRPC_GO_LOG_SEVERITY_LEVEL="info"
    ) as found:
        yield f"127.0.0.1:{found[1]}"


def _java(main: str) -> Command:
    """A program of gRPC's interop suite in Java, of the version that stands in `pom.xml`."""
    java, maven = _program("java", "Java 17 or newer"), _program("mvn", "Maven 3.8 or newer")
    folder, pom = TOOLS / "java", (SOURCES / "java" / "pom.xml").read_bytes()
    installed = folder / "installed.xml"
    if not installed.exists() or installed.read_bytes() != pom:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_bytes(pom)
        copy = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*copy, "-DoutputDirectory=jars"], cwd=folder, check=True)
        installed.write_bytes(pom)
    # Most runs are short: what starts fast is faster.
    options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{folder}/jars/*")
    return (java, *options, f"io.grpc.testing.integration.{main}")


@pytest.fixture(scope="session")
def interop_java_client() -> Command:
    """The client of gRPC's interop suite in Java."""
    return _java("TestServiceClient")


@pytest.fixture
def interop_java_endpoint() -> Iterator[str]:
    """The running server of gRPC's interop suite in Java."""
    # It does not say which port the system picked, so it is told one that was free just now.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (f"--port={port}", "--use_tls=false")
    with _server(*_java("TestServiceServer"), *options, announces="Server started"):
        yield f"127.0.0.1:{port}"


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
