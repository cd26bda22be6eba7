"""The resolver against a real DNS server: what is believed, what is held, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.dns_server import DnsServer, a, aaaa, cname, srv
from tests.support.slow_dns import SlowDns, slow_dns
from tests.support.wait import patience_s, until

from attnroute.clock import ManualClock, SystemClock
from attnroute.discovery.base import EndpointSet, EndpointSpec, Resolved, ResolveFailure
from attnroute.discovery.dns import DnsOptions, DnsResolver

NAME = "cart.test"


@pytest.fixture
def server() -> Iterator[DnsServer]:
    with DnsServer({NAME: [a("10.0.0.1")]}) as running:
        yield running


@contextlib.asynccontextmanager
async def watching(
    dns: DnsServer | SlowDns, own: frozenset[str] = frozenset(), clock: Any = None, **options: Any
) -> AsyncIterator[AsyncIterator[Resolved]]:
    """What a resolver says, asking every 50 ms unless told otherwise."""
    settings: dict[str, Any] = {
        "host": NAME,
        "port": 50051,
        "refresh_s": 0.05,
        "server": ("127.0.0.1", dns.port),
        "timeout_s": 2.0,
    }
    resolver = DnsResolver(
        DnsOptions(**{**settings, **options}), own=own, clock=clock or SystemClock()
    )
    async with contextlib.aclosing(resolver.watch()) as answers:  # type: ignore[type-var]
        yield answers


async def following(answers: AsyncIterator[Resolved]) -> Resolved:
    return await asyncio.wait_for(anext(answers), patience_s())


async def addresses(answers: AsyncIterator[Resolved]) -> list[str]:
    """The next answer, which must be a set."""
    answer = await following(answers)
    assert isinstance(answer, EndpointSet), answer
    return [endpoint.address for endpoint in answer.endpoints]


async def failure(answers: AsyncIterator[Resolved]) -> ResolveFailure:
    """The next answer, which must be a failure."""
    answer = await following(answers)
    assert isinstance(answer, ResolveFailure), answer
    return answer


async def test_addresses_of_both_families_in_one_order(server: DnsServer) -> None:
    server.zone = {NAME: [a("10.0.0.2"), a("10.0.0.1"), aaaa("2001:db8::1")]}
    async with watching(server) as answers:
        assert await addresses(answers) == [
            "10.0.0.1:50051",
            "10.0.0.2:50051",
            "[2001:db8::1]:50051",
        ]
        asked = server.asked
        server.zone = {NAME: [aaaa("2001:db8::1"), a("10.0.0.1"), a("10.0.0.2")]}
        # Only the order changed, so the next thing it says is the change after that.
        pending = asyncio.ensure_future(addresses(answers))
        await until(lambda: server.asked >= asked + 4, "two more rounds")
        server.zone = {NAME: [a("10.0.0.3")]}
        assert await pending == ["10.0.0.3:50051"]


async def test_an_endpoint_is_one_address_whatever_number_of_records_name_it(
    server: DnsServer,
) -> None:
    server.zone = {NAME: [a("10.0.0.1"), a("10.0.0.1"), aaaa("::ffff:10.0.0.1")]}
    async with watching(server) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]


async def test_an_alias_is_followed(server: DnsServer) -> None:
    server.zone = {NAME: [cname("real.test")], "real.test": [a("10.0.0.4")]}
    async with watching(server) as answers:
        assert await addresses(answers) == ["10.0.0.4:50051"]


async def test_srv_targets_with_ports_weights_and_priorities(server: DnsServer) -> None:
    server.zone = {
        "_grpc._tcp.cart.test": [
            srv("one.test", 1001, priority=1, weight=3),
            srv("two.test", 1002, priority=1, weight=0),
            srv("spare.test", 1003, priority=2, weight=0),
            srv("two.test", 1002, priority=3, weight=9),
        ],
        "one.test": [a("10.0.0.1")],
        "two.test": [a("10.0.0.2")],
        "spare.test": [a("10.0.0.3")],
    }
    async with watching(server, host="_grpc._tcp.cart.test", port=None) as answers:
        assert await following(answers) == EndpointSet(
            (
                EndpointSpec("10.0.0.1:1001", 3.0),
                EndpointSpec("10.0.0.2:1002", 0.01),
                EndpointSpec("10.0.0.3:1003", 1.0, priority=1),
            )
        )
        server.zone = {**server.zone, "_grpc._tcp.cart.test": [srv("two.test", 1002)]}
        assert await following(answers) == EndpointSet((EndpointSpec("10.0.0.2:1002", 1.0),))


async def test_a_service_that_srv_records_deny_is_empty(server: DnsServer) -> None:
    server.zone = {"_grpc._tcp.cart.test": [srv(".", 0)]}
    async with watching(server, host="_grpc._tcp.cart.test", port=None) as answers:
        assert (await failure(answers)).kind == "empty"


@pytest.mark.parametrize("status", ["SERVFAIL", "REFUSED"])
async def test_an_error_is_said_once_and_the_same_set_is_said_again(
    server: DnsServer, status: str
) -> None:
    async with watching(server) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.status = status
        failed = await failure(answers)
        assert failed.kind == "error"
        assert status in failed.reason
        assert f"`{NAME}`" in failed.reason
        server.status = "NOERROR"
        assert await addresses(answers) == ["10.0.0.1:50051"]


async def test_silence_is_an_error_within_the_timeout(server: DnsServer) -> None:
    server.silent = True
    async with watching(server, timeout_s=0.3) as answers:
        failed = await failure(answers)
    assert failed.kind == "error"
    assert "no answer" in failed.reason
    assert "0.3 s" in failed.reason


@pytest.mark.parametrize("zone", [{NAME: []}, {}], ids=["no records", "no such name"])
async def test_an_empty_answer_is_held_and_told_apart(server: DnsServer, zone: Any) -> None:
    async with watching(server) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.zone = zone
        assert (await failure(answers)).kind == "empty"
        server.zone = {NAME: [a("10.0.0.4")]}
        assert await addresses(answers) == ["10.0.0.4:50051"]


async def test_an_empty_answer_empties_where_the_policy_says_so(server: DnsServer) -> None:
    async with watching(server, hold_s=0.0) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.zone = {NAME: []}
        assert await addresses(answers) == []


async def test_the_hold_ends(server: DnsServer) -> None:
    clock = ManualClock()
    async with watching(server, clock=clock, hold_s=60.0) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.zone = {NAME: []}
        assert (await failure(answers)).kind == "empty"
        clock.advance(61.0)
        assert await addresses(answers) == []


async def test_an_error_never_ends_the_hold(server: DnsServer) -> None:
    clock = ManualClock()
    async with watching(server, clock=clock, hold_s=60.0) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.status = "SERVFAIL"
        assert (await failure(answers)).kind == "error"
        clock.advance(3600.0)
        asked = server.asked
        pending = asyncio.ensure_future(following(answers))
        await until(lambda: server.asked >= asked + 6, "more failing queries")
        assert not pending.done()
        server.status = "NOERROR"
        assert await pending == EndpointSet((EndpointSpec("10.0.0.1:50051"),))


async def test_a_family_that_fails_keeps_what_was_known_of_it(server: DnsServer) -> None:
    server.zone = {NAME: [a("10.0.0.1"), aaaa("2001:db8::1")]}
    async with watching(server) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051", "[2001:db8::1]:50051"]
        server.failing_types = frozenset({"AAAA"})
        server.zone = {NAME: [a("10.0.0.2")]}
        assert await addresses(answers) == ["10.0.0.2:50051", "[2001:db8::1]:50051"]
        server.failing_types = frozenset()
        assert await addresses(answers) == ["10.0.0.2:50051"]


async def test_one_family_empty_and_the_other_failing_is_an_error(server: DnsServer) -> None:
    server.zone = {NAME: []}
    server.failing_types = frozenset({"AAAA"})
    async with watching(server) as answers:
        assert (await failure(answers)).kind == "error"


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (a("127.0.0.1"), "loopback"),
        (a("127.9.9.9"), "loopback"),
        (aaaa("::1"), "loopback"),
        (aaaa("::ffff:127.0.0.1"), "loopback"),
        (a("0.0.0.0"), "no address of one endpoint"),
        (a("224.0.0.1"), "no address of one endpoint"),
        (a("255.255.255.255"), "no address of one endpoint"),
        (aaaa("fe80::1"), "link-local"),
        (a("10.0.0.9"), "address of this sidecar"),
    ],
)
async def test_a_poisoned_answer_is_refused_as_a_whole(
    server: DnsServer, record: Any, says: str
) -> None:
    async with watching(server, own=frozenset({"10.0.0.9:50051"})) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.zone = {NAME: [a("10.0.0.2"), record]}
        refused = await failure(answers)
        assert refused.kind == "refused"
        assert says in refused.reason


async def test_loopback_is_believed_where_the_policy_says_so_but_never_our_own(
    server: DnsServer,
) -> None:
    own = frozenset({"127.0.0.1:15001"})
    server.zone = {"_grpc._tcp.cart.test": [srv(NAME, 50051)], NAME: [a("127.0.0.1")]}
    options = {"host": "_grpc._tcp.cart.test", "port": None, "allow_loopback": True}
    async with watching(server, own=own, **options) as answers:
        assert await addresses(answers) == ["127.0.0.1:50051"]
        server.zone = {**server.zone, "_grpc._tcp.cart.test": [srv(NAME, 15001)]}
        assert "address of this sidecar" in (await failure(answers)).reason


async def test_a_huge_answer_comes_over_tcp_and_beyond_the_limit_is_refused(
    server: DnsServer,
) -> None:
    records = [a(f"10.1.{n // 250}.{n % 250 + 1}") for n in range(2_000)]
    server.zone = {NAME: records}
    async with watching(server, endpoints_max=2_000, timeout_s=20.0) as answers:
        assert len(await addresses(answers)) == 2_000
        server.zone = {NAME: [*records, a("10.2.0.1")]}
        refused = await failure(answers)
    assert refused.kind == "refused"
    assert "2001 endpoints, but `limits.max_endpoints` is 2000" in refused.reason


async def test_an_answer_that_comes_byte_by_byte_is_no_answer() -> None:
    """Each byte is in time; the whole answer is not."""
    async with slow_dns() as slow, watching(slow, timeout_s=0.5) as answers:
        failed = await failure(answers)
        assert failed.kind == "error"
        assert "no answer" in failed.reason
        await until(lambda: slow.open_streams == 0, "the end of its connections")


async def test_too_many_srv_targets_are_refused(server: DnsServer) -> None:
    server.zone = {"_grpc._tcp.cart.test": [srv(f"t{n}.test", 1) for n in range(257)]}
    async with watching(server, host="_grpc._tcp.cart.test", port=None) as answers:
        refused = await failure(answers)
    assert refused.kind == "refused"
    assert "257 SRV targets" in refused.reason


class Raw:
    """Bytes in place of a reply."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pack(self) -> bytes:
        return self.data

    def truncate(self) -> Raw:
        return self


