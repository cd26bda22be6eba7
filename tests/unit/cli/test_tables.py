"""Tables and JSON documents of the commands that ask a sidecar, as functions of an answer."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console, RenderableType

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin import client
from attnroute.cli import endpoints, weights
from attnroute.cli.tables import (
    endpoints_document,
    endpoints_table,
    make_console,
    weights_document,
    weights_table,
)


def rendered(table: RenderableType, width: int = 100) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def weights_answer() -> pb.GetWeightsResponse:
    rows = [
        pb.EndpointWeight(
            address="10.0.0.1:50051",
            weight=0.75,
            share=0.7213,
            state=pb.ENDPOINT_STATE_USABLE,
            in_flight=12,
        ),
        pb.EndpointWeight(
            address="10.0.0.2:50051", weight=0.25, state=pb.ENDPOINT_STATE_CONNECT_FAILING
        ),
        pb.EndpointWeight(address="unix:/run/c.sock", state=pb.ENDPOINT_STATE_WEIGHT_ZERO),
    ]
    answer = pb.GetWeightsResponse(service="cart", balancer="least_request", endpoint_epoch=7)
    answer.read_at.FromJsonString("2026-01-02T03:04:05Z")
    answer.classes.add(request_class="*", endpoints=rows)
    return answer


def endpoints_answer() -> pb.ListEndpointsResponse:
    return pb.ListEndpointsResponse(
        service="cart",
        endpoint_epoch=7,
        endpoints=[
            pb.Endpoint(
                address="10.0.0.1:50051",
                state=pb.ENDPOINT_STATE_USABLE,
                zone="eu-1a",
                labels={"generation": "new"},
                static_weight=1.5,
                in_flight=12,
                connections=2,
                picks_total=1000,
                successes_total=990,
                failures_total=10,
                mean_latency_s=0.01234,
            ),
            pb.Endpoint(address="10.0.0.2:50051", state=pb.ENDPOINT_STATE_CONNECT_FAILING),
        ],
    )


def test_weights_table() -> None:
    assert rendered(weights_table(weights_answer())) == (
        "cart: least_request, endpoint epoch 7\n"
        "endpoint          weight   share  in flight  state\n"
        "10.0.0.1:50051    75.0 %  72.1 %         12  usable\n"
        "10.0.0.2:50051    25.0 %       -          0  connect failing\n"
        "unix:/run/c.sock   0.0 %       -          0  weight zero"
    )


def test_several_classes_get_a_column() -> None:
    answer = weights_answer()
    answer.classes.add(
        request_class="/shop.Cart/Add",
        endpoints=[pb.EndpointWeight(address="10.0.0.1:50051", weight=1.0)],
    )
    text = rendered(weights_table(answer))
    assert "request class" in text
    assert "/shop.Cart/Add" in text


def test_learned_weights_show_what_is_expected() -> None:
    answer = weights_answer()
    answer.table_epoch, answer.reason = 3, "table"
    answer.classes[0].endpoints[0].predicted_latency_s = 0.0125
    answer.classes[0].endpoints[0].spread = 0.25
    title, header, first, *_ = rendered(weights_table(answer)).splitlines()
    assert title.endswith("endpoint epoch 7, score table 3 (table)")
    assert header.split()[:5] == ["endpoint", "weight", "share", "predicted", "spread"]
    assert first.split()[5:8] == ["12.5", "ms", "0.25"]


def test_endpoints_table() -> None:
    text = rendered(endpoints_table(endpoints_answer()), width=120)
    header, first, second = text.splitlines()[1:]
    assert [" ".join(line.split()) for line in (header, first, second)] == [
        "endpoint state zone static weight in flight connections picks failures mean",
        "10.0.0.1:50051 usable eu-1a 1.5 12 2 1000 10 12.3 ms",
        "10.0.0.2:50051 connect failing - 0 0 0 0 0 -",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_table_is_wider_than_the_terminal_or_loses_an_address(width: int) -> None:
    for table in (weights_table(weights_answer()), endpoints_table(endpoints_answer())):
        text = rendered(table, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "10.0.0.2:50051" in text


def test_weights_document() -> None:
    document = weights_document(weights_answer())
    first, second, third = document["classes"][0]["endpoints"]
    assert document["read_at"] == "2026-01-02T03:04:05Z"
    assert first == {
        "address": "10.0.0.1:50051",
        "weight": 0.75,
        "share": 0.7213,
        "predicted_latency_s": None,
        "spread": None,
        "state": "usable",
        "in_flight": 12,
    }
    assert (second["share"], second["state"]) == (None, "connect_failing")
    assert third["state"] == "weight_zero"


def test_endpoints_document_has_every_field_of_the_message() -> None:
    document = endpoints_document(endpoints_answer())
    names = {field.name for field in pb.Endpoint.DESCRIPTOR.fields}
    assert set(document["endpoints"][0]) == names
    assert document["endpoints"][0]["labels"] == {"generation": "new"}


def test_piped_output_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(weights_table(weights_answer()))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("command", [weights.command, endpoints.command])
def test_the_option_repeats_the_client_s_constants(command: Any) -> None:
    (option,) = (one for one in command.params if one.name == "admin")
    assert option.default == client.ADDRESS_DEFAULT
    assert option.envvar == client.ADDRESS_VARIABLE
