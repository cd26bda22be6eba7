"""A small blocking client of the admin API, for commands and tests.

Answers are the messages of `attnroute._proto.admin.v1`. Everything that goes wrong is an AdminError
whose message says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.errors import AdminError

ADDRESS_DEFAULT = "127.0.0.1:15010"
"""Where a sidecar serves the admin API unless its policy says otherwise."""

ADDRESS_VARIABLE = "ATTNROUTE_ADMIN"
"""Environment variable that names another address."""

CALL_TIMEOUT_S = 10.0

_SERVICE = pb.DESCRIPTOR.services_by_name["Admin"].full_name
_Message = TypeVar("_Message")


class AdminClient:
    """One connection to a sidecar; a context manager.

    address: `ip:port` or `unix:/path`.
    """

    def __init__(self, address: str = ADDRESS_DEFAULT) -> None:
        self._address = address
        options = (
            # The proxy of the environment may well be the sidecar itself.
            ("grpc.enable_http_proxy", 0),
            # 100,000 endpoints do not fit into the 4 MiB that gRPC takes by default.
            ("grpc.max_receive_message_length", -1),
        )
        self._channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and every open stream."""
        self._channel.close()

    def list_services(self) -> pb.ListServicesResponse:
        """Every configured service. Raises AdminError."""
        return self._call("ListServices", pb.ListServicesRequest(), pb.ListServicesResponse)

    def list_endpoints(self, service: str) -> pb.ListEndpointsResponse:
        """The endpoints of a service. Raises AdminError."""
        request = pb.ListEndpointsRequest(service=service)
        return self._call("ListEndpoints", request, pb.ListEndpointsResponse)

    def get_weights(self, service: str, request_class: str = "") -> pb.GetWeightsResponse:
        """The weights of a service now; an empty class means every class. Raises AdminError."""
        request = pb.GetWeightsRequest(service=service, request_class=request_class)
        return self._call("GetWeights", request, pb.GetWeightsResponse)

    def watch_weights(
        self, service: str, request_class: str = "", *, min_interval_ms: int = 0
    ) -> Generator[pb.GetWeightsResponse, None, None]:
        """The weights now and after each change, until closed. Raises AdminError."""
        request = pb.WatchWeightsRequest(
            service=service, request_class=request_class, min_interval_ms=min_interval_ms
        )
        method = self._channel.unary_stream(
            f"/{_SERVICE}/WatchWeights",
            request_serializer=pb.WatchWeightsRequest.SerializeToString,
            response_deserializer=pb.GetWeightsResponse.FromString,
        )
        stream = method(request)
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._explain(error) from error
        finally:
            stream.cancel()

    def get_config(self) -> pb.GetConfigResponse:
        """The policy in force. Raises AdminError."""
        return self._call("GetConfig", pb.GetConfigRequest(), pb.GetConfigResponse)

    def _call(self, method: str, request: Any, response: Callable[..., _Message]) -> _Message:
        call: Any = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,  # type: ignore[attr-defined]
        )
        try:
            answer: _Message = call(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._explain(error) from error
        return answer

    def _explain(self, error: Any) -> AdminError:
        code, details = error.code(), error.details() or ""
        # What a sidecar says itself begins with its name and is made to be read.
        if details.startswith("attnroute: "):
            return AdminError(details.removeprefix("attnroute: "))
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return AdminError(
                f"no sidecar answers at admin address `{self._address}` ({details}); start "
                f"`attnroute sidecar`, or name its `admin.grpc` address with --admin or "
                f"{ADDRESS_VARIABLE}"
            )
        return AdminError(f"admin address `{self._address}` answered {code.name}: {details}")
