"""`attnroute sim`, `attnroute check --scenario` and `attnroute schema scenario`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnroute.cli.main import run

WORLD = """\
sidecars: 2
endpoints: [{count: 4, workers: 2}]
service_time: {mean: 10ms, lognormal: {sigma: 0.7}}
load: {fraction: 0.7}
events: [{at: 2s, fail: {endpoints: {count: 1}, mode: after_headers}}]
warmup: 1s
duration: 3s
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(WORLD, encoding="utf-8")
    return file


def test_a_table_and_a_page(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["sim", str(world), "--balancer", "round_robin,oracle", "--seeds", "0-1"]
    assert run([*arguments, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    lines = [re.sub(r"\s+", " ", line).strip() for line in printed.out.splitlines()]
    assert lines[0] == "small: 560 calls/s, load 0.70"
    assert lines[1] == "balancer mean ms p50 p90 p99 p99.9 errors"
    assert re.fullmatch(r"round_robin( [\d.]+ ±[\d.]+){5} [\d.]+ %", lines[2])
    assert lines[-3].endswith("fail at 2 s")
    assert lines[-2:] == ["round_robin never", "oracle 0.0"]
    assert printed.err == f"report: {out / 'small.html'}\n"

    page = (out / "small.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml;base64,") == 3
    # Self-contained: nothing is fetched.
    assert not re.search(r"(src|href)='?\"?https?:", page)
    assert " ".join(arguments) in page.replace("&#x27;", "'")
    figures = json.loads((out / "small.json").read_text(encoding="utf-8"))
    assert [entry["balancer"] for entry in figures["balancers"]] == ["round_robin", "oracle"]


def test_json_is_one_document(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", str(world), "--balancer", "oracle", "--seeds", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scenario"] == "small"
    (entry,) = document["balancers"]
    assert entry["margins"]["mean_ms"] is None
    assert entry["runs"][0]["seed"] == 4


def test_mistakes_end_with_2(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", str(world), "--balancer", "oracel"]) == 2
    assert capsys.readouterr().err.startswith("attnroute: balancer `oracel`")
    assert run(["sim", str(world), "--seeds", "x"]) == 2
    assert capsys.readouterr().err.startswith("attnroute: seeds `x`")
    world.write_text(WORLD.replace("0.7}\nevents", "1.7}\nevents"), encoding="utf-8")
    assert run(["sim", str(world)]) == 2
    assert capsys.readouterr().err.startswith(f"{world}:4:18: `load.fraction`: 1360 calls")


def test_check_and_schema(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--scenario", str(world)]) == 0
    assert capsys.readouterr().out == f"{world}: valid, 560 calls/s, load 0.70\n"
    broken = world.with_name("broken.yaml")
    broken.write_text(WORLD.replace("load:", "laod:"), encoding="utf-8")
    assert run(["check", "--scenario", "--json", str(world), str(broken)]) == 2
    good, bad = json.loads(capsys.readouterr().out)["files"]
    assert good == {"path": str(world), "valid": True, "problems": []}
    assert [(problem["line"], problem["column"]) for problem in bad["problems"]] == [(4, 1)]
    assert run(["schema", "scenario"]) == 0
    assert "service_time" in json.loads(capsys.readouterr().out)["properties"]
