"""The file of endpoints that the churn scenario keeps changing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scenarios.churn import CHANGE_INTERVAL_S, HALF, Members

from attnroute.policy.load import parse_endpoints


def test_each_set_is_the_other_half(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    members = Members(path, range(1, 2 * HALF + 1))
    seen = []
    for _ in range(3):
        seen.append([spec.address for spec in parse_endpoints(path.read_bytes(), path)])
        members.write()
    assert seen[0] == [f"127.0.0.1:{port}" for port in range(1, HALF + 1)]
    assert seen[1] == [f"127.0.0.1:{port}" for port in range(HALF + 1, 2 * HALF + 1)]
    assert seen[2] == seen[0]


def test_a_thousand_endpoints_a_minute_join() -> None:
    assert HALF * 60 / CHANGE_INTERVAL_S >= 999
