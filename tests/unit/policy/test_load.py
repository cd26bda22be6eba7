"""From bytes to a policy: YAML with places, strictness, limits, and what comes back out."""

from __future__ import annotations

import hashlib
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.policies import MINIMAL, PATH, loaded, problems, with_service

from attnroute.errors import EndpointFileError, PolicyError
from attnroute.policy.load import (
    POLICY_LIMITS,
    effective_yaml,
    load_policy,
    parse_endpoints,
)
from attnroute.types import EndpointSpec

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml", "file-endpoints.yaml"])
def test_example_policies_are_valid(name: str) -> None:
    policy = load_policy(CONFIGS / name).policy
    again = loaded(effective_yaml(policy)).policy
    # What is secret comes back masked.
    assert again.model_dump(mode="json") == policy.model_dump(mode="json")


def test_example_endpoint_file_is_valid() -> None:
    path = CONFIGS / "endpoints.yaml"
    assert [spec.address for spec in parse_endpoints(path.read_bytes(), path)] == [
        "10.0.0.1:50051",
        "10.0.0.2:50051",
        "[fd00::3]:50051",
        "unix:/run/checkout/local.sock",
    ]


def test_smallest_policy_has_every_default() -> None:
    policy = loaded(MINIMAL).policy
    assert policy.listeners[0].name == "explicit-0"
    service = policy.services["checkout"]
    assert service.authorities == ("checkout", "checkout:*")
    assert service.balancer.type == "least_request"
    assert service.balancer.choice_count == "all"
    (source,) = service.endpoints
    assert source.static is not None
    assert [each.spec() for each in source.static] == [
        EndpointSpec("10.0.0.1:50051"),
        EndpointSpec("10.0.0.2:50051"),
    ]
    assert policy.drain.linger == timedelta(seconds=15)
    assert policy.admin.socket is None


def test_least_request_alone_compares_two() -> None:
    balancer = loaded(with_service("balancer: {type: least_request}")).policy.services["cart"]
    assert balancer.balancer.model_dump()["choice_count"] == 2


def test_result_says_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(MINIMAL)
    policy = load_policy(path)
    assert policy.path == path
    assert policy.text == MINIMAL
    assert policy.sha256 == hashlib.sha256(MINIMAL.encode()).hexdigest()
    assert policy.resolve("endpoints.yaml") == tmp_path / "endpoints.yaml"
    assert policy.resolve("/etc/endpoints.yaml") == Path("/etc/endpoints.yaml")


def test_position_is_that_of_the_value_or_of_what_surrounds_a_default() -> None:
    position = loaded(MINIMAL).position
    assert position(("listeners", 0, "address")) == (2, 31)
    assert position(("services", "checkout", "endpoints", "static", 1)) == (5, 42)
    assert position(("services", "checkout", "limits", "max_inflight")) == (5, 5)
    assert position(("admin", "grpc")) == (1, 1)


def test_content_at_hand_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("nonsense")
    assert load_policy(path, MINIMAL.encode()).text == MINIMAL


def test_a_missing_file_and_a_directory_are_problems_of_the_file(tmp_path: Path) -> None:
    for content in (None, b""):
        with pytest.raises(PolicyError) as caught:
            load_policy(tmp_path / "missing.yaml", content)
        assert str(caught.value) == (
            f"{tmp_path}/missing.yaml:1:1: cannot be read: No such file or directory; "
            "check the path"
        )
    with pytest.raises(PolicyError, match=r":1:1: cannot be read: Is a directory"):
        load_policy(tmp_path)


