"""`attnroute wrap`: runs a program with a sidecar of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click

from attnroute.cli.overrides import DurationParameter
from attnroute.errors import AttnrouteError, PolicyError, Problem

_EPILOG = """\b
Examples:
  attnroute wrap --config policy.yaml -- python client.py
  attnroute wrap --config policy.yaml -- env GRPC_TRACE=http1 ./client

\b
The policy needs a listener with mode `connect`; the program finds it by `grpc_proxy`, which is set
for it alone. Signals are passed on. Exits with the program's code, 128 + N if signal N ended it,
126 or 127 if it cannot be run, and as `attnroute sidecar` does if that cannot start.
"""

_EXIT_NOT_RUNNABLE = 126
_EXIT_NOT_FOUND = 127
_SIGNALLED = 128
_POLL_S = 0.02
_WATCH_S = 0.5
# Beyond the sidecar's own drain.
_STOP_MARGIN_S = 5.0
_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# What a terminal sends to its whole foreground group.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@click.command("wrap", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The policy file of the sidecar.",
)
@click.option(
    "--timeout",
    type=DurationParameter(),
    default="30s",
    show_default=True,
    help="How long the sidecar may take to be ready.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, config: Path, timeout: timedelta, program: tuple[str, ...]) -> None:
    """Run PROGRAM with a sidecar and `grpc_proxy` set for it alone."""
    from attnroute.policy.load import load_policy

    loaded = load_policy(config)
    listener = next((one for one in loaded.policy.listeners if one.mode == "connect"), None)
    if listener is None or listener.address.startswith("unix:"):
        line, column = loaded.position(("listeners",))
        message = (
            "no listener has mode `connect` and a TCP address, by which a program could find the "
            "sidecar; add `- {mode: connect, address: 127.0.0.1:0}`"
        )
        raise PolicyError([Problem(str(config), line, column, message)])
    if shutil.which(program[0]) is None:
        # A file that nobody may execute is not found either; the difference is in the code.
        click.echo(f"attnroute: no program `{program[0]}`; check its name and PATH", err=True)
        sys.exit(_EXIT_NOT_RUNNABLE if Path(program[0]).exists() else _EXIT_NOT_FOUND)
    stop_s = loaded.policy.drain.limit.total_seconds() + _STOP_MARGIN_S
    signals = _Signals()
    with (
        tempfile.TemporaryDirectory(prefix="attnroute-") as folder,
        _sidecar(config, Path(folder) / "ports.json", stop_s) as sidecar,
    ):
        bound = sidecar.bound(listener.name, timeout.total_seconds(), signals)
        code = signals.exit_code if bound is None else _run(program, bound, sidecar, signals)
    sys.exit(code)


class _Signals:
    """Passes signals on to the program; before it runs, they end the wait for the sidecar."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.program: subprocess.Popen[bytes] | None = None
        for number in _FORWARDED:
            signal.signal(number, self._receive)

    @property
    def exit_code(self) -> int:
        """Of a wait that a signal ended."""
        return _SIGNALLED + (self.received or signal.SIGTERM)

    def _receive(self, number: int, _frame: object) -> None:
        if self.program is None:
            self.received = signal.Signals(number)
        elif not (number in _FROM_TERMINAL and _in_foreground()):
            self.program.send_signal(number)


def _in_foreground() -> bool:
    """Whether a terminal has sent its signals to the program already."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class _Sidecar:
    """The sidecar's process."""

    def __init__(self, process: subprocess.Popen[bytes], ports_file: Path) -> None:
        self._process = process
        self._ports_file = ports_file
        self._told = False

    def bound(self, listener: str, timeout_s: float, signals: _Signals) -> str | None:
        """Where the listener is bound, once the sidecar is ready; None if a signal came first."""
        end_s = time.monotonic() + timeout_s
        while not self._ports_file.exists():
            if signals.received is not None:
                return None
            if (code := self._process.poll()) is not None:
                sys.exit(code if code > 0 else 1)  # it has said why
            if time.monotonic() > end_s:
                raise AttnrouteError(
                    f"the sidecar is not ready within {timeout_s:g} s; look at its log, or give it "
                    "more time with `--timeout`"
                )
            time.sleep(_POLL_S)
        listeners: dict[str, str] = json.loads(self._ports_file.read_bytes())["listeners"]
        return listeners[listener]

    def watch(self) -> None:
        """Says, once, that it is gone while the program runs."""
        code = self._process.poll()
        if code is not None and not self._told:
            self._told = True
            click.echo(
                f"attnroute: the sidecar ended with {code}; calls of the program fail now",
                err=True,
            )


@contextmanager
def _sidecar(config: Path, ports_file: Path, stop_s: float) -> Iterator[_Sidecar]:
    """A running sidecar, drained and stopped afterwards."""
    arguments = ["sidecar", "--config", str(config), "--ports-file", str(ports_file)]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "attnroute", *arguments],
        stdin=subprocess.DEVNULL,
        # Out of reach of the terminal's signals: the program may have last calls to make.
        start_new_session=True,
    )
    try:
        yield _Sidecar(process, ports_file)
    finally:
        process.terminate()
        try:
            process.wait(stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run(program: tuple[str, ...], bound: str, sidecar: _Sidecar, signals: _Signals) -> int:
    """Runs the program to its end; returns the exit code."""
    environment = {**os.environ, "grpc_proxy": f"http://{_dialled(bound)}"}
    try:
        process = subprocess.Popen(program, env=environment)  # noqa: S603
    except OSError as error:
        click.echo(f"attnroute: cannot run `{program[0]}`: {error.strerror}", err=True)
        return _EXIT_NOT_RUNNABLE
    signals.program = process
    if signals.received is not None:
        process.send_signal(signals.received)
    while True:
        try:
            code = process.wait(_WATCH_S)
        except subprocess.TimeoutExpired:
            sidecar.watch()
        else:
            return code if code >= 0 else _SIGNALLED - code


def _dialled(bound: str) -> str:
    """The address by which a listener on every address is reached from here."""
    host, _, port = bound.rpartition(":")
    own = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
    return f"{own.get(host, host)}:{port}"
