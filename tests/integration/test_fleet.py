"""The fleet exchange over real streams: sidecars and trainers that come, go, and differ in
version."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.support.wait import patiently, until
from tests.support.windows import attributed, service_window

from attnroute._proto.fleet.v1 import fleet_pb2, packed_pb2
from attnroute.clock import SystemClock
from attnroute.errors import StartError
from attnroute.features.split import SplitParameters
from attnroute.features.view import SharedTable
from attnroute.features.window import FleetState
from attnroute.fleet.client import FleetClient, Identity, Pauses
from attnroute.fleet.messages import METHOD, PROTOCOL, MessageError, ModelReport, read_update
from attnroute.fleet.server import FleetLimits, FleetServer, FleetSettings, page_address

A = "10.0.0.1:1"
GET, PUT = "/cart/Get;bytes=..1024", "/cart/Put;bytes=unknown"
CLOCK = SystemClock()


class Events:
    """Counts what both sides count."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.connected: dict[str, bool] = {}

    def fleet_window(self, service: str) -> None:
        self.counts["window", service] += 1

    def fleet_dropped(self, service: str, reason: str) -> None:
        self.counts["dropped", reason] += 1

    def fleet_limit(self, limit: str) -> None:
        self.counts["limit", limit] += 1

    def fleet_state(self, service: str, *, sidecars: int, classes: int, endpoints: int) -> None:
        self.counts["state", service] += 1

    def fleet_connected(self, service: str, *, connected: bool) -> None:
        self.connected[service] = connected

    def fleet_updated(self, service: str, sidecars: int) -> None:
        self.counts["updated", service] += 1

    def fleet_failed(self, service: str, reason: str) -> None:
        self.counts["failed", reason] += 1

    def fleet_gone(self, service: str) -> None:
        self.connected.pop(service, None)


@asynccontextmanager
async def trainer(
    address: str,
    *,
    limits: FleetLimits | None = None,
    name: bytes = b"trainer-one-----",
    settings: FleetSettings | None = None,
) -> AsyncIterator[tuple[FleetServer, str, Events]]:
    """A trainer that ticks fifty times a second. A socket in a directory of the test's own can be
    bound again, which a port that others may take cannot."""
    events = Events()
    server = FleetServer(
        trainer=name,
        clock=CLOCK,
        limits=limits or FleetLimits(),
        events=events,
        settings=settings,
        tick_s=0.02,
    )
    bound = server.bind(address, "trainer.yaml:1:1")
    await server.start()
    try:
        yield server, bound, events
    finally:
        await server.stop()


class Sidecar:
    """What a sidecar is to the exchange."""

    def __init__(self, address: str, number: int = 1, zone: str = "") -> None:
        self.events = Events()
        self.table = SharedTable(sidecars=4, decay_s=1e9, now_s=CLOCK.now_s())
        self.client = FleetClient(
            address,
            Identity(bytes([number]) * 16, "0.0.0"),
            CLOCK,
            self.events,
            pauses=Pauses(0.01, 1.0, 0.01),
            rng=random.Random(number),
            models=lambda service: self.models.get(service, ()),
        )
        self.models: dict[str, tuple[ModelReport, ...]] = {}
        self.client.replace({"cart": self.table}, {"cart": zone})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await patiently(self.client.close(), "end of the streams")

    def window(self, request_class: str, calls: float) -> None:
        window = service_window({(request_class, A): (calls, calls * 0.01)}, rtt_s={A: 0.001})
        self.table.observe(window, attributed(window), CLOCK.now_s())
        self.client.announce("cart")

    def calls(self, request_class: str) -> float:
        """What it knows, all but undecayed."""
        if request_class not in self.table.ledger.classes:
            return 0.0
        sums = self.table.sums(CLOCK.now_s())
        return float(sums.den[self.table.ledger.classes.index(request_class)].sum())

    async def knows(self, request_class: str, calls: float) -> None:
        """The trainer's sums decay, in the seconds that a busy machine takes, too."""
        await until(
            lambda: calls * 0.02 < self.calls(request_class) <= calls * 1.001,
            f"{calls} calls of `{request_class}`",
        )


async def test_sidecars_learn_from_each_other(tmp_path: Path) -> None:
    async with (
        trainer(f"unix:{tmp_path}/t") as (server, address, counted),
        Sidecar(address, 1, "x") as one,
        Sidecar(address, 2, "x") as two,
    ):
        one.window(GET, 100)
        two.window(PUT, 50)
        await one.knows(PUT, 50)
        await two.knows(GET, 100)
        await until(lambda: one.table.fleet_rtt_s(A) == 0.001, "a round trip of the zone")
        assert one.table.watermark == two.table.watermark == 1
        assert one.events.connected == {"cart": True}
        assert counted.counts["window", "cart"] == 2
        table = server.table("cart")
        assert table is not None
        assert table.watching == 2
        one.client.replace({}, {})
        assert one.events.connected == {}


