"""A real gRPC server of `xds.service.orca.v3.OpenRcaService`, told by the test what to send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest

SERVICE = "xds.service.orca.v3.OpenRcaService"


@dataclass
class OrcaServer:
    """What came in, and what goes out on the one stream that is open."""

    address: str = ""
    streams: int = 0
    open: int = 0
    unknown: int = 0
    """Calls of a server that has no such service."""
    intervals: list[timedelta] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    _script: asyncio.Queue[bytes | grpc.StatusCode | None] = field(default_factory=asyncio.Queue)

    def send(self, **values: Any) -> None:
        """Reports; fields of `OrcaLoadReport`."""
        self._script.put_nowait(OrcaLoadReport(**values).SerializeToString())

    def end(self, code: grpc.StatusCode | None) -> None:
        """Ends the stream with a status, or with OK."""
        self._script.put_nowait(code or grpc.StatusCode.OK)

    async def stream(self, request: OrcaLoadReportRequest, context: Any) -> AsyncIterator[bytes]:
        """`StreamCoreMetrics`."""
        self.streams += 1
        self.open += 1
        self.intervals.append(request.report_interval.ToTimedelta())
        try:
            while isinstance(item := await self._script.get(), bytes):
                self.sent.append(item)
                yield item
            if item not in (None, grpc.StatusCode.OK):
                await context.abort(item, "told so")
        finally:
            self.open -= 1


class _Unknown(grpc.GenericRpcHandler):
    def __init__(self, server: OrcaServer) -> None:
        self._server = server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        self._server.unknown += 1


@contextlib.asynccontextmanager
async def orca_server(*, implemented: bool = True) -> AsyncIterator[OrcaServer]:
    """A running server, with the service or without."""
    made = OrcaServer()
    server = grpc.aio.server()
    if implemented:
        handler: grpc.RpcMethodHandler[OrcaLoadReportRequest, bytes] = (
            grpc.unary_stream_rpc_method_handler(
                made.stream, request_deserializer=OrcaLoadReportRequest.FromString
            )
        )
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"StreamCoreMetrics": handler})
        server.add_generic_rpc_handlers((handlers,))
    else:
        server.add_generic_rpc_handlers((_Unknown(made),))
    port = server.add_insecure_port("127.0.0.1:0")
    made.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(None)
