"""Policy keys `picks` and `access_log`."""

from __future__ import annotations

import json

import pytest
from tests.support.policies import loaded, problems, with_top

from attnroute.policy.compile import compile_policy
from attnroute.policy.load import effective_yaml


def test_by_default_one_percent_of_the_picks_and_no_access_log() -> None:
    policy = loaded(with_top(""))
    config = json.loads(compile_policy(policy))
    assert config["picks"] == {"sample": 0.01}
    assert config["access_log"] is None
    assert "sample: 0.01" in effective_yaml(policy.policy)


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
    assert "from `0%` to `100%`" in found[0]
    assert found[2].startswith("7:22:")
    assert "the path of a file" in found[2]
