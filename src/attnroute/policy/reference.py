"""The page `docs/policy-reference.md`, made from the schema, so that it cannot say anything else.

The same JSON Schema that editors read, as tables: a section for each part of the policy, in the
order in which a reader meets them, a row for each key.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnroute.policy import scalars
from attnroute.policy.schema import json_schema

__all__ = ["Row", "Section", "reference_page", "sections"]

Schema = Mapping[str, Any]

_HEAD = """\
<!-- Made by scripts/gen-policy-reference from the schema; do not edit. -->
# Policy reference

Every key of a policy. What the parts mean together: [balancers](balancers.md), \
[discovery](discovery.md), [resilience](resilience.md), [operations](operations.md).

- **duration**: numbers with the units `h`, `m`, `s`, `ms`, `us`, largest first: `250ms`, `1m30s`; \
0 may go without.
- **size**: `64KiB`, `4MiB`, or a whole number of bytes. **share**: `5%`, or a number from 0 to 1.
- **address**: `ip:port`, `[ip6]:port` or `unix:/path`.
- Unknown keys, doubled keys and words that YAML's versions read differently are errors; keys that \
begin with `x-` are yours.

`attnroute check FILE` lists every mistake, `attnroute check --defaults FILE` prints the policy \
with every default. An editor with the YAML language server helps after \
`attnroute schema policy > policy.schema.json` and a first line of

```yaml
# yaml-language-server: $schema=policy.schema.json
```

A file with most of the keys: `configs/full.yaml`.
"""

_BY_PATTERN = {
    scalars.DURATION_PATTERN: "duration",
    scalars.SIZE_PATTERN: "size",
    scalars.NAME_PATTERN: "name",
    scalars.AUTHORITY_PATTERN: "host, `host:port`, `host:*` or `*`",
    scalars.DNS_NAME_PATTERN: "`host:port` or SRV name",
    "^/": "path",
    r"^p([5-9][0-9])(\.[0-9])?$": "percentile",
    "^(unix:)?/": "path of a Unix socket",
}
_EXAMPLES = {
    "duration": "2s",
    "percentile or duration": "p95",
    "size": "64KiB",
    "name": "checkout",
    "address": "127.0.0.1:50051",
    "host, `host:port`, `host:*` or `*`": "checkout:*",
    "`host:port` or SRV name": "cart-headless:50051",
    "path": "/shop.Checkout/Pay",
    "path of a Unix socket": "/run/attnroute/admin.sock",
    "whole number": "100",
    "number": "1.5",
    "share": "5%",
}
_ADDRESS_PATTERNS = (r"^(unix:/.+|.+:[0-9]{1,5})$", "^.+:[0-9]{1,5}$")
_PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
    "null": "nothing",
}


@dataclass(frozen=True)
class Row:
    """One key."""

    key: str
    kind: str
    limits: str
    default: str
    """Empty for a key that must be there."""
    example: str
    description: str


@dataclass(frozen=True)
class Section:
    """One part; several places may hold the same."""

    title: str
    description: str
    rows: tuple[Row, ...]


def reference_page() -> str:
    """The whole page, Markdown."""
    parts = [_HEAD]
    for section in sections():
        parts.append(f"\n## {section.title}\n\n{section.description}\n\n")
        parts.append("| key | type | limits | default | example | what |\n")
        parts.append("|---|---|---|---|---|---|\n")
        for row in section.rows:
            default = row.default or "required"
            cells = (f"`{row.key}`", row.kind, row.limits, default, row.example, row.description)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def sections() -> list[Section]:
    """Every part of the policy, each where it is met first."""
    root = json_schema()
    definitions: Mapping[str, Schema] = root["$defs"]
    waiting: deque[tuple[str, Schema]] = deque([("The file", root)])
    seen: set[str] = set()
    found = []
    while waiting:
        place, schema = waiting.popleft()
        body = _mapping(schema)
        required = body.get("required", ())
        rows = []
        for key, value in body["properties"].items():
            rows.append(_row(key, value, definitions, required=key in required))
            for name, suffix in _references(value):
                if name not in seen:
                    seen.add(name)
                    inside = key if place == "The file" else f"{place}.{key}"
                    waiting.append((f"{inside}{suffix}", definitions[name]))
        what = body.get("description") or schema.get("description", "")
        title = place if place == "The file" else f"`{place}`"
        kind = _constant(body["properties"].get("type", {}))
        found.append(Section(f"{title} of `{kind}`" if kind else title, what, tuple(rows)))
    return found


def _mapping(schema: Schema) -> Schema:
    """The form with keys of something that also has a short form."""
    if "properties" in schema:
        return schema
    return next(option for option in schema["anyOf"] if "properties" in option)


def _references(schema: Schema) -> Iterator[tuple[str, str]]:
    """Parts that a value may be, and what its place ends with."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2], ""
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _references(option)
    if "items" in schema:
        yield from ((name, "[]" + rest) for name, rest in _references(schema["items"]))
    for value in _values(schema):
        yield from ((name, ".<name>" + rest) for name, rest in _references(value))


