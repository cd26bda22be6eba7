"""From a file to a valid `Policy`, or to every reason why not, each as `file:line:column: message`.

The only reader and writer of YAML. It takes the parser's events rather than its objects: limits on
size, depth and aliases are checked while they come, before an alias is written out once; a key that
stands twice is seen; and each value keeps its place and its spelling. Nothing is resolved by YAML's
own rules for words, see `tree`.

What goes on: text, events, `Tree`; then the schema, whose errors `explain` words, and `rules`; then
`Policy`.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from attnroute.errors import EndpointFileError, InvalidFileError, PolicyError, Problem
from attnroute.policy import rules
from attnroute.policy.explain import problems_of
from attnroute.policy.listeners import with_defaults
from attnroute.policy.schema import EndpointFile, Policy
from attnroute.policy.tree import Ambiguous, Entry, Node, Tree, TreeLimits, plain_value, shown_text
from attnroute.types import EndpointSpec

__all__ = [
    "ENDPOINT_FILE_LIMITS",
    "POLICY_LIMITS",
    "LoadedPolicy",
    "effective_yaml",
    "load_document",
    "load_policy",
    "parse_endpoints",
]

POLICY_LIMITS = TreeLimits(bytes_max=1 << 20, depth_max=32, aliases_max=200, nodes_max=200_000)
# 100,000 endpoints with zone, weight and a few labels.
ENDPOINT_FILE_LIMITS = TreeLimits(
    bytes_max=16 << 20, depth_max=16, aliases_max=200, nodes_max=1_000_000
)

# Problems beyond this are left out with a last line that says so: a machine that reads them is
# served as well, a person better.
_PROBLEMS_MAX = 200

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class LoadedPolicy:
    """A valid policy and where it came from."""

    policy: Policy
    path: Path
    sha256: str
    """Of the file's bytes, in lower-case hex."""
    text: str
    position: Callable[[tuple[str | int, ...]], tuple[int, int]] = field(repr=False, compare=False)
    """Line and column, from 1, of the value at a path such as `("listeners", 0, "address")`; for
    what the file leaves to a default, of the nearest part around it."""

    def resolve(self, path: str) -> Path:
        """A path in the policy, relative to the policy file, as the system takes it."""
        return self.path.parent / path


def load_policy(path: Path, content: bytes | None = None) -> LoadedPolicy:
    """Reads and checks a policy file.

    content: the file's bytes if they were read already, so that what was looked at is what counts;
    where they are empty the file is read again, so that the message says whether it is gone.
    Raises PolicyError with every problem of the file.
    """
    try:
        if not content:
            content = _read(path, POLICY_LIMITS)
        tree = _parse(content, str(path), POLICY_LIMITS)
        policy = _validate(tree, Policy, rules.check_policy)
    except _RefusedError as refused:
        raise PolicyError(refused.problems) from None

    def position(loc: tuple[str | int, ...]) -> tuple[int, int]:
        node = tree.tree.find(loc)
        return node.line, node.column

    return LoadedPolicy(
        policy=_with_names(policy),
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        text=content.decode("utf-8-sig"),
        position=position,
    )


def parse_endpoints(content: bytes, path: Path) -> tuple[EndpointSpec, ...]:
    """The endpoints that a file of them lists, in its order; an empty list is an answer.

    Raises EndpointFileError with every problem of the file.
    """
    try:
        tree = _parse(content, str(path), ENDPOINT_FILE_LIMITS)
        listed = _validate(
            tree, EndpointFile, lambda tree: list(rules.check_endpoints(tree, ("endpoints",)))
        )
    except _RefusedError as refused:
        raise EndpointFileError(refused.problems) from None
    return tuple(endpoint.spec() for endpoint in listed.endpoints)


def load_document(
    path: Path,
    model: type[_Model],
    check: Callable[[Tree], list[Problem]],
    error: type[InvalidFileError],
) -> tuple[_Model, Tree]:
    """Any other file of one model, read as strictly, with the tree that tells places.

    check: rules between fields. Raises `error` with every problem of the file.
    """
    try:
        parse = _parse(_read(path, POLICY_LIMITS), str(path), POLICY_LIMITS)
        return _validate(parse, model, check), parse.tree
    except _RefusedError as refused:
        raise error(refused.problems) from None


