"""CF-04: size, depth and aliases are limited before anything is expanded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.policies import problems

from attnroute.errors import EndpointFileError, PolicyError
from attnroute.policy.load import load_policy, parse_endpoints


@contextmanager
def little_memory(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_max


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        row = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{row}]")
    return "\n".join(lines) + "\n"


def test_cf_04_alias_bomb() -> None:
    with little_memory(8 << 20):
        (problem,) = problems(bomb(9))
    assert problem.startswith("6:")
    assert problem.endswith("aliases expand to more than 200000 values, the limit")
    with little_memory(8 << 20), pytest.raises(EndpointFileError, match="1000000 values"):
        parse_endpoints(bomb(9).encode(), Path("endpoints.yaml"))


def test_cf_04_very_many_aliases_of_little() -> None:
    text = "a: &a 1\nb: [" + ", ".join(["*a"] * 201) + "]\n"
    (problem,) = problems(text)
    assert problem == "2:805: more than 200 aliases, the limit"


def test_cf_04_recursive_anchor() -> None:
    assert problems("a: &a [*a]\n") == ["1:8: alias `*a` stands inside its own anchor"]
    assert problems("&a x: &b {z: *b}\n") == ["1:14: alias `*b` stands inside its own anchor"]


def test_cf_04_merge_key_with_a_list() -> None:
    text = (
        "x-a: &a {max_inflight: 1}\n"
        "listeners: [{mode: explicit, address: 127.0.0.1:1}]\n"
        "services: {cart: {endpoints: {static: []}, limits: {<<: [*a]}}}\n"
    )
    assert problems(text) == [
        "3:53: merge keys (`<<`) are not supported; write the keys out",
    ]
    assert problems(text.replace("[*a]", "*a")) == [
        "3:53: merge keys (`<<`) are not supported; write the keys out",
    ]


def test_cf_04_unknown_alias() -> None:
    assert problems("a: &good 1\nb: *god\n") == [
        "2:4: alias `*god` has no anchor before it; there are `&good`",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        "{a: " * 10_000,
        "- " * 10_000,
        "? " * 10_000,
        "[" * 10_000 + "]" * 10_000,
        "".join(" " * depth + "a:\n" for depth in range(1_000)),
    ],
)
def test_cf_04_nesting(text: str) -> None:
    with little_memory(32 << 20):
        found = problems(text)
    assert "nested more than 32 levels deep" in found[-1] or "nesting depth" in found[-1]


def test_cf_04_depth_counts_through_aliases() -> None:
    steps = ["a0: &a0 [[[[[[[[[[x]]]]]]]]]]"]
    steps += [f"a{step}: &a{step} [[[[[[[[[[*a{step - 1}]]]]]]]]]]" for step in range(1, 5)]
    (problem,) = problems("\n".join(steps) + "\n")
    assert problem == "4:19: nested more than 32 levels deep, the limit"


def test_cf_04_file_of_fifty_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with path.open("wb") as file:
        for _ in range(50):
            file.write(b"x" * (1 << 20))
    with little_memory(8 << 20), pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(caught.value) == f"{path}:1:1: the file is larger than 1048576 bytes, the limit"
