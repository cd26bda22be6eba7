"""The processes around the sidecars, as real processes: endpoints, load, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import grpc
import grpc.aio
import pytest
from tests.support.processes import alive
from tests.support.wait import patience_s, patiently, until, until_blocking

from attnroute.demo.endpoint import Endpoint, start_server
from attnroute.demo.load import LoadClient, arrivals
from attnroute.demo.messages import (
    CallHead,
    EndpointSpec,
    LoadSpec,
    Order,
    Reply,
    Sample,
    encode_spec,
)
from attnroute.demo.processes import Children, DemoError
from attnroute.demo.world import WORLDS, EndpointModel, RequestClass, World

TINY = World(
    name="tiny",
    summary="",
    endpoints=(EndpointModel(workers=2),),
    classes=(
        RequestClass("Small", 64, popularity=0.5, cost=1.0),
        RequestClass("Large", 4096, popularity=0.5, cost=1.0),
    ),
    mean_work_s=0.02,
)


def head(*, work: float) -> CallHead:
    return CallHead(slice_start_s=time.monotonic(), work=work, round_number=0)


def unary(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(path)


class TestEndpoint:
    @pytest.fixture
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        server, address = await start_server(Endpoint(TINY, index=0, seed=1))
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
        await server.stop(grace=0)

    async def test_calls_queue_in_order_for_its_workers(self, channel: grpc.aio.Channel) -> None:
        small = unary(channel, "/demo.Shop/Small")
        messages = [head(work=1.0).message(64) for _ in range(6)]
        began_s = time.perf_counter()
        replies = [
            Reply.parse(answer)
            for answer in await patiently(asyncio.gather(*map(small, messages)), "six answers")
        ]
        # Three turns, whenever the calls came.
        assert time.perf_counter() - began_s >= 3 * 0.02 - 1e-3
        assert all(reply.service_s >= 0.02 - 1e-4 for reply in replies)
        # Two workers, six calls of 20 ms: the last ones wait for two others. They come some
        # milliseconds after the first ones; behind one other they would wait 20 ms at most.
        waits_s = sorted(reply.wait_s for reply in replies)
        assert waits_s[-1] >= 1.5 * 0.02

    async def test_what_it_does_not_emulate_is_refused(self, channel: grpc.aio.Channel) -> None:
        for path, size, code in (
            ("/demo.Shop/Other", 64, grpc.StatusCode.UNIMPLEMENTED),
            ("/demo.Shop/Small", 65, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await unary(channel, path)(head(work=0.0).message(size))
            assert failure.value.code() is code

    async def test_a_cancelled_call_gives_its_worker_back(self, channel: grpc.aio.Channel) -> None:
        small = unary(channel, "/demo.Shop/Small")
        forever = head(work=1e6).message(64)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await small(forever, timeout=0.05)
            assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        answer = await patiently(small(head(work=1.0).message(64)), "an answer")
        assert Reply.parse(answer).endpoint == 0


class TestLoadClient:
    async def test_every_call_of_the_schedule_is_sent_once(self) -> None:
        server, address = await start_server(Endpoint(TINY, index=0, seed=1))
        samples: list[Sample] = []
        done: dict[int, int] = {}
        spec = LoadSpec("tiny", address, seed=1, client=0, timeout_s=patience_s())
        client = LoadClient(spec, TINY, samples.append, done.__setitem__)
        await client.connect()
        client.start(Order(3, 0, time.monotonic(), 0.5, 80.0, "slice"))
        await until(lambda: done, "the end of the order")
        await client.close()
        await server.stop(grace=0)
        expected = [call.offset_s for call in arrivals(TINY, "calls:1:0:slice:0", 80.0, 0.5)]
        assert sorted(sample.offset_s for sample in samples) == expected
        assert done == {3: len(expected)}
        assert {sample.status for sample in samples} == {0}
        for sample in samples:
            # From the schedule, not from the sending: lateness is part of the latency.
            parts_s = sample.lateness_s + sample.wait_s + sample.service_s
            assert sample.latency_s >= parts_s - 1e-3

    async def test_an_order_ends_the_sending_of_an_endless_one_before(self) -> None:
        server, address = await start_server(Endpoint(TINY, index=0, seed=1))
        samples: list[Sample] = []
        done: dict[int, int] = {}
        spec = LoadSpec("tiny", address, seed=1, client=0, timeout_s=patience_s())
        client = LoadClient(spec, TINY, samples.append, done.__setitem__)
        await client.connect()
        client.start(Order(1, 0, time.monotonic(), float("inf"), 100.0, "bridge 0"))
        await until(lambda: len(samples) >= 3, "calls of the bridge")
        client.start(Order(2, 0, time.monotonic(), 0.1, 100.0, "slice"))
        await until(lambda: len(done) == 2, "the end of both orders")
        await client.close()
        await server.stop(grace=0)
        assert Counter(sample.order for sample in samples) == done

    async def test_failed_calls_are_samples_with_status_and_reason(self) -> None:
        server, address = await start_server(Endpoint(TINY, index=0, seed=1))
        samples: list[Sample] = []
        done: dict[int, int] = {}
        # This client knows classes that the endpoint does not.
        spec = LoadSpec("mixed", address, seed=1, client=0, timeout_s=patience_s())
        client = LoadClient(spec, WORLDS["mixed"], samples.append, done.__setitem__)
        await client.connect()
        client.start(Order(0, 0, time.monotonic(), 0.1, 200.0, "slice"))
        await until(lambda: done, "the end of the order")
        await client.close()
        await server.stop(grace=0)
        assert {sample.status for sample in samples} == {grpc.StatusCode.UNIMPLEMENTED.value[0]}
        assert all(sample.detail and sample.endpoint == -1 for sample in samples)


class TestChildren:
    async def test_a_fleet_starts_answers_and_ends(self, tmp_path: Path) -> None:
        children = Children(tmp_path)
        try:
            child = await children.start("endpoint 0", "attnroute.demo.endpoint")
            child.send(encode_spec(EndpointSpec("mixed", 0, 1)))
            address = (await patiently(child.line(), "the address"))["address"]
            request_class = WORLDS["mixed"].classes[0]
            async with grpc.aio.insecure_channel(address) as channel:
                call = unary(channel, request_class.path)
                message = head(work=0.1).message(request_class.message_bytes)
                answer = await patiently(call(message), "an answer")
            assert Reply.parse(answer).endpoint == 0
        finally:
            complaints = await children.stop(grace_s=patience_s())
        assert complaints == []
        assert not alive(child.process.pid)

    async def test_the_death_of_a_child_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        children = Children(tmp_path)
        try:
            child = await children.start("endpoint 0", "attnroute.demo.endpoint")
            child.send(b"no specification\n")
            with pytest.raises(DemoError, match=r"(?s)endpoint 0 .*exit code 1.*JSONDecodeError"):
                await patiently(children.guard(asyncio.Event().wait()), "news of its death")
        finally:
            await children.stop(grace_s=patience_s())

    async def test_a_child_that_will_not_end_is_killed_and_named(self, tmp_path: Path) -> None:
        children = Children(tmp_path)
        deaf = "import time; time.sleep(3600)"
        child = await children.start("sidecar 0", "timeit", "-n1", "-r1", deaf)
        assert alive(child.process.pid)
        complaints = await children.stop(grace_s=0.01)
        assert complaints == ["sidecar 0 ended with exit code -9 when it was asked to stop"]
        assert not alive(child.process.pid)


class TestLeash:
    SLEEPER = "import os,time; print(os.getpid(), flush=True); time.sleep(3600)"

    @contextlib.contextmanager
    def leash(self, code: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
        """(process, its input, what the command prints)."""
        with subprocess.Popen(
            [sys.executable, "-m", "attnroute.demo.leash", sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            try:
                yield process, process.stdin, process.stderr
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def test_the_command_ends_with_the_input(self) -> None:
        with self.leash(self.SLEEPER) as (process, stdin, printed):
            pid = int(printed.readline())
            assert alive(pid)
            stdin.close()
            until_blocking(lambda: not alive(pid), "the end of the command")
            assert process.wait(patience_s()) == 128 + signal.SIGTERM

    def test_a_signal_is_passed_on(self) -> None:
        with self.leash(self.SLEEPER) as (process, _, printed):
            pid = int(printed.readline())
            process.terminate()
            assert process.wait(patience_s()) == 128 + signal.SIGTERM
            assert not alive(pid)

    def test_the_exit_code_is_that_of_the_command(self) -> None:
        with self.leash("raise SystemExit(7)") as (process, _, _):
            assert process.wait(patience_s()) == 7
