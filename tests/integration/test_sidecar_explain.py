"""`attnroute explain`, `attnroute weights` and `attnroute replay` with a sidecar that learns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_sidecar_commands import attnroute
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import SERVICE, sync_channel, sync_peer, unary
from tests.support.wait import until_blocking

Start = Callable[..., Sidecar]

ATTNROUTE = (sys.executable, "-m", "attnroute")
METHOD = f"/{SERVICE}/Unary"


def learned_policy(*addresses: str) -> str:
    policy = minimal_policy(*addresses)
    assert "  cart:\n" in policy
    balancer = "  cart:\n    balancer: {type: learned}\n"
    return "picks: {sample: 100%}\n" + policy.replace("  cart:\n", balancer)


def explained(sidecar: Sidecar, *options: str) -> dict[str, Any]:
    done = attnroute("explain", "cart", "--json", *options, admin=sidecar.admin)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_explanation_weights_and_records_agree(start_sidecar: Start, tmp_path: Path) -> None:
    with sync_peer() as first, sync_peer() as second:
        sidecar = start_sidecar(learned_policy(first.address, second.address))
        with sync_channel(sidecar.address) as channel:
            for _ in range(20):
                unary(channel)
        # The first window that has a class publishes scores.
        until_blocking(lambda: explained(sidecar, "--method", METHOD)["table_epoch"], "a table")
        answer = explained(sidecar, "--method", METHOD, "--header", "x-tier=gold")
        text = attnroute("explain", "cart", "--method", METHOD, admin=sidecar.admin)
        weights = json.loads(attnroute("weights", "cart", "--json", admin=sidecar.admin).stdout)
        picks = attnroute("picks", "cart", "--json", admin=sidecar.admin).stdout
    addresses = {first.address, second.address}
    assert {answer["chosen"], answer["runner_up"]} == addresses
    rows = {row["address"]: row for row in answer["endpoints"]}
    assert rows.keys() == addresses
    assert answer["margin"] >= 0
    for row in rows.values():
        costs = [value for name, value in row["terms"].items() if name.startswith("cost_")]
        assert abs(sum(costs) - row["cost_s"]) < 1e-6
    assert rows[answer["chosen"]]["cost_s"] <= rows[answer["runner_up"]]["cost_s"]
    assert f"chosen: {answer['chosen']}" in text.stdout or "chosen: " in text.stdout
    assert weights["table_epoch"] >= 1
    for scores in weights["classes"]:
        assert abs(sum(row["weight"] for row in scores["endpoints"]) - 1) < 1e-5
        assert all(row["predicted_latency_s"] > 0 for row in scores["endpoints"])

    file = tmp_path / "picks.jsonl"
    file.write_text(picks, encoding="utf-8")
    again = subprocess.run(
        [*ATTNROUTE, "replay", str(file)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.endswith("20 picks identical, 0 different\n")
    # One number of one record is changed: the replay names the place and fails.
    lines = picks.splitlines()
    record = json.loads(lines[-1])
    record["learned"]["compared"][0]["read"]["own"] += 7.0
    file.write_text("\n".join([*lines[:-1], json.dumps(record)]), encoding="utf-8")
    other = subprocess.run(
        [*ATTNROUTE, "replay", str(file)], capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert other.stdout.startswith("picks.jsonl:20: recorded ")
    assert other.stdout.endswith("19 picks identical, 1 different\n")


@pytest.mark.parametrize("selection", ["greedy", "sampling"])
def test_picks_by_weights_are_explained_and_compute_again(
    start_sidecar: Start, tmp_path: Path, selection: str
) -> None:
    with sync_peer() as first, sync_peer() as second:
        policy = learned_policy(first.address, second.address)
        policy = policy.replace("type: learned", f"type: learned, selection: {selection}")
        sidecar = start_sidecar(policy)
        with sync_channel(sidecar.address) as channel:
            unary(channel)
            until_blocking(lambda: explained(sidecar, "--method", METHOD)["table_epoch"], "a table")
            for _ in range(20):
                unary(channel)
        answer = explained(sidecar, "--method", METHOD)
        picks = attnroute("picks", "cart", "--last", "20", "--json", admin=sidecar.admin).stdout
    weights = {row["address"]: row["weight"] for row in answer["endpoints"]}
    assert answer["margin"] is None
    assert weights[answer["chosen"]] >= weights[answer["runner_up"]]
    compared = [len(json.loads(line)["learned"]["compared"]) for line in picks.splitlines()]
    assert compared == [1] * 20
    file = tmp_path / "picks.jsonl"
    file.write_text(picks, encoding="utf-8")
    again = subprocess.run(
        [*ATTNROUTE, "replay", str(file)], capture_output=True, text=True, check=False
    )
    assert again.stdout.endswith("20 picks identical, 0 different\n"), again.stdout + again.stderr


def test_what_is_no_record_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "picks.jsonl"
    for text, words in (
        ('{"endpoint": "a"', "picks.jsonl:1: no JSON"),
        ('{"endpoint": "a"}', "picks.jsonl:1: no recorded pick"),
        ('{"endpoint": "a", "reason": "table", "learned": {}}', "picks.jsonl:1: cannot be"),
    ):
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*ATTNROUTE, "replay", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert words in done.stderr
    classic = '{"endpoint": "a", "reason": "least_request", "learned": null}'
    done = subprocess.run(
        [*ATTNROUTE, "replay", "-"], input=classic, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of a balancer that is not replayed" in done.stdout
