"""What the demo does to every balancer at the end: two endpoints join that are ill.

One fails each call at once, which looks fast and idle to whoever counts calls in flight; the other
takes calls and never answers. Both write down when a call reaches them, so the table can say how
long each balancer kept sending. Their failures stand there, apart from those of the comparison,
which has none.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from attnroute.demo.balancers import Balancer
from attnroute.demo.messages import CallHead, Sample

FAULTS = ("fails", "hangs")
"""What is wrong with each endpoint that joins."""

LOAD = 0.5
"""Share of the load in a turn: a call that hangs must be the fault of its endpoint alone."""

CALL_TIMEOUT_S = 1.0
"""Deadline of calls in a turn: so long a client waits for an endpoint that hangs."""

_TURN_SHARE, _TURN_S_MIN, _TURN_S_MAX = 0.5, 2 * CALL_TIMEOUT_S, 6.0


def turn_s(slice_s: float) -> float:
    """How long a balancer has to do with the two, beside slices of that length."""
    return min(_TURN_S_MAX, max(_TURN_S_MIN, _TURN_SHARE * slice_s))


class FaultyEndpoint(grpc.GenericRpcHandler):
    """Does what its fault says to every call.

    on_call gets the start of the order that a call belongs to, and when the call came; both in
    seconds of `time.monotonic`.
    """

    def __init__(
        self,
        fault: str,
        on_call: Callable[[float, float], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fault, self._on_call, self._now_s = fault, on_call, now_s

    def service(
        self,
        handler_call_details: grpc.HandlerCallDetails,  # noqa: ARG002
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Takes any method."""
        return grpc.unary_unary_rpc_method_handler(self._serve)

    async def _serve(
        self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        self._on_call(CallHead.parse(message).slice_start_s, self._now_s())
        if self._fault == "hangs":
            await asyncio.Event().wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this endpoint fails every call")
        raise AssertionError("abort returned")


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """What one ill endpoint got from one balancer."""

    calls: int
    sent_s: float | None
    """From the first call to the last; None without any."""


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One row of the table of faults."""

    balancer: str
    calls: int
    """That ended, whoever was picked for them."""
    errors: int
    by_fault: dict[str, FaultFigures]

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        row: dict[str, Any] = {
            "balancer": self.balancer,
            "calls": self.calls,
            "errors": self.errors,
        }
        for fault, figures in self.by_fault.items():
            sent_s = None if figures.sent_s is None else round(figures.sent_s, 3)
            row[fault] = {"calls": figures.calls, "sent_s": sent_s}
        return row


@dataclass
class FaultResults:
    """Takes the calls of every turn."""

    balancers: Sequence[Balancer]
    _ended: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _orders: dict[int, str] = field(default_factory=dict)
    _starts: dict[float, str] = field(default_factory=dict)
    _calls_s: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def begin(self, balancer: Balancer, order: int, start_s: float) -> None:
        """The calls of that order, which has that start, are this balancer's turn."""
        self._orders[order] = self._starts[start_s] = balancer.key

    def owns(self, sample: Sample) -> bool:
        """Takes a call that ended, if it belongs to a turn."""
        key = self._orders.get(sample.order)
        if key is None:
            return False
        counts = self._ended[key]
        counts[0] += 1
        counts[1] += sample.status != 0
        return True

    def reached(self, fault: str, start_s: float, at_s: float) -> None:
        """Takes a call that reached an ill endpoint."""
        key = self._starts.get(start_s)
        if key is not None:
            self._calls_s[key, fault].append(at_s)

    def figures(self) -> list[TurnFigures]:
        """One row per balancer that had its turn, in the order of the comparison."""
        played = [one for one in self.balancers if one.key in self._orders.values()]
        return [self._turn(balancer.key) for balancer in played]

    def _turn(self, key: str) -> TurnFigures:
        calls, errors = self._ended[key]
        return TurnFigures(key, calls, errors, {fault: self._of(key, fault) for fault in FAULTS})

    def _of(self, key: str, fault: str) -> FaultFigures:
        calls_s = self._calls_s.get((key, fault), [])
        return FaultFigures(len(calls_s), max(calls_s) - min(calls_s) if calls_s else None)
