"""Policy keys `picks`, `access_log` and `tracing`."""

from __future__ import annotations

import json

import pytest
from tests.support.policies import MINIMAL, loaded, problems, with_top

from attnroute.policy.compile import compile_policy
from attnroute.policy.load import effective_yaml


def test_by_default_one_percent_of_the_picks_and_no_access_log() -> None:
    policy = loaded(with_top(""))
    config = json.loads(compile_policy(policy))
    assert config["picks"] == {"sample": 0.01, "keep": 1_000}
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


def test_spans_are_off_unless_the_policy_has_them() -> None:
    assert json.loads(compile_policy(loaded(MINIMAL)))["tracing"] == {"sample": 0.0}
    policy = loaded(with_top("tracing: {otlp: collector:4317}\n"))
    assert json.loads(compile_policy(policy))["tracing"] == {"sample": 0.01}


def test_secrets_are_masked_wherever_a_policy_is_shown() -> None:
    policy = loaded(with_top("tracing: {otlp: 'c:1', headers: {token: abracadabra}}\n")).policy
    assert policy.tracing is not None
    assert policy.tracing.headers["token"].get_secret_value() == "abracadabra"
    assert "token: (secret)" in effective_yaml(policy)
    for text in (effective_yaml(policy), repr(policy), policy.model_dump_json()):
        assert "abracadabra" not in text


def test_mistakes_in_tracing() -> None:
    found = problems(
        with_top(
            "tracing:\n"
            "  otlp: collector\n"
            "  headers: {Token: x, grpc-x: x, a-bin: x, secret: [abracadabra], other: ''}\n"
        )
    )
    expected = (
        "7:9: `otlp` in `tracing`: found `collector`, expected `host:port`; the usual port",
        "8:13: key `Token` in `headers` in `tracing`: expected the name of a header in lower case",
        "8:23: key `grpc-x` in `headers` in `tracing`: expected the name of a header",
        "8:34: key `a-bin` in `headers` in `tracing`: expected the name of a header",
        "8:52: `secret` in `tracing.headers`: expected printable text; put it in quotes",
        "8:74: `other` in `tracing.headers`: expected printable text; put it in quotes",
    )
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning)
    assert not any("abracadabra" in problem for problem in found)
