"""Live routing weights as messages of the admin API.

A classic balancer has one row of weights for every call; `learned` has one a request class, and
what it expects of each endpoint beside it. Both are read from the data plane when somebody asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError, error_info

EVERY_CLASS = "*"
"""The one request class of a balancer that does not tell classes apart."""

CLASSES_NAMED_MAX = 10
"""Classes that a refusal lists."""


class ScoresView(Protocol):
    """What tells the scores in force (attnroute.dataplane.DataPlane)."""

    def scores_in_force(self, service: str) -> bytes: ...


class Scores:
    """The scores of one service as they were when they were read."""

    def __init__(self, service: str, balancer: str, document: bytes) -> None:
        """document: what `DataPlane.scores_in_force` gave."""
        found: dict[str, Any] | None = json.loads(document)
        self._service = service
        self._balancer = balancer
        self._found = found or {}
        self._classes: list[dict[str, Any]] = self._found.get("classes") or []

    @property
    def version(self) -> tuple[object, ...]:
        """Changes with every table and every class; not while time passes."""
        names = (scores["request_class"] for scores in self._classes)
        return (self._found.get("table_epoch"), self._found.get("reason"), *names)

    def check_class(self, request_class: str) -> None:
        """Raises RefusalError if there is no such class; empty means every class."""
        names = [scores["request_class"] for scores in self._classes] or [EVERY_CLASS]
        if request_class in ("", *names):
            return
        known = ", ".join(f"`{name}`" for name in names[:CLASSES_NAMED_MAX])
        if len(names) > CLASSES_NAMED_MAX:
            known += f" and {len(names) - CLASSES_NAMED_MAX} more"
        raise RefusalError(
            grpc.StatusCode.NOT_FOUND,
            f"attnroute: service `{self._service}` has no request class `{request_class}`; "
            f"balancer `{self._balancer}` knows {known}",
            [error_info("REQUEST_CLASS_NOT_FOUND", request_class=request_class)],
        )

    def fill(
        self,
        answer: pb.GetWeightsResponse,
        rows: Sequence[pb.EndpointWeight],
        request_class: str,
    ) -> None:
        """Adds the classes asked for. rows: the endpoints in index order, with the weights that
        calls without a class of their own have."""
        answer.table_epoch = self._found.get("table_epoch", 0)
        answer.model = self._found.get("model", "")
        answer.reason = self._found.get("reason", self._balancer)
        if self._found.get("table_age_s") is not None:
            answer.table_age_s = self._found["table_age_s"]
        for scores in self._classes:
            if request_class in ("", scores["request_class"]):
                answer.classes.append(_class_weights(scores, rows))
        if not self._classes:
            answer.classes.append(pb.ClassWeights(request_class=EVERY_CLASS, endpoints=rows))


def _class_weights(scores: dict[str, Any], rows: Sequence[pb.EndpointWeight]) -> pb.ClassWeights:
    weights = pb.ClassWeights(request_class=scores["request_class"], endpoints=rows)
    # An endpoint set that has changed in between is read again with the next message.
    spread = scores["spread"] or [None] * len(rows)
    values = zip(weights.endpoints, scores["weights"], scores["predicted_s"], spread, strict=False)
    for row, weight, predicted_s, sigma in values:
        row.weight = weight
        row.predicted_latency_s = predicted_s
        if sigma is not None:
            row.spread = sigma
    return weights
