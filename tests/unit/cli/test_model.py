"""`attnroute model` on a directory and on a registry's address: the same words, the same codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundles import make_bundle, version
from tests.support.registry import registry
from tests.support.wait import patience_s

from attnroute.bundle import write
from attnroute.cli import main as cli
from attnroute.features.schema import schema_hash
from attnroute.registry.operator import is_address
from attnroute.registry.store import Store


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with three bundles, the oldest of them `stable`, the newest `canary`."""
    root = tmp_path / "models"
    store = Store(root)
    for number in range(3):
        store.add(make_bundle(version(number), schema=schema_hash()))
    for channel, number in (("stable", 0), ("canary", 2)):
        store.point("default", channel, version(number), expected_generation=0, reason="made")
    return root


def run(*arguments: str, root: Path | None = None) -> int:
    return cli.run(["model", *arguments, *(["--registry", str(root)] if root else [])])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_list(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json", root=models) == 0
    listed = document(capsys)
    assert [bundle["version"] for bundle in listed["bundles"]] == ["1.0.2", "1.0.1", "1.0.0"]
    assert {state["channel"]: state["version"] for state in listed["channels"]} == {
        "stable": "1.0.0", "canary": "1.0.2",
    }  # fmt: skip
    assert run("list", root=models) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "version", "KiB", "made", "schema", "channels"]
    assert [line.split()[1::4] for line in lines[1:]] == [
        ["1.0.2", "canary"], ["1.0.1", "-"], ["1.0.0", "stable"],
    ]  # fmt: skip


def test_show(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "1.0.1", "--json", root=models) == 0
    shown = document(capsys)
    assert (shown["version"], shown["opset"], shown["signed"]) == ("1.0.1", 20, False)
    assert shown["card"] == "# default 1.0.1\n"
    assert run("show", root=models) == 0
    assert "# default 1.0.0" in capsys.readouterr().out