async def test_what_gates_say_of_models_comes_with_windows(tmp_path: Path) -> None:
    shadow = ModelReport("default", "1.0.1", 0.0123, 0.75, 4, serving=False)
    serving = ModelReport("default", "1.0.0", -0.5, 0.0, 90, serving=True)
    async with trainer(f"unix:{tmp_path}/t") as (server, address, _events):
        async with Sidecar(address, 1) as one, Sidecar(address, 2) as two:
            one.models["cart"] = (serving, shadow)
            one.window(GET, 1)
            two.window(GET, 1)
            await until(lambda: len(server.reports()) == 2, "two reports")
            assert server.reports() == (serving, shadow)
            one.models["cart"] = (shadow,)
            one.window(GET, 1)
            await until(lambda: server.reports() == (shadow,), "the next window's reports")
        # Who is gone has no say.
        await until(lambda: server.reports() == (), "the end of the reports")


async def test_a_trainer_that_dies_and_comes_back_gets_what_it_missed(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/t"
    async with Sidecar(address, 1) as one, Sidecar(address, 2) as two:
        one.window(GET, 1000)  # before there is any trainer
        await until(lambda: one.events.counts["failed", "UNAVAILABLE"] > 0, "a failure")
        async with trainer(address):
            await two.knows(GET, 1000)
        await until(lambda: not one.events.connected["cart"], "the loss of the trainer")
        one.window(PUT, 500)
        assert one.calls(PUT) > 499
        async with trainer(address, name=b"trainer-two-----"):
            await two.knows(PUT, 500)
            assert one.calls(PUT) <= 500.5
            # Of the first trainer's sums both still have theirs.
            for sidecar in (one, two):
                assert 0 < sidecar.calls(GET) <= 1001


async def test_a_new_sidecar_starts_with_everything(tmp_path: Path) -> None:
    async with trainer(f"unix:{tmp_path}/t") as (_, address, _events):
        async with Sidecar(address, 1) as one:
            one.window(GET, 100)
            await until(lambda: one.table.watermark == 1, "the receipt")
        async with Sidecar(address, 2) as two:
            await two.knows(GET, 100)


def stream(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        METHOD,
        request_serializer=fleet_pb2.SidecarMessage.SerializeToString,
        response_deserializer=fleet_pb2.FleetUpdate.FromString,
    )()


def hello(**others: Any) -> fleet_pb2.SidecarMessage:
    given: dict[str, Any] = {
        "protocol": PROTOCOL,
        "sidecar_id": b"s" * 16,
        "service": "cart",
    } | others
    return fleet_pb2.SidecarMessage(hello=fleet_pb2.Hello(**given))


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (hello(protocol=0), "FAILED_PRECONDITION", "update the sidecar"),
        (hello(sidecar_id=b"short"), "INVALID_ARGUMENT", "expected 16"),
        (hello(service=""), "INVALID_ARGUMENT", "expected 1 to 256"),
        (fleet_pb2.SidecarMessage(window=fleet_pb2.Window()), "INVALID_ARGUMENT", "no `hello`"),
        (fleet_pb2.SidecarMessage(), "INVALID_ARGUMENT", "no `hello`"),
    ],
)
async def test_who_does_not_introduce_itself_is_refused(
    tmp_path: Path, first: fleet_pb2.SidecarMessage, code: str, words: str
) -> None:
    async with (
        trainer(f"unix:{tmp_path}/t") as (_, address, _events),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = stream(channel)
        await call.write(first)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await patiently(call.read(), "an answer")
        assert refused.value.code().name == code
        assert words in str(refused.value.details())


async def test_streams_and_services_have_limits(tmp_path: Path) -> None:
    limits = FleetLimits(streams=2, services=1)
    async with (
        trainer(f"unix:{tmp_path}/t", limits=limits) as (_, address, counted),
        grpc.aio.insecure_channel(address) as channel,
    ):
        kept = [stream(channel) for _ in range(2)]
        await kept[0].write(hello())
        assert (await patiently(kept[0].read(), "an update")).full
        refused = stream(channel)
        await refused.write(hello(service="other"))
        with pytest.raises(grpc.aio.AioRpcError, match=r"fleet\.max_services"):
            await patiently(refused.read(), "a refusal")
        await kept[1].write(hello())
        await patiently(kept[1].read(), "an update")
        refused = stream(channel)
        await refused.write(hello())
        with pytest.raises(grpc.aio.AioRpcError, match=r"fleet\.max_streams"):
            await patiently(refused.read(), "a refusal")
        assert counted.counts["limit", "fleet.max_services"] == 1
        assert counted.counts["limit", "fleet.max_streams"] == 1
        for call in kept:
            call.cancel()


async def test_a_message_that_makes_no_sense_costs_only_itself(tmp_path: Path) -> None:
    async with (
        trainer(f"unix:{tmp_path}/t") as (server, address, counted),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = stream(channel)
        await call.write(hello())
        columns: dict[str, Any] = {
            "calls": [1], "errors": [0], "latency_s": [0.1], "service_samples": [0],
            "service_s": [0.0], "estimated_s": [0.1],
        }  # fmt: skip
        broken: list[Any] = [
            fleet_pb2.Window(number=1, cells=fleet_pb2.CellWindows(class_index=[7])),
            fleet_pb2.Window(
                number=1,
                cells=fleet_pb2.CellWindows(class_index=[7], endpoint_index=[0], **columns),
            ),
            fleet_pb2.Window(number=1, classes=["a", "a"]),
            fleet_pb2.Window(number=1, classes=["x" * 2000]),
            fleet_pb2.Window(number=1, cells=fleet_pb2.CellWindows(bucket_place=[99])),
            *(
                fleet_pb2.Window(number=1, models=[report])
                for report in (
                    fleet_pb2.ModelReport(name="../x", version="1.0.0"),
                    fleet_pb2.ModelReport(name="default", version="x"),
                    fleet_pb2.ModelReport(name="default", version="1.0.0", weight=2.0),
                    fleet_pb2.ModelReport(name="default", version="1.0.0", gain=float("nan")),
                )
            ),
            fleet_pb2.Window(
                number=1,
                models=[fleet_pb2.ModelReport(name="default", version="1.0.0")] * 9,
            ),
        ]
        for window in broken:
            await call.write(fleet_pb2.SidecarMessage(window=window))
        await call.write(hello())
        endpoint = fleet_pb2.EndpointWindow(
            address=A, rtt_s=float("nan"), utilization=float("inf"), rps=-1.0, incarnation=-5.0
        )
        cells = fleet_pb2.CellWindows(
            class_index=[0, 1], endpoint_index=[0, 0], calls=[3, 5], errors=[0, 0],
            latency_s=[0.3, float("nan")], service_samples=[0, 0], service_s=[0.0, 0.0],
            estimated_s=[0.3, 0.5], bucket_place=[0, 0], bucket_calls=[1, 2],
        )  # fmt: skip
        await call.write(
            fleet_pb2.SidecarMessage(
                window=fleet_pb2.Window(
                    number=1, classes=[GET, PUT], endpoints=[endpoint], cells=cells
                )
            )
        )
        await until(lambda: counted.counts["window", "cart"] == 1, "the good window")
        assert counted.counts["dropped", "malformed"] == len(broken)
        assert counted.counts["dropped", "unknown"] == 1
        table = server.table("cart")
        assert table is not None
        assert table.dropped_cells == 1
        sums = table.sums(CLOCK.now_s())
        assert sums.den[:, 0].tolist()[1:] == [0.0]
        assert 0 < sums.den[0, 0] <= 3
        await until(lambda: counted.counts["dropped", "cell"] == 1, "the dropped cell")
        call.cancel()


async def test_a_busy_address_is_named(tmp_path: Path) -> None:
    async with trainer("127.0.0.1:0") as (_, address, _events):
        assert not address.endswith(":0")
        server = FleetServer(trainer=b"", clock=CLOCK, limits=FleetLimits(), events=Events())
        with pytest.raises(StartError, match=f"trainer.yaml:1:1: .*`{address}`"):
            server.bind(address, "trainer.yaml:1:1")


# Two versions of the protocol.


def next_version() -> Any:
    """Messages of a later version: every message has a field that this one does not know, and a
    sidecar may send something else than windows."""
    file = descriptor_pb2.FileDescriptorProto()
    fleet_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "fleet_v_next.proto", "attnroute.fleet.vnext"
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".fleet.v1.", ".fleet.vnext.")
        message.field.add(
            name="news",
            number=100,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        )
    del file.service[:]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    def of_next_version(name: str) -> Any:
        return message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"attnroute.fleet.vnext.{name}")
        )

    return of_next_version


