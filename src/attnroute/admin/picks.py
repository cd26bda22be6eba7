"""Recorded picks as messages of the admin API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import refuse_field
from attnroute.telemetry.picks import PickRecord

LAST_DEFAULT = 20
LAST_MAX = 1_000

BATCH = 100
"""Records that a watch holds at a time."""


class PickView(Protocol):
    """What the admin API reads of recorded picks (attnroute.telemetry.picks.PickHistory)."""

    def number(self, service: str) -> int: ...
    @property
    def dropped(self) -> int: ...
    def last(self, service: str, count: int) -> Sequence[PickRecord]: ...
    def after(self, service: str, number: int, count: int) -> Sequence[PickRecord]: ...


def last_of(request: pb.ListPicksRequest) -> int:
    """How many a request asks for. Raises RefusalError."""
    if request.last > LAST_MAX:
        refuse_field("last", f"`last` is {request.last}, expected 1 to {LAST_MAX}, or 0 for 20")
    return request.last or LAST_DEFAULT


def pick_message(record: PickRecord, every_class: str) -> pb.Pick:
    """One recorded pick. every_class: stands where classes are not told apart."""
    row = record.row
    seconds, nanos = divmod(row["at_ns"], 1_000_000_000)
    return pb.Pick(
        number=record.number,
        time=Timestamp(seconds=seconds, nanos=nanos),
        service=row["service"],
        method=row["method"],
        request_class=row["request_class"] or every_class,
        endpoint=row["endpoint"],
        runner_up=row["runner_up"] or "",
        reason=row["reason"],
        endpoint_epoch=row["endpoint_epoch"],
        candidates=[pb.PickCandidate(**candidate) for candidate in row["candidates"]],
        candidates_total=row["candidates_total"],
        key=row["key"],
        rng_key=row["rng_key"],
        rng_counter=row["rng_counter"],
        picked_ns=row["picked_ns"],
        left_out=row["left_out"],
        left_out_total=row["left_out_total"],
        learned_json="" if row.get("learned") is None else json.dumps(row["learned"]),
    )
