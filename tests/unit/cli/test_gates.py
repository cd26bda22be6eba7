"""Gates of scorers below the tables of a service, and in its JSON."""

from __future__ import annotations

import json

from tests.unit.cli.test_tables import rendered, weights_answer

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.cli.gates import gates_document, gates_table
from attnroute.cli.tables import weights_document, weights_table, weights_view


def gates() -> list[pb.ScorerGate]:
    return [
        pb.ScorerGate(
            service="cart",
            scorer="attention",
            version="1.4.0",
            stage="serving",
            weight=0.93,
            say=1.0,
            gain=0.0123,
            steps=40,
            run_s=0.0042,
        ),
        pb.ScorerGate(
            service="cart",
            scorer="by_generation",
            stage="plugin",
            gain=-0.5,
            faults=3,
            benched=True,
        ),
    ]


def test_each_scorer_has_a_row_with_its_trust_and_its_trouble() -> None:
    _, header, first, second = rendered(gates_table(gates()), width=120).splitlines()
    assert header.split() == [
        *("scorer", "version", "stage", "weight", "say", "gain", "steps", "faults", "run")
    ]
    assert first.split() == [
        *("attention", "1.4.0", "serving", "0.93", "1.00", "+0.0123", "40", "0", "4.2", "ms")
    ]
    assert second.split() == [
        *("by_generation", "-", "plugin", "0.00", "0.00", "-0.5000", "0", "3", "-", "benched")
    ]
    both = pb.ScorerGate(scorer="a", benched=True, in_conflict=True)
    assert rendered(gates_table([both]), width=120).endswith("benched, in conflict")


def test_gates_stand_below_the_weights_where_there_are_scorers() -> None:
    answer = weights_answer()
    alone = rendered(weights_table(answer))
    assert rendered(weights_view(answer)) == alone
    answer.scorers.extend(gates())
    shown = rendered(weights_view(answer))
    assert shown == f"{alone}\n\n{rendered(gates_table(gates()))}"


def test_json_has_every_figure_of_a_gate() -> None:
    answer = weights_answer()
    assert weights_document(answer)["scorers"] == []
    answer.scorers.extend(gates())
    first, second = weights_document(answer)["scorers"]
    assert set(first) == {field.name for field in pb.ScorerGate.DESCRIPTOR.fields} - {"service"}
    assert (first["gain"], first["run_s"], second["run_s"]) == (0.0123, 0.0042, None)
    assert json.loads(json.dumps(gates_document(gates()))) == [first, second]
