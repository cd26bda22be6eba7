"""What the demo's processes say to each other.

Calls carry a fixed-layout head, so that an endpoint can be emulated without any state beside its
seed: the start of the slice (the clock of the weather), the round (which weather) and how much work
the call is. Between the demo and its own processes go JSON lines: a specification first, then
orders one way and samples the other.

Slice times are seconds of `time.monotonic`, which all processes of a machine share on Linux and
macOS.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

_CALL = struct.Struct("<ddI")
_REPLY = struct.Struct("<Idd")


@dataclass(frozen=True, slots=True)
class CallHead:
    """The first bytes of a request message; padding up to the size of its class follows."""

    slice_start_s: float
    work: float
    """Relative to the mean of the class on the endpoint."""
    round_number: int

    def message(self, message_bytes: int) -> bytes:
        """A request message of exactly that many bytes."""
        head = _CALL.pack(self.slice_start_s, self.work, self.round_number)
        return head.ljust(message_bytes, b"\0")

    @classmethod
    def parse(cls, message: bytes) -> CallHead:
        """Raises ValueError for a message that is too short."""
        if len(message) < _CALL.size:
            raise ValueError(f"a message of {len(message)} bytes has no room for the head")
        return cls(*_CALL.unpack_from(message))


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer message."""

    endpoint: int
    wait_s: float
    """In the endpoint's queue."""
    service_s: float
    """With a worker."""

    def message(self) -> bytes:
        """The answer's bytes."""
        return _REPLY.pack(self.endpoint, self.wait_s, self.service_s)

    @classmethod
    def parse(cls, message: bytes) -> Reply:
        """Raises struct.error for a message of another size."""
        return cls(*_REPLY.unpack(message))


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """Tells an endpoint process what to be; answered by `{"address": "127.0.0.1:port"}`."""

    world: str
    index: int
    seed: int
    fault: str = ""
    """One of `faults.FAULTS`; empty: it is well."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Tells a load process where to call; answered by `{"ready": true}`."""

    world: str
    target: str
    seed: int
    client: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """Calls to make from start_s on. An order ends the sending of an endless one before it."""

    number: int
    round_number: int
    start_s: float
    seconds: float
    """`inf`: until the next order. Others are sent to their end, however late it gets, so that
    every slice of a round has the same calls."""
    calls_per_s: float
    purpose: str
    """Part of the seed: orders with equal round, purpose and rate make the same calls."""
    timeout_s: float | None = None
    """Deadline of its calls; None: the load's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished call, as a row of numbers on the wire."""

    order: int
    offset_s: float
    """Scheduled arrival, from the start of the order."""
    lateness_s: float
    """How much later it was sent."""
    latency_s: float
    """From the scheduled arrival to the answer."""
    status: int
    """gRPC status code; 0 is OK."""
    endpoint: int
    """-1 where no endpoint answered, as in the next two."""
    wait_s: float
    service_s: float
    detail: str = ""
    """Message of a failed call."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_spec(spec: EndpointSpec | LoadSpec | Order) -> bytes:
    """One line of JSON with the fields by name."""
    return encode(asdict(spec))


def encode_samples(samples: list[Sample]) -> bytes:
    """One line with a row of values for each sample."""
    return encode({"samples": [astuple(sample) for sample in samples]})
