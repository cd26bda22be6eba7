"""Out-of-band load reports, against a real server of `OpenRcaService`."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from tests.support.fake_plane import FakePlane
from tests.support.orca import orca_server
from tests.support.wait import until
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest

from attnroute.telemetry.orca import OrcaPlan, OutOfBandReports, Pauses, encode_request

INTERVAL = timedelta(milliseconds=100)
SOON = Pauses(first_s=0.01, growth=1.0, most_s=0.01, unimplemented_s=3600.0)


@dataclass
class Events:
    """Counts what happens."""

    reports: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    followed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def out_of_band_report(self, service: str) -> None:
        self.reports[service] += 1

    def out_of_band_failure(self, service: str, reason: str) -> None:
        self.failures[service, reason] += 1

    def out_of_band_followed(self, service: str, followed: int, left_out: int) -> None:
        self.followed[service] = (followed, left_out)

    def out_of_band_gone(self, service: str) -> None:
        del self.followed[service]


@dataclass
class Bench:
    """The client over a plane that only notes."""

    plane: FakePlane
    events: Events
    client: OutOfBandReports

    def ask(self, *addresses: str, most: int = 100, interval: timedelta = INTERVAL) -> None:
        self.client.replace({"cart": OrcaPlan(interval, most, addresses)})


@contextlib.asynccontextmanager
async def bench(*addresses: str, pauses: Pauses = SOON) -> AsyncIterator[Bench]:
    plane, events = FakePlane("cart"), Events()
    plane.add("cart", *addresses)
    made = Bench(plane, events, OutOfBandReports(plane, events, pauses=pauses))
    try:
        yield made
    finally:
        await made.client.close()


@pytest.mark.parametrize("milliseconds", [1, 100, 1_000, 1_500, 3_600_000])
def test_the_request_is_the_official_message(milliseconds: int) -> None:
    interval = timedelta(milliseconds=milliseconds)
    request = OrcaLoadReportRequest()
    request.report_interval.FromTimedelta(interval)
    assert encode_request(interval) == request.SerializeToString()
    assert OrcaLoadReportRequest.FromString(encode_request(interval)) == request


async def test_every_report_of_every_endpoint_is_handed_on() -> None:
    async with (
        orca_server() as first,
        orca_server() as second,
        bench(first.address, second.address) as made,
    ):
        made.ask(first.address, second.address)
        for server in (first, second):
            for number in range(3):
                server.send(cpu_utilization=number / 10)
        await until(lambda: len(made.plane.reports) == 6, "six reports")
        assert made.events.reports["cart"] == 6
        assert made.events.followed["cart"] == (2, 0)
        for server in (first, second):
            sent = [
                report for _, address, report in made.plane.reports if address == server.address
            ]
            assert sent == server.sent
            assert server.intervals == [INTERVAL]


async def test_a_stream_that_ends_is_opened_again() -> None:
    async with orca_server() as server, bench(server.address) as made:
        made.ask(server.address)
        await until(lambda: server.streams == 1, "a stream")
        server.end(grpc.StatusCode.INTERNAL)
        await until(lambda: server.streams == 2, "another stream")
        server.send(cpu_utilization=0.5)
        await until(lambda: made.plane.reports, "a report")
        assert made.events.failures == {("cart", "INTERNAL"): 1}
        server.end(None)
        await until(lambda: server.streams == 3, "a third stream")
        assert made.events.failures["cart", "OK"] == 1


async def test_only_an_endpoint_without_the_service_is_left_alone() -> None:
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{bound.getsockname()[1]}"
        async with orca_server(implemented=False) as server, bench(server.address, closed) as made:
            made.ask(server.address, closed)
            await until(lambda: made.events.failures["cart", "UNIMPLEMENTED"], "a refusal")
            count = made.events.failures["cart", "UNAVAILABLE"]
            await until(
                lambda: made.events.failures["cart", "UNAVAILABLE"] >= count + 3, "three tries"
            )
            made.ask(server.address, closed)
            assert made.events.failures["cart", "UNIMPLEMENTED"] == server.unknown == 1


async def test_pauses_grow() -> None:
    """A second client whose pauses stay short tells that there was time for more tries."""
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        growing = Pauses(first_s=0.01, growth=1e6, most_s=3600.0)
        async with bench(address, pauses=growing) as slow, bench(address) as fast:
            slow.ask(address)
            await until(lambda: slow.events.failures["cart", "UNAVAILABLE"] == 2, "two tries")
            fast.ask(address)
            await until(lambda: fast.events.failures["cart", "UNAVAILABLE"] >= 4, "four tries")
            assert slow.events.failures["cart", "UNAVAILABLE"] == 2


async def test_pauses_begin_anew_once_a_report_came() -> None:
    """With a pause that grows without bounds the third try would not come while the test runs."""
    pauses = Pauses(first_s=0.01, growth=1e6, most_s=3600.0)
    async with orca_server() as server, bench(server.address, pauses=pauses) as made:
        made.ask(server.address)
        await until(lambda: server.streams == 1, "a stream")
        server.end(grpc.StatusCode.INTERNAL)
        await until(lambda: server.streams == 2, "another stream")
        server.send(cpu_utilization=0.5)
        await until(lambda: made.plane.reports, "a report")
        server.end(grpc.StatusCode.INTERNAL)
        await until(lambda: server.streams == 3, "a third stream after a good one")
        server.end(grpc.StatusCode.INTERNAL)
        await until(lambda: made.events.failures["cart", "INTERNAL"] == 3, "its end")
        assert server.streams == 3


async def test_no_more_endpoints_than_allowed_are_asked() -> None:
    async with orca_server() as server, bench(server.address) as made:
        others = [f"10.255.255.1:{port}" for port in (1, 2, 3)]
        made.ask(server.address, *others, most=1)
        assert made.events.followed["cart"] == (1, 3)
        await until(lambda: server.streams == 1, "a stream")
        # What is followed already stays, wherever it stands now.
        made.ask(*others, server.address, most=1)
        server.send(cpu_utilization=0.5)
        await until(lambda: made.plane.reports, "a report")
        assert server.streams == 1


async def test_endpoints_and_services_that_leave_are_let_go() -> None:
    async with orca_server() as server, bench(server.address) as made:
        made.ask(server.address)
        await until(lambda: server.streams == 1, "a stream")
        made.ask()
        await until(lambda: server.open == 0, "the end of the stream")
        made.ask(server.address)
        await until(lambda: server.open == 1, "a stream")
        # The endpoint is unknown to the data plane before anybody told the client.
        made.plane.add("cart", "10.0.0.9:1")
        server.send(cpu_utilization=0.5)
        await until(lambda: server.open == 0, "the end of the stream")
        made.plane.add("cart", server.address)
        made.ask(server.address)
        await until(lambda: server.open == 1, "a stream to the endpoint that came back")
        made.client.replace({})
        await until(lambda: server.open == 0, "the end of the stream")
        assert made.events.followed == {}
        assert not made.events.failures


async def test_another_interval_is_asked_for_anew() -> None:
    async with orca_server() as server, bench(server.address) as made:
        made.ask(server.address)
        await until(lambda: server.streams == 1, "a stream")
        made.ask(server.address, interval=2 * INTERVAL)
        await until(lambda: server.streams == 2 and server.open == 1, "the next stream")
        assert server.intervals == [INTERVAL, 2 * INTERVAL]


async def test_a_report_that_is_too_long_ends_the_stream() -> None:
    async with orca_server() as server, bench(server.address) as made:
        made.ask(server.address)
        server.send(named_metrics={"x" * 20_000: 1.0})
        await until(lambda: made.events.failures, "the end of the stream")
        assert made.events.failures["cart", "RESOURCE_EXHAUSTED"] >= 1
        assert not made.plane.reports
