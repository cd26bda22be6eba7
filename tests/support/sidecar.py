"""A real `attnroute sidecar` process for tests: policy in, addresses out, logs kept.

Every port is picked by the system and read from the ports file. Whatever happens in a test, the
process is gone afterwards; its log is part of every failure message, because without it a failed
start cannot be told from a slow one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.wait import patience_s, until_blocking

ANY_PORT = "127.0.0.1:0"

ADMIN = f"admin: {{grpc: {ANY_PORT}, http: {ANY_PORT}}}\n"
"""The admin block of a test's policy."""


def minimal_policy(
    *endpoints: str, service: str = "cart", extra: str = "", listeners: str = ""
) -> str:
    """One explicit listener, then `listeners`, and one service with static endpoints; `extra` is
    appended."""
    listed = ", ".join(f'"{endpoint}"' for endpoint in endpoints)
    return (
        f"{ADMIN}"
        f"drain: {{linger: 1s, limit: 3s}}\n"
        f"listeners:\n  - {{mode: explicit, address: {ANY_PORT}}}\n{listeners}"
        f"services:\n  {service}:\n    endpoints: {{static: [{listed}]}}\n"
        f"{extra}"
    )


@dataclass(frozen=True)
class HttpAnswer:
    """What a page of the sidecar answered."""

    status: int
    body: bytes
    content_type: str

    def json(self) -> Any:
        return json.loads(self.body)


def http_get(address: str, path: str, accept: str = "*/*", method: str = "GET") -> HttpAnswer:
    """A page over plain HTTP, whatever the status; proxies of the environment do not count."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"http://{address}{path}", headers={"Accept": accept}, method=method
    )
    try:
        with opener.open(request, timeout=patience_s()) as answer:
            return HttpAnswer(answer.status, answer.read(), answer.headers.get("content-type", ""))
    except urllib.error.HTTPError as error:
        with error:
            return HttpAnswer(error.code, error.read(), error.headers.get("content-type", ""))


class Sidecar:
    """`attnroute sidecar` in a process of its own; a context manager that stops it.

    directory: where policy and ports file lie. policy: its text, written to `policy.yaml`.
    """

    def __init__(
        self,
        directory: Path,
        policy: str | bytes,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.policy_path = directory / "policy.yaml"
        self.ports_path = directory / "ports.json"
        self.ports_path.unlink(missing_ok=True)
        self.write_policy(policy)
        self._arguments = tuple(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._ports: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def write_policy(self, policy: str | bytes) -> None:
        """Replaces the policy file as a whole, as a careful operator does."""
        self.replace(self.policy_path, policy)

    @staticmethod
    def replace(path: Path, content: str | bytes) -> None:
        """Writes `path` through a rename, so that nobody reads half of it."""
        data = content.encode() if isinstance(content, str) else content
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(data)
        fresh.replace(path)

    def start(self, *, wait_ready: bool = True) -> Self:
        """Starts the process and, unless told otherwise, waits for its ports file."""
        command = [sys.executable, "-m", "attnroute", "sidecar"]
        command += ["--config", str(self.policy_path), "--ports-file", str(self.ports_path)]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        if wait_ready:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def wait_ready(self) -> None:
        """Waits until the ports file is there, which means ready."""
        self.until(
            lambda: self.ports_path.exists() or self.process.poll() is not None, "ports file"
        )
        assert self.ports_path.exists(), f"the sidecar ended before it was ready:\n{self.stderr}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ports(self) -> dict[str, Any]:
        """The content of the ports file."""
        if self._ports is None:
            self._ports = json.loads(self.ports_path.read_bytes())
        return self._ports

    @property
    def listeners(self) -> dict[str, str]:
        """Listener name -> bound address."""
        listeners: dict[str, str] = self.ports["listeners"]
        return listeners

    @property
    def address(self) -> str:
        """Of the only listener, or the first by its name."""
        return min(self.listeners.items())[1]

    @property
    def admin(self) -> str:
        """Address of the admin gRPC API; known before the sidecar is ready."""
        return str(self.logged("listening")["admin"]["grpc"])

    @property
    def http(self) -> str:
        """Address of the HTTP pages; known before the sidecar is ready."""
        return str(self.logged("listening")["admin"]["http"])

    @property
    def stderr(self) -> str:
        """Everything logged so far."""
        return "".join(self._lines)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every log line so far, parsed; a line that is no JSON fails the test."""
        return [json.loads(line) for line in list(self._lines)]

    def logged(self, message: str) -> dict[str, Any]:
        """Waits for a log line whose message contains `message`."""

        def find() -> dict[str, Any] | None:
            return next((line for line in self.log if message in line["message"]), None)

        self.until(lambda: find() or self.process.poll() is not None, f"log line `{message}`")
        found = find()
        assert found is not None, f"the sidecar ended without `{message}`:\n{self.stderr}"
        return found

    def get(self, path: str, accept: str = "*/*", method: str = "GET") -> HttpAnswer:
        """A page of the sidecar."""
        return http_get(self.http, path, accept, method)

    def metrics(self) -> Sequence[Metric]:
        """/metrics, read by the official parser."""
        return list(text_string_to_metric_families(self.get("/metrics").body.decode()))

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name with those labels, from /metrics; 0 without any."""
        return sum(
            sample.value
            for family in self.metrics()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition; the log is in the message of a failure."""
        try:
            until_blocking(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\nlog of the sidecar:\n{self.stderr}") from None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for the end; returns the exit code. The log is complete afterwards."""
        try:
            code = self.process.wait(patience_s())
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the sidecar did not end:\n{self.stderr}") from None
        assert self._reader is not None
        self._reader.join(patience_s())
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end; returns the exit code."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """Ends it for sure; harmless if it ended already."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(patience_s())
        if self._reader is not None:
            self._reader.join(patience_s())

    def _collect(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace"))