def newer(message: Any, to: Any) -> Any:
    """The same content in the later version, with news in it."""
    found = to.FromString(message.SerializeToString())
    found.news = "what this version says besides"
    return found


async def test_a_newer_sidecar_and_this_trainer(tmp_path: Path) -> None:
    version = next_version()
    sidecar_message, fleet_update = version("SidecarMessage"), version("FleetUpdate")
    async with (
        trainer(f"unix:{tmp_path}/t") as (_, address, counted),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call: Any = channel.stream_stream(
            METHOD,
            request_serializer=sidecar_message.SerializeToString,
            response_deserializer=fleet_update.FromString,
        )()
        introduction = newer(hello(protocol=PROTOCOL + 1), sidecar_message)
        introduction.hello.news = "x"
        await call.write(introduction)
        assert (await patiently(call.read(), "an update")).protocol == PROTOCOL
        await call.write(sidecar_message(news="a message of another kind"))
        window = fleet_pb2.Window(
            number=1, classes=[GET], endpoints=[fleet_pb2.EndpointWindow(address=A)],
            cells=fleet_pb2.CellWindows(
                class_index=[0], endpoint_index=[0], calls=[10], errors=[0], latency_s=[0.1],
                service_samples=[0], service_s=[0.0], estimated_s=[0.1],
            ),
        )  # fmt: skip
        late = newer(fleet_pb2.SidecarMessage(window=window), sidecar_message)
        late.window.news = late.window.cells.news = late.window.endpoints[0].news = "x"
        await call.write(late)
        while True:
            update = await patiently(call.read(), "the sums")
            if len(update.cells.calls):
                break
        assert list(update.classes) == [GET]
        assert 0 < update.cells.calls[0] <= 10
        assert counted.counts["dropped", "unknown"] == 1
        call.cancel()


async def test_a_sidecar_of_before_the_split_leaves_it_alone(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto()
    fleet_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "fleet_v_before.proto", "attnroute.fleet.v1"
    update = next(one for one in file.message_type if one.name == "FleetUpdate")
    del update.field[-1]
    assert update.field[-1].name == "cells"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    before = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("attnroute.fleet.v1.FleetUpdate")
    )
    async with (
        trainer(f"unix:{tmp_path}/t", settings=FleetSettings(split=SplitParameters())) as (
            _,
            address,
            _,
        ),
        Sidecar(address) as now,
        grpc.aio.insecure_channel(address) as channel,
    ):
        now.window(GET, 100)
        await until(lambda: now.table.split(CLOCK.now_s()) is not None, "a split")
        split = now.table.split(CLOCK.now_s())
        assert split is not None
        assert (split.classes, split.endpoints) == ((GET,), (A,))
        call: Any = channel.stream_stream(
            METHOD,
            request_serializer=fleet_pb2.SidecarMessage.SerializeToString,
            response_deserializer=before.FromString,
        )()
        await call.write(hello())
        whole: Any = await patiently(call.read(), "an update")
        assert list(whole.classes) == [GET]
        assert whole.cells.calls[0] > 0
        call.cancel()


async def test_this_sidecar_and_a_newer_trainer(tmp_path: Path) -> None:
    version = next_version()
    fleet_update = version("FleetUpdate")
    received: asyncio.Queue[Any] = asyncio.Queue()

    async def exchange(requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[Any]:
        update = fleet_pb2.FleetUpdate(
            service="cart", sequence=1, sidecars=3, trainer_id=b"n" * 16, full=True,
            protocol=PROTOCOL + 1, classes=[PUT],
            endpoints=[fleet_pb2.EndpointSums(address=A, busy_s=0.5, calls=50)],
            cells=fleet_pb2.CellSums(
                class_index=[0], endpoint_index=[0], service_s=[0.5], calls=[50]
            ),
        )  # fmt: skip
        message = newer(update, fleet_update)
        message.endpoints[0].news = message.cells.news = "x"
        yield message
        async for request in requests:
            received.put_nowait(request)

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        exchange,
        request_deserializer=version("SidecarMessage").FromString,
        response_serializer=fleet_update.SerializeToString,
    )
    service, _, method = METHOD.strip("/").rpartition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    address = f"unix:{tmp_path}/t"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with Sidecar(address) as sidecar:
            sidecar.window(GET, 10)
            await sidecar.knows(PUT, 50)
            assert sidecar.table.sidecars == 3
            introduction = await patiently(received.get(), "the introduction")
            assert introduction.hello.protocol == PROTOCOL
            window = (await patiently(received.get(), "a window")).window
            assert list(window.classes) == [GET]
            assert list(window.cells.calls) == [10]
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (fleet_pb2.FleetUpdate(sequence=1, full=True), "protocol"),
        (fleet_pb2.FleetUpdate(sequence=2, protocol=PROTOCOL), "gap"),
        (
            fleet_pb2.FleetUpdate(
                sequence=1, full=True, protocol=PROTOCOL, cells=fleet_pb2.CellSums(calls=[1.0])
            ),
            "malformed",
        ),
    ],
)
async def test_a_sidecar_leaves_a_trainer_that_makes_no_sense(
    tmp_path: Path, update: fleet_pb2.FleetUpdate, reason: str
) -> None:
    async def exchange(requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[Any]:
        yield update
        async for _ in requests:
            pass

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        exchange,
        request_deserializer=fleet_pb2.SidecarMessage.FromString,
        response_serializer=fleet_pb2.FleetUpdate.SerializeToString,
    )
    service, _, method = METHOD.strip("/").rpartition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    address = f"unix:{tmp_path}/t"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with Sidecar(address) as sidecar:
            await until(lambda: sidecar.events.counts["failed", reason] >= 2, "two tries")
            assert sidecar.events.connected == {"cart": False}
            sidecar.window(GET, 10)
            assert 9 < sidecar.calls(GET) <= 10
    finally:
        await server.stop(None)


