"""Whatever is in a file is a policy or has reasons with places; what is written is read back."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.json_schema import mistakes
from tests.support.policies import MINIMAL, PATH, loaded, problems

from attnroute.dataplane import DataPlane
from attnroute.errors import EndpointFileError, InvalidFileError, PolicyError
from attnroute.policy import scalars
from attnroute.policy.compile import compile_policy
from attnroute.policy.load import effective_yaml, load_policy, parse_endpoints
from attnroute.policy.schema import json_schema
from attnroute.policy.tree import plain_value

SCHEMA = json_schema()

# Generated policies are built as data and written as JSON, which is YAML with every text quoted.
# What `effective_yaml` makes of them is the YAML that is tested.

_US = timedelta(microseconds=1)

durations = st.integers(0, 36_000_000_000_000).map(lambda count: count * _US)
ports = st.integers(1, 65_535)
addresses = st.one_of(
    st.builds(lambda ip, port: f"{ip}:{port}", st.ip_addresses(v=4), ports),
    st.builds(lambda ip, port: f"[{ip}]:{port}", st.ip_addresses(v=6), ports),
    st.from_regex(r"unix:(/[a-z0-9._-]{1,9}){1,4}", fullmatch=True),
)
words = st.one_of(
    st.text(max_size=20).filter(str.isprintable),
    st.sampled_from(["no", "on", "1e3", "012", "22:22", "null", "~", "0x1", "1_0", "<<", "=", "-"]),
)
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
u32 = st.integers(1, 2**32 - 1)


def milliseconds(least: int, most: int) -> st.SearchStrategy[str]:
    return st.integers(least, most).map(lambda count: f"{count}ms")


def part(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any of the keys."""
    return st.fixed_dictionaries({}, optional=keys)


def _spelled(endpoint: Any) -> str:
    """The address of an endpoint or listener, in the one spelling it has."""
    return scalars.parse_address(endpoint if isinstance(endpoint, str) else endpoint["address"])


endpoints = st.lists(
    st.one_of(
        addresses,
        st.fixed_dictionaries(
            {"address": addresses},
            optional={
                "weight": st.floats(0, 1_000_000) | st.integers(0, 1_000_000),
                "zone": words,
                "labels": st.dictionaries(words.filter(bool), words, max_size=3),
            },
        ),
    ),
    max_size=5,
    unique_by=_spelled,
)


