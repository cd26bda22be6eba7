"""An explained pick as table, lines and JSON."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.unit.admin.test_explain import ANSWER
from tests.unit.cli.test_tables import rendered

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.explain import explain_message
from attnroute.cli.explained import explain_document, explain_lines, explain_table


def message(**changed: Any) -> pb.ExplainResponse:
    left_out = {"10.0.0.1:1": "", "10.0.0.2:1": "", "10.0.0.3:1": "ejected"}
    document = {**copy.deepcopy(ANSWER), **changed}
    return explain_message(json.dumps(document).encode(), left_out)


def test_the_cheapest_stands_first_and_says_so() -> None:
    lines = rendered(explain_table(message()), width=180).splitlines()
    assert "class /shop.Cart/Get;bytes=..1024: learned" in lines[0]
    assert lines[2].startswith("10.0.0.1:1")
    assert lines[2].endswith("chosen")
    assert "500.00 ms" in lines[2]
    assert lines[3].endswith("runner-up")
    assert lines[4].endswith("ejected")


def test_the_lines_name_runner_up_margin_and_table() -> None:
    assert explain_lines(message()) == [
        "chosen: 10.0.0.1:1 (table), then 10.0.0.2:1, 25.0 % dearer",
        "score table 9, 0.5 s old: measured latencies",
    ]
    assert "model 1.2.0" in explain_lines(message(model="1.2.0"))[1]
    nobody = message(chosen=None, runner_up=None, margin_s=None, reason=None, endpoints=[])
    assert explain_lines(nobody) == ["no endpoint can take the call"]


def test_a_classic_balancer_shows_weights() -> None:
    endpoints = [
        {"endpoint": address, "probability": weight}
        for address, weight in (("10.0.0.1:1", 0.75), ("10.0.0.2:1", 0.25))
    ]
    shown = rendered(explain_table(message(balancer="least_request", endpoints=endpoints)))
    assert "75.0 %" in shown
    assert "queue" not in shown


def test_json_has_every_term_and_null_for_what_is_not_known() -> None:
    document = explain_document(message())
    assert document["margin"] == 0.25
    first, second, third = document["endpoints"]
    assert set(first["terms"]) == {field.name for field in pb.CostTerms.DESCRIPTOR.fields}
    assert (first["terms"]["cost_queue_s"], first["weight"]) == (0.09375, 0.75)
    assert second["terms"]["report_age_s"] is None
    assert (third["cost_s"], third["terms"], third["why_not"]) == (None, None, "ejected")
    json.dumps(document)
