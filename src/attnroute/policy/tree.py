"""A parsed file before anything is made of it: values with their places.

YAML guesses types from the look of a word, and its versions guess differently: `no` is a boolean,
`22:22` a number in base 60, `012` an eight-based ten, or none of that. Here a plain word is a value
only if all versions agree on it; the rest becomes `Ambiguous`, which no field accepts, so that the
message can name the field and show the quotes that are missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnroute.errors import Problem

__all__ = [
    "Ambiguous",
    "Entry",
    "Node",
    "Tree",
    "TreeLimits",
    "plain_value",
    "shown",
    "shown_text",
]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What a file may cost, checked before anything is expanded."""

    bytes_max: int
    depth_max: int
    aliases_max: int
    nodes_max: int
    """Values once every alias is written out."""


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """A plain word that YAML's versions read differently."""

    text: str
    reading: str
    """What some version takes it for, with its article."""

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Node:
    """One value and where it begins; line and column count from 1."""

    line: int
    column: int
    value: Any
    """A scalar, `list[Node]` or `dict[str, Entry]`."""
    raw: str = ""
    """A scalar as it was written, without quotes."""
    size: int = 1
    """Values in it once aliases are written out."""
    height: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping and its value."""

    node: Node
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole file."""

    path: str
    root: Node

    def plain(self) -> Any:
        """The file as dicts, tuples and scalars."""
        return _plain(self.root)

    def find(self, loc: Iterable[str | int]) -> Node:
        """The node at loc, or the deepest one on the way: a default has no place of its own.

        What the file lacks on the way is passed over, since pydantic puts the tag of a union into
        its paths.
        """
        node = self.root
        for item in loc:
            node = _step(node, item) or node
        return node

    def has(self, loc: Iterable[str | int]) -> bool:
        """Whether every step of loc stands in the file."""
        node: Node | None = self.root
        for item in loc:
            node = _step(node, item) if node else None
        return node is not None

    def get(self, *loc: str | int) -> Any:
        """The plain value at loc; None if the file does not have it."""
        return _plain(self.find(loc)) if self.has(loc) else None

    def problem(self, loc: Sequence[str | int], message: str) -> Problem:
        """A problem with the value at loc."""
        node = self.find(loc)
        return Problem(self.path, node.line, node.column, message)

    def key_problem(self, loc: Sequence[str | int], message: str) -> Problem:
        """A problem with the key that loc ends in, or with the value if there is no such key."""
        parent = self.find(loc[:-1]).value
        if isinstance(parent, dict) and loc[-1] in parent:
            entry = parent[loc[-1]]
            return Problem(self.path, entry.line, entry.column, message)
        return self.problem(loc, message)

    def line_of_key(self, loc: Sequence[str | int]) -> str:
        """`line:column` of the key that loc ends in, else of the value."""
        problem = self.key_problem(loc, "")
        return f"{problem.line}:{problem.column}"

    def line_of(self, loc: Sequence[str | int]) -> str:
        """`line:column` of the value at loc."""
        node = self.find(loc)
        return f"{node.line}:{node.column}"


def _step(node: Node, item: str | int) -> Node | None:
    value = node.value
    if isinstance(value, dict) and item in value:
        entry: Entry = value[item]
        return entry.node
    if isinstance(value, list) and isinstance(item, int) and 0 <= item < len(value):
        found: Node = value[item]
        return found
    return None


def _plain(node: Node) -> Any:
    # Depth is bounded by TreeLimits.depth_max, aliases included, so recursion is safe.
    value = node.value
    if isinstance(value, dict):
        return {key: _plain(entry.node) for key, entry in value.items()}
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)
    return value


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_BOOLEAN_WORDS = frozenset(
    spelling
    for word in ("y", "n", "yes", "no", "on", "off")
    for spelling in (word, word.capitalize(), word.upper())
)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_READ_DIFFERENTLY = (
    (re.compile(r"[-+]?0[0-9_]+"), "an octal number"),
    (re.compile(r"[-+]?0[xX][0-9a-fA-F_]+"), "a hexadecimal number"),
    (re.compile(r"[-+]?0o[0-7_]+"), "an octal number"),
    (re.compile(r"[-+]?0b[01_]+"), "a binary number"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "a number in base 60"),
    (re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?"), "a number"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"), "a date"),
)
# More digits than any field takes; keeps the conversion cheap.
_DIGITS_MAX = 40


def plain_value(text: str) -> Any:
    """What a word without quotes means: None, bool, int, float, `Ambiguous` or the text itself."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _BOOLEAN_WORDS:
        return Ambiguous(text, "a boolean")
    if text[0] not in "-+.0123456789":
        return text
    if text.lower() in _SPECIAL_FLOATS:
        return float(_SPECIAL_FLOATS[text.lower()])
    if len(text) <= _DIGITS_MAX:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    for pattern, reading in _READ_DIFFERENTLY:
        if pattern.fullmatch(text):
            return Ambiguous(text, reading)
    return text


_SHOWN_LENGTH_MAX = 60


def shown(node: Node) -> str:
    """The node as a message shows it: short, on one line."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    if node.value is None and not node.raw:
        return "nothing"
    return shown_text(node.raw)


def shown_text(text: str) -> str:
    """Text in backticks, cut to what fits a message."""
    if len(text) > _SHOWN_LENGTH_MAX:
        text = text[:_SHOWN_LENGTH_MAX] + "..."
    if not text.isprintable() or "`" in text or text != text.strip() or not text:
        text = ascii(text).replace("`", "\\x60")
    return f"`{text}`"
