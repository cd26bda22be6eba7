"""The admin API over gRPC: sockets, reflection, health, and statuses with google.rpc details.

The methods come from the service descriptor, so a method of the proto without an implementation
fails at start. It listens on loopback TCP and, if configured, on a Unix socket that only the
sidecar's user may open; any other address is refused, since there is no authentication yet.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from attnroute._proto.admin.v1 import admin_pb2
from attnroute.admin.changes import CHANGING
from attnroute.admin.refusals import RefusalError
from attnroute.admin.service import AdminService
from attnroute.admin.sockets import UNIX, bind_tcp, clear_stale_socket, private_mode
from attnroute.errors import StartError

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["Admin"]

CALLS_MAX = 256
"""Concurrent calls over all connections; gRPC answers one more with RESOURCE_EXHAUSTED."""

MESSAGE_BYTES_MAX = 1 << 20
"""Of a request; every request of the API is a few names."""

_STATUS_KEY = "grpc-status-details-bin"

# Quoted: the class takes parameters in its stub only.
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdminServer:
    """Serves an AdminService; made and used on one event loop."""

    def __init__(self, service: AdminService) -> None:
        self._service = service
        self._health = health.aio.HealthServicer()
        self._sockets: list[tuple[Path, int]] = []
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=CALLS_MAX,
            options=(
                # Shared ports would let a second sidecar bind a busy address without a word.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ),
        )
        self._server.add_generic_rpc_handlers((_handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def bind(self, address: str, source: str) -> str:
        """Binds `ip:port` or `unix:/path` and returns the address with its real port.

        source: where the operator wrote it, for messages. Raises StartError.
        """
        if address.startswith(UNIX):
            self._bind_unix(Path(address.removeprefix(UNIX)), source)
            return address
        host = address.rpartition(":")[0]
        if not ipaddress.ip_address(host.strip("[]")).is_loopback:
            raise StartError(
                f"{source}: admin address `{address}` is not on loopback, where the admin API "
                f"may be reached without authentication; use 127.0.0.1 or a `unix:/path`"
            )
        return f"{host}:{self._add_port(address, source)}"

    async def start(self) -> None:
        """Serves; health says NOT_SERVING until `set_ready`."""
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._health.set(SERVICE.full_name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def set_ready(self, ready: bool) -> None:  # noqa: FBT001 - a state, not an option
        """What health answers for the whole sidecar (the empty service name)."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if ready else status.NOT_SERVING)

    async def stop(self, grace_s: float = 0.5) -> None:
        """Ends streams, gives calls `grace_s`, removes the Unix sockets that are still ours."""
        self._service.close()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        for path, inode in self._sockets:
            if path.exists() and path.stat().st_ino == inode:
                path.unlink()

    def _bind_unix(self, path: Path, source: str) -> None:
        clear_stale_socket(path, source)
        with private_mode():
            self._add_port(f"{UNIX}{path}", source)
        self._sockets.append((path, path.stat().st_ino))

    def _add_port(self, address: str, source: str) -> int:
        try:
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartError(
                f"{source}: cannot bind admin address `{address}`: {_bind_reason(address)}; "
                f"free it or configure another"
            ) from error


def _bind_reason(address: str) -> str:
    """gRPC only says that it failed; the system says why when asked again."""
    if address.startswith(UNIX):
        return "the system refused it"
    try:
        bound, _port = bind_tcp(address)
    except OSError as error:
        return error.strerror or str(error)
    bound.close()
    return "the system refused it"


def _handlers(service: AdminService) -> grpc.GenericRpcHandler:
    handlers = {method.name: _handler(service, method) for method in SERVICE.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _handler(service: AdminService, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
    implementation = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
    request = GetMessageClass(method.input_type)
    response = GetMessageClass(method.output_type)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _streaming(implementation),
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )
    if method.name in CHANGING:
        implementation = _local_only(service, implementation)
    else:
        implementation = _from_anywhere(implementation)
    return grpc.unary_unary_rpc_method_handler(
        _unary(implementation),
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


def _from_anywhere(implementation: Callable[[Any], Awaitable[Any]]) -> Callable[..., Any]:
    async def call(request: Any, _context: _Context) -> Any:
        return await implementation(request)

    return call


def _local_only(
    service: AdminService, implementation: Callable[[Any], Awaitable[Any]]
) -> Callable[..., Any]:
    async def call(request: Any, context: _Context) -> Any:
        # gRPC names the socket family itself; a client has no say in it.
        service.check_may_change(local=context.peer().startswith(UNIX))
        return await implementation(request)

    return call


def _unary(implementation: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def call(request: Any, context: _Context) -> Any:
        try:
            return await implementation(request, context)
        except RefusalError as refusal:
            await _abort(context, refusal)

    return call


def _streaming(implementation: Callable[[Any], AsyncGenerator[Any]]) -> Callable[..., Any]:
    async def call(request: Any, context: _Context) -> None:
        try:
            # Closed here and not by the garbage collector, so that a client that leaves frees what
            # its stream held at once.
            async with aclosing(implementation(request)) as messages:
                async for message in messages:
                    await context.write(message)
        except RefusalError as refusal:
            await _abort(context, refusal)

    return call


async def _abort(context: _Context, refusal: RefusalError) -> None:
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    for detail in refusal.details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    metadata = ((_STATUS_KEY, status.SerializeToString()),)
    await context.abort(refusal.code, refusal.message, trailing_metadata=metadata)
