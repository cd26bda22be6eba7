"""The model that joins the demo: where it is found, how it is published, what is told of it."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.models import write_small

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.demo.models import CHANNEL, ModelResults, Registry, default_bundle
from attnroute.registry.store import Store


def answer(version: str = "", *, weight: float = 0.9, steps: int = 3) -> pb.GetModelResponse:
    made = pb.GetModelResponse()
    if version:
        made.serving.version = version
        made.serving.changed_at.FromMicroseconds(int((time.time() - 1.0) * 1e6))
        made.scorers.add(version=version, stage="serving", weight=weight, steps=steps)
    return made


def test_the_newest_version_is_taken_and_none_is_no_error(tmp_path: Path) -> None:
    assert default_bundle(tmp_path) is None
    write_small(tmp_path, "1.9.0")
    newest = write_small(tmp_path, "1.10.0")
    (tmp_path / "default" / "notes").mkdir()
    assert default_bundle(tmp_path) == newest


def test_it_comes_to_the_channel_that_sidecars_follow(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", write_small(tmp_path / "source", "1.2.3"))
    assert registry.stable() == ""
    registry.publish()
    assert Store(tmp_path / "models").channel("default", CHANNEL).version == "1.2.3"
    assert registry.version == "1.2.3"


def test_each_swap_has_its_place_and_the_last_gate_is_told() -> None:
    results = ModelResults("1.0.0")
    for weight in (0.5, 0.97):
        results.take(0, answer(), lambda _: 0.0)
        results.take(0, answer("1.0.0", weight=weight), lambda _: 12.5)
    (swap,) = results.swaps
    assert (swap.sidecar, swap.version, swap.time_s) == (0, "1.0.0", 12.5)
    assert 0.5 < time.monotonic() - swap.at_s < 600.0
    results.take(0, answer("1.0.0", weight=0.73, steps=0), lambda _: 0.0)
    results.take(0, answer("1.0.1"), lambda _: 20.0)
    assert [one.version for one in results.swaps] == ["1.0.0", "1.0.1"]
    results.stable = "1.0.0"
    assert "1.0.0 was swapped in after 12.5 measured seconds" in results.words
    assert "1.0.1 in sidecar 0 with 0.90; `stable` is 1.0.0" in results.words
    document = results.document()
    assert [one["time_s"] for one in document["swaps"]] == [12.5, 20.0]
    assert document["gates"] == [
        {"sidecar": 0, "version": "1.0.1", "weight": 0.9, "gain": 0.0, "steps": 3}
    ]


def test_no_model_and_one_that_did_not_come_are_said() -> None:
    assert "no model" in ModelResults().words
    assert "no sidecar served it" in ModelResults("1.0.0").words
    seen = ModelResults("1.0.0")
    seen.take(1, answer("1.0.0", steps=0), lambda _: 0.0)
    assert "no gate has judged it" in seen.words
