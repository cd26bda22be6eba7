"""The command group: lazy commands, exit codes, streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.support.policies import MINIMAL

from attnroute import __version__
from attnroute.cli import main as cli
from attnroute.errors import AdminError, PolicyError, Problem


def in_fresh_interpreter(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("heavy", ["grpc", "numpy", "rich", "starlette", "attnroute._dataplane"])
def test_check_does_not_load_what_it_does_not_use(tmp_path: Path, heavy: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(MINIMAL)
    done = in_fresh_interpreter(
        "import sys; from attnroute.cli.main import run; "
        f"code = run(['check', {str(path)!r}]); "
        f"sys.exit(code or {heavy!r} in sys.modules)"
    )
    assert done.returncode == 0, done.stderr


def test_help_loads_no_command_but_lists_all() -> None:
    done = in_fresh_interpreter(
        "import sys; from attnroute.cli.main import run; run(['--help']); "
        "print(*sorted(name for name in sys.modules if 'attnroute.' in name), file=sys.stderr)"
    )
    assert done.stderr.strip() == "attnroute.cli attnroute.cli.main attnroute.errors"
    for name in ("check", "demo", "endpoints", "schema", "sidecar", "weights"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    "name", ["check", "demo", "endpoints", "model", "schema", "sidecar", "weights"]
)
def test_every_command_has_help_with_examples_and_the_words_of_the_list(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert cli.run(["--help"]) == 0
    listed = capsys.readouterr().out
    (line,) = [line for line in listed.splitlines() if line.startswith(f"  {name} ")]
    short = line.removeprefix(f"  {name}").strip()
    assert short.split()[0] in text, f"`{short}` is not what the command says of itself"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"attnroute {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["check"], ["check", "--nonsense", "x"], ["--log-format", "xml", "check", "x"]],
)
def test_bad_usage_ends_with_2_and_says_so_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error:" in captured.err


class Ended(click.Command):
    """A command that ends as it is told."""

    def __init__(self, ending: BaseException | int | None) -> None:
        super().__init__("ended")
        self.ending = ending

    def invoke(self, ctx: click.Context) -> None:
        if isinstance(self.ending, BaseException):
            raise self.ending
        if self.ending is not None:
            ctx.exit(self.ending)


@pytest.mark.parametrize(
    ("ending", "code", "stderr"),
    [
        (None, 0, ""),
        (0, 0, ""),
        (7, 7, ""),
        (KeyboardInterrupt(), 130, "\n"),  # so that the shell's prompt does not follow its ^C
        (click.Abort(), 130, ""),
        (
            AdminError("no answer from `127.0.0.1:1`"),
            1,
            "attnroute: no answer from `127.0.0.1:1`\n",
        ),
        (PolicyError([Problem("a.yaml", 1, 2, "is wrong")]), 2, "a.yaml:1:2: is wrong\n"),
        (click.BadParameter("is wrong"), 2, "Error: Invalid value: is wrong\n"),
    ],
)
def test_what_ends_a_command_decides_the_exit_code(
    ending: BaseException | int | None,
    code: int,
    stderr: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run_command(Ended(ending), []) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == stderr


def test_a_reader_that_leaves_is_no_reason_for_a_traceback() -> None:
    """As `attnroute schema policy | head -1`, with a pipe that is closed from the start."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "attnroute", "schema", "policy"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == ""
