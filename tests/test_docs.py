"""Docs are true: what they name exists, what they show works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from tests.support.sidecar import Sidecar, minimal_policy

import attnroute
from attnroute.admin.trainer_metrics import TrainerMetrics
from attnroute.policy.load import load_policy

ROOT = Path(__file__).resolve().parent.parent
PROMTOOL = ROOT / ".tools" / "prometheus" / "usr" / "bin" / "promtool"

DOCS = sorted(
    path
    for folder in (".", "docs", "deploy", "models", "benchmarks")
    for path in (ROOT / folder).glob("*.md")
)
TREES = "src|crates|docs|tests|configs|deploy|scripts|benchmarks|proto|requirements|models"

GROUPS = ("model",)
"""Commands that have commands of their own."""

every_doc = pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


def code_spans(text: str) -> list[str]:
    """Lines of fenced blocks and inline code, without prompts and comments."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ").strip() for block in fenced for line in block.splitlines()]
    return lines + [span.strip() for span in re.findall(r"`([^`\n]+)`", rest)]


def fenced_yaml(text: str) -> list[str]:
    return re.findall(r"^```ya?ml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def is_policy(text: str) -> bool:
    return re.search(r"^listeners:", text, re.MULTILINE) is not None and "\nservices:" in text


@every_doc
def test_links_lead_somewhere(doc: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", doc.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (doc.parent / target).exists()] == []


@every_doc
def test_paths_exist(doc: Path) -> None:
    paths = {
        match[0].rstrip(".")
        for span in code_spans(doc.read_text())
        for match in re.finditer(rf"(?<![\w./-])(?:{TREES})/[\w./-]+", span)
    }
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_files_of_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`(\w+(?:\.rs|/))`", text))
    assert "proxy.rs" in names
    core = ROOT / "crates" / "dataplane" / "src"
    assert [name for name in sorted(names) if not (core / name).exists()] == []


@every_doc
def test_make_targets_exist(doc: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        match[1]
        for span in code_spans(doc.read_text())
        if (match := re.match(r"(?:[A-Z_]+=\S+ )*make ([a-z-]+)", span))
    }
    assert named - targets == set()


@cache
def help_of(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "attnroute", *command.split(), "--help"],
        capture_output=True, text=True, check=False, timeout=60, env={"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, f"`attnroute {command} --help`: {done.stderr}"
    return done.stdout


@every_doc
def test_commands_and_their_options_exist(doc: Path) -> None:
    for span in code_spans(doc.read_text()):
        match = re.match(r"(?:\S+/)?attnroute ([a-z]+)\b(.*)", span)
        if match is None:
            continue
        known = help_of(match[1])
        if part := re.match(r"\s+([a-z]+)", match[2]) if match[1] in GROUPS else None:
            known = help_of(f"{match[1]} {part[1]}")
        for word in shlex.split(match[2], comments=True):
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"`{span}`: no such option"


@every_doc
def test_policies_in_docs_load(doc: Path, tmp_path: Path) -> None:
    for number, text in enumerate(filter(is_policy, fenced_yaml(doc.read_text()))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load_policy(path)


def test_the_readme_shows_a_policy() -> None:
    assert any(map(is_policy, fenced_yaml((ROOT / "README.md").read_text())))


def test_the_policy_for_kubernetes_loads(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/sidecar.yaml").read_text())
    maps = [document for document in documents if document["kind"] == "ConfigMap"]
    assert maps
    for name, text in maps[0]["data"].items():
        (tmp_path / name).write_text(text)
    loaded = load_policy(tmp_path / "policy.yaml")
    assert list(loaded.policy.services) == ["checkout"]


def test_what_the_image_copies_exists() -> None:
    text = (ROOT / "deploy/Containerfile").read_text()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert "Cargo.lock" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def promtool(*arguments: str | Path) -> None:
    assert PROMTOOL.exists(), "run `scripts/fetch-debs prometheus`"
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", ROOT / "deploy/prometheus/rules.yaml")


def test_prometheus_takes_the_scrape_configuration(tmp_path: Path) -> None:
    # Debian builds Prometheus without discovery in Kubernetes; the rest of the job is the same.
    text = (ROOT / "deploy/prometheus/scrape.yaml").read_text()
    found = "    kubernetes_sd_configs:\n      - role: pod\n"
    assert found in text
    path = tmp_path / "scrape.yaml"
    path.write_text(text.replace(found, '    static_configs: [{targets: ["127.0.0.1:15011"]}]\n'))
    promtool("check", "config", path)


def test_metrics_in_docs_are_served(tmp_path: Path) -> None:
    with Sidecar(tmp_path, minimal_policy("127.0.0.1:9")) as sidecar:
        page = sidecar.get("/metrics").body.decode()
        page += sidecar.get("/metrics/training").body.decode()
    page += TrainerMetrics("0").render().decode()
    served = set(re.findall(r"^(?:# TYPE )?(\w+)", page, re.MULTILINE))
    files = [*DOCS, *(ROOT / "deploy/prometheus").glob("*.yaml")]
    named = {
        (match[0], str(path.relative_to(ROOT)))
        for path in files
        for match in re.finditer(r"\battnroute_\w+", path.read_text())
    }
    assert ("attnroute_limit_hits_total", "ARCHITECTURE.md") in named
    assert sorted(pair for pair in named if pair[0] not in served) == []


def test_versions_agree() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == cargo == attnroute.__version__
    assert f"image: attnroute:{cargo}" in (ROOT / "deploy/kubernetes/sidecar.yaml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").iterdir()), ids=lambda path: path.name)
def test_scripts_can_be_run(path: Path) -> None:
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!")