balancers = st.one_of(
    st.just({"type": "round_robin"}),
    st.fixed_dictionaries(
        {"type": st.just("least_request")},
        optional={"choice_count": st.integers(2, 100), "with_replacement": st.booleans()},
    ),
    st.just({"type": "least_request", "choice_count": "all"}),
    st.sampled_from(
        ["random", "weighted_round_robin", "peak_ewma", "c3", "latency_observation"]
    ).map(lambda name: {"type": name}),
    st.fixed_dictionaries(
        {"type": st.just("prequal")},
        optional={"hot_quantile": st.floats(0, 1), "pool_size": st.integers(2, 16)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("ring_hash")},
        optional={
            "header": st.sampled_from(["x-user", "x-tier"]),
            "bounded_load": st.just(0) | st.floats(1, 10),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("maglev")}, optional={"table_size": st.sampled_from([251, 65_537])}
    ),
)
paths = st.from_regex(r"/[a-zA-Z.]{0,9}(/[a-zA-Z]{0,9})?", fullmatch=True)
routes = st.lists(
    st.fixed_dictionaries(
        {
            "match": st.builds(
                lambda key, path: {key: path}, st.sampled_from(["path", "path_prefix"]), paths
            )
        },
        optional={"timeout": milliseconds(1, 86_400_000)},
    ),
    max_size=4,
    unique_by=lambda route: json.dumps(route["match"]),
)
dns_names = st.one_of(
    st.from_regex(r"[a-z0-9]{1,9}(\.[a-z0-9]{1,9}){0,2}[a-z]", fullmatch=True).flatmap(
        lambda host: ports.map(lambda port: f"{host}:{port}")
    ),
    st.from_regex(r"_[a-z]{1,5}\._tcp\.[a-z]{1,9}", fullmatch=True),
)
sources = st.one_of(
    st.builds(lambda static: {"static": static}, endpoints),
    st.fixed_dictionaries(
        {"file": words.filter(bool)}, optional={"refresh": milliseconds(100, 3_600_000)}
    ),
    st.builds(lambda name: {"dns": name}, dns_names),
    st.fixed_dictionaries(
        {
            "dns": st.fixed_dictionaries(
                {"name": dns_names},
                optional={
                    "server": st.builds("{}:{}".format, st.ip_addresses(v=4), ports),
                    "timeout": milliseconds(100, 60_000),
                    "on_empty": st.sampled_from(["hold", "empty"]),
                    "hold_limit": milliseconds(1_000, 3_600_000),
                    "allow_loopback": st.booleans(),
                },
            )
        },
        optional={"refresh": milliseconds(100, 3_600_000)},
    ),
)
services = st.fixed_dictionaries(
    {"endpoints": st.one_of(sources, st.lists(sources, min_size=1, max_size=3))},
    optional={
        "balancer": balancers,
        "routes": routes,
        "limits": part(max_inflight=u32, max_pending=u32, max_endpoints=st.integers(5, 100_000)),
        "connection": part(
            connect_timeout=milliseconds(1, 86_400_000),
            backoff_base=milliseconds(1, 1_000),
            backoff_max=milliseconds(1_000, 3_600_000),
            max_streams=u32,
        ),
    },
)
# An address for documentation: no listener is bound to it.
target = st.just("192.0.2.1:7")
listeners = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"mode": st.sampled_from(["explicit", "connect"]), "address": addresses},
            optional={"x-note": words},
        ),
        st.fixed_dictionaries(
            {"mode": st.just("inbound"), "address": addresses, "target": target},
            optional={"min_report_interval": milliseconds(1, 3_600_000)},
        ),
        st.fixed_dictionaries(
            {
                "mode": st.just("inbound"),
                "address": addresses,
                "target": target,
                "max_concurrency": u32,
            },
            optional={
                "queue": part(
                    max_length=st.integers(0, 2**32 - 1), timeout=milliseconds(1, 3_600_000)
                )
            },
        ),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda listener: _spelled(listener).rpartition(":")[2],
)


