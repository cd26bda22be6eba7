"""The JSON Schema for editors says what the loader does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.json_schema import mistakes
from tests.support.policies import problems

from attnroute.policy import scalars
from attnroute.policy.load import effective_yaml, load_policy
from attnroute.policy.schema import json_schema


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of a mapping with keys of ours."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for value in schema.values():
            yield from mappings(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from mappings(value)


def test_every_key_is_described_and_nothing_unknown_is_let_through() -> None:
    definitions = json_schema()["$defs"]
    found = list(mappings(json_schema()))
    assert len(found) >= 14
    for mapping in found:
        assert mapping["additionalProperties"] is False
        assert mapping["patternProperties"] == {"^x-": {}}
        for key, value in mapping["properties"].items():
            # A part whose description is that of its own model has it only there.
            name = value.get("$ref", "").rpartition("/")[2]
            described = value.get("description") or definitions[name]["description"]
            assert described, f"`{key}` has no description"
            assert "title" not in value


def test_defaults_are_written_as_an_operator_would() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Connection"]["properties"]["connect_timeout"]["default"] == "2s"
    assert definitions["DataPlaneSettings"]["properties"]["busy_poll"]["default"] == "0s"
    assert definitions["Service"]["properties"]["balancer"]["default"] == {
        "type": "least_request",
        "choice_count": "all",
        "with_replacement": False,
    }
    assert json_schema()["properties"]["drain"]["default"] == {"linger": "15s", "limit": "25s"}


def test_patterns_accept_what_the_parsers_accept() -> None:
    definitions = json_schema()["$defs"]
    duration = definitions["Connection"]["properties"]["connect_timeout"]["pattern"]
    for text in ("250ms", "1.5s", "1h30m", "10us"):
        assert re.search(duration, text)
        scalars.parse_duration(text)
    for text in ("400", "1 s", "-1s", "1d", ".5s"):
        assert not re.search(duration, text)
    size = definitions["Limits"]["properties"]["max_header_list_bytes"]["anyOf"][0]["pattern"]
    assert re.search(size, "64KiB")
    assert not re.search(size, "64KB")


def test_a_source_and_a_match_have_exactly_one_key() -> None:
    definitions = json_schema()["$defs"]
    endpoints = definitions["Service"]["properties"]["endpoints"]
    assert definitions["EndpointSource"]["oneOf"] == [
        {"required": ["static"]},
        {"required": ["file"]},
        {"required": ["dns"]},
    ]
    assert [option.get("type") for option in endpoints["anyOf"]] == [None, "array"]
    assert definitions["PathMatch"]["oneOf"] == [
        {"required": ["path"]},
        {"required": ["path_prefix"]},
    ]


def test_an_endpoint_may_be_its_address_alone() -> None:
    assert [option.get("type") for option in json_schema()["$defs"]["StaticEndpoint"]["anyOf"]] == [
        "string",
        "object",
    ]


ROOT = Path(__file__).parents[3]


def as_an_editor_reads_it(text: str) -> Any:
    """YAML 1.2, which has no `on`: the loader of 1.1 takes that key of `retry` for true."""
    return _with_on(yaml.safe_load(text))


def _with_on(value: Any) -> Any:
    if isinstance(value, dict):
        return {"on" if key is True else key: _with_on(each) for key, each in value.items()}
    return [_with_on(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["minimal", "full", "file-endpoints"])
def test_editors_find_nothing_wrong_with_the_examples(name: str) -> None:
    text = (ROOT / f"configs/{name}.yaml").read_text()
    assert mistakes(json_schema(), as_an_editor_reads_it(text)) == []


@pytest.mark.parametrize("name", ["minimal", "full", "file-endpoints"])
def test_editors_find_nothing_wrong_with_a_policy_that_is_written_out(name: str) -> None:
    policy = load_policy(ROOT / f"configs/{name}.yaml").policy
    assert mistakes(json_schema(), as_an_editor_reads_it(effective_yaml(policy))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "outlier_detecton: {}",
        "outlier_detection: {consecutive_errors: five}",
        "outlier_detection: {max_ejected: 150%}",
        "limits: {max_inflight: 0}",
        "limits: {max_held_bytes: 64KB}",
        "connection: {connect_timeout: 400}",
        "balancer: {type: least_requests}",
        "balancer: {type: least_request, decay: 10s}",
        "endpoints: {static: [10.0.0.1:1], file: a}",
        "endpoints: {}",
        "endpoints: {kubernetes: {}}",
        "routes: [{timeout: 1s}]",
        "waiting: {when_full: maybe}",
    ],
)
def test_editors_find_what_the_check_finds(wrong: str) -> None:
    key = wrong.partition(":")[0]
    endpoints = "" if key == "endpoints" else "endpoints: {static: [10.0.0.1:1]}, "
    text = (
        "listeners: [{mode: explicit, address: 127.0.0.1:15001}]\n"
        f"services: {{cart: {{{endpoints}{wrong}}}}}\n"
    )
    assert problems(text) != []
    assert mistakes(json_schema(), as_an_editor_reads_it(text)) != []