def test_an_empty_file_says_so_whether_or_not_its_content_was_at_hand(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.touch()
    for content in (None, b""):
        with pytest.raises(PolicyError, match="1:1: the file is empty or has only comments"):
            load_policy(path, content)


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    """What `attnroute check <(generate)` hands over."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(MINIMAL,))
    writer.start()
    assert load_policy(path).text == MINIMAL
    writer.join()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n", ["1:1: the file is empty or has only comments"]),
        ("# later\n\n", ["1:1: the file is empty or has only comments"]),
        ("---\n...\n", ["2:1: expected a mapping of keys to values"]),
        ("- 1\n", ["1:1: expected a mapping of keys to values"]),
        ("just words\n", ["1:1: expected a mapping of keys to values"]),
        (b"a: \xff", ["1:4: byte `0xff` is no UTF-8; save the file as UTF-8 text"]),
        ("a: 1".encode("utf-16"), ["1:1: byte `0xff` is no UTF-8; save the file as UTF-8 text"]),
        (b"\x7fELF\x00", ["1:1: character `U+007F` cannot stand in a text file; remove it"]),
        ("é: 'ü\x00'", ["1:6: character `U+0000` cannot stand in a text file; remove it"]),
        (
            "a: b: c",
            [
                (
                    "1:5: no valid YAML: mapping values are not allowed in this context; "
                    "put text with "
                    "a colon and a space in quotes"
                )
            ],
        ),
        (
            "a:\n\t- b",
            [
                (
                    "2:1: no valid YAML: found character that cannot start any token; "
                    "indent with spaces, not with tabs"
                )
            ],
        ),
        (
            "a: @b",
            [
                (
                    "1:4: no valid YAML: found character that cannot start any token; "
                    "put text that begins with '@' in quotes"
                )
            ],
        ),
        (
            "a: 'b",
            [
                (
                    "1:6: no valid YAML: found unexpected end of stream, while scanning a quoted "
                    "scalar that begins at 1:4"
                )
            ],
        ),
    ],
)
def test_files_that_are_no_policy_at_all(text: str | bytes, found: list[str]) -> None:
    assert problems(text) == found


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("<<: {a: 1}", "4:9: merge keys (`<<`) are not supported; write the keys out"),
        ("<<: [1]", "4:9: merge keys (`<<`) are not supported; write the keys out"),
        ("limits: !!map {}", "4:17: tag `tag:yaml.org,2002:map` is not supported; remove it"),
        ("limits: !secret {}", "4:17: tag `!secret` is not supported; remove it"),
        ("? [a] : 1", "4:11: a list or mapping stands as a key; a key is text"),
        ("? {? {a: 1} : 2} : 1", "4:11: a list or mapping stands as a key; a key is text"),
        ("~: 1", '4:9: key `~` reads as nothing; put it in quotes: `"~"`'),
        ("limits: {}, limits: {}", "4:21: key `limits` stands twice, first at 4:9; remove one"),
        ('limits: {}, "limits": {}', "4:21: key `limits` stands twice, first at 4:9; remove one"),
    ],
)
def test_yaml_that_hides_what_it_means(rest: str, message: str) -> None:
    assert problems(with_service(rest)) == [message]


def test_a_key_that_stands_three_times_is_reported_twice() -> None:
    assert problems("a: 1\na: 2\na: 3\n" + MINIMAL) == [
        (
            "1:1: unknown key `a` at the top of the file; known are `admin`, `data_plane`, "
            "`listeners`, `limits`, `timeouts`, `fleet`, `model`, `drain`, `picks`, `access_log`, "
            "`tracing`, `services`, keys of your own begin with `x-`"
        ),
        "2:1: key `a` stands twice, first at 1:1; remove one",
        "3:1: key `a` stands twice, first at 1:1; remove one",
    ]


def test_a_colon_without_a_key() -> None:
    assert problems("?\n: 1\n" + MINIMAL) == ["1:2: a key is missing before the colon"]


def test_a_second_document_is_refused() -> None:
    assert problems(MINIMAL + "---\na: 1\n") == [
        "6:1: a second document begins; keep one to a file"
    ]


def test_byte_order_mark_windows_line_ends_and_json_are_fine() -> None:
    assert problems(b"\xef\xbb\xbf" + MINIMAL.encode()) == []
    assert problems(MINIMAL.replace("\n", "\r\n")) == []
    assert (
        problems(
            '{\n\t"listeners": [{"mode": "explicit", "address": "[::1]:1"}],\n\t"services": '
            '{"a": {"endpoints": {"static": ["10.0.0.1:1"]}}}\n}\n'
        )
        == []
    )


def test_columns_count_characters_not_bytes() -> None:
    assert problems(with_service("x-ü: ööö, limts: {}")) == [
        "4:19: unknown key `limts` in `services.cart`; did you mean `limits`?"
    ]


def test_aliases_repeat_a_part_and_errors_point_to_where_it_is_written() -> None:
    text = """\
x-limits: &limits {max_inflight: 7}
listeners: [{mode: explicit, address: 127.0.0.1:1}]
services:
  a: {endpoints: {static: []}, limits: *limits}
  b: {endpoints: {static: []}, limits: *limits}
"""
    services = loaded(text).policy.services
    assert services["a"].limits.max_inflight == services["b"].limits.max_inflight == 7
    assert problems(text.replace("7", "0")) == [
        "1:34: `max_inflight` in `services.a.limits`: found `0`, expected at least 1",
        "1:34: `max_inflight` in `services.b.limits`: found `0`, expected at least 1",
    ]


def test_keys_of_ones_own_are_free_where_keys_are_ours() -> None:
    text = (
        "x-anything: {on: [no, 012], nested: {x-y: !!str 1}}\n"
        "listeners: [{x-note: 22:22, mode: explicit, address: 127.0.0.1:1}]\n"
        "services:\n"
        "  x-shop: {endpoints: {static: [{address: 10.0.0.1:1, labels: {x-a: b}, x-b: 1}]}}\n"
    )
    assert problems(text) == [
        "1:43: tag `tag:yaml.org,2002:str` is not supported; remove it",
    ]
    policy = loaded(text.replace("!!str ", "")).policy
    assert list(policy.services) == ["x-shop"]  # names and labels are data, not keys of ours
    (source,) = policy.services["x-shop"].endpoints
    static = source.static
    assert static is not None
    assert static[0].labels == {"x-a": "b"}


def test_effective_policy_quotes_what_would_change_its_type() -> None:
    labels = {"no": "on", "1e3": "012", "22:22": "null", "a": "0o17", "b": "1_000", "c": "~"}
    written = ", ".join(f'"{key}": "{value}"' for key, value in labels.items())
    text = (
        MINIMAL
        + f"  cart: {{endpoints: {{static: [{{address: 10.0.0.1:1, labels: {{{written}}}}}]}}}}\n"
    )
    policy = loaded(text).policy
    again = loaded(effective_yaml(policy)).policy
    assert again == policy
    (source,) = again.services["cart"].endpoints
    static = source.static
    assert static is not None
    assert static[0].labels == labels


def test_a_file_just_within_its_size_is_read_and_one_byte_more_is_not() -> None:
    padding = "#" * (POLICY_LIMITS.bytes_max - len(MINIMAL))
    assert problems(MINIMAL + padding) == []
    assert problems(MINIMAL + padding + "#") == [
        "1:1: the file is larger than 1048576 bytes, the limit"
    ]


def parse(text: str) -> tuple[EndpointSpec, ...]:
    return parse_endpoints(text.encode(), PATH)


def test_endpoint_file_in_yaml_and_json() -> None:
    expected = (
        EndpointSpec("10.0.0.1:1"),
        EndpointSpec("10.0.0.2:1", 2.5, "eu", {"a": "b"}),
    )
    assert (
        parse(
            "endpoints:\n- 10.0.0.1:1\n"
            "- {address: 10.0.0.2:1, weight: 2.5, zone: eu, labels: {a: b}}\n"
        )
        == expected
    )
    assert (
        parse(
            '{"endpoints": ["10.0.0.1:1", {"address": "10.0.0.2:1", "weight": 2.5, "zone": "eu",'
            ' "labels": {"a": "b"}}]}'
        )
        == expected
    )


def test_only_an_explicit_empty_list_is_empty() -> None:
    assert parse("endpoints: []\n") == ()
    for text in ("", "# none\n", "endpoints:\n", "{}", "[]"):
        with pytest.raises(EndpointFileError):
            parse(text)


def test_endpoint_file_is_as_strict_as_a_policy() -> None:
    with pytest.raises(EndpointFileError) as caught:
        parse(
            "endpoints:\n- 10.0.0.1:1\n- {address: 10.0.0.1:1, zone: no}\n- x:1\n- 3\nrefresh: 5s\n"
        )
    assert str(caught.value).splitlines() == [
        "policy.yaml:3:13: endpoint `10.0.0.1:1` stands twice, first at 2:3; remove one",
        (
            "policy.yaml:3:31: `zone` in `endpoints[1]`: found `no`, which reads as a "
            "boolean in some "
            'versions of YAML, expected text; put it in quotes: `"no"`'
        ),
        (
            "policy.yaml:4:3: `endpoints[2]`: found `x:1`, expected `ip:port` or "
            "`unix:/path`, and `x` "
            "is a name; write its IP address, or, for the endpoints of a service, `dns: x:1`"
        ),
        "policy.yaml:5:3: `endpoints[3]`: found `3`, expected a mapping",
        (
            "policy.yaml:6:1: unknown key `refresh` at the top of the file; known are `endpoints`, "
            "keys of your own begin with `x-`"
        ),
    ]


def test_ten_thousand_endpoints_are_read_whole() -> None:
    """Linear work: a limit of the test's own time-out, not of a duration."""
    lines = (
        f"- {{address: 10.{number >> 8}.{number & 255}.1:80, weight: 1.5, zone: eu}}\n"
        for number in range(10_000)
    )
    assert len(parse("endpoints:\n" + "".join(lines))) == 10_000