def _ports(policy: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Ports (or Unix sockets) of listeners, and of static endpoints."""
    listed = [
        endpoint
        for service in policy["services"].values()
        for source in (
            service["endpoints"]
            if isinstance(service["endpoints"], list)
            else [service["endpoints"]]
        )
        for endpoint in source.get("static", ())
    ]
    return (
        {_spelled(listener).rpartition(":")[2] for listener in policy["listeners"]},
        {_spelled(endpoint).rpartition(":")[2] for endpoint in listed},
    )


def _calls_itself(policy: dict[str, Any]) -> bool:
    listeners, endpoints = _ports(policy)
    return bool(listeners & endpoints)


policies = st.fixed_dictionaries(
    {
        "listeners": listeners,
        "services": st.dictionaries(names, services, min_size=1, max_size=4).filter(
            lambda found: len({name.lower() for name in found}) == len(found)
        ),
        "admin": st.just({"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}),
    },
    optional={
        "data_plane": part(
            threads=st.integers(1, 64),
            busy_poll=st.integers(0, 1_000).map(lambda count: f"{count}us"),
        ),
        "limits": part(
            max_connections=u32,
            max_header_list_bytes=st.integers(1_024, 16 << 20),
            stream_window_bytes=st.integers(1_024, 2**31 - 1),
        ),
        "timeouts": part(handshake=milliseconds(1, 86_400_000)),
        "drain": part(linger=milliseconds(0, 25_000), limit=milliseconds(25_000, 3_600_000)),
        "x-own": st.dictionaries(words, words, max_size=3),
    },
).filter(lambda policy: not _calls_itself(policy))


@given(policies)
def test_a_valid_policy_survives_being_written_out(policy: dict[str, Any]) -> None:
    first = loaded(json.dumps(policy, ensure_ascii=False)).policy
    text = effective_yaml(first)
    second = loaded(text).policy
    assert second == first
    assert effective_yaml(second) == text


@given(policies)
@settings(max_examples=50)
def test_the_data_plane_accepts_what_the_schema_accepts(policy: dict[str, Any]) -> None:
    DataPlane(compile_policy(loaded(json.dumps(policy, ensure_ascii=False))), 1)


@given(policies)
@settings(max_examples=50)
def test_editors_accept_what_the_check_accepts(policy: dict[str, Any]) -> None:
    loaded(json.dumps(policy, ensure_ascii=False))
    assert mistakes(SCHEMA, policy) == []


def places_are_inside(error: InvalidFileError, text: str) -> None:
    assert error.problems
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)  # every line break that YAML knows
    for problem in error.problems:
        assert 1 <= problem.line <= len(lines) + 1
        assert 1 <= problem.column <= max(map(len, lines)) + 2
        assert problem.message
        assert "\n" not in problem.message
        assert len(problem.message) < 2_000


@given(st.text() | st.text(alphabet="{}[]:,-?&*!|>'\"%@`#<~ \n\tabc019.x", max_size=60))
@example("0\r0\x1f")
@example("{")
@example("&a *a")
@example("? ")
@example("- &a\n- *a\n? *a\n: *a")
@example("!<tag:x> a")
@example("a: !!python/object/apply:os.system [id]")
@example("'\\")
@example("%TAG ! x\n--- !y a")
@example("? |\n a\n: >-\n b")
def test_any_text_is_a_policy_or_has_reasons(text: str) -> None:
    for read, refusal in (
        (lambda content: load_policy(PATH, content), PolicyError),
        (lambda content: parse_endpoints(content, PATH), EndpointFileError),
    ):
        # A blank before it, because empty content means the file itself.
        content = b" " + text.encode("utf-8", "surrogatepass")
        try:
            read(content)
        except refusal as error:
            places_are_inside(error, " " + text)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_endpoint_list_or_have_reasons(content: bytes) -> None:
    try:
        parse_endpoints(content, PATH)
    except EndpointFileError as error:
        places_are_inside(error, content.decode("utf-8", "replace"))


@given(st.data())
def test_a_policy_with_a_part_cut_out_or_put_in(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(MINIMAL)))
    end = data.draw(st.integers(at, min(len(MINIMAL), at + 8)))
    put = data.draw(st.text(alphabet="{}[]:,-& *!\n\t'\"ab1.", max_size=4))
    text = MINIMAL[:at] + put + MINIMAL[end:]
    try:
        loaded(text)
    except PolicyError as error:
        places_are_inside(error, text)


@given(st.sets(names.map(lambda name: f"z{name}").filter(lambda name: "." not in name), min_size=1))
def test_as_many_problems_as_mistakes(keys: set[str]) -> None:
    mistakes = sorted(keys)
    text = MINIMAL + "".join(f"{key}: 1\n" for key in mistakes)
    assert [int(each.split(":")[0]) for each in problems(text)] == [
        6 + index for index in range(len(mistakes))
    ]


@given(durations)
def test_durations_are_read_as_they_are_written(duration: timedelta) -> None:
    assert scalars.parse_duration(scalars.format_duration(duration)) == duration


@given(st.integers(0, 1 << 50))
def test_sizes_are_read_as_they_are_written(size: int) -> None:
    assert scalars.parse_size(scalars.format_size(size)) == size


@given(addresses)
def test_addresses_have_one_spelling(address: str) -> None:
    spelled = scalars.parse_address(address)
    assert scalars.parse_address(spelled) == spelled


@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_parsers_read_or_raise_value_error_and_nothing_else(value: object) -> None:
    for parse in (
        scalars.parse_duration,
        scalars.parse_size,
        scalars.parse_address,
        scalars.parse_authority,
        scalars.parse_name,
        scalars.parse_path,
        scalars.parse_socket_path,
        scalars.parse_text,
    ):
        try:
            parse(value)
        except ValueError as error:
            assert str(error)  # noqa: PT017


@given(st.text(alphabet="0123456789.:eE+-_xobTZ ~nyfrua", max_size=12))
def test_a_plain_word_is_read_without_fault(word: str) -> None:
    plain_value(word)


@pytest.mark.parametrize("text", ["\ud800", "unix:/\ud800"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        scalars.parse_address(text)