def _other_question(reply: Any) -> Any:
    reply.q.qname = "other.test"
    return reply


def _other_id(reply: Any) -> Any:
    reply.header.id = (reply.header.id + 1) % 65_536
    return reply


@pytest.mark.parametrize(
    "tamper",
    [
        lambda _: Raw(b""),
        lambda _: Raw(b"\xff" * 100),
        lambda reply: Raw(reply.pack()[:20]),
        lambda reply: Raw(reply.pack() + b"junk"),
        _other_question,
        _other_id,
    ],
    ids=["nothing", "noise", "cut", "junk behind", "other question", "other id"],
)
async def test_a_wrong_answer_is_an_error_and_the_next_right_one_counts(
    server: DnsServer, tamper: Any
) -> None:
    async with watching(server, timeout_s=0.5) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        server.tamper = tamper
        assert (await failure(answers)).kind == "error"
        server.tamper = None
        server.zone = {NAME: [a("10.0.0.2")]}
        assert await addresses(answers) == ["10.0.0.2:50051"]


async def test_an_alias_to_itself_is_an_error(server: DnsServer) -> None:
    server.zone = {NAME: [cname(NAME)]}
    async with watching(server) as answers:
        assert (await failure(answers)).kind in ("error", "empty")


async def test_records_are_asked_for_again_when_they_expire(server: DnsServer) -> None:
    """A lifetime of 1 s: the change is there after about a second, with 60 s it would not be."""
    server.ttl_s = 1
    loop = asyncio.get_running_loop()
    async with watching(server, refresh_s=None) as answers:
        assert await addresses(answers) == ["10.0.0.1:50051"]
        asked_s = loop.time()
        server.zone = {NAME: [a("10.0.0.2")]}
        assert await addresses(answers) == ["10.0.0.2:50051"]
        assert 0.9 <= loop.time() - asked_s < 30


async def test_without_a_server_of_its_own_the_systems_configuration_counts(
    server: DnsServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dns.resolver

    configuration = tmp_path / "resolv.conf"
    read = dns.resolver.BaseResolver.read_resolv_conf

    def from_here(resolver: Any, _path: Any) -> None:
        read(resolver, str(configuration))
        resolver.port = server.port

    monkeypatch.setattr(dns.resolver.BaseResolver, "read_resolv_conf", from_here)
    configuration.write_text("")
    async with watching(server, server=None, host="cart") as answers:
        failed = await failure(answers)
        assert failed.kind == "error"
        assert "names no DNS server" in failed.reason
        configuration.write_text("nameserver 127.0.0.1\nsearch test\n")
        assert await addresses(answers) == ["10.0.0.1:50051"]
