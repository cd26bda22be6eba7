"""From a scenario file to what the simulator takes, or to every reason why not, with its place.

What one field can tell is checked by the schema, alternatives here. What takes the whole scenario
(groups that exist, overload) the simulator checks itself, and its path finds its place in the file,
because the compiled form has the same keys with a unit at their end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from attnroute.dataplane import ConfigError, check_scenario
from attnroute.errors import Problem, ScenarioError
from attnroute.policy.health import outlier_json
from attnroute.policy.load import load_document
from attnroute.policy.tree import Tree
from attnroute.sim.access_log import read_access_logs
from attnroute.sim.schema import (
    Add,
    Autoscale,
    Cold,
    Event,
    Kind,
    Lasting,
    Load,
    ModelFault,
    ParetoSizes,
    RequestClasses,
    Restart,
    Scenario,
    ServiceTime,
    TrainerDown,
)
from attnroute.sim.trace import read_trace

__all__ = ["LoadedScenario", "load_scenario"]

_LAWS = ("constant", "exponential", "lognormal", "bimodal", "pareto")
_RATES = ("fraction", "rps", "trace", "access_log")
_ACTIONS = (
    "slow",
    "fail",
    "hang",
    "restart",
    "add",
    "remove",
    "affinity_shift",
    "report_loss",
    "model_fault",
    "trainer_down",
)


@dataclass(frozen=True)
class LoadedScenario:
    """A valid scenario in the form that the simulator takes."""

    name: str
    compiled: bytes
    """JSON of `crates/simulator/src/scenario.rs`."""
    capacity_rps: float
    offered_rps: float
    events: tuple[tuple[float, str], ...]
    """Seconds from the start of the run, and what happens."""

    @property
    def overload(self) -> bool:
        """Whether more arrives than the endpoints can do."""
        return self.offered_rps >= self.capacity_rps


def load_scenario(path: Path) -> LoadedScenario:
    """Reads, checks and compiles a scenario file.

    Raises ScenarioError with every problem of the file, each with its place.
    """
    scenario, tree = load_document(path, Scenario, _check, ScenarioError)
    name = scenario.name or path.stem
    compiled = _compile(scenario, name, path)
    content = json.dumps(compiled, separators=(",", ":"), allow_nan=False).encode()
    try:
        capacity_rps, offered_rps = check_scenario(content)
    except ConfigError as error:
        at, message = error.args
        problem = tree.problem(_loc(at), f"`{_written(at)}`: {message}")
        raise ScenarioError([problem]) from None
    return LoadedScenario(
        name=name,
        compiled=content,
        capacity_rps=capacity_rps,
        offered_rps=offered_rps,
        events=tuple((event.at.total_seconds(), _action_name(event)) for event in scenario.events),
    )


_UNITS = re.compile(r"_ms$")
# Levels of the compiled form that the file does not have.
_LEVELS = frozenset({"law", "rate", "pattern", "action"})


def _loc(path: str) -> list[str | int]:
    """Where the value at a path of the compiled form stands in the file; what the file has no
    place for is passed over by whoever looks it up."""
    loc: list[str | int] = []
    for word in re.findall(r"[^.\[\]]+", path):
        if word.isdigit():
            loc.append(int(word))
        elif word not in _LEVELS:
            loc.append(_UNITS.sub("", word))
    return loc


def _written(path: str) -> str:
    text = ""
    for item in _loc(path):
        text += f"[{item}]" if isinstance(item, int) else f".{item}" if text else item
    return text or "the file"


def _check(tree: Tree) -> list[Problem]:
    """Rules between fields: of alternatives there is exactly one."""
    problems = [
        *_one_of(tree, ("service_time",), _LAWS, "law"),
        *_one_of(tree, ("load",), _RATES, "rate"),
    ]
    events = tree.get("events")
    for index in range(len(events) if isinstance(events, tuple) else 0):
        problems += _one_of(tree, ("events", index), _ACTIONS, "action")
    if isinstance(tree.get("service_time", "affinity"), dict):
        problems += _one_of(tree, ("service_time", "affinity"), ("groups", "matrix"), "form")
    if tree.has(("load", "mmpp")) and tree.has(("load", "ramp")):
        problems.append(
            tree.key_problem(("load", "ramp"), "`load` has `mmpp` and `ramp`; remove one")
        )
    sizes = ("request_classes", "pareto_sizes")
    if tree.has(sizes) and tree.has(("request_classes", "message_sizes")):
        message = "`request_classes` has `message_sizes` and `pareto_sizes`; remove one"
        problems.append(tree.key_problem(sizes, message))
    recorded = next((key for key in ("trace", "access_log") if tree.has(("load", key))), None)
    if recorded is not None:
        problems += [
            tree.key_problem(
                ("load", key),
                f"`load` has `{recorded}`, which says how often, and `{key}`; remove one",
            )
            for key in ("mmpp", "ramp")
            if tree.has(("load", key))
        ]
    if recorded == "access_log" and tree.has(("request_classes",)):
        message = "`request_classes` stand in the access log; remove one of the two"
        problems.append(tree.key_problem(("request_classes",), message))
    return problems


def _one_of(
    tree: Tree, at: tuple[str | int, ...], keys: tuple[str, ...], what: str
) -> Iterator[Problem]:
    if not isinstance(tree.get(*at), dict):
        return
    found = [key for key in keys if tree.has((*at, key))]
    known = ", ".join(f"`{key}`" for key in keys)
    name = _written(".".join(f"[{item}]" if isinstance(item, int) else item for item in at))
    if not found:
        yield tree.problem(at, f"`{name}` lacks its {what}; write one of {known}")
    for first, second in pairwise(found):
        message = f"`{name}` has `{first}` and `{second}`; remove one"
        yield tree.key_problem((*at, second), message)


# --- the compiled form ---------------------------------------------------------------------------


def _ms(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)


def _whole_ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _compile(scenario: Scenario, name: str, path: Path) -> dict[str, Any]:
    methods, sizes = _kinds(scenario.request_classes)
    load = _load(scenario.load)
    if scenario.load.access_log is not None:
        recorded = scenario.load.access_log
        traffic = read_access_logs(
            [path.parent / file for file in recorded.files], recorded.service
        )
        methods, sizes, load["trace"] = traffic.methods, traffic.message_sizes, traffic.trace
    elif scenario.load.trace is not None:
        names = [kind["name"] for kind in methods], [kind["name"] for kind in sizes]
        load["trace"] = read_trace(path.parent / scenario.load.trace, *names)
    return {
        "name": name,
        "sidecars": scenario.sidecars.model_dump(),
        "endpoints": [group.model_dump() for group in scenario.endpoints],
        "request_classes": {"methods": methods, "message_sizes": sizes},
        "service_time": _service_time(scenario.service_time),
        "network": {
            "rtt_ms": _ms(scenario.network.rtt),
            "pairs": [
                {"zones": pair.zones, "rtt_ms": _ms(pair.rtt)} for pair in scenario.network.pairs
            ],
        },
        "load": load,
        "events": [
            {"at_ms": _whole_ms(event.at), "action": _action(event)} for event in scenario.events
        ],
        "noise": [
            {
                "endpoints": noise.endpoints.model_dump(),
                "speed": noise.speed,
                "slow_ms": _ms(noise.slow),
                "normal_ms": _ms(noise.normal),
            }
            for noise in scenario.noise
        ],
        "reports": scenario.reports.model_dump(exclude={"out_of_band"})
        | {"out_of_band_ms": _whole_ms(scenario.reports.out_of_band)},
        "probes": scenario.probes,
        "autoscale": _autoscale(scenario.autoscale),
        "outlier_detection": outlier_json(scenario.outlier_detection),
        "scrape_interval_ms": _whole_ms(scenario.scrape_interval),
        "deadline_ms": _ms(scenario.deadline),
        "warmup_ms": _whole_ms(scenario.warmup),
        "duration_ms": _whole_ms(scenario.duration),
        "allow_overload": scenario.allow_overload,
    }


def _kinds(classes: RequestClasses) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    sizes = classes.message_sizes
    if classes.pareto_sizes is not None:
        costs = _pareto_costs(classes.pareto_sizes)
        sizes = tuple(Kind(name=f"size-{index}", cost=cost) for index, cost in enumerate(costs))
    return [kind.model_dump() for kind in classes.methods], [kind.model_dump() for kind in sizes]


# The last bucket would reach to infinity; it ends where one call in so many lies beyond.
_PARETO_TAIL = 1e-3


def _pareto_costs(sizes: ParetoSizes) -> list[float]:
    """Means of a Pareto law of minimum 1 between its quantiles at 0, 1/n, ... 1 - tail."""
    alpha, count = sizes.alpha, sizes.buckets

    def below(tail: float) -> float:
        """Integral of the quantile function from 0 to 1 - tail, less a constant."""
        return -math.pow(tail, 1 - 1 / alpha) / (1 - 1 / alpha)

    edges = [1 - index / count for index in range(count)] + [_PARETO_TAIL]
    return [(below(high) - below(low)) / (low - high) for low, high in pairwise(edges)]


def _service_time(service_time: ServiceTime) -> dict[str, Any]:
    law = next(key for key in _LAWS if getattr(service_time, key) is not None)
    affinity = service_time.affinity
    compiled: dict[str, Any] | None = None
    if affinity is not None and affinity.matrix is not None:
        compiled = {"matrix": affinity.matrix}
    elif affinity is not None:
        compiled = {"groups": affinity.model_dump(include={"groups", "factor", "every"})}
    return {
        "mean_ms": _ms(service_time.mean),
        "law": {law: getattr(service_time, law).model_dump()},
        "affinity": compiled,
    }


def _load(load: Load) -> dict[str, Any]:
    compiled: dict[str, Any] = {"pattern": "constant"}
    if load.mmpp is not None:
        mmpp = load.mmpp
        compiled["pattern"] = {
            "mmpp": {
                "factor": mmpp.factor,
                "burst_ms": _ms(mmpp.burst),
                "calm_ms": _ms(mmpp.calm),
            }
        }
    if load.ramp is not None:
        ramp = load.ramp
        compiled["pattern"] = {
            "ramp": {
                "from": ramp.from_,
                "to": ramp.to,
                "at_ms": _whole_ms(ramp.at),
                "over_ms": _whole_ms(ramp.over),
            }
        }
    if load.fraction is not None:
        compiled["rate"] = {"fraction": load.fraction}
    else:
        # What is recorded has a rate of its own.
        compiled["rate"] = {"rps": load.rps or 1.0}
    return compiled


def _action_name(event: Event) -> str:
    return next(key for key in _ACTIONS if getattr(event, key) is not None)


def _action(event: Event) -> dict[str, Any]:
    key = _action_name(event)
    action = getattr(event, key)
    fields = action.model_dump(exclude={"for_", "down", "cold"})
    if isinstance(action, Lasting | ModelFault | TrainerDown):
        fields["for_ms"] = _whole_ms(action.for_)
    if isinstance(action, Restart):
        fields["down_ms"] = _whole_ms(action.down)
    if isinstance(action, Restart | Add):
        fields["cold"] = _cold(action.cold)
    return {key: fields}


def _cold(cold: Cold | None) -> dict[str, Any] | None:
    return None if cold is None else {"speed": cold.speed, "for_ms": _whole_ms(cold.for_)}


def _autoscale(autoscale: Autoscale | None) -> dict[str, Any] | None:
    if autoscale is None:
        return None
    return {
        "group": autoscale.group,
        "target": autoscale.target,
        "every_ms": _whole_ms(autoscale.every),
        "delay_ms": _whole_ms(autoscale.delay),
        "min": autoscale.min,
        "max": autoscale.max,
        "cold": _cold(autoscale.cold),
    }
