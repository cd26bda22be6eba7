"""The JSON Schema for editors says what the loader does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from attnroute.policy import scalars
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
