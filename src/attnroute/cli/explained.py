"""An explained pick as a table, as lines and as a JSON document."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from rich.table import Table
from rich.text import Text

from attnroute._proto.admin.v1 import admin_pb2 as pb

_NONE = "-"

# Heading, and the terms whose sum it shows: what a reader wants to tell apart first.
_COSTS = (
    ("rtt", ("cost_rtt_s",)),
    ("service", ("cost_service_s",)),
    ("queue", ("cost_queue_s",)),
    ("congestion", ("cost_utilization_s", "cost_congestion_s", "cost_class_congestion_s")),
    ("errors", ("cost_error_s",)),
)


def explain_table(answer: pb.ExplainResponse) -> Table:
    """One row per endpoint, the cheapest first."""
    table = Table(
        title=f"{answer.service}, class {answer.request_class}: {answer.balancer}",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("endpoint", overflow="fold", min_width=15)
    learned = any(row.HasField("terms") for row in answer.endpoints)
    headings = ["cost", *(heading for heading, _ in _COSTS)] if learned else ["weight"]
    for heading in (*headings, "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    if learned:
        for heading in ("predicted", "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in sorted(answer.endpoints, key=_rank):
        cells = _learned_cells(row) if learned else [_percent(row), str(row.in_flight)]
        table.add_row(row.address, *cells, _verdict(answer, row))
    return table


def explain_lines(answer: pb.ExplainResponse) -> list[str]:
    """What was chosen, why, and how clearly."""
    if not answer.chosen:
        return ["no endpoint can take the call"]
    line = f"chosen: {answer.chosen} ({answer.reason})"
    if answer.runner_up:
        line += f", then {answer.runner_up}"
    if answer.HasField("margin"):
        line += f", {answer.margin * 100:.1f} % dearer"
    lines = [line]
    if answer.table_epoch:
        age = f", {answer.table_age_s:.1f} s old" if answer.HasField("table_age_s") else ""
        scores = f"model {answer.model}" if answer.model else "measured latencies"
        lines.append(f"score table {answer.table_epoch}{age}: {scores}")
    return lines


def explain_document(answer: pb.ExplainResponse) -> dict[str, Any]:
    """The answer as JSON; what is not known is null."""
    document: dict[str, Any] = {
        field.name: _plain(answer, field.name)
        for field in answer.DESCRIPTOR.fields
        if field.name not in ("endpoints", "read_at")
    }
    document["read_at"] = answer.read_at.ToJsonString()
    document["endpoints"] = [
        {
            **{
                field.name: _plain(row, field.name)
                for field in row.DESCRIPTOR.fields
                if field.name != "terms"
            },
            "terms": _terms(row),
        }
        for row in answer.endpoints
    ]
    return document


def _terms(row: pb.ExplainedEndpoint) -> dict[str, Any] | None:
    if not row.HasField("terms"):
        return None
    shown = MessageToDict(
        row.terms, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {field.name: shown.get(field.name) for field in row.terms.DESCRIPTOR.fields}


def _plain(message: Any, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    return getattr(message, name)


def _rank(row: pb.ExplainedEndpoint) -> tuple[bool, float, float]:
    cost_s = row.cost_s if row.HasField("cost_s") else float("inf")
    return (not row.usable, cost_s, -row.weight)


def _learned_cells(row: pb.ExplainedEndpoint) -> list[str]:
    if not row.HasField("terms"):
        return [_NONE] * (1 + len(_COSTS)) + [str(row.in_flight), _NONE, _NONE]
    terms = row.terms
    costs = [_ms(sum(getattr(terms, name) for name in names)) for _, names in _COSTS]
    total = _ms(row.cost_s) if row.HasField("cost_s") else _NONE
    in_flight = f"{terms.in_flight_own:g}+{terms.in_flight_others:.1f}"
    return [total, *costs, in_flight, _ms(terms.predicted_s), f"{terms.ratio_of_kind:.2f}"]


def _verdict(answer: pb.ExplainResponse, row: pb.ExplainedEndpoint) -> Text:
    if not row.usable:
        return Text(row.why_not or "not usable", style="red")
    if row.address == answer.chosen:
        return Text("chosen", style="green")
    if row.address == answer.runner_up:
        return Text("runner-up")
    return Text(row.why_not)


def _percent(row: pb.ExplainedEndpoint) -> str:
    return f"{row.weight * 100:.1f} %" if row.HasField("weight") else _NONE


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
