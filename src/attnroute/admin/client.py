"""A small blocking client of the admin API, for commands and tests.

Answers are the messages of `attnroute._proto.admin.v1`. Everything that goes wrong is an AdminError
whose message says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.errors import AdminError

ADDRESS_DEFAULT = "127.0.0.1:15010"
"""Where a sidecar serves the admin API unless its policy says otherwise."""

ADDRESS_VARIABLE = "ATTNROUTE_ADMIN"
"""Environment variable that names another address."""

CALL_TIMEOUT_S = 10.0

RETRY_S = 0.2
"""Pause of `wait_ready` after a stream that broke."""

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

    def get_model(self) -> pb.GetModelResponse:
        """Which model scores, and what became of others. Raises AdminError."""
        return self._call("GetModel", pb.GetModelRequest(), pb.GetModelResponse)

    def set_model(self, action: pb.ModelAction, version: str = "") -> pb.GetModelResponse:
        """Promotes, rolls back, freezes or thaws. Raises AdminError."""
        request = pb.SetModelRequest(action=action, version=version)
        return self._call("SetModel", request, pb.GetModelResponse)

    def watch_weights(
        self, service: str, request_class: str = "", *, min_interval_ms: int = 0
    ) -> Generator[pb.GetWeightsResponse, None, None]:
        """The weights now and after each change, until closed. Raises AdminError."""
        request = pb.WatchWeightsRequest(
            service=service, request_class=request_class, min_interval_ms=min_interval_ms
        )
        return self._watch("WatchWeights", request, pb.GetWeightsResponse)

    def _watch(
        self, method: str, request: Any, response: Callable[..., _Message]
    ) -> Generator[_Message, None, None]:
        stream = self._channel.unary_stream(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,  # type: ignore[attr-defined]
        )(request)
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._explain(error) from error
        finally:
            stream.cancel()

    def pin(self, service: str, endpoint: str, *, duration: timedelta) -> pb.SetOverrideResponse:
        """Sends the calls of a service to its pinned endpoints only. Raises AdminError."""
        request = pb.SetOverrideRequest(
            service=service, endpoint=endpoint, override=pb.OVERRIDE_PIN, duration=duration
        )
        return self._call("SetOverride", request, pb.SetOverrideResponse)

    def clear_override(self, service: str, endpoint: str) -> pb.SetOverrideResponse:
        """Ends the override of an endpoint. Raises AdminError."""
        request = pb.SetOverrideRequest(
            service=service, endpoint=endpoint, override=pb.OVERRIDE_NONE
        )
        return self._call("SetOverride", request, pb.SetOverrideResponse)

    def drain(
        self, service: str, endpoint: str, *, duration: timedelta, wait: timedelta
    ) -> pb.DrainResponse:
        """Gives an endpoint no new calls and waits for those it has. Raises AdminError."""
        request = pb.DrainRequest(service=service, endpoint=endpoint, duration=duration, wait=wait)
        timeout_s = CALL_TIMEOUT_S + wait.total_seconds()
        return self._call("Drain", request, pb.DrainResponse, timeout_s=timeout_s)

    def list_picks(self, service: str, last: int) -> pb.ListPicksResponse:
        """The newest recorded picks of a service. Raises AdminError."""
        request = pb.ListPicksRequest(service=service, last=last)
        return self._call("ListPicks", request, pb.ListPicksResponse)

    def watch_picks(self, service: str, after: int) -> Generator[pb.Pick, None, None]:
        """The picks recorded after that number, until closed. Raises AdminError."""
        request = pb.WatchPicksRequest(service=service, after=after)
        return self._watch("WatchPicks", request, pb.Pick)

    def explain(
        self,
        service: str,
        method: str,
        *,
        message_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> pb.ExplainResponse:
        """The pick that would be made now for such a call. Raises AdminError."""
        request = pb.ExplainRequest(
            service=service, method=method, message_bytes=message_bytes, headers=headers
        )
        return self._call("Explain", request, pb.ExplainResponse)

    def service_of(self, endpoint: str) -> str:
        """The only service that has this endpoint. Raises AdminError."""
        names = [service.name for service in self.list_services().services]
        having = [
            name
            for name in names
            if any(row.address == endpoint for row in self.list_endpoints(name).endpoints)
        ]
        if len(having) == 1:
            return having[0]
        if having:
            raise AdminError(
                f"endpoint `{endpoint}` belongs to {', '.join(having)}; name one with --service"
            )
        raise AdminError(
            f"no service has an endpoint `{endpoint}`; configured are: {', '.join(names)}"
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Returns once the sidecar's health says SERVING. Raises AdminError after timeout_s."""
        ends_s = time.monotonic() + timeout_s
        said = "nobody answers there"
        watch = self._channel.unary_stream(
            f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        while (left_s := ends_s - time.monotonic()) > 0:
            # A stream that ends belongs to a sidecar that stopped: the next may be coming up.
            stream = watch(health_pb2.HealthCheckRequest(), timeout=left_s, wait_for_ready=True)
            try:
                for answer in stream:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                    said = "it says NOT_SERVING, and `/readyz` says why"
            except grpc.RpcError:
                time.sleep(min(RETRY_S, left_s))
            finally:
                stream.cancel()
        raise AdminError(
            f"the sidecar at admin address `{self._address}` was not ready within "
            f"{timeout_s:g} s: {said}"
        )

    def get_config(self) -> pb.GetConfigResponse:
        """The policy in force. Raises AdminError."""
        return self._call("GetConfig", pb.GetConfigRequest(), pb.GetConfigResponse)

    def _call(
        self,
        method: str,
        request: Any,
        response: Callable[..., _Message],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _Message:
        call: Any = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,  # type: ignore[attr-defined]
        )
        try:
            answer: _Message = call(request, timeout=timeout_s)
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
