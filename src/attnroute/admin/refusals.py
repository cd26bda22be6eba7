"""Calls that are answered with a status other than OK, and the google.rpc details they carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2  # type: ignore[import-untyped]

ERROR_DOMAIN = "attnroute"
"""`domain` of every google.rpc.ErrorInfo."""


class RefusalError(Exception):
    """A call that is answered with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, message: str, details: Iterable[Message]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = tuple(details)


def refuse_field(field: str, message: str) -> NoReturn:
    """INVALID_ARGUMENT that names the field."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
    raise RefusalError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"attnroute: {message}",
        [error_details_pb2.BadRequest(field_violations=[violation])],
    )


def error_info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    """Why, for machines."""
    return error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata)
