"""Open-loop load: calls leave when the schedule says so, whatever became of those before.

A client that waits for answers slows down with the service and hides its queues; here a call's
latency counts from its scheduled arrival, so time spent behind a late generator is not lost either,
and the lateness is measured so that a machine that is too slow shows. One process per sidecar, as
one application beside each: `python -m attnroute.demo.load` takes orders on standard input and
writes samples to standard output.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import grpc
import grpc.aio

from attnroute.demo.messages import (
    CallHead,
    LoadSpec,
    Order,
    Reply,
    Sample,
    encode,
    encode_samples,
)
from attnroute.demo.pipes import standard_input
from attnroute.demo.world import SERVICE, WORLDS, World

FLUSH_PERIOD_S = 0.25

# A proxy from the environment must not come between the client and the sidecar.
CHANNEL_OPTIONS = (("grpc.default_authority", SERVICE), ("grpc.enable_http_proxy", 0))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call of a schedule."""

    offset_s: float
    class_index: int
    work: float
    """Lognormal with mean 1."""


def arrivals(world: World, key: str, calls_per_s: float, seconds: float) -> Iterator[Arrival]:
    """A Poisson process of that rate over that time; the same key gives the same calls."""
    source = random.Random(key)
    weights = list(accumulate(request_class.popularity for request_class in world.classes))
    indices = range(len(world.classes))
    offset_s = source.expovariate(calls_per_s)
    while offset_s < seconds:
        (class_index,) = source.choices(indices, cum_weights=weights)
        work = source.lognormvariate(-(world.sigma**2) / 2, world.sigma)
        yield Arrival(offset_s, class_index, work)
        offset_s += source.expovariate(calls_per_s)


class LoadClient:
    """Carries out orders over one channel.

    on_sample gets each finished call; on_done gets the number of an order that is over and how many
    calls it sent, so that a call without a sample cannot go unnoticed.
    """

    def __init__(
        self,
        spec: LoadSpec,
        world: World,
        on_sample: Callable[[Sample], None],
        on_done: Callable[[int, int], None],
    ) -> None:
        self._spec = spec
        self._world = world
        self._on_sample = on_sample
        self._on_done = on_done
        self._channel = grpc.aio.insecure_channel(spec.target, options=CHANNEL_OPTIONS)
        self._methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
            self._channel.unary_unary(request_class.path) for request_class in world.classes
        ]
        self._endless: asyncio.Task[None] | None = None
        self._orders: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Waits until the sidecar accepted the connection, for as long as it takes."""
        await self._channel.channel_ready()

    def start(self, order: Order) -> None:
        """Starts an order, and ends the sending of an endless one before it, not its calls."""
        if self._endless is not None:
            self._endless.cancel()
        calls: list[asyncio.Task[None]] = []
        sending = asyncio.create_task(self._send(order, calls))
        self._endless = sending if math.isinf(order.seconds) else None
        task = asyncio.create_task(self._finish(order, sending, calls))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def close(self) -> None:
        """Cancels what is in flight."""
        for task in self._orders:
            task.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)
        await self._channel.close(grace=None)

    async def _send(self, order: Order, calls: list[asyncio.Task[None]]) -> None:
        spec = self._spec
        key = f"calls:{spec.seed}:{order.round_number}:{order.purpose}:{spec.client}"
        for arrival in arrivals(self._world, key, order.calls_per_s, order.seconds):
            delay_s = order.start_s + arrival.offset_s - time.monotonic()
            # A late generator must still let answers in: sleep(0) yields once.
            await asyncio.sleep(max(0.0, delay_s))
            calls.append(asyncio.create_task(self._call(order, arrival)))

    async def _finish(
        self, order: Order, sending: asyncio.Task[None], calls: list[asyncio.Task[None]]
    ) -> None:
        try:
            await asyncio.wait((sending,))
            await asyncio.gather(*calls)
        finally:
            for task in (sending, *calls):
                task.cancel()
        self._on_done(order.number, len(calls))

    async def _call(self, order: Order, arrival: Arrival) -> None:
        head = CallHead(order.start_s, arrival.work, order.round_number)
        message = head.message(self._world.classes[arrival.class_index].message_bytes)
        scheduled_s = order.start_s + arrival.offset_s
        sent_s = time.monotonic()
        status, detail, reply = 0, "", Reply(-1, 0.0, 0.0)
        try:
            method = self._methods[arrival.class_index]
            timeout_s = self._spec.timeout_s if order.timeout_s is None else order.timeout_s
            reply = Reply.parse(await method(message, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            status = int(error.code().value[0])
            detail = error.details() or ""
        self._on_sample(
            Sample(
                order=order.number,
                offset_s=arrival.offset_s,
                lateness_s=sent_s - scheduled_s,
                latency_s=time.monotonic() - scheduled_s,
                status=status,
                endpoint=reply.endpoint,
                wait_s=reply.wait_s,
                service_s=reply.service_s,
                detail=detail,
            )
        )


class _Output:
    """Batches samples, so that the demo is not woken for every call."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def sample(self, sample: Sample) -> None:
        self._samples.append(sample)

    def done(self, order: int, sent: int) -> None:
        self.flush()
        _write(encode({"done": order, "sent": sent}))

    def flush(self) -> None:
        if self._samples:
            _write(encode_samples(self._samples))
            self._samples.clear()

    async def flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_PERIOD_S)
            self.flush()


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


async def load_until_closed() -> None:
    """The life of a load process."""
    lines = await standard_input()
    spec = LoadSpec(**json.loads(await lines.readline()))
    output = _Output()
    client = LoadClient(spec, WORLDS[spec.world], output.sample, output.done)

    async def connect() -> None:
        await client.connect()
        _write(encode({"ready": True}))

    # Beside the reading of orders, so that the end of input is noticed while it connects.
    beside = (asyncio.create_task(connect()), asyncio.create_task(output.flush_often()))
    try:
        while line := await lines.readline():
            client.start(Order(**json.loads(line)))
    finally:
        for task in beside:
            task.cancel()
        await client.close()


if __name__ == "__main__":
    asyncio.run(load_until_closed())
