"""Runs: balancers by name, seeds, processes, summaries, and one seed that stays one result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnroute.dataplane import simulate
from attnroute.errors import SimulationError
from attnroute.sim.run import (
    Task,
    document,
    mean_and_margin,
    parse_balancer,
    parse_seeds,
    run_tasks,
    summarise,
)
from attnroute.sim.scenario import LoadedScenario, load_scenario

WORLD = """\
sidecars: {count: 2, zones: [a, b]}
endpoints:
  - {name: slow, count: 3, workers: 2, zones: [a, b]}
  - {name: fast, count: 3, workers: 1, speed: 3, discipline: processor_sharing}
request_classes: {methods: 2, message_sizes: [small, {name: large, cost: 3}]}
service_time: {mean: 10ms, lognormal: {sigma: 0.7}, affinity: {groups: 2, factor: 2}}
network: {rtt: 200us, pairs: [{zones: [a, b], rtt: 1ms}]}
load: {fraction: 0.6}
events:
  - {at: 3s, fail: {endpoints: {group: slow, count: 1}, for: 1s}}
  - {at: 4s, restart: {endpoints: {group: fast, count: 1}, down: 500ms}}
deadline: 1s
warmup: 1s
duration: 5s
"""


@pytest.fixture
def scenario(tmp_path: Path) -> LoadedScenario:
    file = tmp_path / "world.yaml"
    file.write_text(WORLD, encoding="utf-8")
    return load_scenario(file)


@pytest.mark.parametrize(
    ("balancer", "fingerprint"),
    [
        ("oracle", "f56a34e43a0a4b7e"),
        ("least_request", "4510e10286baaea6"),
    ],
)
def test_one_seed_is_one_result_for_ever(
    scenario: LoadedScenario, balancer: str, fingerprint: str
) -> None:
    # The picks of a run in order. A change here is a change of the rule, of its draws or of the
    # model, and belongs into the change log.
    config = parse_balancer(balancer).config
    first = simulate(scenario.compiled, config, 7)
    assert first == simulate(scenario.compiled, config, 7)
    assert json.loads(first)["picks"] == fingerprint


def test_runs_come_back_in_order_and_do_not_depend_on_processes(scenario: LoadedScenario) -> None:
    tasks = [
        Task(scenario, parse_balancer(name), seed)
        for name in ("least_request:choice_count=all", "oracle")
        for seed in (3, 1, 2)
    ]
    seen: list[int] = []
    results = run_tasks(tasks, jobs=2, done=lambda result: seen.append(result.task.seed))
    assert sorted(seen) == [1, 1, 2, 2, 3, 3]
    assert [result.task for result in results] == tasks
    alone = json.loads(simulate(scenario.compiled, tasks[0].balancer.config, 3))
    assert {**alone, "balancer": tasks[0].balancer.label} == results[0].outcome

    summaries = summarise(results)
    assert [summary.balancer for summary in summaries] == [
        "least_request:choice_count=all",
        "oracle",
    ]
    means = [summary.figures["mean_ms"] for summary in summaries]
    assert means[0] is not None
    assert means[1] is not None
    assert means[1].mean < means[0].mean
    calls = [[run["calls"] for run in summary.outcomes] for summary in summaries]
    assert calls[0] == calls[1]
    form = document(scenario, summaries)
    assert form["balancers"][1]["mean_ms"] == means[1].mean
    assert len(form["balancers"][0]["runs"]) == 3


def test_an_outcome_has_what_the_contract_lists(scenario: LoadedScenario) -> None:
    outcome = json.loads(simulate(scenario.compiled, parse_balancer("oracle").config, 1))
    assert {"mean_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "errors"} <= outcome.keys()
    assert outcome["p50_ms"] < outcome["p90_ms"] < outcome["p99_ms"] <= outcome["p999_ms"]
    assert [event["event"] for event in outcome["events"]] == ["fail", "restart"]
    assert sum(endpoint["share"] for endpoint in outcome["endpoints"]) == pytest.approx(1)
    assert [endpoint["zone"] for endpoint in outcome["endpoints"]] == ["a", "b", "a", "", "", ""]
    assert len(outcome["timeline"]) == 6
    shares = [point["share"] for point in outcome["cdf"]]
    latencies = [point["latency_ms"] for point in outcome["cdf"]]
    assert shares == sorted(shares)
    assert latencies == sorted(latencies)


def test_balancers_by_name() -> None:
    spec = parse_balancer("least_request:choice_count=3:with_replacement=true")
    assert json.loads(spec.config) == {
        "type": "least_request",
        "choice_count": {"draws": 3},
        "with_replacement": True,
    }
    assert json.loads(parse_balancer("least_request:choice_count=all").config) == {
        "type": "least_request",
        "choice_count": "all",
        "with_replacement": False,
    }
    # Durations as in a policy.
    assert json.loads(parse_balancer("c3:decay=5s").config)["decay_ms"] == 5_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lest_request", "there is no such balancer; there are `round_robin`, "),
        (
            "least_request:choice_count=1",
            "`choice_count`: expected a whole number from 2 to 100",
        ),
        ("least_request:draws=2", "it has no setting `draws`"),
        ("least_request:choice_count", "found `choice_count`, expected `key=value`"),
        ("oracle:limit=1", "there is no such balancer"),
    ],
)
def test_a_balancer_that_does_not_exist(text: str, message: str) -> None:
    with pytest.raises(SimulationError) as caught:
        parse_balancer(text)
    assert str(caught.value).startswith(f"balancer `{text}`")
    assert message in str(caught.value)


def test_seeds() -> None:
    assert parse_seeds("3") == (3,)
    assert parse_seeds("0-3,9, 2") == (0, 1, 2, 3, 9)
    for text in ("", "4-3", "a", "1,,2", "0-5000"):
        with pytest.raises(SimulationError, match=r"^seeds"):
            parse_seeds(text)


def test_a_margin_is_students() -> None:
    # 1, 2, 3: deviation 1, t(2) = 4.303, over sqrt(3).
    figure = mean_and_margin([1.0, 2.0, 3.0])
    assert figure.mean == 2
    assert figure.margin == pytest.approx(4.303 / 3**0.5)
    assert mean_and_margin([5.0]).margin is None
