"""Explanations of picks, against the formulas of docs/model.md in numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.unit.learning.test_scores import MS, SECOND, learner, scores
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from attnroute.dataplane import ConfigError, Picker, replay

UNAVAILABLE = 14


def busy(seed: int) -> Picker:
    """Eight endpoints with calls in flight, reports, errors and surprises."""
    rng = np.random.default_rng(seed)
    made = learner(8, overload_split=bool(seed % 2))
    cost_s = rng.uniform(0.005, 0.05, (3, 8)).astype(np.float32)
    made.publish_scores(**scores(made, cost_s) | {"sidecars": 5, "model": "m"})
    for step in range(300):
        now_ns = SECOND + step * 7 * MS
        index, _ = made.pick(now_ns, path="/a" if step % 3 else "/b")
        if rng.random() < 0.8:
            report = OrcaLoadReport(application_utilization=rng.uniform(0, 1.2))
            report.named_metrics["attnroute.inflight"] = float(rng.integers(0, 9))
            status = UNAVAILABLE if rng.random() < 0.1 else 0
            latency_ns = int(rng.integers(1, 200)) * MS
            message = report.SerializeToString() if rng.random() < 0.7 else None
            made.finished(index, now_ns + 3 * MS, latency_ns, status, message)
    return made


def explained(made: Picker, method: str, now_ns: int) -> dict[str, Any]:
    question = json.dumps({"method": method, "message_bytes": 5, "headers": {"x-a": "b"}})
    answer: dict[str, Any] = json.loads(made.explain(question.encode(), now_ns))
    return answer


@pytest.mark.parametrize("seed", range(4))
def test_costs_are_those_of_the_formulas(seed: int) -> None:
    made = busy(seed)
    answer = explained(made, "/a", 4 * SECOND)
    k = answer["factors"]
    keys = answer["endpoints"][0]["read"].keys()
    v = {key: np.array([row["read"][key] for row in answer["endpoints"]]) for key in keys}
    fresh = np.exp(-v["report_age_s"] * k["report_fade"])
    others = np.maximum(0, fresh * v["surplus"] + (1 - fresh) * v["others"])
    n = v["own"] + others + k["peers"] * np.maximum(0, v["own"] - v["own_reported"])
    bend, c, sbar = 0.15 + 0.5 * (1 - fresh), v["concurrency"], v["mean_service_s"]
    wait = bend * np.logaddexp(0, (n - c + 1) / bend) / c * sbar
    d, dk = (np.exp(-v[key] * k["ratio_fade"]) for key in ("ratio_age_s", "kind_age_s"))
    r = (v["measured_s"] * d + 10 * sbar) / (v["expected_s"] * d + 10 * sbar)
    r = r.clip(0.2, 10)
    rk = (v["kind_measured_s"] * dk + 3 * sbar * r) / (v["kind_expected_s"] * dk + 3 * sbar)
    service = rk.clip(0.2, 10) * v["cost_s"]
    u = np.minimum(v["utilization"], 0.95)
    e = v["errors"] * np.exp(-v["answer_age_s"] * k["error_fade"])
    cost = v["rtt_s"] + service + r * wait + 0.2 * service * u / (1 - u)
    cost += (0.3 * sbar + service) * (n / c) ** 3 + np.where(e > 0.02, e, 0)
    found = np.array([row["terms"]["cost_s"] for row in answer["endpoints"]])
    assert found == pytest.approx(cost, rel=1e-3)
    assert len({round(value, 6) for value in found}) == 8
    best = answer["endpoints"][int(np.argmin(cost))]["endpoint"]
    assert answer["chosen"] == best
    assert answer["reason"] == "learned"
    assert answer["margin_s"] == pytest.approx(float(np.diff(np.sort(cost))[0]), rel=0.05)


def test_a_classic_balancer_explains_its_weights() -> None:
    config = {"name": "cart", "authorities": [], "balancer": {"type": "least_request"}}
    made = Picker(json.dumps(config).encode(), 1)
    assert explained(made, "/a", 0)["reason"] is None
    rows = [{"address": f"10.0.0.{number}:80"} for number in (1, 2)]
    made.apply_endpoints(json.dumps({"endpoints": rows}).encode())
    made.pick(0)
    answer = explained(made, "/a", 0)
    assert (answer["balancer"], answer["reason"]) == ("least_request", "least_request")
    assert [row["probability"] for row in answer["endpoints"]].count(1.0) == 1


@pytest.mark.parametrize("question", [b"", b"[]", b'{"method": 1}', b'{"method": "/a", "x": 1}'])
def test_what_is_no_question_is_refused(question: bytes) -> None:
    with pytest.raises(ConfigError):
        learner().explain(question)


@pytest.mark.parametrize("record", [b"", b"{}", b'{"learned": {"factors": {}, "compared": []}}'])
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(ConfigError):
        replay(record)
