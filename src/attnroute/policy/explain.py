"""From what the schema refuses to what an operator reads: place, what was found, what to write.

pydantic knows what is wrong and where in the data; the tree knows where that stands in the file and
how it was spelled; the schema knows which keys there are. This file puts the three together.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from attnroute import __version__
from attnroute.errors import Problem
from attnroute.policy.balancers import BALANCER_NAMES
from attnroute.policy.fields import SECRET_ERROR
from attnroute.policy.tree import Ambiguous, Node, Tree, shown, shown_text

__all__ = ["problems_of"]

Loc = tuple[str | int, ...]

_RESERVED_MODES = {
    "transparent": "a later version",
}
_EXPECTED = {
    "bool_type": "expected `true` or `false`",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
}
_QUOTES = "put it in quotes"
_MAPPING_TYPES = ("dict_type", "model_type", "model_attributes_type")


def problems_of(error: ValidationError, tree: Tree, model: type[BaseModel]) -> list[Problem]:
    """Every error of a validation against `model` as a problem with its place in the file."""
    details = error.errors(include_url=False, include_input=False)
    missing = {item["loc"] for item in details if item["type"] == "missing"}
    problems, explained = [], set()
    for item in details:
        if item["type"] == "extra_forbidden":
            loc = item["loc"]
            message, meant = _unknown_key(loc, tree, model)
            problems.append(tree.key_problem(loc, message))
            # A misspelled key is one mistake: its right spelling is not missing as well.
            if (*loc[:-1], meant) in missing:
                explained.add((*loc[:-1], meant))
    for item in details:
        if item["type"] != "extra_forbidden" and item["loc"] not in explained:
            problems.extend(_problem(item, tree))
    return problems


def _problem(item: ErrorDetails, tree: Tree) -> Iterator[Problem]:
    loc, kind = item["loc"], item["type"]
    if kind == "missing":
        yield tree.problem(loc[:-1], f"{_of(loc[:-1], tree)} lacks the key `{loc[-1]}`")
    elif kind == "union_tag_not_found":
        yield tree.problem(loc, f"{_of(loc, tree)} lacks the key `type`{_balancers()}")
    elif kind == "union_tag_invalid":
        yield _unknown_word((*loc, "type"), tree, BALANCER_NAMES)
    elif kind == "literal_error":
        yield _unknown_word(loc, tree, tuple(re.findall("'([^']*)'", item["ctx"]["expected"])))
    elif loc[-1:] == ("[key]",):
        yield tree.key_problem(
            loc[:-1],
            f"key {shown_text(str(loc[-2]))} in {_of(loc[:-2], tree)}: {_reason(item)}",
        )
    elif kind == "too_short":
        # pydantic counts only the entries that are right; the others are reported themselves.
        node = tree.find(loc)
        if not node.value:
            hint = " or leave out the key for the default" if loc[-1] == "authorities" else ""
            yield tree.problem(loc, f"{_of(loc, tree)} is empty; write at least one entry{hint}")
    elif kind == SECRET_ERROR:
        yield tree.problem(loc, f"{_of(loc, tree)}: {_reason(item)}")
    else:
        node = tree.find(loc)
        yield tree.problem(
            loc, f"{_of(loc, tree)}: found {shown(node)}, {_advice(item, node, _path(loc, tree))}"
        )


def _advice(item: ErrorDetails, node: Node, path: Sequence[str | int]) -> str:
    kind, reason = item["type"], _reason(item)
    if node.value is None and not node.raw:
        return f"{reason}; leave out the key for its default"
    if reason.endswith(_QUOTES) and not isinstance(node.value, dict | list):
        reason = f'{reason}: `"{node.raw}"`'
    if isinstance(node.value, Ambiguous) and kind != "bool_type":
        return f"which reads as {node.value.reading} in some versions of YAML, {reason}"
    if kind == "bool_type":
        words = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false"}
        word = words.get(node.raw.lower())
        return f"{reason}; write `{word}`" if word else reason
    if kind in _MAPPING_TYPES and path and path[-1] == "balancer" and node.raw:
        return f"{reason}; write `{{type: {node.raw}}}`"
    return reason


def _reason(item: ErrorDetails) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "greater_than":
        return f"expected more than {_number(context['gt'])}"
    if kind == "greater_than_equal":
        return f"expected at least {_number(context['ge'])}"
    if kind == "less_than_equal":
        return f"expected at most {_number(context['le'])}"
    return _EXPECTED.get(kind, item["msg"])


def _number(limit: float) -> str:
    """A limit as an operator writes it: `0`, not `0.0`."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def _path(loc: Sequence[str | int], tree: Tree) -> list[str | int]:
    """Loc without what is not in the file: the tags of unions."""
    path: list[str | int] = []
    for item in loc:
        if tree.has((*path, item)):
            path.append(item)
    return path


