"""One emulated endpoint: a real gRPC server whose workers sleep instead of computing.

`python -m attnroute.demo.endpoint` reads its specification from standard input, prints the address
it bound, and serves until standard input closes: whatever ends the demo, a kill included, ends its
endpoints. Sleeping keeps a dozen endpoints within a fraction of one core, and queueing is real:
calls wait in order for one of a few workers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from attnroute.demo.faults import FaultyEndpoint
from attnroute.demo.messages import CallHead, EndpointSpec, Reply, encode
from attnroute.demo.pipes import standard_input
from attnroute.demo.world import WORLDS, Timeline, World

CHANNEL_OPTIONS = (("grpc.so_reuseport", 0),)


class Endpoint(grpc.GenericRpcHandler):
    """Serves every class of its world; answers are `messages.Reply`."""

    def __init__(
        self, world: World, index: int, seed: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._world = world
        self._index = index
        self._seed = seed
        self._now_s = now_s
        self._workers = asyncio.Semaphore(world.endpoints[index].workers)
        self._timelines: dict[int, Timeline] = {}
        self._methods = {request_class.path for request_class in world.classes}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Bytes in, bytes out; None answers UNIMPLEMENTED."""
        path = handler_call_details.method
        if path not in self._methods:
            return None

        async def serve(message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return await self.serve(path, message, context)

        return grpc.unary_unary_rpc_method_handler(serve)

    async def serve(
        self, path: str, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Waits for a worker, holds it for as long as the work takes, answers."""
        class_index = self._world.class_of.get((path, len(message)))
        if class_index is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"`{path}` has no class with messages of {len(message)} bytes",
            )
        head = CallHead.parse(message)
        arrived_s = self._now_s()
        async with self._workers:
            started_s = self._now_s()
            work_s = head.work * self._world.work_s(class_index, self._index)
            timeline = self._timeline(head.round_number)
            finish_s = timeline.finish_s(started_s - head.slice_start_s, work_s)
            await asyncio.sleep(head.slice_start_s + finish_s - self._now_s())
            finished_s = self._now_s()
        return Reply(self._index, started_s - arrived_s, finished_s - started_s).message()

    def _timeline(self, round_number: int) -> Timeline:
        known = self._timelines.get(round_number)
        if known is None:
            key = f"weather:{self._seed}:{round_number}:{self._index}"
            known = Timeline(self._world.endpoints[self._index], key)
            self._timelines[round_number] = known
        return known


async def start_server(endpoint: grpc.GenericRpcHandler) -> tuple[grpc.aio.Server, str]:
    """(the running server, its address); the system picks the port."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((endpoint,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def _tell(message: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


def _tell_call(start_s: float, at_s: float) -> None:
    _tell({"start_s": start_s, "at_s": at_s})


async def serve_until_closed() -> None:
    """The life of an endpoint process."""
    lines = await standard_input()
    spec = EndpointSpec(**json.loads(await lines.readline()))
    endpoint = (
        FaultyEndpoint(spec.fault, _tell_call)
        if spec.fault
        else Endpoint(WORLDS[spec.world], spec.index, spec.seed)
    )
    server, address = await start_server(endpoint)
    _tell({"address": address})
    while await lines.readline():
        pass
    await server.stop(grace=0)


if __name__ == "__main__":
    asyncio.run(serve_until_closed())
