"""Scorers beside the table and how far each is trusted, as a table and as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnroute._proto.admin.v1 import admin_pb2 as pb

_NONE = "-"


def with_gates(shown: RenderableType, scorers: Iterable[pb.ScorerGate]) -> RenderableType:
    """What is shown of one service, and below it the gates of its scorers where it has some."""
    rows = list(scorers)
    return Group(shown, Text(), gates_table(rows)) if rows else shown


def gates_table(scorers: Iterable[pb.ScorerGate]) -> Table:
    """One row per scorer of one service. The table has what they leave of the trust."""
    table = Table(
        title="trusted beside measured latencies",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("scorer", overflow="fold")
    table.add_column("version", overflow="fold")
    table.add_column("stage", no_wrap=True)
    for heading in ("weight", "say", "gain", "steps", "faults", "run"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for gate in scorers:
        table.add_row(
            gate.scorer,
            gate.version or _NONE,
            gate.stage,
            f"{gate.weight:.2f}",
            f"{gate.say:.2f}",
            f"{gate.gain:+.4f}",
            str(gate.steps),
            str(gate.faults),
            f"{gate.run_s * 1e3:.1f} ms" if gate.HasField("run_s") else _NONE,
            _trouble(gate),
        )
    return table


def gates_document(scorers: Iterable[pb.ScorerGate]) -> list[dict[str, Any]]:
    """The same as JSON: every field but the service, a run that never was as null."""
    return [
        {
            field.name: None
            if field.has_presence and not gate.HasField(field.name)
            else getattr(gate, field.name)
            for field in gate.DESCRIPTOR.fields
            if field.name != "service"
        }
        for gate in scorers
    ]


def _trouble(gate: pb.ScorerGate) -> Text:
    found = [
        name
        for name, is_so in (("benched", gate.benched), ("in conflict", gate.in_conflict))
        if is_so
    ]
    return Text(", ".join(found), style="red")
