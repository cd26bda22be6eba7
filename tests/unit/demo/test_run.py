"""When a run counts as clean."""

from __future__ import annotations

from attnroute.demo.balancers import BALANCERS
from attnroute.demo.messages import Sample
from attnroute.demo.plan import make_plan
from attnroute.demo.results import Results
from attnroute.demo.run import Outcome
from attnroute.demo.world import WORLDS


def outcome(*, status: int = 0, complaints: tuple[str, ...] = ()) -> Outcome:
    results = Results(WORLDS["mixed"], make_plan(90.0, BALANCERS), BALANCERS)
    results.add([Sample(99, 0.0, 0.0, 0.1, status, 0, 0.0, 0.1)])
    return Outcome(results, reloads=4, complaints=complaints)


def test_a_run_without_failures_is_clean() -> None:
    assert outcome().clean


def test_a_failed_call_is_not_clean_wherever_it_happened() -> None:
    assert not outcome(status=14).clean


def test_a_process_that_did_not_stop_by_itself_is_not_clean() -> None:
    assert not outcome(complaints=("sidecar 0 ended with exit code -9",)).clean
