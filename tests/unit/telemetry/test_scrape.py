"""Pages of the text format as they come in the field."""

from __future__ import annotations

import pytest

from attnroute.telemetry.scrape import parse_page

GOOD = b'# HELP a b\n# TYPE a counter\na_total{x="1"} 3\na_total{x="2"} 4\n'


def test_a_good_page() -> None:
    samples, bad = parse_page(GOOD)
    assert bad == 0
    assert [(one.name, dict(one.labels), one.value) for one in samples] == [
        ("a_total", {"x": "1"}, 3.0),
        ("a_total", {"x": "2"}, 4.0),
    ]


@pytest.mark.parametrize(
    ("line", "readable"),
    [
        (b'c{x="1"}5', True),  # no space after the brace
        (b'c\t{x="1"}\t5', True),
        (b'c{x="a\\"b\\\\c\\nd"} 5', True),
        (b"c 5 1700000000000", True),
        (b"c NaN", True),
        (b"c +Inf", True),
        (b'c{x="1",} 5', True),
        (b"c five", False),
        (b'c{x="1" 5', False),
        (b'c{x=1} 5', False),
        (b"\xff\xfe\xfa", False),
        (b"{} {}", False),
        (b"<html>", False),
    ],
)  # fmt: skip
def test_a_line_loses_only_itself(line: bytes, *, readable: bool) -> None:
    samples, bad = parse_page(GOOD + line + b'\nd{y="2"} 7\n')
    names = [one.name for one in samples]
    assert names[:2] == ["a_total", "a_total"]
    assert names[-1] == "d"
    assert (len(samples), bad) == ((4, 0) if readable else (3, 1))


def test_line_ends_of_other_systems_and_no_end_at_all() -> None:
    samples, bad = parse_page(GOOD.replace(b"\n", b"\r\n").rstrip())
    assert (len(samples), bad) == (2, 0)


@pytest.mark.parametrize("body", [b"", b"\n\n", b"# only a comment\n", b"# EOF\n"])
def test_nothing(body: bytes) -> None:
    assert parse_page(body) == ([], 0)


def test_garbage() -> None:
    samples, bad = parse_page(bytes(range(256)) * 50)
    assert samples == []
    assert bad > 0
