"""Listener mode `inbound`: load reports, probes and a short queue in front of a server."""

from __future__ import annotations

import asyncio
import base64
import functools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import GrpcClient, GrpcPeer, grpc_client, grpc_peer, path
from tests.support.orca import orca_server
from tests.support.raw_h2 import RawConnection, RawStream, grpc_message
from tests.support.raw_peers import RESPONSE, answer, open_call, raw_client, raw_server
from tests.support.sidecar import Sidecar
from tests.support.wait import patience_s, patiently, until
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest

from attnroute._proto.probe.v1 import probe_pb2
from attnroute.admin.metrics import ControlMetrics
from attnroute.dataplane import ConfigError, rows
from attnroute.telemetry.orca import OrcaPlan, OutOfBandReports

REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
PROBE = "/attnroute.probe.v1.Probe/Get"
METRICS_KEY = "endpoint-load-metrics-bin"
RESOURCE_EXHAUSTED = 8


def inbound(target: str, name: str = "in", **settings: Any) -> dict[str, Any]:
    """A listener."""
    return {
        "name": name,
        "mode": "inbound",
        "address": "127.0.0.1:0",
        "inbound": {"target": target, **settings},
    }


@asynccontextmanager
async def in_front_of(target: str, **settings: Any) -> AsyncIterator[DataPlaneHarness]:
    """A data plane with such a listener alone."""
    async with data_plane({"test": []}, listeners=[inbound(target, **settings)]) as plane:
        yield plane


def report_of(stream: RawStream) -> OrcaLoadReport:
    """The load report in the trailers of an answer."""
    values = stream.blocks[-1].all(METRICS_KEY)
    assert len(values) == 1, stream.describe()
    padded = values[0] + b"=" * (-len(values[0]) % 4)
    return OrcaLoadReport.FromString(base64.b64decode(padded))


async def unary(client: RawConnection, **arguments: Any) -> RawStream:
    """One call, to its end."""
    return await open_call(client, path("Unary"), body=b"one", **arguments).until_done()


async def queued(plane: DataPlaneHarness, count: int) -> None:
    """Waits until that many calls wait."""
    await until(
        lambda: plane.metrics().value("attnroute_inbound_queued") == count, f"{count} waiting"
    )


@asynccontextmanager
async def held(peer: GrpcPeer, client: GrpcClient) -> AsyncIterator[Any]:
    """A call that is in the server until it is released."""
    peer.release.clear()
    started = peer.started
    call = client.unary("Block")(b"held")
    await until(lambda: peer.started > started, "the call in the server")
    yield call
    peer.release.set()
    assert await call == b"held"


async def test_every_answer_carries_a_report() -> None:
    before_s = time.time()
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        alone = await unary(client)
        assert alone.data == grpc_message(b"one")
        report = report_of(alone)
        assert report.named_metrics["attnroute.inflight"] == 0
        assert before_s - 2 < report.named_metrics["attnroute.started_s"] < time.time() + 2
        # What waits inside the server cannot be seen.
        assert set(report.named_metrics) == {"attnroute.inflight", "attnroute.started_s"}
        async with held(peer, other):
            assert report_of(await unary(client)).named_metrics["attnroute.inflight"] == 1
            # A status alone, without a message, is an answer too.
            failed = open_call(client, path("Fail"), body=b"no", extra=[("fail-code", "5")])
            await failed.until_done()
            assert (failed.grpc_status, len(failed.blocks)) == (5, 1)
            assert report_of(failed).named_metrics["attnroute.inflight"] == 1
        assert report_of(await unary(client)).named_metrics["attnroute.inflight"] == 0
        await plane.until_ended(5, service="in")


