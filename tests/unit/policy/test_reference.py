"""docs/policy-reference.md says what the schema says, whole and current."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.policies import problems

from attnroute.policy.reference import Row, Section, reference_page, sections
from attnroute.policy.schema import json_schema

ROOT = Path(__file__).parents[3]


def test_the_committed_page_is_current() -> None:
    page = (ROOT / "docs/policy-reference.md").read_text()
    assert page == reference_page(), "run `scripts/gen-policy-reference`"


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from _keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keys(value)


def test_every_key_of_the_schema_has_a_row_with_what_it_means() -> None:
    rows = [row for section in sections() for row in section.rows]
    assert sorted(row.key for row in rows) == sorted(_keys(json_schema()))
    assert [row.key for row in rows if not row.description or not row.kind] == []
    assert [section.title for section in sections() if not section.description] == []


def test_rows_show_type_limits_default_and_example() -> None:
    by_title = {section.title: section for section in sections()}
    rows = {row.key: row for row in by_title["`services.<name>.connection`"].rows}
    assert rows["connect_timeout"] == Row(
        "connect_timeout",
        "duration",
        "1ms to 24h",
        "`2s`",
        "`connect_timeout: 2s`",
        "From the first packet to the endpoint's SETTINGS.",
    )
    listener = {row.key: row for row in by_title["`listeners[]`"].rows}
    assert listener["address"].kind == "address"
    assert listener["address"].default == ""
    assert "`services.<name>.endpoints.dns`" in by_title
    assert "`services.<name>.balancer` of `prequal`" in by_title


def _around(section: Section, row: Row) -> str | None:
    """A policy with the example at its place; None for a part inside another part's list."""
    example = row.example.strip("`")
    part = section.title.partition("`services.<name>.")[2].partition("`")[0]
    if section.title.count("balancer` of"):
        kind = section.title.split("`")[3]
        inside = f"balancer: {{type: {kind}, {example}}}"
    elif part in ("slow_start", "limits", "connection", "outlier_detection"):
        inside = f"{part}: {{{example}}}"
    else:
        return None
    return (
        "listeners: [{mode: explicit, address: 127.0.0.1:15001}]\n"
        f"services: {{cart: {{endpoints: {{static: [10.0.0.1:1]}}, {inside}}}}}\n"
    )


EXAMPLES = [
    pytest.param(text, id=f"{section.title} {row.key}")
    for section in sections()
    for row in section.rows
    if row.example and row.key != "type" and (text := _around(section, row)) is not None
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    found = problems(text)
    # Some values stand only beside another one: what is written is right all the same.
    assert [each for each in found if "found `" in each] == []


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 30
