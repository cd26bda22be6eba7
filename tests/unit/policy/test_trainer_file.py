"""The trainer's file: what it may say, and how it is told what it may not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from attnroute.bundle.manifest import NAME
from attnroute.errors import TrainerFileError
from attnroute.policy import trainer as trainer_file
from attnroute.policy.trainer import json_schema, load_trainer

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def load(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trainer.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["trainer.yaml", "trainer-prometheus.yaml"])
def test_the_examples_load(name: str) -> None:
    load_trainer(CONFIGS / name)


def test_everything_has_a_default(tmp_path: Path) -> None:
    loaded = load_trainer(load(tmp_path, "keep: 60\n"))
    assert loaded.file.fleet.address == "127.0.0.1:15020"
    assert loaded.file.http == "127.0.0.1:15021"
    assert loaded.file.source.scrape is not None
    assert loaded.file.source.scrape.sidecars == ()
    assert loaded.position("fleet", "address") == f"{loaded.path}:1:1"


def test_bundles(tmp_path: Path) -> None:
    text = "registry: {directory: models, signing_key: key}\npublishing: {interval: 90s}\n"
    loaded = load_trainer(load(tmp_path, text))
    registry = loaded.file.registry
    assert registry is not None
    assert loaded.resolve(registry.directory) == tmp_path / "models"
    assert (registry.name, registry.keep, registry.max_bytes) == ("default", 20, 32 << 20)
    assert (registry.allow_changes, registry.max_streams) == (False, 4_096)
    assert loaded.file.publishing.interval == timedelta(seconds=90)
    assert loaded.file.publishing.channel == "canary"
    assert load_trainer(load(tmp_path, "keep: 60\n")).file.registry is None


def test_names_of_models_are_those_of_bundles() -> None:
    assert trainer_file._MODEL.pattern == NAME


def test_a_server(tmp_path: Path) -> None:
    text = (
        "source:\n  prometheus:\n    url: http://p:9090\n    bearer_token_file: token\n"
        "    timeout: 1500ms\n    max_answer_bytes: 1MiB\n"
    )
    loaded = load_trainer(load(tmp_path, text))
    source = loaded.file.source
    assert source.prometheus is not None
    assert source.prometheus.timeout == timedelta(seconds=1.5)
    assert source.prometheus.max_answer_bytes == 1 << 20
    assert loaded.resolve(source.prometheus.bearer_token_file) == tmp_path / "token"
    assert loaded.resolve(None) is None


TWO_CREDENTIALS = (
    "source: {prometheus: {url: http://p, bearer_token_file: a, "
    "basic_auth: {username: a, password_file: b}}}\n"
)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("sorce: {}\n", "1:1", "did you mean `source`?"),
        ("publishing: {interval: 1m}\n", "1:1", "`publishing` stands without `registry`"),
        ("training: {}\n", "1:1", "`training` stands without `registry`"),
        ("registry: {directory: m}\ntraining: {steps: 0}\n", "2:19", "1"),
        ("registry: {directory: m}\ntraining: {max_memory: 1MiB}\n", "2:24", "256MiB"),
        ("registry: {}\n", "1:11", "`directory`"),
        ("registry: {directory: m, name: ../x}\n", "1:32", "expected lower-case letters"),
        ("registry: {directory: m, keep: 1}\n", "1:32", "2"),
        ("registry: {directory: m, max_bytes: 1KiB}\n", "1:37", "1MiB"),
        ("source: {}\n", "1:9", "write exactly one"),
        (
            "source:\n  scrape: {sidecars: [a:1]}\n  prometheus: {url: http://p}\n",
            "2:3",
            "write exactly one",
        ),
        ("source: {scrape: {sidecars: [a]}}\n", "1:30", "expected"),
        ("source: {scrape: {sidecars: [unix:/a]}}\n", "1:30", "expected `host:port`"),
        ("source: {scrape: {sidecars: [a:1, b:1, a:1]}}\n", "1:40", "stands twice"),
        ("source: {scrape: {sidecars: [a:1], interval: 1ms}}\n", "1:46", "from `100ms` to `5m`"),
        ("source: {prometheus: {}}\n", "1:22", "lacks the key `url`"),
        ("source: {prometheus: {url: ftp://p}}\n", "1:28", "expected a URL"),
        ("source: {prometheus: {url: http://}}\n", "1:28", "expected a URL"),
        ("source: {prometheus: {url: 'http://p:99999'}}\n", "1:28", "expected a URL"),
        ("source: {prometheus: {url: 'http://p/?a=b'}}\n", "1:28", "expected a URL"),
        ("source: {prometheus: {url: 'http://me:secret@p'}}\n", "1:28", "token file"),
        ("source: {prometheus: {url: http://p, replica_labels: [a-b]}}\n", "1:55", "of a label"),
        (TWO_CREDENTIALS, "1:60", "carries one of them"),
        ("source: {prometheus: {url: http://p, tls: {key_file: a}}}\n", "1:44", "write both"),
        ("fleet: {max_streams: 0}\n", "1:22", "expected at least 1"),
        ("keep: 1\n", "1:7", "expected at least 2"),
        ("", "1:1", "empty"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    path = load(tmp_path, text)
    with pytest.raises(TrainerFileError) as refused:
        load_trainer(path)
    lines = str(refused.value).splitlines()
    assert any(line.startswith(f"{path}:{place}: ") and words in line for line in lines), lines


def test_the_schema_names_the_keys() -> None:
    schema = json_schema()
    assert schema["title"] == "attnroute trainer"
    assert set(schema["properties"]) == {
        "fleet", "http", "source", "keep", "registry", "publishing", "training",
    }  # fmt: skip
