"""What a word without quotes means, and how values are shown."""

from __future__ import annotations

import math

import pytest

from attnroute.policy.tree import Ambiguous, Entry, Node, Tree, plain_value, shown_text


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("0", 0),
        ("-12", -12),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("eu-1a", "eu-1a"),
        ("10.0.0.1:50051", "10.0.0.1:50051"),
        ("250ms", "250ms"),
        ("1m30s", "1m30s"),
        ("-", "-"),
        (".", "."),
        ("1.2.3", "1.2.3"),
        ("nULL", "nULL"),
        ("tRUE", "tRUE"),
        ("0.1.0", "0.1.0"),
    ],
)
def test_words_that_all_versions_read_alike(word: str, value: object) -> None:
    found = plain_value(word)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "reading"),
    [
        ("no", "a boolean"),
        ("NO", "a boolean"),
        ("on", "a boolean"),
        ("y", "a boolean"),
        ("Yes", "a boolean"),
        ("012", "an octal number"),
        ("0o17", "an octal number"),
        ("0x10", "a hexadecimal number"),
        ("0b11", "a binary number"),
        ("22:22", "a number in base 60"),
        ("1:30:00.5", "a number in base 60"),
        ("1_000", "a number"),
        ("9" * 41, "a number"),
        ("2024-01-31", "a date"),
        ("2024-01-31 12:00:00", "a date"),
    ],
)
def test_words_that_versions_read_differently(word: str, reading: str) -> None:
    assert plain_value(word) == Ambiguous(word, reading)


def test_not_a_number_is_a_number_that_fields_refuse() -> None:
    assert math.isnan(plain_value(".nan"))


def test_shown_text_is_short_printable_and_cannot_end_its_own_backticks() -> None:
    assert shown_text("a") == "`a`"
    assert shown_text("") == "`''`"
    assert shown_text("a`b") == "`'a\\x60b'`"
    assert shown_text("a\nb") == "`'a\\nb'`"
    assert shown_text("\u202eabc") == "`'\\u202eabc'`"
    assert len(shown_text("x" * 10_000)) < 80


def test_find_passes_over_what_the_file_does_not_have() -> None:
    leaf = Node(2, 5, "x", "x")
    tree = Tree("f", Node(1, 1, {"a": Entry(Node(2, 3, [leaf]), 1, 1)}))
    assert tree.find(("a", "tag-of-a-union", 0)) is leaf
    assert tree.find(("a", 7)) is tree.find(("a",))
    assert tree.has(("a", 0))
    assert not tree.has(("a", "tag-of-a-union", 0))
    assert tree.get("b") is None
    assert tree.plain() == {"a": ("x",)}
