"""Models as messages of the admin API, and what an operator may do with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import RefusalError, error_info, refuse_field
from attnroute.rollout import RolloutError, ScorersState, SeatState, Standing

__all__ = ["ModelView", "gates", "model_message", "set_model"]


class ModelControl(Protocol):
    """What changes the rollout (attnroute.rollout.Rollout)."""

    def promote(self, version: str) -> Standing: ...
    def roll_back(self) -> Standing: ...
    def freeze(self, frozen: bool) -> None: ...  # noqa: FBT001 - a state, not an option


class ModelView(Protocol):
    """What the admin API reads of scorers beside the table (attnroute.scorers.Scorers)."""

    @property
    def rollout(self) -> ModelControl: ...
    def state(self) -> ScorersState: ...


def model_message(state: ScorersState) -> pb.GetModelResponse:
    """How things stand."""
    rollout = state.rollout
    answer = pb.GetModelResponse(
        source=state.source,
        channel=state.channel,
        waiting=rollout.waiting,
        frozen=rollout.frozen,
        scorers=gates(state.seats),
        history=[_version(standing) for standing in rollout.history],
    )
    if rollout.serving is not None:
        answer.serving.CopyFrom(_version(rollout.serving.standing))
    if rollout.candidate is not None:
        answer.candidate.CopyFrom(_version(rollout.candidate.standing))
    if rollout.previous is not None:
        answer.previous.CopyFrom(_version(rollout.previous))
    return answer


def gates(seats: Iterable[SeatState], service: str = "") -> list[pb.ScorerGate]:
    """Scorers as messages; service: of that one alone."""
    return [_gate(seat) for seat in seats if service in ("", seat.service)]


def set_model(view: ModelView, request: pb.SetModelRequest) -> pb.GetModelResponse:
    """Does what is asked for. Raises RefusalError."""
    if request.version and request.action != pb.MODEL_ACTION_PROMOTE:
        refuse_field("version", "`version` goes with `MODEL_ACTION_PROMOTE` only; leave it out")
    try:
        if request.action == pb.MODEL_ACTION_PROMOTE:
            view.rollout.promote(request.version)
        elif request.action == pb.MODEL_ACTION_ROLL_BACK:
            view.rollout.roll_back()
        elif request.action in (pb.MODEL_ACTION_FREEZE, pb.MODEL_ACTION_THAW):
            view.rollout.freeze(request.action == pb.MODEL_ACTION_FREEZE)
        else:
            refuse_field("action", f"`action` is {request.action}, expected one that the API names")
    except RolloutError as error:
        raise RefusalError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"attnroute: {error}",
            [error_info("MODEL_NOT_THERE")],
        ) from None
    return model_message(view.state())


def _version(standing: Standing) -> pb.ModelVersion:
    seconds, micros = divmod(round(standing.changed_at_s * 1e6), 1_000_000)
    return pb.ModelVersion(
        name=standing.name,
        version=standing.version,
        manifest_sha256=standing.sha256,
        stage=f"MODEL_STAGE_{standing.stage.upper()}",
        reason=standing.reason,
        changed_at=Timestamp(seconds=seconds, nanos=micros * 1000),
    )


def _gate(seat: SeatState) -> pb.ScorerGate:
    return pb.ScorerGate(
        service=seat.service,
        scorer=seat.scorer,
        version=seat.version,
        stage=seat.stage,
        weight=seat.weight,
        say=seat.say,
        gain=seat.gd,
        steps=seat.steps,
        in_conflict=seat.in_conflict,
        benched=seat.on_bench,
        faults=seat.faults,
        repaired_values=seat.repaired,
        conflicts=seat.conflicts,
        runs=seat.runs,
        skipped=seat.skipped,
        late=seat.late,
        run_s=seat.took_s / seat.runs if seat.runs else None,
    )
