"""What a JSON Schema says of a value, as far as the schemas of this project go.

Evaluates the keywords of draft 2020-12 that they use, and fails on any other, so that nothing in a
schema passes unread. Numbers that JSON does not tell apart (1 and 1.0) are one here, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "discriminator"}
ANNOTATIONS |= {"writeOnly", "x-limits"}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


BOUNDS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool]]] = {
    "minimum": (_is_number, lambda value, bound: value >= bound),
    "maximum": (_is_number, lambda value, bound: value <= bound),
    "exclusiveMinimum": (_is_number, lambda value, bound: value > bound),
    "minLength": (TYPES["string"], lambda value, bound: len(value) >= bound),
    "maxLength": (TYPES["string"], lambda value, bound: len(value) <= bound),
    "pattern": (TYPES["string"], lambda value, bound: re.search(bound, value) is not None),
    "minItems": (TYPES["array"], lambda value, bound: len(value) >= bound),
    "maxItems": (TYPES["array"], lambda value, bound: len(value) <= bound),
    "minProperties": (TYPES["object"], lambda value, bound: len(value) >= bound),
    "maxProperties": (TYPES["object"], lambda value, bound: len(value) <= bound),
    "required": (TYPES["object"], lambda value, bound: set(bound) <= value.keys()),
    "enum": (lambda _: True, lambda value, bound: value in bound),
    "const": (lambda _: True, lambda value, bound: value == bound),
}


def mistakes(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What is wrong with a value: path and keyword of each mistake. AssertionError for a keyword
    that is not known here."""
    return list(_mistakes(schema, schema, value, "$"))


def _mistakes(root: Mapping[str, Any], schema: Any, value: Any, at: str) -> Iterator[str]:
    if isinstance(schema, bool):
        if not schema:
            yield f"{at}: nothing may stand here"
        return
    for keyword, bound in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword == "type":
            names = [bound] if isinstance(bound, str) else bound
            if not any(TYPES[name](value) for name in names):
                yield f"{at}: {keyword}"
        elif keyword in BOUNDS:
            concerns, holds = BOUNDS[keyword]
            if concerns(value) and not holds(value, bound):
                yield f"{at}: {keyword}"
        else:
            yield from _parts(root, schema, keyword, value, at)


def _parts(
    root: Mapping[str, Any], schema: Mapping[str, Any], keyword: str, value: Any, at: str
) -> Iterator[str]:
    """Keywords that hold schemas."""
    bound = schema[keyword]
    fields = value if isinstance(value, dict) else {}
    if keyword == "$ref":
        target: Any = root
        for step in bound.removeprefix("#/").split("/"):
            target = target[step]
        yield from _mistakes(root, target, value, at)
    elif keyword in ("anyOf", "oneOf"):
        found = [list(_mistakes(root, option, value, at)) for option in bound]
        fitting = sum(not each for each in found)
        if not fitting or (keyword == "oneOf" and fitting > 1):
            yield f"{at}: {keyword}"
    elif keyword == "items":
        for index, item in enumerate(value if isinstance(value, list) else []):
            yield from _mistakes(root, bound, item, f"{at}[{index}]")
    elif keyword == "properties":
        for name in bound.keys() & fields.keys():
            yield from _mistakes(root, bound[name], fields[name], f"{at}.{name}")
    elif keyword == "patternProperties":
        for pattern, inner in bound.items():
            for name in fields:
                if re.search(pattern, name):
                    yield from _mistakes(root, inner, fields[name], f"{at}.{name}")
    elif keyword == "additionalProperties":
        patterns = schema.get("patternProperties", {})
        for name in fields.keys() - schema.get("properties", {}).keys():
            if not any(re.search(pattern, name) for pattern in patterns):
                yield from _mistakes(root, bound, fields[name], f"{at}.{name}")
    elif keyword == "propertyNames":
        for name in fields:
            yield from _mistakes(root, bound, name, f"{at}.{name}")
    else:
        raise AssertionError(f"{at}: unknown keyword `{keyword}`")