def effective_yaml(policy: Policy) -> str:
    """The whole policy with its defaults, as YAML that loads to the same policy but for secrets,
    which are masked."""
    data = policy.model_dump(mode="json")
    data["listeners"] = [_without_nulls(listener) for listener in data["listeners"]]
    for service in data["services"].values():
        sources = [_without_nulls(source) for source in service["endpoints"]]
        service["endpoints"] = sources[0] if len(sources) == 1 else sources
        for route in service["routes"]:
            route["match"] = _without_nulls(route["match"])
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _without_nulls(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if value is not None
    }


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if plain_value(text) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


class _Dumper(yaml.SafeDumper):
    """Puts quotes around every text that would not be read back as itself."""

    yaml_representers: ClassVar[dict[Any, Any]] = {
        **yaml.SafeDumper.yaml_representers,
        str: _represent_text,
    }

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _with_names(policy: Policy) -> Policy:
    """Writes out the names that have a default: of listeners, and the authorities of services."""
    listeners = tuple(
        with_defaults(listener, index) for index, listener in enumerate(policy.listeners)
    )
    services = {
        name: service.model_copy(
            update={"authorities": service.authorities or (name.lower(), f"{name.lower()}:*")}
        )
        for name, service in policy.services.items()
    }
    return policy.model_copy(update={"listeners": listeners, "services": services})


class _RefusedError(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


@dataclass(frozen=True)
class _Parse:
    """A file that could be read to its end; `problems` are what its YAML says twice or oddly."""

    tree: Tree
    problems: list[Problem]


def _read(path: Path, limits: TreeLimits) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.bytes_max + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}; check the path"
        raise _RefusedError([Problem(str(path), 1, 1, message)]) from None


def _validate(parse: _Parse, model: type[_Model], check: Callable[[Tree], list[Problem]]) -> _Model:
    tree, problems = parse.tree, parse.problems
    validated = None
    try:
        validated = model.model_validate(tree.plain())
    except ValidationError as error:
        # What YAML says wrongly at a place explains what the schema finds wrong there.
        known = {(problem.line, problem.column) for problem in problems}
        problems = [
            *problems,
            *(
                problem
                for problem in problems_of(error, tree, model)
                if (problem.line, problem.column) not in known
            ),
        ]
    problems = sorted({*problems, *check(tree)})
    if len(problems) > _PROBLEMS_MAX:
        last = problems[_PROBLEMS_MAX]
        more = (
            f"and {len(problems) - _PROBLEMS_MAX} more problems from here on; mend the others first"
        )
        problems[_PROBLEMS_MAX:] = [Problem(last.path, last.line, last.column, more)]
    if problems or validated is None:
        raise _RefusedError(problems)
    return validated


def _parse(content: bytes, path: str, limits: TreeLimits) -> _Parse:
    text = _decode(content, path, limits)
    composer = _Composer(path, limits)
    try:
        for event in yaml.parse(text, _LOADER):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        raise _RefusedError([*composer.problems, _syntax_problem(error, path, text)]) from None
    except RecursionError:  # the parser without libyaml recurses on some tokens
        raise _RefusedError([Problem(path, 1, 1, "is nested too deeply")]) from None
    if composer.root is None:
        raise _RefusedError([Problem(path, 1, 1, "the file is empty or has only comments")])
    if not isinstance(composer.root.value, dict):
        at = composer.root
        raise _RefusedError(
            [Problem(path, at.line, at.column, "expected a mapping of keys to values")]
        )
    return _Parse(Tree(path, composer.root), composer.problems)


# libyaml's parser where PyYAML was built with it: ten times faster, the same events and marks.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|(?<!^)\ufeff"
)


