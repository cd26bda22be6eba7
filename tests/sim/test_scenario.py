"""Scenario files: every mistake with its place, and the compiled form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnroute.errors import ScenarioError
from attnroute.sim.scenario import load_scenario
from attnroute.sim.schema import json_schema

SCENARIOS = sorted((Path(__file__).parents[2] / "configs" / "scenarios").glob("*.yaml"))

SMALL = """\
sidecars: 2
endpoints: 4
service_time: {mean: 10ms, exponential: {}}
load: {fraction: 0.5}
warmup: 1s
duration: 2s
"""


def refused(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "world.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file)
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def compiled(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "world.yaml"
    file.write_text(text, encoding="utf-8")
    document: dict[str, object] = json.loads(load_scenario(file).compiled)
    return document


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_every_scenario_that_ships_is_valid(file: Path) -> None:
    scenario = load_scenario(file)
    assert scenario.name == file.stem
    assert scenario.overload == file.stem.startswith("overload")


def test_the_worlds_that_decisions_are_made_in_are_there() -> None:
    letters = {file.stem[0] for file in SCENARIOS if file.stem[1] == "-"}
    assert letters == set("abcdefghijkm")


def test_defaults_and_short_forms(tmp_path: Path) -> None:
    form = compiled(tmp_path, SMALL)
    assert form["name"] == "world"
    assert form["sidecars"] == {"count": 2, "zones": []}
    assert form["request_classes"] == {
        "methods": [{"name": "method-0", "popularity": 1.0, "cost": 1.0}],
        "message_sizes": [{"name": "size-0", "popularity": 1.0, "cost": 1.0}],
    }
    assert form["service_time"] == {"mean_ms": 10.0, "law": {"exponential": {}}, "affinity": None}
    assert form["load"] == {"pattern": "constant", "rate": {"fraction": 0.5}}
    assert (form["warmup_ms"], form["duration_ms"]) == (1_000, 2_000)


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = """\
sidecars: 0
endpoints: [{count: 30, workers: 0, disciplin: fifo}, {name: x, count: 2, discipline: lifo}]
service_time: {mean: 20, lognormal: {sigma: 0.8}, pareto: {alpha: 2}}
load: {}
events: [{at: 1s, slow: {speed: 0}}, {at: 2s}]
warmup: 10s
"""
    assert refused(tmp_path, text) == [
        "world.yaml:1:1: the file lacks the key `duration`",
        "world.yaml:1:11: `sidecars`: found `0`, expected at least 1",
        "world.yaml:2:34: `workers` in `endpoints[0]`: found `0`, expected at least 1",
        "world.yaml:2:37: unknown key `disciplin` in `endpoints[0]`; did you mean `discipline`?",
        (
            "world.yaml:2:87: `discipline` in `endpoints[1]`: found `lifo`, expected `fifo` or "
            "`processor_sharing`; did you mean `fifo`?"
        ),
        (
            "world.yaml:3:22: `mean` in `service_time`: found `20`, a duration needs a unit; write "
            "`20ms` or `20s`"
        ),
        "world.yaml:3:51: `service_time` has `lognormal` and `pareto`; remove one",
        (
            "world.yaml:4:7: `load` lacks its rate; write one of `fraction`, `rps`, `trace`, "
            "`access_log`"
        ),
        "world.yaml:5:33: `speed` in `events[0].slow`: found `0`, expected more than 0",
        (
            "world.yaml:5:38: `events[1]` lacks its action; write one of `slow`, `fail`, `hang`, "
            "`restart`, `add`, `remove`, `affinity_shift`, `report_loss`, `model_fault`, "
            "`trainer_down`"
        ),
    ]


def test_overload_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    text = SMALL.replace("fraction: 0.5", "rps: 480")
    assert refused(tmp_path, text) == [
        (
            "world.yaml:4:13: `load.rps`: 480 calls per second are 1.200 of the 400 that the "
            "endpoints can do; lower the load or write `allow_overload: true`"
        )
    ]
    file = tmp_path / "world.yaml"
    file.write_text(text + "allow_overload: true\n", encoding="utf-8")
    assert load_scenario(file).overload


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "events: [{at: 1s, slow: {endpoints: {group: nope}, speed: 0.5}}]",
            "7:45: `events[0].slow.endpoints.group`: there is no group `nope`; there are `all`",
        ),
        (
            "events: [{at: 3s, remove: {}}]",
            "7:15: `events[0].at`: comes 3000 ms after the start, the run ends at 3000 ms",
        ),
        (
            "network: {pairs: [{zones: [a, b], rtt: 1ms}]}",
            "7:27: `network.pairs[0].zones`: no sidecar and no endpoint stands in zone `a`",
        ),
        (
            "events: [{at: 1s, affinity_shift: {}}]",
            (
                "7:35: `events[0].affinity_shift`: there is no affinity that could move; write "
                "`service_time.affinity`"
            ),
        ),
        (
            "events: [{at: 1s, model_fault: {fault: wrong}}]",
            (
                "7:40: `fault` in `events[0].model_fault`: found `wrong`, expected `random`, "
                "`permuted`, `inverted`, `nan` or `collapsing`"
            ),
        ),
        (
            "events: [{at: 1s, trainer_down: {for: 5}}]",
            (
                "7:39: `for` in `events[0].trainer_down`: found `5`, a duration needs a unit; "
                "write `5ms` or `5s`"
            ),
        ),
        (
            "scrape_interval: 500ms",
            "7:18: `scrape_interval`: found `500` ms, expected `1s` to `10m`",
        ),
        (
            "outlier_detection: {max_ejected: 2}",
            (
                "7:34: `max_ejected` in `outlier_detection`: found `2`, expected a share from "
                "`0%` to `100%`, or from 0 to 1"
            ),
        ),
        (
            "outlier_detection: {base_ejection: 2m, max_ejection: 1m}",
            ("7:54: `outlier_detection.max_ejection`: must be at least base_ejection_ms"),
        ),
        (
            "autoscale: {target: 0.5, min: 9, max: 8}",
            "7:31: `autoscale.min`: found `9`, expected 1 to `max`, which is 8",
        ),
    ],
)
def test_what_takes_the_whole_scenario_has_its_place_too(
    tmp_path: Path, line: str, problem: str
) -> None:
    assert refused(tmp_path, SMALL + line + "\n") == [f"world.yaml:{problem}"]


def test_pareto_costs_are_the_means_between_quantiles(tmp_path: Path) -> None:
    # alpha 2, minimum 1: the quantile at u is (1 - u)^-0.5, its integral -2 (1 - u)^0.5. Two
    # halves, the second up to 0.999: (2 - 2 sqrt(.5)) / .5 and (2 sqrt(.5) - 2 sqrt(.001)) / .499.
    classes = "request_classes: {pareto_sizes: {alpha: 2, buckets: 2}}\n"
    sizes = compiled(tmp_path, SMALL + classes)["request_classes"]
    assert isinstance(sizes, dict)
    costs = [size["cost"] for size in sizes["message_sizes"]]
    assert costs == pytest.approx([1.171573, 2.707376], rel=1e-5)


def test_a_trace_is_read_by_the_names_of_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").write_text(
        '{"ts": 100.0, "method": "/a.B/Get", "service_time_ms": 4}\n'
        "\n"
        '{"ts": 100.25, "method": "/a.B/Put", "message_size": "large", "status": 0}\n'
        '{"ts": 100.25}\n',
        encoding="utf-8",
    )
    text = SMALL.replace("fraction: 0.5", "trace: calls.jsonl")
    text += "request_classes: {methods: [/a.B/Get, /a.B/Put], message_sizes: [small, large]}\n"
    load = compiled(tmp_path, text)["load"]
    assert isinstance(load, dict)
    assert load["trace"] == {
        "at_ms": [0.0, 250.0, 250.0],
        "class": [0, 3, 0],
        "work_ms": [4.0, 0.0, 0.0],
    }


def test_mistakes_of_a_trace_have_their_lines(tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").write_text(
        '{"ts": 1}\n[]\n{"ts": 0.5}\n{"method": "x"}\n{"ts": 2, "method": "x"}\n{"ts": "2"}\n{\n',
        encoding="utf-8",
    )
    text = SMALL.replace("fraction: 0.5", "trace: calls.jsonl")
    assert refused(tmp_path, text) == [
        'calls.jsonl:2:1: expected an object such as `{"ts": 0.125, "method": "/shop.Cart/Add"}`',
        "calls.jsonl:3:1: `ts` goes back; sort the file by `ts`",
        "calls.jsonl:4:1: the key `ts` is missing; write seconds as a number",
        "calls.jsonl:5:1: `method`: found `x`, the scenario has `method-0`; list it there",
        "calls.jsonl:6:1: `ts`: found `2`, expected a number of 0 or more",
        "calls.jsonl:7:1: no JSON; expected one object a line",
    ]
    missing = SMALL.replace("fraction: 0.5", "trace: none.jsonl")
    assert refused(tmp_path, missing) == [
        "none.jsonl:1:1: the trace cannot be read: No such file or directory; check `load.trace`"
    ]


def test_what_concerns_the_learning_is_compiled_too(tmp_path: Path) -> None:
    text = SMALL + (
        "events: [{at: 1s, model_fault: {fault: nan}}, {at: 2s, trainer_down: {for: 500ms}}]\n"
        "scrape_interval: 2s\noutlier_detection: {}\n"
    )
    form = compiled(tmp_path, text)
    assert form["events"] == [
        {"at_ms": 1_000, "action": {"model_fault": {"fault": "nan", "for_ms": 0}}},
        {"at_ms": 2_000, "action": {"trainer_down": {"for_ms": 500}}},
    ]
    assert form["scrape_interval_ms"] == 2_000
    outlier = form["outlier_detection"]
    assert isinstance(outlier, dict)
    assert (outlier["consecutive_errors"], outlier["base_ejection_ms"]) == (5, 30_000)
    assert compiled(tmp_path, SMALL)["outlier_detection"] is None


def test_the_json_schema_names_every_part() -> None:
    schema = json_schema()
    assert {"sidecars", "endpoints", "service_time", "load"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