def test_sums_that_cannot_be_true_are_no_sums() -> None:
    nan = float("nan")
    update = fleet_pb2.FleetUpdate(
        classes=[GET, PUT],
        endpoints=[
            fleet_pb2.EndpointSums(address=A, busy_s=nan, calls=4, rtt_s=-1, concurrency=nan),
            fleet_pb2.EndpointSums(address="b", busy_s=1, calls=-4, incarnation=nan),
            fleet_pb2.EndpointSums(address="c", busy_s=1, calls=4, rtt_s=0.1),
        ],
        cells=fleet_pb2.CellSums(
            class_index=[0, 1], endpoint_index=[0, 2], service_s=[nan, 0.5], calls=[1, 2]
        ),
    )
    state = read_update(packed_pb2.PackedFleetUpdate.FromString(update.SerializeToString()))
    assert state.busy_s.tolist() == [0, 0, 1]
    assert state.calls.tolist() == [0, 0, 4]
    assert state.started_s.tolist() == [0, 0, 0]
    assert [str(value) for value in state.rtt_s] == ["nan", "nan", "0.1"]
    assert [str(value) for value in state.concurrency] == ["nan"] * 3
    assert state.cell_calls.tolist() == [0, 2]


def test_a_split_that_cannot_be_true_says_nothing_of_its_class() -> None:
    def read(*probability: float) -> FleetState:
        split = fleet_pb2.Split(classes=[GET, PUT], endpoints=[A], probability=probability)
        update = fleet_pb2.FleetUpdate(split=split).SerializeToString()
        return read_update(packed_pb2.PackedFleetUpdate.FromString(update))

    for bad in (float("nan"), float("inf"), -0.5):
        split = read(1.0, bad).split
        assert split is not None
        assert [str(row) for row in split.probability] == ["[1.]", "[nan]"]
    with pytest.raises(MessageError, match="has `1` probabilities"):
        read(1.0)


