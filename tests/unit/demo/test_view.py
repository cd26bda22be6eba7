"""Views are pure functions: the tests read what a terminal would show."""

from __future__ import annotations

import io
import math
from dataclasses import replace

from rich.console import Console, RenderableType

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.messages import Sample
from attnroute.demo.plan import make_plan
from attnroute.demo.results import Results
from attnroute.demo.sidecars import EndpointState
from attnroute.demo.view import Snapshot, closing, progress_line, render
from attnroute.demo.world import WORLDS

WORLD = WORLDS["mixed"]
PLAN = make_plan(90.0, BALANCERS)
ADDRESSES = [f"127.0.0.1:{40000 + index}" for index in range(len(WORLD.endpoints))]


def text_of(view: RenderableType, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def some_results(*, lateness_s: float = 0.0) -> Results:
    results = Results(WORLD, PLAN, BALANCERS)
    for turn, latency_s in zip(PLAN.slices[:3], (0.2, 0.1, 0.05), strict=True):
        results.add(
            Sample(
                order=turn.number,
                offset_s=5.0,
                lateness_s=lateness_s,
                latency_s=latency_s,
                status=0,
                endpoint=endpoint,
                wait_s=latency_s / 2,
                service_s=latency_s / 2,
            )
            for endpoint in range(12)
        )
    return results


def snapshot() -> Snapshot:
    results = some_results()
    return Snapshot(
        world=WORLD,
        balancers=BALANCERS,
        sidecars=2,
        current=BALANCERS[1],
        phase="measuring",
        round_number=1,
        rounds=3,
        elapsed_s=43.0,
        total_s=90.0,
        figures=results.figures(),
        addresses=ADDRESSES,
        states={ADDRESSES[0]: EndpointState(share=0.125, in_flight=7)},
        finished_calls=36,
        failed_calls=0,
        reloads=8,
        lateness_p99_s=0.0012,
    )


def line_with(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_the_live_view_shows_where_the_run_stands() -> None:
    text = text_of(render(snapshot()))
    assert "world `mixed`" in text
    progress = line_with(text, "round 2/3")
    assert "measuring least_request (2 choices)" in progress
    assert "43 s of 90 s" in progress
    assert "36 calls, 0 failed, 8 policy reloads under load, calls sent late by 1.2 ms" in text


def test_the_live_view_shows_every_balancer_and_endpoint() -> None:
    text = text_of(render(snapshot()))
    row = line_with(text, "round_robin").split()
    assert [cell for cell in row if cell != "│"] == (
        ["round_robin", *["200.0"] * 4, *["100.0"] * 2, "0", "12", "66.7", "%"]
    )
    assert "12.5 %" in line_with(text, ADDRESSES[0])
    assert all(address in text for address in ADDRESSES)
    assert "2x speed, group 3, noisy neighbour" in line_with(text, ADDRESSES[11])


def test_the_live_view_stands_without_any_numbers() -> None:
    empty = replace(
        snapshot(),
        figures=Results(WORLD, PLAN, BALANCERS).figures(),
        states={},
        lateness_p99_s=math.nan,
    )
    assert "nan" not in text_of(render(empty))


def test_the_closing_table_says_who_was_best() -> None:
    text = text_of(closing(some_results(), reloads=16))
    assert "36 calls, 0 failed, 16 policy reloads under load" in text
    assert "lowest mean: least_request (all), 0.25 of that of round_robin" in text
    assert "too slow" not in text


def test_the_closing_table_says_when_the_machine_was_too_slow() -> None:
    assert "too slow or too busy" in text_of(closing(some_results(lateness_s=0.5), reloads=0))


def test_the_closing_table_names_failures() -> None:
    results = some_results()
    failed = Sample(99, 1.0, 0.0, 15.0, 4, -1, 0.0, 0.0, "Deadline Exceeded")
    results.add([failed, failed])
    text = text_of(closing(results, reloads=0))
    assert "38 calls, 2 failed" in text
    assert "2 x status 4: Deadline Exceeded" in text


def test_the_closing_table_stands_without_any_numbers() -> None:
    text = text_of(closing(Results(WORLD, PLAN, BALANCERS), reloads=0))
    assert "lowest mean" not in text
    assert "nan" not in text


def test_progress_is_one_line() -> None:
    row = some_results().figures()[2]
    line = progress_line(BALANCERS[2], row, round_number=0, rounds=3)
    assert line == (
        "round 1/3, least_request (all): 12 calls so far, mean 50.0 ms, p99 50.0 ms, 0 errors"
    )


def test_the_closing_table_says_how_long_ill_endpoints_got_calls() -> None:
    results = some_results()
    results.faults.begin(BALANCERS[0], 70, 5.0)
    results.faults.reached("fails", 5.0, 6.0)
    results.faults.reached("fails", 5.0, 7.25)
    results.add([Sample(70, 1.0, 0.0, 0.1, 14, -1, 0.0, 0.0, "no")])
    text = text_of(closing(results, reloads=0))
    table = text[text.index("an endpoint that fails") :]
    row = [cell for cell in line_with(table, "round_robin").split() if cell != "│"]
    assert row == ["round_robin", "2", "1.25", "0", "-", "1", "1"]
    assert "37 calls, 0 failed" in text
