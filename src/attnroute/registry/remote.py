"""A registry as operators' commands see it: everything it has, and changes of its channels."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.bundle import DEFAULT_LIMITS, BundleLimits
from attnroute.errors import ConflictError, RegistryError
from attnroute.registry.cache import Cache
from attnroute.registry.fetch import CHANNEL_OPTIONS, DamagedError, Fetcher
from attnroute.registry.messages import (
    SERVICE,
    MessageError,
    read_channel,
    read_listing,
    reference,
)
from attnroute.registry.types import ChannelState, Listing

__all__ = ["RemoteRegistry"]

_Answer = TypeVar("_Answer")


class RemoteRegistry:
    """Over one connection, for the length of a `async with`. Every method raises RegistryError with
    a sentence that says what to do. timeout_s: for each call, and for each part of a file."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._directory = tempfile.TemporaryDirectory(prefix="attnroute-")

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()
        self._directory.cleanup()

    async def listing(self, name: str = "") -> Listing:
        """Everything, or what there is of one name."""
        call = self._channel.unary_unary(
            f"/{SERVICE.full_name}/List",
            request_serializer=pb.ListRequest.SerializeToString,
            response_deserializer=pb.ListResponse.FromString,
        )
        request: Any = call(pb.ListRequest(name=name), timeout=self._timeout_s)
        answer = await self._asked(request)
        try:
            return read_listing(answer)
        except MessageError as error:
            raise RegistryError(
                f"{self._address}: the answer makes no sense: {error}; is it a trainer?"
            ) from error

    async def point(
        self,
        name: str,
        channel: str,
        version: str,
        *,
        expected_generation: int,
        reason: str,
        frozen: bool,
    ) -> ChannelState:
        """Points a channel at a version, as `Store.point` does for an operator."""
        call = self._channel.unary_unary(
            f"/{SERVICE.full_name}/SetChannel",
            request_serializer=pb.SetChannelRequest.SerializeToString,
            response_deserializer=pb.ChannelState.FromString,
        )
        request: Any = call(
            pb.SetChannelRequest(
                name=name,
                channel=channel,
                bundle=reference(name, version, ""),
                expected_generation=expected_generation,
                frozen=frozen,
                reason=reason,
            ),
            timeout=self._timeout_s,
        )
        return read_channel(await self._asked(request))

    async def fetch(self, state: ChannelState, *, limits: BundleLimits = DEFAULT_LIMITS) -> Path:
        """The files of a bundle in a directory that goes with this object. Raises BundleError
        too."""
        fetcher = Fetcher(
            self._channel, message_s=self._timeout_s, fetch_s=600.0, fetched=lambda _: None
        )
        partial = Cache(Path(self._directory.name), state.name, limits).partial(state)
        partial.open()
        try:
            await self._asked(fetcher.fetch(partial, state))
            return partial.finish()
        except DamagedError as error:
            raise RegistryError(
                f"{self._address}: the files of `{state.version}` are not those that its manifest "
                "names; publish it again"
            ) from error
        except TimeoutError as error:
            raise RegistryError(
                f"{self._address}: no answer within {self._timeout_s:g} s; is it well?"
            ) from error
        finally:
            partial.close()

    async def _asked(self, call: Awaitable[_Answer]) -> _Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            code, words = error.code(), error.details() or ""
            if code is grpc.StatusCode.ABORTED:
                raise ConflictError(words) from error
            if code in (
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            ):
                raise RegistryError(f"{self._address}: {words}") from error
            raise RegistryError(
                f"{self._address}: no registry answers ({code.name}: {words}); name the "
                "`fleet.address` of a trainer with a `registry`"
            ) from error
