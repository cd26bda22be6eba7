"""CF-03: a duration has a unit, is finite, not negative, and not absurd."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.policies import loaded, problems, with_service


def text(duration: str) -> str:
    return with_service(f"routes: [{{match: {{path: /a/b}}, timeout: {duration}}}]")


@pytest.mark.parametrize(
    ("written", "seconds"), [("1.5s", 1.5), ("1m30s", 90.0), ("250ms", 0.25), ('"2s"', 2.0)]
)
def test_cf_03_read(written: str, seconds: float) -> None:
    (route,) = loaded(text(written)).policy.services["cart"].routes
    assert route.timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("written", "found", "hint"),
    [
        ("400", "400", "a duration needs a unit; write `400ms` or `400s`"),
        ('"400"', "400", "a duration needs a unit; write `400ms` or `400s`"),
        ("0", "0", "expected a duration from `1ms` to `24h`"),
        ("0s", "0s", "expected a duration from `1ms` to `24h`"),
        ("500us", "500us", "expected a duration from `1ms` to `24h`"),
        ("25h", "25h", "expected a duration from `1ms` to `24h`"),
        ("-1s", "-1s", "a duration cannot be negative; write `0` or more"),
        ("10000000000000000000d", "10000000000000000000d", "write days as hours such as `24h`"),
        ("99999999999999999999h", "99999999999999999999h", "a duration ends at `10000h`"),
        ("1h 30m", "1h 30m", "a duration has no spaces; write `1h30m`"),
        (".5s", ".5s", "a duration begins with a digit; write `0.5s`"),
        ("infinity", "infinity", "a duration is finite"),
        (".inf", ".inf", "a duration is finite"),
        (".nan", ".nan", "a duration is finite"),
    ],
)
def test_cf_03_refused(written: str, found: str, hint: str) -> None:
    (problem,) = problems(text(written))
    assert problem.startswith(f"4:49: `timeout` in `services.cart.routes[0]`: found `{found}`, ")
    assert hint in problem


def test_cf_03_zero_may_omit_its_unit_where_zero_makes_sense() -> None:
    for zero in ("0", "0s", "0ms", '"0"'):
        policy = loaded(with_service("x-a: 1") + f"drain: {{linger: {zero}}}\n").policy
        assert policy.drain.linger == timedelta(0)