def test_promote_what_the_canary_has_and_roll_back(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("promote", root=models) == 0
    assert capsys.readouterr().out == "default stable: 1.0.2 (before: 1.0.0)\n"
    assert run("promote", "1.0.1", "--json", root=models) == 0
    state = document(capsys)
    assert (state["version"], state["previous"]) == ("1.0.1", ["1.0.2", "1.0.0"])
    assert run("rollback", root=models) == 0
    assert capsys.readouterr().out == "default stable: 1.0.2, frozen (before: 1.0.1)\n"
    assert Store(models).channel("default", "stable").frozen
    assert run("rollback", "--no-freeze", "--json", root=models) == 0
    assert not document(capsys)["frozen"]


def test_roll_back_passes_over_what_is_gone(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("1.0.1", "1.0.2"):
        assert run("promote", number, root=models) == 0
    (models / "default" / "1.0.1").rename(models / "gone")
    capsys.readouterr()
    assert run("rollback", root=models) == 0
    assert capsys.readouterr().out.startswith("default stable: 1.0.0, frozen")


def test_freeze(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("freeze", "--channel", "canary", root=models) == 0
    assert capsys.readouterr().out == "default canary: 1.0.2, frozen\n"
    assert run("freeze", "--channel", "canary", "--off", root=models) == 0
    assert capsys.readouterr().out == "default canary: 1.0.2\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "7.0.0"], "there is no version `7.0.0` of `default`; there are: 1.0.2, 1.0.1"),
        (["promote", "7.0.0"], "there is no such bundle"),
        (["promote", "--name", "other"], "channel `canary` of `other` points nowhere"),
        (["rollback"], "points at `1.0.0` and has no version before it; promote one"),
        (["freeze", "--channel", "beta"], "channel `beta` of `default` points nowhere"),
        (["verify", "--channel", "beta"], "channel `beta` of `default` points nowhere"),
    ],
)
def test_what_cannot_be_done_is_said(
    models: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(*arguments, root=models) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("attnroute: ")
    assert captured.out == ""


def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", root=tmp_path / "nothing") == 1
    assert "there is no such directory" in capsys.readouterr().err


class TestVerify:
    def test_a_good_one(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("verify", "1.0.1", root=models) == 0
        assert capsys.readouterr().out == "default 1.0.1: good\n"
        assert run("verify", str(models / "default" / "1.0.2"), "--json") == 0
        assert document(capsys)["version"] == "1.0.2"

    def test_a_damaged_one(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (models / "default" / "1.0.1" / "card.md").write_text("# default 1.0.9\n")
        assert run("verify", "1.0.1", root=models) == 2
        assert "`card.md` has sha256" in capsys.readouterr().err

    def test_one_that_does_not_say_what_it_was_trained_to(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bundle = make_bundle(schema=schema_hash())
        cost_s = bundle.probe.outputs["cost_s"] * 1.01
        probe = replace(bundle.probe, outputs={**bundle.probe.outputs, "cost_s": cost_s})
        path = write(tmp_path, replace(bundle, probe=probe))
        assert run("verify", str(path)) == 2
        assert "`cost_s` of its probe is off by 0.0099" in capsys.readouterr().err

    def test_one_of_another_schema(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write(tmp_path, make_bundle(schema="older"))
        assert run("verify", str(path)) == 2
        assert "made for feature schema `older`, this build has" in capsys.readouterr().err

    def test_signatures(
        self, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        key = tmp_path / "model.key"
        assert run("keygen", str(key)) == 0
        public = capsys.readouterr().out.strip()
        assert public == f"{key}.pub"
        path = str(models / "default" / "1.0.1")
        assert run("verify", path, "--public-key", public) == 2
        assert "it has no `manifest.sig`" in capsys.readouterr().err
        assert run("sign", path, "--key", str(key)) == 0
        capsys.readouterr()
        assert run("verify", path, "--public-key", public) == 0
        assert capsys.readouterr().out == "default 1.0.1: good, signed\n"
        assert run("keygen", str(key)) == 2
        assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("127.0.0.1:15020", True), ("trainer:15020", True), ("[::1]:15020", True),
        ("unix:/run/registry.sock", True), ("models", False), ("./a:b", False),
        ("/var/models:1", False),
    ],
)  # fmt: skip
def test_an_address_or_a_directory(place: str, address: bool) -> None:  # noqa: FBT001
    assert is_address(place) == address


def command(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attnroute", "model", *arguments, "--registry", address],
        capture_output=True, text=True, check=False, timeout=patience_s(),
    )  # fmt: skip


async def test_over_the_wire(models: Path, tmp_path: Path) -> None:
    async def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, address, *arguments)

    async with registry(models, allow_changes=True) as (store, address, _):
        listed = await ask("list", "--json")
        assert listed.returncode == 0, listed.stderr
        assert len(json.loads(listed.stdout)["bundles"]) == 3
        shown = await ask("show", "1.0.1")
        assert shown.stdout.endswith("# default 1.0.1\n")
        verified = await ask("verify", "1.0.2")
        assert (verified.returncode, verified.stdout) == (0, "default 1.0.2: good\n")
        promoted = await ask("promote", "1.0.2")
        assert promoted.stdout == "default stable: 1.0.2 (before: 1.0.0)\n"
        rolled = await ask("rollback")
        assert rolled.stdout == "default stable: 1.0.0, frozen (before: 1.0.2)\n"
        assert store.channel("default", "stable").frozen
        (models / "default" / "1.0.1" / "score.onnx").write_bytes(b"x")
        broken = await ask("verify", "1.0.1")
        assert broken.returncode == 1
        assert "publish it again" in broken.stderr


async def test_no_registry_there(tmp_path: Path) -> None:
    done = await asyncio.to_thread(command, f"unix:{tmp_path}/nobody", "list")
    assert done.returncode == 1
    assert "no registry answers (UNAVAILABLE" in done.stderr
    assert "name the `fleet.address` of a trainer with a `registry`" in done.stderr
