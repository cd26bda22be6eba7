"""CF-02: a word that YAML's versions read differently is an error that names the field."""

from __future__ import annotations

import pytest
from tests.support.policies import problems

WORDS = ["no", "NO", "on", "y", "null", "1e3", "0x10", "012", "1.10", "22:22"]


def policy(*, zone: str = "eu", key: str = "a", value: str = "b", path: str = "/a/b") -> str:
    return (
        "listeners: [{mode: explicit, address: 127.0.0.1:1}]\n"
        "services:\n"
        "  cart:\n"
        "    endpoints:\n"
        "      static:\n"
        "        - address: 10.0.0.1:1\n"
        f"          zone: {zone}\n"
        f"          labels: {{{key}: {value}}}\n"
        f"    routes: [{{match: {{path: {path}}}}}]\n"
    )


@pytest.mark.parametrize("word", WORDS)
def test_cf_02_as_a_zone(word: str) -> None:
    (problem,) = problems(policy(zone=word))
    assert problem.startswith(
        f"7:17: `zone` in `services.cart.endpoints.static[0]`: found `{word}`, "
    )
    assert problem.endswith(f'expected text; put it in quotes: `"{word}"`')
    assert problems(policy(zone=f'"{word}"')) == []


@pytest.mark.parametrize("word", WORDS)
def test_cf_02_as_a_label(word: str) -> None:
    (problem,) = problems(policy(value=word))
    assert problem.startswith(
        f"8:23: `a` in `services.cart.endpoints.static[0].labels`: found `{word}`, "
    )
    assert problem.endswith(f'expected text; put it in quotes: `"{word}"`')
    assert problems(policy(value=f'"{word}"')) == []


@pytest.mark.parametrize("word", WORDS)
def test_cf_02_as_the_key_of_a_label(word: str) -> None:
    (problem,) = problems(policy(key=word))
    assert problem.startswith(f"8:20: key `{word}` reads as ")
    assert problem.endswith(f'; put it in quotes: `"{word}"`')
    assert problems(policy(key=f'"{word}"')) == []


@pytest.mark.parametrize("word", [word for word in WORDS if word != "null"])
def test_cf_02_as_a_method(word: str) -> None:
    (problem,) = problems(policy(path=word))
    assert problem.startswith(f"9:29: `path` in `services.cart.routes[0].match`: found `{word}`, ")
    assert problem.endswith("expected a path such as `/shop.Checkout/Pay`")


def test_cf_02_null_as_a_method_is_no_method() -> None:
    assert problems(policy(path="null")) == [
        "9:22: `services.cart.routes[0].match` has neither of `path` and `path_prefix`; write one"
    ]


@pytest.mark.parametrize("word", [word for word in WORDS if word != "22:22"])
def test_cf_02_as_the_name_of_a_service(word: str) -> None:
    text = policy().replace("cart:", f"{word}:")
    (problem,) = problems(text)
    assert problem.startswith(f"3:3: key `{word}` reads as ")
    assert problems(text.replace(f"{word}:", f'"{word}":')) == []


def test_cf_02_a_boolean_field_takes_true_and_false_only() -> None:
    for word, right in (("no", "false"), ("off", "false"), ("y", "true"), ("ON", "true")):
        text = policy() + f"admin: {{allow_changes: {word}}}\n"
        assert problems(text) == [
            (
                f"10:24: `allow_changes` in `admin`: found `{word}`, expected `true` or "
                "`false`; write "
                f"`{right}`"
            )
        ]


def test_cf_02_on_is_a_key_of_ours_in_retry_alone() -> None:
    def routes(retry: str) -> str:
        return policy().replace(
            "{match: {path: /a/b}}", f"{{match: {{path: /a/b}}, idempotent: true, retry: {retry}}}"
        )

    assert problems(routes("{on: [UNAVAILABLE]}")) == []
    (problem,) = problems(routes("{budget: {on: 1}}"))
    assert "key `on` reads as a boolean" in problem
    found = problems(routes("{on: [no]}"))
    assert len(found) == 1
    assert "found `no`" in found[0]
