"""Runs of a scenario: every balancer with every seed, in processes of their own.

Results are plain documents, as the simulator writes them, and summaries over seeds.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from attnroute.dataplane import ConfigError, check_balancer, simulate
from attnroute.errors import SimulationError
from attnroute.policy.balancers import Balancer, balancer_json
from attnroute.policy.tree import plain_value
from attnroute.sim.learning import LEARNED, LEARNING_KEYS, Learning, play_learned
from attnroute.sim.scenario import LoadedScenario

__all__ = [
    "BalancerSpec",
    "Figure",
    "Result",
    "Summary",
    "Task",
    "document",
    "mean_and_margin",
    "parse_balancer",
    "parse_seeds",
    "play_task",
    "run_tasks",
    "summarise",
]

SEEDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class BalancerSpec:
    """A balancer as the command line names it, and as the simulator takes it."""

    label: str
    config: bytes
    learning: Learning | None = None
    """Of a balancer that goes by scores."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run to do."""

    scenario: LoadedScenario
    balancer: BalancerSpec
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """One run done."""

    task: Task
    outcome: dict[str, Any]
    """As `crates/simulator/src/outcome.rs` describes it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds, and half the width of its 95 % interval; None with a single seed."""

    mean: float
    margin: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A balancer over all seeds; latencies in milliseconds."""

    balancer: str
    figures: dict[str, Figure | None]
    """`mean_ms`, `p50_ms`, `p90_ms`, `p99_ms`, `p999_ms`; None where no call was answered."""
    errors: float
    """Share of the calls."""
    outcomes: tuple[dict[str, Any], ...]


LATENCIES = ("mean_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms")


def parse_balancer(text: str) -> BalancerSpec:
    """`least_request`, or with settings `least_request:choice_count=all:with_replacement=true`.

    `learned` has the settings of a simulation besides, the fields of `Learning`.

    Raises SimulationError if there is no such balancer or setting.
    """
    name, *settings = text.strip().split(":")
    written: dict[str, Any] = {"type": name}
    how: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise SimulationError(
                f"balancer `{text}`: found `{setting}`, expected `key=value`; separate settings "
                "with colons, as in `least_request:choice_count=all`"
            )
        found = plain_value(value)
        if name == LEARNED and key in LEARNING_KEYS:
            if key == "concurrency":
                if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                    raise SimulationError(
                        f"balancer `{text}`: `{key}`: found `{value}`, expected a whole number "
                        "from 1"
                    )
            elif not isinstance(found, bool):
                found = _bundle(text, key, value)
            how[key] = found
            continue
        written[key] = found if isinstance(found, bool | int | float) else value
    if written == {"type": _ORACLE}:
        return BalancerSpec(_ORACLE, json.dumps(written).encode())
    try:
        balancer: Balancer = TypeAdapter[Balancer](Balancer).validate_python(written)
        content = json.dumps(balancer_json(balancer)).encode()
        check_balancer(content)
    except ValidationError as error:
        raise SimulationError(f"balancer `{text}`: {_reason(error)}") from None
    except ConfigError as error:
        raise SimulationError(f"balancer `{text}`: {error.args[1]}") from None
    return BalancerSpec(text.strip(), content, Learning(**how) if name == LEARNED else None)


_ORACLE = "oracle"


def _bundle(text: str, key: str, value: str) -> str:
    """The directory of a bundle, as `model` takes it besides `true` and `false`."""
    if key != "model":
        raise SimulationError(
            f"balancer `{text}`: `{key}`: found `{value}`, expected `true` or `false`"
        )
    if not (Path(value) / "manifest.json").is_file():
        raise SimulationError(
            f"balancer `{text}`: `model`: `{value}` holds no `manifest.json`; expected `true`, "
            "`false` or the directory of a bundle, as `models/default/1.0.0`"
        )
    return value


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "union_tag_invalid":
        known = context["expected_tags"].replace("'", "`")
        return f"there is no such balancer; there are {known}, `{_ORACLE}`"
    key = first["loc"][-1]
    if kind == "extra_forbidden":
        return f"it has no setting `{key}`"
    return f"`{key}`: {context['error'] if kind == 'value_error' else first['msg']}"


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3`, `0-4`, `1,3,7-9`. Raises SimulationError."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + SEEDS_MAX:
            raise SimulationError(
                f"seeds `{text}`: found `{part}`, expected numbers and ranges such as `0-4` or "
                f"`1,3,7`, at most {SEEDS_MAX} in all"
            )
        seeds.extend(seed for seed in range(first, last + 1) if seed not in seeds)
    return tuple(seeds)


def play_task(task: Task) -> dict[str, Any]:
    """Plays one task, here and now."""
    return _outcome(task, _play(task.scenario.compiled, task.balancer, task.seed))


def _play(scenario: bytes, balancer: BalancerSpec, seed: int) -> bytes:
    if balancer.learning is None:
        return simulate(scenario, balancer.config, seed)
    return play_learned(scenario, balancer.config, seed, balancer.learning)


def _outcome(task: Task, result: bytes) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(result)
    outcome["balancer"] = task.balancer.label
    return outcome


def run_tasks(
    tasks: Sequence[Task], jobs: int | None = None, done: Callable[[Result], None] | None = None
) -> list[Result]:
    """Plays every task; the results in the order of the tasks.

    jobs: processes; as many as processors by default. done: called as each one ends.
    Raises SimulationError if a process dies.
    """
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(tasks)))
    context = multiprocessing.get_context("spawn")
    results: dict[Task, Result] = {}
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        futures: dict[Future[bytes], Task] = {
            pool.submit(_play, task.scenario.compiled, task.balancer, task.seed): task
            for task in tasks
        }
        for future in as_completed(futures):
            task = futures[future]
            results[task] = Result(task, _outcome(task, future.result()))
            if done is not None:
                done(results[task])
    except BrokenProcessPool:
        raise SimulationError(
            "a process that simulates has died; it may have run out of memory: use fewer `--jobs`"
        ) from None
    except BaseException:
        # A run in progress cannot be asked to stop, and its result is not wanted any more.
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [results[task] for task in tasks]


def _start_worker() -> None:
    # Python's own handler would wait until the run is over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal one is near.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_and_margin(values: Sequence[float]) -> Figure:
    """Mean and half of its 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Figure(mean, None)
    quantile = _T[len(values) - 2] if len(values) <= len(_T) else 1.98
    return Figure(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)))