async def test_what_the_application_reports_stays_and_wins() -> None:
    theirs = OrcaLoadReport(
        cpu_utilization=0.5, named_metrics={"attnroute.inflight": 9, "fill": 0.25}
    )
    text = base64.b64encode(theirs.SerializeToString())
    async with (
        raw_server(answer(tail=[(METRICS_KEY, text)])) as server,
        in_front_of(server.address, max_concurrency=4) as plane,
        raw_client(plane.address) as client,
    ):
        report = report_of(await open_call(client).until_done())
        assert report.cpu_utilization == 0.5
        assert report.named_metrics["attnroute.inflight"] == 9
        assert report.named_metrics["fill"] == 0.25
        assert report.named_metrics["attnroute.concurrency"] == 4


async def test_calls_beyond_the_concurrency_wait_their_turn() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue={"timeout_ms": 60_000}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        async with held(peer, other):
            first, second = (open_call(client, path("Unary"), body=b"x") for _ in range(2))
            await queued(plane, 2)
            # Whoever leaves the queue leaves no trace.
            second.reset()
            await queued(plane, 1)
            assert peer.started == 1
        await first.until_done()
        assert first.grpc_status == 0
        metrics = report_of(first).named_metrics
        assert (metrics["attnroute.concurrency"], metrics["attnroute.queue"]) == (1, 0)
        assert metrics["attnroute.inflight"] == 0
        assert metrics["attnroute.service_time_s"] > 0
        waited = "attnroute_inbound_queue_duration_seconds"
        assert plane.metrics().value(f"{waited}_count", listener="in") == 1
        assert plane.metrics().value("attnroute_inbound_max_concurrency", listener="in") == 1
        # It waited as long as the held call was there, and was served at once.
        assert metrics["attnroute.service_time_s"] < plane.metrics().value(f"{waited}_sum") + 1
        await until(
            lambda: plane.metrics().value("attnroute_inbound_inflight") == 0, "nothing inside"
        )


@pytest.mark.parametrize(
    ("queue", "limit", "reason"),
    [
        ({"max_length": 0}, "queue.max_length", "queue_length"),
        ({"timeout_ms": 20}, "queue.timeout", "queue_timeout"),
    ],
)
async def test_a_full_server_says_when_to_come_back(
    queue: dict[str, int], limit: str, reason: str
) -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue=queue) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        async with held(peer, other):
            refused = await unary(client)
        assert refused.grpc_status == RESOURCE_EXHAUSTED, refused.describe()
        assert f"`{limit}`" in refused.grpc_message
        pause = refused.blocks[-1].get("grpc-retry-pushback-ms")
        assert pause is not None
        assert 0 < int(pause) <= 60_000
        assert report_of(refused).named_metrics["attnroute.inflight"] == 1
        assert plane.limit_hits(limit) == 1
        shed = plane.metrics().value("attnroute_inbound_shed_total", listener="in", reason=reason)
        assert shed == 1
        assert peer.started == 1
        assert (await unary(client)).grpc_status == 0


async def test_a_call_whose_deadline_would_pass_in_the_queue_is_refused_at_once() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue={"timeout_ms": 60_000}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        async with held(peer, other):
            end_s = time.monotonic() + 0.3
            await until(lambda: time.monotonic() > end_s, "a service time above 0.3 s")
        async with held(peer, other):
            hasty = await unary(client, extra=[("grpc-timeout", "250m")])
            assert hasty.grpc_status == RESOURCE_EXHAUSTED, hasty.describe()
            assert "deadline" in hasty.grpc_message
            patient = open_call(client, path("Unary"), extra=[("grpc-timeout", "60S")])
            await queued(plane, 1)
        assert (await patient.until_done()).grpc_status == 0
        shed = plane.metrics().value("attnroute_inbound_shed_total", reason="deadline")
        assert shed == 1


async def test_a_deadline_that_passes_in_the_queue_ends_the_call() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue={"timeout_ms": 60_000}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        async with held(peer, other):
            late = await unary(client, extra=[("grpc-timeout", "50m")])
        assert late.grpc_status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert peer.started == 1
        assert (await unary(client)).grpc_status == 0