def _decode(content: bytes, path: str, limits: TreeLimits) -> str:
    if len(content) > limits.bytes_max:
        message = f"the file is larger than {limits.bytes_max} bytes, the limit"
        raise _RefusedError([Problem(path, 1, 1, message)])
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        good = content[: error.start].decode()
        message = f"byte `0x{content[error.start]:02x}` is no UTF-8; save the file as UTF-8 text"
        raise _RefusedError([Problem(path, *_line_and_column(good), message)]) from None
    if odd := _UNPRINTABLE.search(text):
        message = f"character `U+{ord(odd[0]):04X}` cannot stand in a text file; remove it"
        raise _RefusedError([Problem(path, *_line_and_column(text[: odd.start()]), message)])
    return text


def _line_and_column(before: str) -> tuple[int, int]:
    """The place that follows the text `before`, counted as the parser's marks are."""
    lines = _LINE_BREAK.split(before)
    return len(lines), len(lines[-1]) + 1


def _syntax_problem(error: yaml.MarkedYAMLError, path: str, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    message = f"no valid YAML: {error.problem or 'unreadable'}"
    context = error.context_mark
    if error.context and context and (context.line + 1, context.column + 1) != (line, column):
        message += f", {error.context} that begins at {context.line + 1}:{context.column + 1}"
    lines = _LINE_BREAK.split(text)
    rest = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    if rest.startswith("\t"):
        message += "; indent with spaces, not with tabs"
    elif rest[:1] in ("@", "`", "%"):
        message += f"; put text that begins with {rest[0]!a} in quotes"
    elif rest.startswith(":") and lines[line - 1][: column - 1].endswith("["):
        message += "; put an address that begins with `[` in quotes"
    elif "mapping values" in message:
        message += "; put text with a colon and a space in quotes"
    return Problem(path, line, column, message)


@dataclass
class _Frame:
    """A list or mapping that is not closed yet."""

    node: Node
    anchor: str | None
    key: tuple[str, int, int] | None = None
    """The key whose value comes next."""
    is_key: bool = False
    """The whole thing stands where a key should, and is dropped."""
    drops_next: bool = False
    """The next value belongs to a key that was refused."""


class _Composer:
    """Builds the tree out of the parser's events; stops at a limit, notes everything else."""

    def __init__(self, path: str, limits: TreeLimits) -> None:
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self._path = path
        self._limits = limits
        self._stack: list[_Frame] = []
        self._anchors: dict[str, Node | None] = {}
        self._aliases = 0
        self._nodes = 0
        self._takers: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.SequenceStartEvent: self._open,
            yaml.MappingStartEvent: self._open,
            yaml.SequenceEndEvent: self._close,
            yaml.MappingEndEvent: self._close,
            yaml.DocumentStartEvent: self._begin,
        }

    def take(self, event: Any) -> None:
        """The next event. Raises _RefusedError at a limit or where nothing sensible can follow."""
        take = self._takers.get(type(event))
        if take is not None:
            take(event)

    def _begin(self, event: Any) -> None:
        if self.root is not None:
            self._stop(event, "a second document begins; keep one to a file")

    def _scalar(self, event: Any) -> None:
        # The C parser says `''` where the other says None.
        plain = not event.style
        node = self._node(event, event.value)
        node.raw = event.value
        if plain:
            node.value = plain_value(event.value)
        self._check_tag(event)
        if event.anchor:
            self._anchors[event.anchor] = node
        frame = self._stack[-1] if self._stack else None
        if frame is not None and self._expects_key(frame):
            self._key(frame, node, plain)
        else:
            self._attach(node)

    def _key(self, frame: _Frame, node: Node, plain: bool) -> None:  # noqa: FBT001
        at = (node.line, node.column)
        if plain and node.raw == "<<":
            self._note(*at, "merge keys (`<<`) are not supported; write the keys out")
            frame.drops_next = True
        elif node.value is None and not node.raw:
            self._note(*at, "a key is missing before the colon")
            frame.drops_next = True
        elif plain and not isinstance(node.value, str) and not self._is_text_here(node.raw):
            reading = node.value.reading if isinstance(node.value, Ambiguous) else _kind(node.value)
            self._note(
                *at, f'key `{node.raw}` reads as {reading}; put it in quotes: `"{node.raw}"`'
            )
            frame.key = (node.raw, *at)
        else:
            frame.key = (node.raw, *at)

    def _is_text_here(self, key: str) -> bool:
        """Whether nobody can take a key for anything but text: below one that begins with `x-`, and
        as the `on` of `retry`, which is a key of ours."""
        above = [frame.key[0] for frame in self._stack if frame.key is not None]
        return (key == "on" and above[-1:] == ["retry"]) or any(
            name.startswith("x-") for name in above
        )

    def _alias(self, event: Any) -> None:
        name = event.anchor or ""
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        self._aliases += 1
        if self._aliases > self._limits.aliases_max:
            self._stop(event, f"more than {self._limits.aliases_max} aliases, the limit")
        if name not in self._anchors:
            near = ", ".join(f"`&{known}`" for known in list(self._anchors)[:5]) or "none"
            self._stop(
                event, f"alias {shown_text('*' + name)} has no anchor before it; there are {near}"
            )
        node = self._anchors[name]
        if node is None:
            self._stop(event, f"alias {shown_text('*' + name)} stands inside its own anchor")
        frame = self._stack[-1]
        if self._expects_key(frame):
            self._note(
                line, column, f"alias {shown_text('*' + name)} stands as a key; write it out"
            )
            frame.drops_next = True
            return
        self._nodes += node.size
        if self._nodes > self._limits.nodes_max:
            self._stop(
                event,
                f"aliases expand to more than {self._limits.nodes_max} values, the limit",
            )
        if len(self._stack) + node.height > self._limits.depth_max:
            self._stop(event, self._too_deep())
        self._attach(node)

    def _open(self, event: Any) -> None:
        if len(self._stack) >= self._limits.depth_max:
            self._stop(event, self._too_deep())
        node = self._node(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
        self._check_tag(event)
        if event.anchor:
            self._anchors[event.anchor] = None  # known, but not complete
        is_key = bool(self._stack) and self._expects_key(self._stack[-1])
        if is_key and not any(frame.is_key for frame in self._stack):
            self._note(node.line, node.column, "a list or mapping stands as a key; a key is text")
        self._stack.append(_Frame(node, event.anchor, is_key=is_key))

    def _close(self, _event: Any) -> None:
        frame = self._stack.pop()
        if frame.anchor:
            self._anchors[frame.anchor] = frame.node
        if frame.is_key:
            self._stack[-1].drops_next = True
        else:
            self._attach(frame.node)

    def _attach(self, node: Node) -> None:
        """Puts a finished value where it belongs."""
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        into = frame.node
        into.size += node.size
        into.height = max(into.height, node.height + 1)
        if isinstance(into.value, list):
            into.value.append(node)
        elif frame.drops_next:
            frame.drops_next = False
        else:
            assert frame.key is not None
            name, line, column = frame.key
            frame.key = None
            if name in into.value:
                first = into.value[name]
                self._note(
                    line,
                    column,
                    f"key {shown_text(name)} stands twice, first at {first.line}:{first.column}; "
                    "remove one",
                )
            else:
                into.value[name] = Entry(node, line, column)

    @staticmethod
    def _expects_key(frame: _Frame) -> bool:
        return isinstance(frame.node.value, dict) and frame.key is None and not frame.drops_next

    def _node(self, event: Any, value: Any) -> Node:
        self._nodes += 1
        if self._nodes > self._limits.nodes_max:
            self._stop(event, f"more than {self._limits.nodes_max} values, the limit")
        return Node(event.start_mark.line + 1, event.start_mark.column + 1, value)

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None:
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            self._note(line, column, f"tag {shown_text(event.tag)} is not supported; remove it")

    def _too_deep(self) -> str:
        return f"nested more than {self._limits.depth_max} levels deep, the limit"

    def _note(self, line: int, column: int, message: str) -> None:
        self.problems.append(Problem(self._path, line, column, message))

    def _stop(self, event: Any, message: str) -> NoReturn:
        mark = event.start_mark
        self._note(mark.line + 1, mark.column + 1, message)
        raise _RefusedError(self.problems)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return "a boolean" if isinstance(value, bool) else "a number"