def summarise(results: Iterable[Result]) -> list[Summary]:
    """One summary a balancer, in the order in which they first appear."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result.task.balancer.label, []).append(result.outcome)
    return [_summary(label, outcomes) for label, outcomes in groups.items()]


def _summary(label: str, outcomes: Sequence[dict[str, Any]]) -> Summary:
    figures: dict[str, Figure | None] = {}
    for key in LATENCIES:
        values = [outcome[key] for outcome in outcomes]
        figures[key] = None if None in values else mean_and_margin(values)
    calls = sum(outcome["calls"] for outcome in outcomes)
    errors = sum(outcome["errors"] for outcome in outcomes)
    return Summary(label, figures, errors / max(1, calls), tuple(outcomes))


def document(scenario: LoadedScenario, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Everything as one JSON document."""
    return {
        "scenario": scenario.name,
        "capacity_rps": scenario.capacity_rps,
        "offered_rps": scenario.offered_rps,
        "overload": scenario.overload,
        "balancers": [
            {
                "balancer": summary.balancer,
                **{
                    key: None if figure is None else figure.mean
                    for key, figure in summary.figures.items()
                },
                "margins": {
                    key: None if figure is None else figure.margin
                    for key, figure in summary.figures.items()
                },
                "errors": summary.errors,
                "runs": list(summary.outcomes),
            }
            for summary in summaries
        ],
    }