async def test_a_stream_gives_its_place_back_with_its_first_answers() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue={"max_length": 0}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
    ):
        stream = other.server_stream("BlockStream")(b"2")
        assert [await stream.read(), await stream.read()] == [b"0", b"1"]
        busy = await unary(client)
        assert busy.grpc_status == 0, busy.describe()
        assert report_of(busy).named_metrics["attnroute.inflight"] == 0
        peer.release.set()
        assert await stream.read() is grpc.aio.EOF
        await plane.until_ended(2, service="in")


async def test_health_checks_wait_for_nobody() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, max_concurrency=1, queue={"max_length": 0}) as plane,
        raw_client(plane.address) as client,
        grpc_client(plane.address) as other,
        held(peer, other),
    ):
        check = await open_call(client, "/grpc.health.v1.Health/Check").until_done()
        # The peer has no such service; it is the peer that says so.
        assert check.grpc_status == grpc.StatusCode.UNIMPLEMENTED.value[0]
        assert report_of(check).named_metrics["attnroute.inflight"] == 1


async def test_probes_are_answered_here() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address) as plane,
        grpc_client(plane.address) as client,
    ):
        probe: grpc.aio.UnaryUnaryMultiCallable[probe_pb2.GetRequest, probe_pb2.GetResponse] = (
            client.channel.unary_unary(
                PROBE,
                request_serializer=probe_pb2.GetRequest.SerializeToString,
                response_deserializer=probe_pb2.GetResponse.FromString,
            )
        )
        found = await probe(probe_pb2.GetRequest())
        assert (found.inflight, found.latency_s) == (0, 0)
        await client.unary()(b"one")
        async with held(peer, client):
            found = await probe(probe_pb2.GetRequest())
            assert found.inflight == 1
            assert 0 < found.latency_s < 20
        assert plane.metrics().value("attnroute_inbound_probes_total", listener="in") == 2
        assert plane.ended(service="in") == 2


async def test_reports_out_of_band_come_in_the_interval_that_was_asked_for() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address, min_report_interval_ms=200, max_concurrency=2) as plane,
        grpc_client(plane.address) as client,
    ):
        method: grpc.aio.UnaryStreamMultiCallable[OrcaLoadReportRequest, OrcaLoadReport] = (
            client.channel.unary_stream(
                REPORTS,
                request_serializer=OrcaLoadReportRequest.SerializeToString,
                response_deserializer=OrcaLoadReport.FromString,
            )
        )

        def open_streams() -> float:
            return plane.metrics().value("attnroute_inbound_report_streams", listener="in")

        hasty = OrcaLoadReportRequest()
        hasty.report_interval.FromMilliseconds(1)
        began_s = time.monotonic()
        stream = method(hasty)
        reports = [await patiently(stream.read(), "a report") for _ in range(4)]
        # The first comes at once; three intervals lie between them.
        assert time.monotonic() - began_s > 0.3, "the shortest interval was not kept"
        assert all(isinstance(report, OrcaLoadReport) for report in reports)
        async with held(peer, client):
            inflight = 0.0
            while inflight != 1:
                report = await patiently(stream.read(), "a report")
                assert isinstance(report, OrcaLoadReport)
                assert report.named_metrics["attnroute.concurrency"] == 2
                inflight = report.named_metrics["attnroute.inflight"]
        rare = OrcaLoadReportRequest()
        rare.report_interval.FromSeconds(86_400)
        second = method(rare)
        assert isinstance(await patiently(second.read(), "a report"), OrcaLoadReport)
        assert open_streams() == 2
        stream.cancel()
        second.cancel()
        await until(lambda: open_streams() == 0, "both streams closed")


async def follow_reports(client: GrpcClient, interval_ms: int) -> Any:
    """A stream of load reports out of band."""
    method: grpc.aio.UnaryStreamMultiCallable[OrcaLoadReportRequest, OrcaLoadReport] = (
        client.channel.unary_stream(
            REPORTS,
            request_serializer=OrcaLoadReportRequest.SerializeToString,
            response_deserializer=OrcaLoadReport.FromString,
        )
    )
    request = OrcaLoadReportRequest()
    request.report_interval.FromMilliseconds(interval_ms)
    return method(request)


