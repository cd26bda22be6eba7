"""Log lines with fields: JSON for machines, text for a terminal.

The keys `ts`, `level`, `target`, `message` come first, then the fields of the line; the data plane
writes the same keys from Rust, so that one parser reads a whole sidecar. Fields are passed as
`extra=fields(service="cart")`, never formatted into the message, so that lines can be grouped.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

FORMATS = ("json", "text")

# The names the data plane's logger has, so that a filter on `level` holds for both.
_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}


def fields(**values: object) -> Mapping[str, object]:
    """The `extra` of a log call: keys that follow `message` in the line."""
    return {"fields": values}


def choose_format(wanted: str | None, stream: TextIO) -> str:
    """`wanted`, else `text` where `stream` is a terminal and `json` elsewhere."""
    if wanted is not None:
        return wanted
    return "text" if stream.isatty() else "json"


def configure(log_format: str, level: int = logging.INFO) -> None:
    """Makes the root logger write to stderr in that format; the last call wins.

    Raises ValueError for a format that is not in FORMATS.
    """
    if log_format not in FORMATS:
        raise ValueError(f"log format `{log_format}` is none of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Access logs and start messages of libraries repeat what our own lines say.
    for name in ("uvicorn", "watchfiles", "grpc", "asyncio"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return _LEVELS.get(record.levelname, record.levelname.lower())


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, without its end."""
        line: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": _level(record),
            "target": record.name,
            "message": record.getMessage(),
        }
        for key, value in getattr(record, "fields", {}).items():
            line.setdefault(key, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time level target message key=value ...`, values as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text; an exception follows on lines of its own."""
        parts = [_timestamp(record), _level(record), record.name, record.getMessage()]
        for key, value in getattr(record, "fields", {}).items():
            parts.append(f"{key}={json.dumps(value, default=str, ensure_ascii=False)}")
        text = " ".join(parts)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text
