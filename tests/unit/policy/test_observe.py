"""Policy keys `picks` and `access_log`."""

from __future__ import annotations

import json

import pytest
from tests.support.policies import loaded, problems, with_top

from attnroute.policy.compile import compile_policy
from attnroute.policy.load import effective_yaml
from attnroute.policy.observe import format_share, parse_share


@pytest.mark.parametrize(
    ("text", "share"),
    [("0%", 0.0), ("100%", 1.0), ("0.1%", 0.001), (0, 0.0), (1, 1.0), (0.25, 0.25), ("7%", 0.07)],
)
def test_shares_are_read_and_written_back(text: object, share: float) -> None:
    assert parse_share(text) == pytest.approx(share, rel=1e-12)
    assert parse_share(format_share(share)) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("value", ["101%", -0.1, 1.5, True, "5", "%", None, [], float("nan")])
def test_what_is_no_share_says_what_is(value: object) -> None:
    with pytest.raises(ValueError, match="expected a share from `0%` to `100%`"):
        parse_share(value)


def test_by_default_one_percent_of_the_picks_and_no_access_log() -> None:
    policy = loaded(with_top(""))
    config = json.loads(compile_policy(policy))
    assert config["picks"] == {"sample": 0.01}
    assert config["access_log"] is None
    assert "sample: 1%" in effective_yaml(policy.policy)


@pytest.mark.parametrize("output", ["stdout", "stderr"])
def test_streams_stay_names(output: str) -> None:
    policy = loaded(with_top(f"access_log: {{sample: 10%, output: {output}}}\n"))
    config = json.loads(compile_policy(policy))
    assert config["access_log"] == {"sample": 0.1, "output": output}


def test_a_file_is_relative_to_the_policy() -> None:
    policy = loaded(with_top("access_log: {output: logs/access.json}\n"))
    config = json.loads(compile_policy(policy))
    assert config["access_log"]["output"] == str(policy.resolve("logs/access.json"))


def test_every_mistake_has_its_place() -> None:
    found = problems(with_top("picks: {sample: 2, keep: 0}\naccess_log: {output: syslog}\n"))
    assert len(found) == 3
    assert "`0%` to `100%`" in found[0]
    assert found[2].startswith("7:22:")
    assert "the path of a file" in found[2]