async def until_report(stream: Any, wanted: Callable[[OrcaLoadReport], bool]) -> OrcaLoadReport:
    """Reads reports until one is as wanted."""
    while True:
        report = await patiently(stream.read(), "a report")
        assert isinstance(report, OrcaLoadReport)
        if wanted(report):
            return report


def server_reports(plane: DataPlaneHarness) -> dict[str, int]:
    """What came when the server itself was asked, without zeros."""
    samples = plane.metrics().of("attnroute_inbound_server_reports_total", listener="in")
    return {sample.labels["result"]: int(sample.value) for sample in samples if sample.value}


async def test_what_the_application_reports_between_calls_is_merged_and_wins() -> None:
    async with (
        orca_server() as server,
        in_front_of(server.address, min_report_interval_ms=20, max_concurrency=3) as plane,
        grpc_client(plane.address) as client,
    ):
        assert server.streams == 0, "nobody follows, and the server is asked"
        stream = await follow_reports(client, 20)
        first = await until_report(stream, lambda _: True)
        assert (first.cpu_utilization, first.named_metrics["attnroute.concurrency"]) == (0, 3)
        await until(lambda: server.open == 1, "the stream to the server")
        assert server.intervals == [timedelta(milliseconds=20)]
        server.send(
            cpu_utilization=0.75,
            application_utilization=0.5,
            named_metrics={"fill": 0.25, "attnroute.queue": 7},
        )
        merged = await until_report(stream, lambda report: report.cpu_utilization > 0)
        assert (merged.cpu_utilization, merged.application_utilization) == (0.75, 0.5)
        named = merged.named_metrics
        assert (named["fill"], named["attnroute.queue"], named["attnroute.concurrency"]) == (
            0.25,
            7,
            3,
        )
        # A second one who follows needs no second stream to the server.
        other = await follow_reports(client, 20)
        await until_report(other, lambda report: report.cpu_utilization == 0.75)
        assert server.streams == 1
        # What a server said that says no more does not count.
        server.end(None)
        await until_report(stream, lambda report: report.cpu_utilization == 0)
        assert server_reports(plane) == {"received": 1, "failed": 1}
        # It is asked again, for as long as anybody follows.
        await until(lambda: server.open == 1, "another stream to the server")
        stream.cancel()
        other.cancel()
        await until(lambda: server.open == 0, "the end of the stream to the server")
        assert plane.ended(service="in") == 0, "reports were counted as calls"


async def test_a_server_that_reports_nothing_is_asked_once() -> None:
    async with (
        orca_server(implemented=False) as server,
        in_front_of(server.address, min_report_interval_ms=20) as plane,
        grpc_client(plane.address) as client,
    ):
        stream = await follow_reports(client, 20)
        await until(lambda: server_reports(plane) == {"unimplemented": 1}, "its answer")
        for _ in range(10):
            await until_report(stream, lambda _: True)
        assert server.unknown == 1
        stream.cancel()


