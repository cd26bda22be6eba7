"""No balancer can send a call past an operator's override."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnroute.dataplane import DataPlaneError, Picker

BALANCERS = (
    {"type": "round_robin"},
    {"type": "least_request", "choice_count": "all"},
    {"type": "least_request", "choice_count": {"draws": 2}},
    {"type": "random"},
    {"type": "weighted_round_robin"},
    {"type": "peak_ewma"},
    {"type": "c3"},
    {"type": "prequal"},
    {"type": "latency_observation"},
    {"type": "ring_hash"},
    {"type": "maglev"},
)

endpoints = st.lists(
    st.tuples(
        st.sampled_from([None, None, "drain", "pin"]),
        st.booleans(),  # connects fail
        st.sampled_from([0.0, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=8,
)


def picker_of(balancer: dict[str, object], chosen: list[tuple[str | None, bool, float]]) -> Picker:
    config = {"name": "cart", "authorities": ["cart"], "balancer": balancer}
    picker = Picker(json.dumps(config).encode(), 7)
    rows = [
        {"address": f"10.0.0.{index + 1}:1", "static_weight": weight, "override": override}
        for index, (override, _, weight) in enumerate(chosen)
    ]
    picker.apply_endpoints(json.dumps({"endpoints": rows}).encode())
    for index, (_, failing, _) in enumerate(chosen):
        picker.set_failing(index, failing)
    return picker


@settings(deadline=None)
@given(balancer=st.sampled_from(BALANCERS), chosen=endpoints)
def test_picks_obey_drains_and_pins(
    balancer: dict[str, object], chosen: list[tuple[str | None, bool, float]]
) -> None:
    takes = {i for i, (override, _, weight) in enumerate(chosen) if override != "drain" and weight}
    healthy = {i for i in takes if not chosen[i][1]}
    usable = healthy or takes
    pinned = {i for i in usable if chosen[i][0] == "pin"}
    allowed = pinned or usable
    picker = picker_of(balancer, chosen)
    if not allowed:
        with pytest.raises(DataPlaneError):
            picker.pick(0)
        return
    for turn in range(24):
        index, reason = picker.pick(turn * 1_000_000)
        assert index in allowed
        expected = "panic" if not healthy else "pinned" if pinned else None
        assert reason == expected or (expected is None and reason not in ("panic", "pinned"))