def _of(loc: Sequence[str | int], tree: Tree) -> str:
    """`timeout` in `services.checkout.routes[0]`; the file itself for an empty loc."""
    path = _path(loc, tree)
    if not path:
        return "the file"
    cut = len(path) - 1
    while cut and isinstance(path[cut], int):
        cut -= 1
    leaf, parent = _dotted(path[cut:]), _dotted(path[:cut])
    return f"`{leaf}` in `{parent}`" if parent else f"`{leaf}`"


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for item in path:
        if isinstance(item, int):
            text += f"[{item}]"
        else:
            name = item if item.isprintable() and "`" not in item else ascii(item)
            text += f".{name[:60]}" if text else name[:60]
    return text


def _balancers() -> str:
    return f"; expected {_one_of(BALANCER_NAMES)}"


def _one_of(names: Sequence[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} or {last}" if most else last


def _unknown_word(loc: Loc, tree: Tree, known: tuple[str, ...]) -> Problem:
    node = tree.find(loc)
    word = node.raw if not isinstance(node.value, dict | list) else ""
    reserved: Mapping[str, str] = {} if loc[-1] == "type" else _RESERVED_MODES
    expected = _one_of(known)
    near = _nearest(word, (*known, *reserved))
    if word in reserved:
        hint = f"which comes in {reserved[word]}; {__version__} has {expected}"
    elif word == "oracle" and loc[-1] == "type":
        hint = f"which exists only in the simulator; expected {expected}"
    elif near is not None and near in reserved:
        hint = f"expected {expected}; did you mean `{near}`, which comes in {reserved[near]}?"
    else:
        hint = f"expected {expected}" + (f"; did you mean `{near}`?" if near else "")
    return tree.problem(loc, f"{_of(loc, tree)}: found {shown(node)}, {hint}")


def _unknown_key(loc: Loc, tree: Tree, root: type[BaseModel]) -> tuple[str, str | None]:
    """The message and, if it is a slip of the pen, the key that was meant."""
    key, parent = str(loc[-1]), _dotted(_path(loc[:-1], tree))
    where = f"in `{parent}`" if parent else "at the top of the file"
    model = _model_at(root, loc[:-1])
    known = tuple(model.model_fields) if model else ()
    reserved: Mapping[str, str] = getattr(model, "RESERVED", {})
    if key in reserved:
        instead = getattr(model, "RESERVED_INSTEAD", "remove it")
        return (
            f"key `{key}` {where} comes in {reserved[key]}, {__version__} does not know it; "
            f"{instead}"
        ), None
    unknown = f"unknown key {shown_text(key)} {where}"
    elsewhere = dict(_all_keys(root))
    near = _nearest(key, (*known, *reserved))
    if near is None and key in elsewhere:
        return f"{unknown}; it belongs into `{elsewhere[key]}`", None
    if near is None and (far := _nearest(key, tuple(elsewhere), cutoff=0.8)):
        return f"{unknown}; did you mean `{far}`, which belongs into `{elsewhere[far]}`?", None
    if near is None:
        keys = ", ".join(f"`{name}`" for name in known)
        return f"{unknown}; known are {keys}, keys of your own begin with `x-`", None
    if near in reserved:
        return f"{unknown}; did you mean `{near}`, which comes in {reserved[near]}?", None
    return f"{unknown}; did you mean `{near}`?", near


def _nearest(word: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    found = difflib.get_close_matches(word.lower()[:100], known, n=1, cutoff=cutoff)
    return found[0] if found else None


def _model_at(root: type[BaseModel], loc: Sequence[str | int]) -> type[BaseModel] | None:
    """The model that reads the mapping at loc."""
    candidates: list[Any] = [root]
    for item in loc:
        candidates = [inner for each in candidates for inner in _inside(each, item)]
    return next((each for each in candidates if _is_model(each)), None)


def _inside(annotation: Any, item: str | int) -> Iterator[Any]:
    if _is_model(annotation):
        fields = annotation.model_fields
        if item in fields:
            yield from _alternatives(fields[item].annotation)
        elif fields.get("type") and typing.get_args(fields["type"].annotation) == (item,):
            yield annotation  # the tag of a union: the same mapping, this model
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        yield from _alternatives(arguments[0])
    elif origin is dict:
        yield from _alternatives(arguments[1])


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        arguments = typing.get_args(annotation)
        for inner in arguments[:1] if origin is typing.Annotated else arguments:
            yield from _alternatives(inner)
    elif annotation is not type(None):
        yield annotation


def _is_model(annotation: Any) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _all_keys(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, str]]:
    """Every key below the top with the place it belongs into, deepest first."""
    for name, field in model.model_fields.items():
        place = f"{at}.{name}" if at else name
        models = list(_models_in(field.annotation))
        for inner, suffix in models:
            yield from _all_keys(inner, place + suffix)
        for inner, suffix in models:
            for key in inner.model_fields:
                yield key, place + suffix


def _models_in(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    for each in _alternatives(annotation):
        origin, arguments = typing.get_origin(each), typing.get_args(each)
        if _is_model(each):
            yield each, ""
        elif origin is tuple:
            yield from ((inner, "[]" + rest) for inner, rest in _models_in(arguments[0]))
        elif origin is dict:
            yield from ((inner, ".<name>" + rest) for inner, rest in _models_in(arguments[1]))
