"""A span per sampled call, exported by OTLP with the official SDK, off the path of calls.

The data plane notes the calls; here they become spans after they ended, with their own times. A
call that carries a `traceparent` gets a span below its caller's, beside the endpoint's: what the
client sent passes through untouched, so that no trace depends on whether the sidecar is sampled.

The SDK is the extra `otel` of the package, loaded only where the policy asks for spans. It lives on
a thread of its own, because a collector that hangs must not hold up admin or reloads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from attnroute.errors import StartError
from attnroute.logs import fields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Collector", "Exporter", "Traces", "open_exporter"]

logger = logging.getLogger(__name__)

EXPORT_INTERVAL_S = 1.0

EXPORT_TIMEOUT_S = 5.0
"""For one message to the collector, retries of the SDK included."""

_TAKE_ROWS = 512
"""Spans in one message."""


class SpanSource(Protocol):
    """The part of the data plane this module reads."""

    def take_spans(self, max_rows: int) -> bytes: ...


class SpanCounter(Protocol):
    """What is told how many spans were `exported` or have `failed`."""

    def spans(self, result: str, count: int) -> None: ...


@dataclass(frozen=True)
class Collector:
    """Where spans go. target: `host:port`, plain text; headers: metadata of each message."""

    target: str
    version: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Exporter(Protocol):
    """What makes spans of rows of `DataPlane.take_spans` and sends them; used on one thread."""

    collector: Collector

    def export(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """False if the collector did not take them."""
        ...

    def close(self) -> None: ...


class Traces:
    """Moves calls from the data plane to a collector; made and used on one event loop."""

    def __init__(self, source: SpanSource, counter: SpanCounter) -> None:
        self._source, self._counter = source, counter
        self._exporter: Exporter | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attnroute-traces")
        self._failing = False

    async def prepare(self, collector: Collector | None) -> Exporter | None:
        """What sends spans there; for `use`. Raises StartError if that cannot be."""
        if collector is None:
            return None
        if self._exporter is not None and self._exporter.collector == collector:
            return self._exporter
        # Loading the SDK takes a good part of a second.
        return await asyncio.to_thread(open_exporter, collector)

    def use(self, exporter: Exporter | None) -> None:
        """Follows the policy: spans go there from now on."""
        before, self._exporter = self._exporter, exporter
        if before is not None and before is not exporter:
            self._failing = False
            self._thread.submit(before.close)

    async def run(self) -> None:
        """Exports for ever."""
        while True:
            await self._on_thread()
            await asyncio.sleep(EXPORT_INTERVAL_S)

    async def close(self) -> None:
        """Sends what is left, for a bounded time, and lets go of the SDK."""
        try:
            await asyncio.wait_for(self._on_thread(), EXPORT_TIMEOUT_S)
        except TimeoutError:
            logger.info("spans were left when the sidecar stopped")
        self.use(None)
        self._thread.shutdown(wait=False)

    async def _on_thread(self) -> None:
        if self._exporter is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._export, self._exporter)

    def _export(self, exporter: Exporter) -> None:
        """Everything that ended since; while the collector takes nothing, one message a time."""
        while True:
            rows: list[dict[str, Any]] = json.loads(self._source.take_spans(_TAKE_ROWS))
            if not rows:
                return
            taken = exporter.export(rows)
            self._counter.spans("exported" if taken else "failed", len(rows))
            if not taken and not self._failing:
                logger.warning(
                    "cannot export spans", extra=fields(collector=exporter.collector.target)
                )
            self._failing = not taken
            if not taken or len(rows) < _TAKE_ROWS:
                return


def open_exporter(collector: Collector) -> Exporter:
    """Loads the SDK. Raises StartError if the extra `otel` is not installed."""
    try:
        return _Otlp(collector)
    except ImportError as error:
        raise StartError(
            f"`tracing` needs the extra `otel` of the package, which is not installed ({error}); "
            "run `pip install 'attnroute[otel]'` or take the key out of the policy"
        ) from error


class _Otlp:
    """The SDK without its batches and timers: those would keep spans nobody counts."""

    def __init__(self, collector: Collector) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.collector = collector
        # What it says stands in our own line, once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter: SpanExporter = OTLPSpanExporter(
            endpoint=f"http://{collector.target}",
            insecure=True,
            headers=tuple(collector.headers.items()),
            timeout=EXPORT_TIMEOUT_S,
        )
        ended: list[ReadableSpan] = []
        self._ended = ended

        class Collect(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        # The data plane has sampled: what gets here is wanted.
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(
                {"service.name": "attnroute", "service.version": collector.version}
            ),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(Collect())
        self._tracer = provider.get_tracer("attnroute", collector.version)
        self._propagator = TraceContextTextMapPropagator()

    def export(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """attnroute.telemetry.traces.Exporter."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._ended.clear()
        for row in rows:
            self._add(row)
        return self._exporter.export(self._ended) is SpanExportResult.SUCCESS

    def _add(self, row: Mapping[str, Any]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        carrier = {
            "traceparent": row["trace_parent"] or "",
            "tracestate": row["trace_state"] or "",
        }
        # A context of its own: nothing of this process is a parent.
        parent = self._propagator.extract(carrier, Context())
        span = self._tracer.start_span(
            row["method"].removeprefix("/"),
            context=parent,
            kind=SpanKind.CLIENT,
            start_time=row["start_ns"],
            attributes=_attributes(row),
        )
        if row["grpc_code"] != 0:
            span.set_status(Status(StatusCode.ERROR, row["grpc_status"]))
        span.end(end_time=row["end_ns"])

    def close(self) -> None:
        """attnroute.telemetry.traces.Exporter."""
        self._exporter.shutdown()


def _attributes(row: Mapping[str, Any]) -> dict[str, str | int]:
    """Names by the semantic conventions of RPC where they have one; ours begin `attnroute.`."""
    service, _, method = row["method"].removeprefix("/").rpartition("/")
    attributes: dict[str, str | int | None] = {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": row["grpc_code"],
        "server.address": row["authority"],
        "network.peer.address": row["endpoint"],
        "attnroute.service": row["service"],
        "attnroute.reason": row["reason"],
        "attnroute.attempts": row["attempts"],
        "attnroute.request_bytes": row["request_bytes"],
        "attnroute.response_bytes": row["response_bytes"],
    }
    return {key: value for key, value in attributes.items() if value is not None}
