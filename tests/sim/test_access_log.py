"""Access logs as the input of a scenario: what is read, every mistake, a real sidecar's log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import sync_channel, sync_peer, unary

from attnroute.dataplane import simulate
from attnroute.errors import ScenarioError
from attnroute.sim.access_log import read_access_logs
from attnroute.sim.run import parse_balancer
from attnroute.sim.scenario import load_scenario

WORLD = """\
sidecars: 2
endpoints: {endpoints}
service_time: {{mean: 1ms, exponential: {{}}}}
load: {{access_log: {log}}}
warmup: 0s
duration: {duration}
"""


def line(ts: str, latency_ms: float, **others: Any) -> str:
    record: dict[str, Any] = {
        "ts": f"2026-01-31T12:00:{ts}Z",
        "service": "cart",
        "method": "/a.B/Get",
        "grpc_status": "OK",
        "latency_ms": latency_ms,
        "request_bytes": 105,
    }
    return json.dumps(record | others) + "\n"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_calls_come_when_they_began_and_classes_are_those_of_the_log(tmp_path: Path) -> None:
    first = written(
        tmp_path / "one.json",
        line("01.000000", 100.0),  # came at 0.9
        line("01.010000", 400.0, method="/a.B/Put", request_bytes=5_000),  # at 0.61, the first
        "\n",
        line("02.000000", 1.0, service=None, method="/junk"),
    )
    second = written(
        tmp_path / "two.json",
        line("01.200000", 200.0, grpc_status="UNAVAILABLE"),  # at 1.0
        line("01.500000", 300.0),  # at 1.2
        line("09.000000", 1.0)[:-9],  # still being written
    )
    traffic = read_access_logs([first, second], None)
    assert traffic.trace["at_ms"] == pytest.approx([0, 290, 390, 590])
    # Get is method 0, Put 1; up to 1 KiB size 0, the next range 1.
    assert traffic.trace["class"] == [3, 0, 0, 0]
    assert traffic.trace["work_ms"] == [0.0] * 4
    # Medians: Get (100 + 300) / 2, its failure left out, Put 400; the middle of both is 300.
    assert traffic.methods == [
        {"name": "/a.B/Get", "popularity": 3, "cost": pytest.approx(200 / 300)},
        {"name": "/a.B/Put", "popularity": 1, "cost": pytest.approx(400 / 300)},
    ]
    # Of small ones 100/200 and 300/200; of the large one 400/400.
    assert [size["name"] for size in traffic.message_sizes] == ["..1024", "1024..16384"]
    assert [size["cost"] for size in traffic.message_sizes] == pytest.approx([1, 1])


def test_mistakes_have_their_lines(tmp_path: Path) -> None:
    log = written(
        tmp_path / "access.json",
        line("01.0", 1.0),
        "{\n",
        "[]\n",
        line("61.0", 1.0),
        line("01.0", -1.0),
        line("01.0", 1.0, request_bytes=None),
        line("01.0", 1.0, method=7),
        '{"ts": 12.5}\n',
    )
    with pytest.raises(ScenarioError) as caught:
        read_access_logs([log], None)
    time = "expected a time such as `2026-01-31T12:00:00.25Z`"
    assert [str(problem).removeprefix(f"{log}:") for problem in caught.value.problems] == [
        "2:1: no JSON; expected the lines of an access log",
        "3:1: expected an object, as an access log has one a line",
        f"4:1: `ts`: found `2026-01-31T12:00:61.0Z`, {time}",
        "5:1: `latency_ms`: found `-1.0`, expected a number of 0 or more",
        "6:1: `request_bytes`: found `None`, expected a number of 0 or more",
        "7:1: `method` and `service` must be texts; is this an access log?",
        f"8:1: `ts`: found `12.5`, {time}",
    ]


@pytest.mark.parametrize(
    ("service", "services", "reason"),
    [
        (None, ["cart", "shop"], "calls of `cart`, `shop`; name one in `load.access_log.service`"),
        ("till", ["cart"], "no call of service `till`, only of `cart`; name one of these"),
        (None, [None], "no call of any service; log with `sample: 100%` while calls run"),
        ("cart", [], "no call of any service; log with `sample: 100%` while calls run"),
    ],
)
def test_calls_of_one_service_are_played(
    tmp_path: Path, service: str | None, services: list[str | None], reason: str
) -> None:
    log = written(tmp_path / "log", *(line("01.0", 1.0, service=name) for name in services))
    with pytest.raises(ScenarioError, match="1:1") as caught:
        read_access_logs([log], service)
    assert str(caught.value.problems[0]) == f"{log}:1:1: {reason}"


def test_what_contradicts_a_log_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.json", line("01.0", 1.0))
    text = WORLD.format(
        endpoints=2, log="[a.json, a.json], mmpp: {factor: 2, burst: 1s, calm: 9s}", duration="1s"
    )
    world = written(tmp_path / "world.yaml", text, "request_classes: {methods: 2}\n")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(world)
    assert [problem.message for problem in caught.value.problems] == [
        "`load` has `access_log`, which says how often, and `mmpp`; remove one",
        "`request_classes` stand in the access log; remove one of the two",
    ]
    missing = written(
        tmp_path / "none.yaml", WORLD.format(endpoints=2, log="{files: [x]}", duration="1s")
    )
    with pytest.raises(ScenarioError, match="x:1:1: the access log cannot be read: No such file"):
        load_scenario(missing)


def test_the_log_of_a_real_sidecar_is_played_by_every_balancer(
    start_sidecar: Callable[..., Sidecar], tmp_path: Path
) -> None:
    path, count = tmp_path / "access.json", 40
    with sync_peer() as peer:
        logging = f"access_log: {{sample: 100%, output: {path}}}\n"
        sidecar = start_sidecar(logging + minimal_policy(peer.address))
        with sync_channel(sidecar.address) as channel:
            for number in range(count):
                unary(channel, b"x" * (2_000 if number % 4 == 0 else 10))
        sidecar.until(lambda: path.exists() and path.read_text().count("\n") == count, "all lines")
    traffic = read_access_logs([path], "cart")
    assert [method["popularity"] for method in traffic.methods] == [count]
    assert {size["name"]: size["popularity"] for size in traffic.message_sizes} == {
        "..1024": count * 3 // 4,
        "1024..16384": count // 4,
    }
    came = traffic.trace["at_ms"]
    assert came == sorted(came)
    # An hour holds however long the calls took here.
    world = written(
        tmp_path / "w.yaml", WORLD.format(endpoints=2, log="access.json", duration="1h")
    )
    scenario = load_scenario(world)
    for balancer in ("round_robin", "least_request", "oracle"):
        outcome = json.loads(simulate(scenario.compiled, parse_balancer(balancer).config, 0))
        assert (outcome["calls"], outcome["errors"]) == (count, 0)
        assert outcome["mean_ms"] > 0
