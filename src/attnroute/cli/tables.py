"""Answers of the admin API as tables and as JSON documents: pure functions of a message."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.cli.gates import gates_document, with_gates

_NONE = "-"

_STATES: dict[int, tuple[str, str]] = {
    pb.ENDPOINT_STATE_USABLE: ("usable", "green"),
    pb.ENDPOINT_STATE_CONNECT_FAILING: ("connect failing", "red"),
    pb.ENDPOINT_STATE_WEIGHT_ZERO: ("weight zero", "yellow"),
    pb.ENDPOINT_STATE_DRAINED: ("drained", "yellow"),
    pb.ENDPOINT_STATE_EJECTED: ("ejected", "red"),
    pb.ENDPOINT_STATE_UNHEALTHY: ("unhealthy", "red"),
    pb.ENDPOINT_STATE_STANDBY: ("standby", "cyan"),
}


_OVERRIDES: dict[int, str] = {pb.OVERRIDE_DRAIN: "drained", pb.OVERRIDE_PIN: "pinned"}


def make_console() -> Console:
    """Standard output; colours only on a terminal and without NO_COLOR. Piped output is not cut to
    the width of a terminal that is not there."""
    if sys.stdout.isatty():
        return Console(no_color=True if os.environ.get("NO_COLOR") else None)
    return Console(no_color=True, width=200)


def state_name(state: int) -> str:
    """The state in words, as in the policy reference."""
    return _STATES.get(state, ("unknown", ""))[0]


def weights_view(answer: pb.GetWeightsResponse) -> RenderableType:
    """The weights, and below them the gates of scorers where the service has some."""
    return with_gates(weights_table(answer), answer.scorers)


def weights_table(answer: pb.GetWeightsResponse) -> Table:
    """One row per endpoint and request class."""
    table = _table(_weights_title(answer))
    many = len(answer.classes) > 1
    learned = any(
        row.HasField("predicted_latency_s") for one in answer.classes for row in one.endpoints
    )
    if many:
        table.add_column("request class", overflow="fold")
    table.add_column("endpoint", overflow="fold", min_width=15)
    expected = ("predicted", "spread") if learned else ()
    for heading in ("weight", "share", *expected, "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for weights in answer.classes:
        for row in weights.endpoints:
            share = _percent(row.share) if row.HasField("share") else _NONE
            cells: list[str | Text] = [weights.request_class] if many else []
            cells += [row.address, _percent(row.weight), share]
            if learned:
                cells.append(f"{row.predicted_latency_s * 1000:.1f} ms")
                cells.append(f"{row.spread:.2f}" if row.HasField("spread") else _NONE)
            table.add_row(*cells, str(row.in_flight), _state(row.state))
    return table


def _weights_title(answer: pb.GetWeightsResponse) -> str:
    title = f"{answer.service}: {answer.balancer}, endpoint epoch {answer.endpoint_epoch}"
    if answer.table_epoch:
        title += f", score table {answer.table_epoch} ({answer.reason})"
    return title


def weights_document(answer: pb.GetWeightsResponse) -> dict[str, Any]:
    """The answer as JSON: fractions as numbers, a share without picks as null."""
    return {
        "service": answer.service,
        "balancer": answer.balancer,
        "endpoint_epoch": answer.endpoint_epoch,
        "table_epoch": answer.table_epoch,
        "table_age_s": answer.table_age_s if answer.HasField("table_age_s") else None,
        "model": answer.model,
        "reason": answer.reason,
        "read_at": answer.read_at.ToJsonString(),
        "scorers": gates_document(answer.scorers),
        "classes": [
            {
                "request_class": weights.request_class,
                "endpoints": [
                    {
                        "address": row.address,
                        "weight": row.weight,
                        "share": row.share if row.HasField("share") else None,
                        "predicted_latency_s": (
                            row.predicted_latency_s if row.HasField("predicted_latency_s") else None
                        ),
                        "spread": row.spread if row.HasField("spread") else None,
                        "state": state_name(row.state).replace(" ", "_"),
                        "in_flight": row.in_flight,
                    }
                    for row in weights.endpoints
                ],
            }
            for weights in answer.classes
        ],
    }


def endpoints_table(answer: pb.ListEndpointsResponse) -> Table:
    """One row per endpoint."""
    table = _table(f"{answer.service}: endpoint epoch {answer.endpoint_epoch}")
    table.add_column("endpoint", overflow="fold", min_width=15)
    table.add_column("state", no_wrap=True)
    table.add_column("zone", overflow="fold")
    for heading in ("static weight", "in flight", "connections", "picks", "failures", "mean"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in answer.endpoints:
        table.add_row(
            row.address,
            _state(row.state),
            row.zone or _NONE,
            f"{row.static_weight:g}",
            str(row.in_flight),
            str(row.connections),
            str(row.picks_total),
            str(row.failures_total),
            f"{row.mean_latency_s * 1000:.1f} ms" if row.successes_total else _NONE,
        )
    return table


def endpoints_document(answer: pb.ListEndpointsResponse) -> dict[str, Any]:
    """The answer as JSON."""
    return {
        "service": answer.service,
        "endpoint_epoch": answer.endpoint_epoch,
        "endpoints": [
            {
                "address": row.address,
                "state": state_name(row.state).replace(" ", "_"),
                "zone": row.zone,
                "priority": row.priority,
                "labels": dict(row.labels),
                "static_weight": row.static_weight,
                "in_flight": row.in_flight,
                "connections": row.connections,
                "picks_total": row.picks_total,
                "successes_total": row.successes_total,
                "failures_total": row.failures_total,
                "mean_latency_s": row.mean_latency_s,
                "override": _override(row),
            }
            for row in answer.endpoints
        ],
    }


def pick_line(pick: pb.Pick) -> str:
    """One recorded pick in a line."""
    seen = [f"{one.address} [{one.in_flight}]" for one in pick.candidates]
    if hidden := pick.candidates_total - len(pick.candidates):
        seen.append(f"{hidden} more")
    second = f", then {pick.runner_up}" if pick.runner_up else ""
    return (
        f"{pick.time.ToJsonString()} {pick.method} -> {pick.endpoint} ({pick.reason}{second}) "
        f"of {', '.join(seen)}{_left_out(pick)}"
    )


def _left_out(pick: pb.Pick) -> str:
    if not pick.left_out:
        return ""
    names = list(pick.left_out)
    if hidden := pick.left_out_total - len(names):
        names.append(f"{hidden} more")
    return f", without {', '.join(names)}"


def pick_document(pick: pb.Pick) -> dict[str, Any]:
    """One recorded pick as JSON."""
    return {
        "number": pick.number,
        "time": pick.time.ToJsonString(),
        "service": pick.service,
        "method": pick.method,
        "request_class": pick.request_class,
        "endpoint": pick.endpoint,
        "runner_up": pick.runner_up or None,
        "reason": pick.reason,
        "endpoint_epoch": pick.endpoint_epoch,
        "candidates": [
            {
                "address": one.address,
                "in_flight": one.in_flight,
                "static_weight": one.static_weight,
                "weight": one.weight,
            }
            for one in pick.candidates
        ],
        "candidates_total": pick.candidates_total,
        "left_out": list(pick.left_out),
        "left_out_total": pick.left_out_total,
        "key": pick.key if pick.HasField("key") else None,
        "rng_key": pick.rng_key,
        "rng_counter": pick.rng_counter,
        "picked_ns": pick.picked_ns,
        "learned": json.loads(pick.learned_json) if pick.learned_json else None,
    }


def override_line(answer: pb.SetOverrideResponse | pb.DrainResponse) -> str:
    """What is in force now, in words."""
    where = f"{answer.service}: {answer.endpoint}"
    if not answer.HasField("override"):
        return f"{where} has no override"
    until = answer.override.expires_at.ToJsonString()
    return f"{where} {_OVERRIDES[answer.override.kind]} until {until}"


def override_document(answer: pb.SetOverrideResponse | pb.DrainResponse) -> dict[str, Any]:
    """The answer as JSON."""
    document: dict[str, Any] = {
        "service": answer.service,
        "endpoint": answer.endpoint,
        "override": _override(answer),
        "endpoint_epoch": answer.endpoint_epoch,
    }
    if isinstance(answer, pb.DrainResponse):
        document["in_flight"] = answer.in_flight
    return document


def _override(
    holder: pb.SetOverrideResponse | pb.DrainResponse | pb.Endpoint,
) -> dict[str, str] | None:
    if not holder.HasField("override"):
        return None
    kind = pb.Override.Name(holder.override.kind).removeprefix("OVERRIDE_").lower()
    return {"kind": kind, "expires_at": holder.override.expires_at.ToJsonString()}


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"


def _state(state: int) -> Text:
    name, style = _STATES.get(state, ("unknown", ""))
    return Text(name, style=style)