@pytest.mark.parametrize(
    ("peer", "port", "expected"),
    [
        ("ipv4:10.0.0.1:555", 15011, "10.0.0.1:15011"),
        ("ipv6:%5B2001:db8::1%5D:555", 15011, "[2001:db8::1]:15011"),
        ("unix:/run/t", 15011, "127.0.0.1:15011"),
        ("unix:", 15011, "127.0.0.1:15011"),
        ("ipv4:10.0.0.1:555", 0, ""),
        ("ipv4:10.0.0.1:555", 70_000, ""),
        ("vsock:1:2", 15011, ""),
    ],
)
def test_a_page_is_where_the_stream_comes_from(peer: str, port: int, expected: str) -> None:
    assert page_address(peer, port) == expected


async def test_pages_are_those_of_open_streams(tmp_path: Path) -> None:
    async with (
        trainer(f"unix:{tmp_path}/t") as (server, address, _events),
        grpc.aio.insecure_channel(address) as channel,
    ):
        calls = [stream(channel) for _ in range(3)]
        for call, port, service in zip(calls, (7, 7, 0), ("cart", "shop", "cart"), strict=True):
            await call.write(hello(metrics_port=port, service=service))
            await patiently(call.read(), "an update")
        assert server.pages() == ("127.0.0.1:7",)
        calls[0].cancel()
        await until(lambda: server._streams == 2, "the end of a stream")
        assert server.pages() == ("127.0.0.1:7",)
        calls[1].cancel()
        await until(lambda: server.pages() == (), "the end of another")
        calls[2].cancel()
