"""Policies for tests: text in, result or problems out."""

from __future__ import annotations

from pathlib import Path

from attnroute.errors import PolicyError
from attnroute.policy.load import LoadedPolicy, load_policy

PATH = Path("policy.yaml")

MINIMAL = """\
listeners:
  - {mode: explicit, address: 127.0.0.1:15001}
services:
  checkout:
    endpoints: {static: [10.0.0.1:50051, 10.0.0.2:50051]}
"""


def loaded(text: str | bytes) -> LoadedPolicy:
    """The policy; a refusal fails the test with its problems."""
    return load_policy(PATH, text.encode() if isinstance(text, str) else text)


def problems(text: str | bytes) -> list[str]:
    """The problems as `line:column: message`; empty for a valid policy."""
    try:
        loaded(text)
    except PolicyError as error:
        return [str(problem).removeprefix(f"{PATH}:") for problem in error.problems]
    return []


def with_service(rest: str) -> str:
    """A valid policy but for `rest`: flow-style keys of its service, on line 4 from column 9."""
    return (
        "listeners: [{mode: explicit, address: 127.0.0.1:15001}]\n"
        "services:\n"
        "  cart: {endpoints: {static: [10.0.0.1:1]},\n"
        f"        {rest}}}\n"
    )


def with_top(rest: str) -> str:
    """A valid policy but for `rest`: block-style keys at the top, from line 6 on."""
    return MINIMAL + rest
