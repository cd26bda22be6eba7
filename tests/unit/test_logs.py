"""Log lines: keys, levels, formats."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest

from attnroute.logs import FORMATS, JsonFormatter, TextFormatter, choose_format, configure, fields


def record(message: str, level: int = logging.WARNING, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("attnroute.sidecar", level, "x.py", 1, message, (), None)
    made.created = 1_700_000_000.5
    for key, value in extra.items():
        setattr(made, key, value)
    return made


def test_json_has_the_keys_of_the_data_plane_first() -> None:
    line = JsonFormatter().format(record("stale", fields={"service": "cart", "epochs": [1, 2]}))
    assert list(json.loads(line)) == ["ts", "level", "target", "message", "service", "epochs"]
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.500000Z",
        "level": "warn",
        "target": "attnroute.sidecar",
        "message": "stale",
        "service": "cart",
        "epochs": [1, 2],
    }


def test_fields_are_the_extra_of_a_log_call() -> None:
    assert fields(service="cart") == {"fields": {"service": "cart"}}


def test_a_field_cannot_replace_a_key() -> None:
    line = json.loads(JsonFormatter().format(record("true", fields={"message": "false"})))
    assert line["message"] == "true"


def test_a_line_break_stays_inside_its_line() -> None:
    assert "\n" not in JsonFormatter().format(record("one\ntwo", fields={"reason": "a\nb"}))


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        made = record("broke", level=logging.ERROR, exc_info=sys.exc_info())
    line = json.loads(JsonFormatter().format(made))
    assert line["level"] == "error"
    assert line["exception"].endswith("ValueError: odd")


def test_text_is_for_people() -> None:
    line = TextFormatter().format(record("stale", fields={"service": "cart", "endpoints": 2}))
    assert line == (
        '2023-11-14T22:13:20.500000Z warn attnroute.sidecar stale service="cart" endpoints=2'
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_format_follows_the_stream_unless_it_is_given() -> None:
    assert choose_format(None, Terminal()) == "text"
    assert choose_format(None, io.StringIO()) == "json"
    assert choose_format("json", Terminal()) == "json"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of json, text"):
        configure("xml")
    assert FORMATS == ("json", "text")