async def test_reports_of_a_server_that_are_none_cost_only_themselves() -> None:
    async def garbage(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        stream.data_frame(grpc_message(b"\xff\xff\xff"))
        await stream.until(lambda: stream.dead, "the reset")

    async with (
        raw_server(garbage) as server,
        in_front_of(server.address, min_report_interval_ms=20) as plane,
        grpc_client(plane.address) as client,
    ):
        stream = await follow_reports(client, 20)
        await until(lambda: server_reports(plane).get("malformed"), "its count")
        report = await until_report(stream, lambda _: True)
        assert report.named_metrics["attnroute.inflight"] == 0
        stream.cancel()


async def test_a_sidecar_that_asks_out_of_band_is_answered() -> None:
    class Sink:
        reports: list[OrcaLoadReport]

        def reported(self, service: str, endpoint: str, report: bytes) -> bool:
            assert (service, endpoint) == ("cart", plane.address)
            self.reports.append(OrcaLoadReport.FromString(report))
            return True

    async with grpc_peer() as peer, in_front_of(peer.address, max_concurrency=3) as plane:
        sink = Sink()
        sink.reports = []
        reports = OutOfBandReports(sink, ControlMetrics("0"))
        interval = timedelta(milliseconds=100)
        reports.replace({"cart": OrcaPlan(interval, 10, (plane.address,))})
        await until(lambda: len(sink.reports) >= 2, "two reports")
        await reports.close()
        assert sink.reports[0].named_metrics["attnroute.concurrency"] == 3


async def test_callers_balance_by_the_reports() -> None:
    balancer = {"type": "weighted_round_robin", "blackout_ms": 0, "update_ms": 1}
    async with grpc_peer() as busy, grpc_peer() as idle:
        listeners = [
            {"name": "out", "mode": "service", "address": "127.0.0.1:0", "service": "test"},
            inbound(busy.address, "busy", max_concurrency=2),
            inbound(idle.address, "idle", max_concurrency=8),
        ]
        async with data_plane([], listeners=listeners, service={"balancer": balancer}) as plane:
            plane.apply_endpoints([plane.addresses["busy"], plane.addresses["idle"]])
            async with (
                grpc_client(plane.addresses["out"]) as client,
                grpc_client(plane.addresses["busy"]) as others,
                # One of two places is taken for as long as this lasts, and none of the eight.
                held(busy, others),
            ):
                end_s = time.monotonic() + patience_s()
                weights = [0.5, 0.5]
                while not weights[0] < 0.2 < weights[1]:
                    assert time.monotonic() < end_s, f"weights by reports, not {weights}"
                    await client.unary()(b"x")
                    snapshot = rows(plane.plane.snapshot("test")[1])
                    weights = [float(weight) for weight in snapshot["weight"]]


async def test_a_request_that_is_none_is_refused() -> None:
    async with in_front_of("127.0.0.1:9") as plane, raw_client(plane.address) as client:
        for body in (b"\xff\xff", b"\x0a" + b"x" * 20_000):
            stream = open_call(client, REPORTS, body=None)
            await stream.write(grpc_message(body), end_stream=True)
            await stream.until_done()
            assert stream.grpc_status == grpc.StatusCode.INTERNAL.value[0], stream.describe()
        opened = open_call(client, PROBE, body=None)
        opened.data_frame(b"", end_stream=True)
        assert (await opened.until_done()).grpc_status == grpc.StatusCode.INTERNAL.value[0]


async def test_k8_02_inbound_leaves_first_and_finishes() -> None:
    async with (
        grpc_peer() as peer,
        data_plane(
            [peer.address],
            listeners=[
                {"name": "out", "mode": "explicit", "address": "127.0.0.1:0"},
                inbound(peer.address),
            ],
        ) as plane,
        raw_client(plane.addresses["in"]) as caller,
        raw_client(plane.addresses["out"]) as application,
    ):
        inside = open_call(caller, path("Block"), body=b"last")
        reports = open_call(caller, REPORTS)
        await reports.until_bytes(1)
        await until(lambda: peer.started == 1, "the call in the server")
        draining = asyncio.create_task(plane.drain(linger_ms=60_000, limit_ms=90_000))
        await caller.until(lambda: caller.goaways, "GOAWAY")
        assert (await reports.until_done()).grpc_status == grpc.StatusCode.UNAVAILABLE.value[0]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*plane.addresses["in"].split(":"))
        # To answer, the application may still have to call.
        assert (await unary(application)).grpc_status == 0
        assert not application.goaways
        assert not inside.done
        peer.release.set()
        assert (await inside.until_done()).grpc_status == 0
        await caller.until_gone()
        await application.close()
        assert await draining


async def test_the_drain_of_an_inbound_listener_alone_lingers_for_nobody() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await unary(client)).grpc_status == 0
        assert await patiently(plane.drain(linger_ms=600_000, limit_ms=900_000), "the drain")


