"""The page of decisions: pairing, verdicts, and a run that goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.decisions import FULL_SCAN, ORACLE, Store, canary, page, paired, play

from attnroute.sim.run import Task, parse_balancer
from attnroute.sim.scenario import load_scenario

WORLD = """\
sidecars: 2
endpoints: [{count: 4, workers: 2}]
service_time: {mean: 10ms, exponential: {}}
load: {fraction: 0.7}
events: [{at: 1s, fail: {endpoints: {count: 1}, share: 0.5}}]
warmup: 0s
duration: 2s
"""


def test_ratios_are_paired_by_seed() -> None:
    # Both vary by a factor of three between seeds; their ratio does not.
    pair = paired([9.0, 27.0, 9.0, 27.0], [10.0, 30.0, 10.0, 30.0])
    assert pair.ratio == pytest.approx(0.9)
    assert pair.high - pair.low == pytest.approx(0, abs=1e-9)
    assert pair.verdict == "win"
    assert paired([11.0, 33.0], [10.0, 30.0]).verdict == "loss"
    assert paired([11.0, 25.0, 35.0], [10.0, 30.0, 30.0]).verdict == "tie"
    assert paired([10.05, 10.05, 10.05], [10.0, 10.0, 10.0]).verdict == "tie"
    assert paired([5.0], [10.0]).verdict == "tie"  # one seed proves nothing


def test_a_page_of_one_world_and_nothing_played_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(WORLD, encoding="utf-8")
    scenario = load_scenario(file)
    balancers = [parse_balancer(name) for name in ("round_robin", FULL_SCAN, ORACLE)]
    tasks = [Task(scenario, balancer, seed) for balancer in balancers for seed in (0, 1)]
    store = Store(tmp_path / "store")
    figures = play(tasks, store, jobs=1)
    assert "6 of 6 runs" in capsys.readouterr().err
    # Nor by another process with another build, as long as nobody picks otherwise.
    assert play(tasks, Store(tmp_path / "store"), jobs=1) == figures
    assert capsys.readouterr().err == ""
    assert Store(tmp_path / "store", fresh=True).get(tasks[0]) is None

    text = page([scenario], balancers, (0, 1), figures, "A note.")
    assert "2 seeds (0 to 1). A note." in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 6  # overview and the world
    assert rows[3].startswith("| `round_robin` | ")
    assert rows[5].split(" | ")[6].strip("| ") == "1.00"
    assert rows[5].endswith("| 0.0 |")


def test_a_run_of_other_picks_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(WORLD, encoding="utf-8")
    task = Task(load_scenario(file), parse_balancer("round_robin"), 0)
    play([task], Store(tmp_path / "store"), jobs=1)
    assert Store(tmp_path / "store").get(task) is not None
    monkeypatch.setattr("benchmarks.decisions.canary", lambda _: b"picks otherwise")
    assert Store(tmp_path / "store").get(task) is None


def test_the_canary_tells_balancers_apart_by_all_that_happens() -> None:
    known = {canary(parse_balancer(name)) for name in ("round_robin", "c3", ORACLE)}
    assert len(known) == 3
    outcome = json.loads(canary(parse_balancer("round_robin")))
    assert {event["event"] for event in outcome["events"]} == {"slow", "fail", "hang", "restart"}
    assert outcome["errors"] > 0
    assert outcome["deadline_exceeded"] > 0
