"""The error tree."""

from __future__ import annotations

from attnroute.errors import AttnrouteError, EndpointFileError, PolicyError, Problem


def test_problem_reads_like_a_compiler_message() -> None:
    assert str(Problem("a.yaml", 3, 7, "unknown key `x`")) == "a.yaml:3:7: unknown key `x`"


def test_problems_are_sorted_by_place_not_by_discovery() -> None:
    later, earlier = Problem("a.yaml", 10, 1, "b"), Problem("a.yaml", 9, 4, "a")
    error = PolicyError([later, earlier])
    assert error.problems == (earlier, later)
    assert str(error) == "a.yaml:9:4: a\na.yaml:10:1: b"


def test_bad_input_ends_with_2_and_failed_work_with_1() -> None:
    assert AttnrouteError.exit_code == 1
    assert PolicyError.exit_code == EndpointFileError.exit_code == 2
