"""The reasons of a pick as a message of the admin API.

The extension computes every term with the picker's own code and gives it as JSON; here it only
changes its form. Nothing is computed twice, so an explanation cannot disagree with a pick.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.refusals import refuse_field

METHOD_BYTES_MAX = 8_192
HEADERS_MAX = 100

NEVER_S = 1e8
"""Ages from here on say that there never was anything (the extension has 1e9)."""


class ExplainView(Protocol):
    """What explains a pick (attnroute.dataplane.DataPlane)."""

    def explain(self, service: str, question: bytes) -> bytes: ...


def request_json(request: pb.ExplainRequest) -> bytes:
    """The request as the extension takes it. Raises RefusalError."""
    if not request.method.startswith("/") or request.method.count("/") < 2:
        refuse_field(
            "method", f"`method` is `{request.method[:100]}`, expected `/package.Service/Method`"
        )
    if len(request.method.encode()) > METHOD_BYTES_MAX:
        refuse_field("method", f"`method` is longer than {METHOD_BYTES_MAX} bytes")
    if len(request.headers) > HEADERS_MAX:
        refuse_field("headers", f"`headers` has more than {HEADERS_MAX} entries")
    size = request.message_bytes if request.HasField("message_bytes") else None
    headers = {name.lower(): value for name, value in request.headers.items()}
    document = {"method": request.method, "message_bytes": size, "headers": headers}
    return json.dumps(document).encode()


def explain_message(answer: bytes, left_out: Mapping[str, str]) -> pb.ExplainResponse:
    """The answer of the extension as a message, without the time.

    left_out: every endpoint of the service, in index order, and why it would be left out if the
    picker left it out.
    """
    found = json.loads(answer)
    message = pb.ExplainResponse(
        service=found["service"],
        request_class=found["request_class"],
        balancer=found["balancer"],
        reason=found["reason"] or "",
        endpoint_epoch=found["endpoint_epoch"],
        table_epoch=found.get("table_epoch", 0),
        table_age_s=found.get("table_age_s"),
        model=found.get("model", ""),
        chosen=found["chosen"] or "",
        runner_up=found["runner_up"] or "",
        full_scan=found.get("full_scan", True),
    )
    compared = {row["endpoint"]: _endpoint(row) for row in found["endpoints"]}
    for address, why_not in left_out.items():
        row = compared.pop(address, None)
        message.endpoints.append(row or pb.ExplainedEndpoint(address=address, why_not=why_not))
    message.endpoints.extend(compared.values())  # the set has changed in between
    costs_s = {row.address: row.cost_s for row in message.endpoints}
    if found["margin_s"] is not None and (chosen_s := costs_s[message.chosen]) > 0:
        message.margin = found["margin_s"] / chosen_s
    return message


def _endpoint(row: dict[str, Any]) -> pb.ExplainedEndpoint:
    message = pb.ExplainedEndpoint(address=row["endpoint"], usable=True, weight=row["probability"])
    if "terms" not in row:
        return message
    read, terms = row["read"], row["terms"]
    message.cost_s = terms["weighted_s"]
    message.in_flight = round(read["own"])
    message.terms.CopyFrom(
        pb.CostTerms(
            rtt_s=read["rtt_s"],
            predicted_s=read["cost_s"],
            spread=row["spread"],
            mean_service_s=read["mean_service_s"],
            concurrency=read["concurrency"],
            in_flight_own=read["own"],
            in_flight_others=terms["calls"] - read["own"],
            in_flight=terms["calls"],
            report_age_s=read["report_age_s"] if read["report_age_s"] < NEVER_S else None,
            ratio=terms["ratio"],
            ratio_of_kind=terms["kind_ratio"],
            expected_s=terms["latency_s"],
            utilization=read["utilization"],
            errors=terms["errors"],
            cost_rtt_s=read["rtt_s"],
            cost_service_s=terms["service_s"],
            cost_queue_s=terms["wait_s"],
            cost_utilization_s=terms["utilization_s"],
            cost_congestion_s=terms["queue_s"],
            cost_class_congestion_s=terms["class_queue_s"],
            cost_error_s=terms["error_s"],
        )
    )
    return message
