"""A real OTLP receiver: the official service over grpcio, keeping what it got."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


@dataclass
class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes every message, or refuses it while `refuse` is set."""

    address: str = ""
    refuse: bool = False
    refused: int = 0
    resources: list[ResourceSpans] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)

    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        if self.refuse:
            self.refused += 1
            # One that the SDK does not try again.
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not now")
        self.metadata.append(dict(context.invocation_metadata()))
        self.resources.extend(request.resource_spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for resource in list(self.resources)
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(span: Span) -> dict[str, str | int]:
    """Attributes of a span that are texts or numbers."""
    return {
        pair.key: pair.value.string_value
        if pair.value.HasField("string_value")
        else pair.value.int_value
        for pair in span.attributes
    }


@contextlib.contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A running receiver on a port the system picks."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(receiver, server)  # type: ignore[no-untyped-call]
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(grace=None).wait()
