"""Features by hand, and what must hold of them whatever the facts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.facts import facts

from attnroute.features import schema
from attnroute.features.extract import (
    age_step,
    extract,
    method_slot,
    quantise,
    request_class_row,
)
from attnroute.features.facts import Facts
from attnroute.features.schema import (
    CLASS_FEATURES,
    ENDPOINT_FEATURES,
    PAIR_FEATURES,
    FeatureError,
    FeatureSpec,
    columns,
    schema_hash,
)
from attnroute.features.table import Estimate, Sums


def column(specs: tuple[FeatureSpec, ...], name: str) -> int:
    return [spec.name for spec in specs].index(name)


def by_hand() -> Facts:
    """One class, two endpoints: 8 calls each of 10 and of 30 ms."""
    sums = Sums(
        np.array([[0.08, 0.24]]),
        np.array([[8.0, 8.0]]),
        np.array([0.08, 0.24]),
        np.array([8.0, 8.0]),
    )
    table = Estimate(
        0.02,
        np.array([0.02]),
        np.array([0.5, 2.0]),
        np.ones((1, 2)),
        np.array([[0.01, 0.03]]),
        np.array([0.01, 0.03]),
    )
    recent = Sums(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.array([0.01, 0]), np.array([1.0, 0]))
    return replace(
        facts(("/a.B/C;bytes=1024..16384",), 2),
        sums=sums,
        table=table,
        fast=Sums(np.array([[0.05, 0.0]]), np.array([[2.0, 0.0]]), np.zeros(2), np.zeros(2)),
        recent=recent,
        utilization=np.array([0.5, np.nan]),
        inflight=np.array([np.e - 1, np.nan]),
        error_share=np.array([0.25, np.nan]),
        age_s=np.array([12.0, np.inf]),
        zone_match=np.array([1.0, np.nan]),
        labels=({"zone": "z1", "region": "r"}, {}),
    )


def test_endpoint_columns_by_hand() -> None:
    rows = extract(by_hand()).endpoint
    expected = {
        "factor": (math.log(0.5), math.log(2)),
        # (0.01 + 0.004)/(0.02 + 0.004) and nothing over nothing.
        "fast_factor": (math.log(14 / 24), 0.0),
        "utilization": (0.5, 0.0),
        "utilization_known": (1.0, 0.0),
        "inflight": (1.0, 0.0),
        "error_share": (0.25, 0.0),
        "age": (math.log(3) / 3, math.log(1 + 3840 / 5) / 3),
        "age_20": (math.exp(-0.5), 0.0),
        "age_60": (math.exp(-10 / 60), 0.0),
        "zone_match": (1.0, 0.5),
    }
    slot = method_slot("/a.B/C")
    # expected_s = 8 * 20 ms * f; the prior is two calls of its mean.
    expected[f"kind_ratio_{slot}"] = (
        math.log((0.08 + 0.02) / (0.08 + 0.02)),
        math.log((0.24 + 0.08) / (0.32 + 0.08)),
    )
    expected[f"kind_calls_{slot}"] = (math.log(9) / 5, math.log(9) / 5)
    expected[f"kind_ratio_{(slot + 1) % 16}"] = (0.0, 0.0)
    for name, values in expected.items():
        found = rows[:, column(ENDPOINT_FEATURES, name)]
        assert found == pytest.approx(values, abs=1 / 32), name
    assert (rows * 16 == np.rint(rows * 16)).all()


def test_pair_columns_by_hand() -> None:
    pair = extract(by_hand()).pair[0]
    expected = {
        "ratio": (math.log(0.5), math.log(1.5)),
        "fast_ratio": (math.log((0.05 + 0.03) / (5 * 0.01)), 0.0),
        "calls": (math.log(9) / 4, math.log(9) / 4),
        "fast_calls": (math.log(3) / 4, 0.0),
        "pair_factor": (math.log(0.5), math.log(2)),
        # A method alone and endpoints without a common pattern: the class's and endpoint's time.
        "endpoint_neighbours": (0.0, math.log(0.04 / 0.03)),
        "kind_neighbours": (0.0, math.log(0.04 / 0.03)),
        "kind_neighbour_calls": (0.0, 0.0),
        "endpoint_neighbour_calls": (0.0, 0.0),
        "residual": (1.0, 1.0),
    }
    for name, values in expected.items():
        assert pair[:, column(PAIR_FEATURES, name)] == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize(
    ("request_class", "size", "unknown"),
    [
        ("/a.B/C;bytes=1024..16384", math.log(4) / 4, 0.0),
        ("/a.B/C;bytes=..1024", math.log(256 / 1024) / 4, 0.0),
        ("/a.B/C;bytes=262144..", math.log(1024) / 4, 0.0),
        ("/a.B/C;bytes=unknown", 0.0, 1.0),
        ("/a.B/C", 0.0, 1.0),
        ("/a.B/C;bytes=nonsense..", 0.0, 1.0),
    ],
)
def test_the_size_of_a_class(request_class: str, size: float, unknown: float) -> None:
    row = request_class_row(request_class)
    assert row[column(CLASS_FEATURES, "size")] == pytest.approx(size)
    assert row[column(CLASS_FEATURES, "size_squared")] == pytest.approx(size * size)
    assert row[column(CLASS_FEATURES, "size_unknown")] == unknown
    assert row[: schema.METHOD_SLOTS].sum() == 1


def test_headers_tell_classes_apart_and_other_has_no_method() -> None:
    gold, plain = request_class_row("/a.B/C;x-tier=gold"), request_class_row("/a.B/C")
    assert (gold != plain).sum() == 1
    assert request_class_row("other")[: schema.METHOD_SLOTS].sum() == 0
    pair = extract(facts()).pair
    assert pair[3, :, -1].tolist() == [0.0] * 5, "S of `other` is S0"
    assert pair[:3, :, -1].all()


def test_what_is_unknown_gets_the_missing_value() -> None:
    unknown = np.full(5, np.nan)
    rows = extract(
        replace(
            facts(),
            utilization=unknown,
            inflight=unknown,
            error_share=unknown,
            age_s=unknown,
            zone_match=unknown,
            labels=({},) * 5,
        )
    ).endpoint
    for name in ("utilization", "inflight", "error_share", "age", "age_20", "zone_match", "rack_0"):
        place = column(ENDPOINT_FEATURES, name)
        missing = ENDPOINT_FEATURES[place].missing
        assert rows[:, place] == pytest.approx(missing, abs=1 / 32), name
    assert np.isfinite(rows).all()


def test_places_are_nested() -> None:
    """Racks of one name in two zones are two places, and two endpoints of a rack are at one."""
    labels = [{"zone": zone, "rack": "1"} for zone in ("a", "a", "b")] + [{}, {}]
    rows = extract(replace(facts(), labels=tuple(labels))).endpoint
    rack = [column(ENDPOINT_FEATURES, f"rack_{slot}") for slot in range(schema.LOCALITY_SLOTS)]
    assert (rows[0, rack] == rows[1, rack]).all()
    assert (rows[0, rack] != rows[2, rack]).any()
    assert not rows[3, rack].any()


def test_age_goes_in_steps() -> None:
    ages = np.array([-1.0, 0, 4.9, 5, 59.9, 60, 119, 120, 3840, 1e9, np.nan])
    expected = [0, 0, 0, 5, 55, 60, 60, 120, 3840, 3840]
    assert age_step(ages)[:-1].tolist() == expected
    assert np.isnan(age_step(ages)[-1])


def test_quantised_rows_compare_by_their_bytes() -> None:
    rows = quantise(np.array([[0.01, -0.01, 0.031, 9.0]], dtype=np.float32))
    assert rows.tolist() == [[0.0, 0.0, 0.0, 4.0]]
    assert rows.tobytes() == np.array([[0, 0, 0, 4]], dtype=np.float32).tobytes()


def test_the_order_of_endpoints_and_classes_is_the_order_of_rows() -> None:
    whole = facts()
    turned = replace(
        whole,
        endpoints=whole.endpoints[::-1],
        sums=Sums(
            whole.sums.num_s[:, ::-1],
            whole.sums.den[:, ::-1],
            whole.sums.busy_s[::-1],
            whole.sums.calls[::-1],
        ),
        labels=whole.labels[::-1],
    )
    straight, reverse = extract(whole), extract(turned)
    slots = [column(ENDPOINT_FEATURES, f"kind_calls_{slot}") for slot in range(16)]
    slots += [column(ENDPOINT_FEATURES, f"label_{slot}") for slot in range(8)]
    assert (straight.endpoint[:, slots] == reverse.endpoint[::-1][:, slots]).all()


def test_no_classes_and_no_endpoints_have_matrices_too() -> None:
    empty = extract(facts((), 0))
    assert empty.endpoint.shape == (0, len(ENDPOINT_FEATURES))
    assert empty.request_class.shape == (0, len(CLASS_FEATURES))
    assert empty.pair.shape == (0, 0, len(PAIR_FEATURES))


def test_facts_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(FeatureError, match="4 classes and 5 endpoints have sums of shape"):
        extract(replace(facts(), sums=facts(endpoints=6).sums))
    with pytest.raises(FeatureError, match="`size_squared`"):
        columns(CLASS_FEATURES, {s.name: np.zeros(1) for s in CLASS_FEATURES[:17]} | {
            s.name: np.zeros(1) for s in CLASS_FEATURES[18:]
        })  # fmt: skip


def test_the_hash_follows_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema_hash()
    assert len(before) == 16
    assert schema_hash() == before
    monkeypatch.setattr(schema, "PAIR_FEATURES", PAIR_FEATURES[::-1])
    turned = schema_hash()
    assert turned != before
    monkeypatch.setattr(schema, "REVISION", schema.REVISION + 1)
    assert schema_hash() != turned
