"""`attnroute check` and `attnroute schema`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.policies import MINIMAL, loaded

from attnroute.cli.main import run
from attnroute.policy.schema import json_schema

BROKEN = "listeners: [{mode: explicit, address: 8080}]\nservices: {a: {}}\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(MINIMAL)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(BROKEN)
    return path


def test_a_valid_file_is_one_line(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(good)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{good}: valid, 1 listener, 1 service\n"
    assert captured.err == ""


def test_every_problem_of_every_file(
    good: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(broken), str(good), "missing.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == f"{good}: valid, 1 listener, 1 service\n"
    assert captured.err.splitlines() == [
        (f"{broken}:1:39: `address` in `listeners[0]`: found `8080`, expected an address such as "
        "`127.0.0.1:50051` or `unix:/path`"),
        f"{broken}:2:15: `a` in `services` lacks the key `endpoints`",
        "missing.yaml:1:1: cannot be read: No such file or directory; check the path",
    ]  # fmt: skip


def test_json_has_the_same(good: Path, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--json", str(good), str(broken)]) == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    first, second = json.loads(captured.out)["files"]
    assert (first["path"], first["valid"], first["problems"]) == (str(good), True, [])
    assert first["sha256"] == loaded(MINIMAL).sha256
    assert (second["valid"], second["sha256"]) == (False, None)
    assert [(each["line"], each["column"]) for each in second["problems"]] == [(1, 39), (2, 15)]


def test_defaults_print_a_policy_that_says_the_same(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--defaults", str(good)]) == 0
    text = capsys.readouterr().out
    assert "max_header_list_bytes: 96KiB" in text
    assert "connect_timeout: 2s" in text
    assert loaded(text).policy == loaded(MINIMAL).policy


def test_defaults_as_json(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--defaults", "--json", str(good)]) == 0
    (document,) = json.loads(capsys.readouterr().out)["files"]
    assert document["policy"]["services"]["checkout"]["connection"]["connect_timeout"] == "2s"


def test_schema_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "policy"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_schema_of_what_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "nonsense"]) == 2
    assert "'policy'" in capsys.readouterr().err