async def test_a_server_that_was_gone_is_another_one_afterwards() -> None:
    async with (
        grpc_peer() as peer,
        in_front_of(peer.address) as plane,
        raw_client(plane.address) as client,
    ):

        def failures() -> float:
            family = "attnroute_endpoint_connect_failures_total"
            return plane.metrics().value(family, service="in")

        def connections() -> float:
            return plane.metrics().value("attnroute_endpoint_connections", service="in")

        async def started_s() -> float:
            report = report_of(await unary(client))
            return float(report.named_metrics["attnroute.started_s"])

        first_s = await started_s()
        assert await started_s() == first_s
        await peer.server.stop(grace=None)
        await until(lambda: failures() > 0, "a connect that fails")
        async with grpc_peer(address=peer.address):
            await until(lambda: connections() > 0, "a connection to the server that is back")
            assert await started_s() > first_s


async def test_a_reload_changes_the_server_and_its_places() -> None:
    async with (
        grpc_peer() as first,
        grpc_peer() as second,
        in_front_of(first.address) as plane,
        raw_client(plane.address) as client,
    ):
        assert (await unary(client)).grpc_status == 0
        settings = plane.config["listeners"][0]["inbound"]
        settings |= {"target": second.address, "max_concurrency": 3}
        plane.apply()
        report = report_of(await unary(client))
        assert report.named_metrics["attnroute.concurrency"] == 3
        assert (first.started, second.started) == (1, 1)
        assert plane.metrics().value("attnroute_requests_total", service="in") == 2


async def test_a_listener_that_is_no_longer_inbound_leaves_with_the_others() -> None:
    async with in_front_of("127.0.0.1:9") as plane:
        plane.config["listeners"][0] = {"name": "in", "mode": "explicit", "address": "127.0.0.1:0"}
        plane.apply()
        async with raw_client(plane.address) as application:
            draining = asyncio.create_task(plane.drain(linger_ms=60_000, limit_ms=90_000))
            for _ in range(20):
                async with raw_client(plane.address) as client:
                    answered = await unary(client)  # its service has no endpoint
                    assert answered.grpc_status == grpc.StatusCode.UNAVAILABLE.value[0]
            assert not application.goaways
        assert await patiently(draining, "the drain")


async def test_what_makes_no_sense_is_refused() -> None:
    async with in_front_of("127.0.0.1:9") as plane:
        for change, message in (
            ({"inbound": None}, "needs `inbound`"),
            ({"mode": "explicit"}, "needs `inbound`"),
            ({"service": "test"}, "takes no `service`"),
            ({"name": "test"}, "name of a service"),
            ({"inbound": {"target": "127.0.0.1:0"}}, "port 0"),
            ({"inbound": {"target": "127.0.0.1:9", "max_concurrency": 0}}, "max_concurrency"),
            ({"inbound": {"target": "127.0.0.1:9", "queue": {"timeout_ms": 0}}}, "timeout_ms"),
            ({"inbound": {"target": "127.0.0.1:9", "min_report_interval_ms": 0}}, "interval"),
        ):
            before = dict(plane.config["listeners"][0])
            plane.config["listeners"][0].update(change)
            with pytest.raises(ConfigError) as refused:
                plane.apply()
            assert message in str(refused.value), change
            plane.config["listeners"][0] = before


async def test_a_sidecar_in_front_of_a_server_needs_no_services(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    async with grpc_peer() as peer:
        policy = (
            "admin: {grpc: 127.0.0.1:0, http: 127.0.0.1:0}\n"
            "listeners:\n"
            f"  - {{mode: inbound, address: 127.0.0.1:0, target: {peer.address!r}, "
            "max_concurrency: 2}\n"
        )
        sidecar = await asyncio.to_thread(start_sidecar, policy)
        async with raw_client(sidecar.address) as client:
            stream = await unary(client)
            assert stream.grpc_status == 0
            assert report_of(stream).named_metrics["attnroute.concurrency"] == 2
        metric = functools.partial(sidecar.metric, listener="inbound-0")
        assert await asyncio.to_thread(metric, "attnroute_inbound_max_concurrency") == 2
        assert await asyncio.to_thread(sidecar.stop) == 0