def _values(schema: Schema) -> list[Schema]:
    """What a mapping of free names holds; nothing for one with keys of ours."""
    extra = schema.get("additionalProperties")
    found = [extra] if isinstance(extra, Mapping) else []
    return [*found, *(value for value in schema.get("patternProperties", {}).values() if value)]


def _row(key: str, schema: Schema, definitions: Mapping[str, Schema], *, required: bool) -> Row:
    description = schema.get("description", "")
    if not description and "$ref" in schema:
        inner = definitions[schema["$ref"].rpartition("/")[2]]
        description = inner.get("description") or _mapping(inner).get("description", "")
    default = "" if required else _default(schema)
    kind = _kind(schema)
    return Row(key, kind, _limits(schema), default, _example(key, kind, default), description)


def _example(key: str, kind: str, default: str) -> str:
    if default.startswith("`") and default not in ("`[]`", "`{}`"):
        return f"`{key}: {default.strip('`')}`"
    if " or `" in kind and kind.startswith("`") and kind not in _EXAMPLES:
        return f"`{key}: {kind.split('`')[1]}`"
    example = _EXAMPLES.get(kind.removeprefix("list of: "))
    if example is None:
        return ""
    quoted = f'"{example}"' if example.endswith("*") else example
    return f"`{key}: [{quoted}]`" if kind.startswith("list of") else f"`{key}: {quoted}`"


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value in (None, ""):
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    if _kind(schema) == "size":
        return f"`{scalars.format_size(value)}`"
    if isinstance(value, Mapping):
        return "see there"
    return f"`{json.dumps(value)}`"


def _constant(schema: Schema) -> str:
    return str(schema.get("const", ""))


def _kind(schema: Schema) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"])
    if "$ref" in schema:
        return "mapping, see below"
    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if options:
        kinds = [_kind(option) for option in options if option.get("type") != "null"]
        for kind in ("duration", "size"):
            if kind in kinds and "percentile" not in kinds:
                words = [_kind(option) for option in options if "const" in option]
                return " or ".join([kind, *words])
        if any(str(option.get("pattern", "")).endswith("%$") for option in options):
            return "share"
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"list of: {_kind(schema['items'])}"
    if schema.get("type") == "object" and _values(schema):
        return f"by name: {_kind(_values(schema)[0])}"
    if schema.get("pattern") in _ADDRESS_PATTERNS:
        return "address"
    if "pattern" in schema and schema["pattern"] in _BY_PATTERN:
        return _BY_PATTERN[schema["pattern"]]
    return _PLAIN[schema["type"]]


def _limits(schema: Schema) -> str:
    if "x-limits" in schema:
        return str(schema["x-limits"])
    for option in schema.get("anyOf", ()):
        if limits := _limits(option):
            return limits
    if "minItems" in schema:
        most = schema.get("maxItems")
        return f"{schema['minItems']} to {most} entries" if most else "not empty"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    if low is not None and high is not None:
        above = "above " if "exclusiveMinimum" in schema else ""
        return f"{above}{low} to {high}"
    if low is not None:
        return f"at least {low}"
    if "maxLength" in schema:
        return f"{schema['maxLength']} characters"
    return ""
