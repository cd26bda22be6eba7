"""Scorers of other distributions, installed as an installer does it."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.facts import facts
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.unit.scoring.test_attention import given

from attnroute.features.schema import schema_hash
from attnroute.scoring.plugins import GROUP, PluginError, installed, make_scorer

DOC = Path(__file__).resolve().parents[3] / "docs" / "scorers.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def install(directory: Path, module: str, code: str, entries: dict[str, str]) -> Path:
    """Builds a wheel of one module and has pip install it; returns where it lies."""
    name, info = f"{module}-1.0.0-py3-none-any.whl", f"{module}-1.0.0.dist-info"
    listed = "\n".join(f"{key} = {value}" for key, value in entries.items())
    files = {
        f"{module}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{GROUP}]\n{listed}\n",
    }
    record = ""
    for path, content in files.items():
        digest = hashlib.sha256(content.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record += f"{path},sha256={encoded},{len(content.encode())}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(directory / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    target = directory / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--disable-pip-version-check", "--target", str(target), str(directory / name)],
        check=True, timeout=120,
    )  # fmt: skip
    return target


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Modules that a test installs are gone afterwards."""
    before = set(sys.modules)
    yield monkeypatch
    for name in set(sys.modules) - before:
        if name.startswith("plugged_") or name == "by_generation":
            del sys.modules[name]


def example(directory: Path) -> Path:
    described = tomllib.loads(block("toml"))["project"]
    return install(directory, "by_generation", block("python"), described["entry-points"][GROUP])


def test_the_example_of_the_docs_scores(tmp_path: Path, importable: pytest.MonkeyPatch) -> None:
    target = example(tmp_path)
    importable.syspath_prepend(str(target))
    scorer = make_scorer("by_generation", "cart", installed([str(target)]))
    known = facts(endpoints=2)
    labels = ({"generation": "old"}, {"generation": "new"})
    scored = scorer.score(given(replace(known, labels=labels)))
    np.testing.assert_allclose(scored.cost_s / known.table.cost_s, [[1.5, 1.0]] * 4)
    np.testing.assert_allclose(scored.probability.sum(axis=1), 1.0)
    assert (scored.confidence > 0).all()
    assert (scored.confidence <= 1).all()


def test_a_sidecar_asks_the_example_and_gates_it(tmp_path: Path) -> None:
    target = example(tmp_path)
    with sync_peer() as one, sync_peer() as two:
        text = minimal_policy(
            one.address,
            two.address,
            extra="    balancer: {type: learned}\n    scorers: [by_generation]\n",
        )
        environment = {"PYTHONPATH": str(target)}
        with Sidecar(tmp_path, text, environment=environment) as sidecar:
            labels = {"service": "cart", "scorer": "by_generation", "stage": "plugin"}
            with sync_channel(sidecar.address) as channel:
                unary(channel)
                sidecar.until(
                    lambda: sidecar.metric("attnroute_scorer_runs_total", **labels) > 1, "runs"
                )
            assert sidecar.metric("attnroute_scorer_faults_total") == 0
            assert 0.5 < sidecar.metric("attnroute_model_gate_weight", **labels) < 1
            # A reload without it takes it away.
            sidecar.write_policy(text.replace("    scorers: [by_generation]\n", ""))
            sidecar.until(
                lambda: "by_generation" not in sidecar.get("/metrics").body.decode(), "the reload"
            )


def make(info: str, rest: str = "    def score(self, given): ...\n") -> str:
    return (
        "from attnroute.scoring.base import ScorerInfo\n"
        f"class Plugged:\n    info = {info}\n{rest}"
        "def make(service):\n    return Plugged()\n"
    )


WRONG = [
    ("raise ImportError('no')", "cannot be made: ImportError: no"),
    (make("'nothing'"), "has `str` for `info`, expected `ScorerInfo`"),
    (make("ScorerInfo('plugged', '1.0.0', '', 0.1)", "    pass\n"), "has no method `score`"),
    (make("ScorerInfo('other', '1.0.0', '', 0.1)"), "calls itself `other`"),
    (make("ScorerInfo('plugged', 'one', '', 0.1)"), "has version `one`, expected a semantic one"),
    (
        make("ScorerInfo('plugged', '1.0.0', 'abc', 0.1)"),
        f"feature schema `abc`, this build has `{schema_hash()}`",
    ),
    (make("ScorerInfo('plugged', '1.0.0', '', -1)"), "has `expected_latency_s` -1"),
    (make("ScorerInfo('plugged', '1.0.0', '', 0.1, float('nan'))"), "has `cost_s` nan"),
    (make("ScorerInfo('plugged', '1.0.0', '', 2)"), "expects a run to take 2 s, at most 0.5 s"),
]


@pytest.mark.parametrize(("code", "message"), WRONG)
def test_what_does_not_fit_is_said(
    tmp_path: Path, importable: pytest.MonkeyPatch, code: str, message: str
) -> None:
    module = f"plugged_{WRONG.index((code, message))}"
    target = install(tmp_path, module, code, {"plugged": f"{module}:make"})
    importable.syspath_prepend(str(target))
    with pytest.raises(PluginError, match=re.escape(message)) as refused:
        make_scorer("plugged", "cart", installed([str(target)]))
    assert str(refused.value).startswith(f"scorer `plugged` (`{module}:make`)")


def test_what_is_not_installed_is_said_with_what_is(tmp_path: Path) -> None:
    target = install(tmp_path, "plugged_there", "", {"there": "plugged_there:make"})
    with pytest.raises(PluginError, match=r"`gone` is not installed .*there are: `there`"):
        make_scorer("gone", "cart", installed([str(target)]))
