"""The page for training, as the official parser reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.windows import CellSums, service_window

from attnroute.features.window import BUCKETS, ServiceWindow
from attnroute.telemetry.training import BOUNDS_S, EndpointLabels, PageLimits, TrainingPage

A, B = "10.0.0.1:1", "10.0.0.2:1"
GET, ODD = "/cart/Get;bytes=..1024", '/cart/Odd;bytes=unknown;x-tier="go\\ld"'


def page(series: int = 60_000) -> TrainingPage:
    return TrainingPage(
        sidecar_id="ab" * 16, zone="eu-1a", version="0.1.0", limits=PageLimits(series)
    )


def add(
    to: TrainingPage,
    cells: Mapping[tuple[str, str], CellSums],
    *,
    service: str = "cart",
    change: Mapping[str, Any] | None = None,
    **others: Any,
) -> ServiceWindow:
    window = service_window(cells, **others)
    buckets = np.zeros((len(cells), BUCKETS), dtype=np.uint32)
    buckets[:, 3] = window.cells.calls.astype(np.uint32)
    window = replace(window, buckets=buckets, **(change or {}))
    size = len(window.endpoints)
    to.add(service, window, np.full(size, 0.25), [EndpointLabels("eu-1a", "rack=7")] * size)
    return window


def samples(of: TrainingPage) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(of.render().decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in values, sample
            values[labels] = sample.value
    return found


def cell(
    found: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]],
    name: str,
    request_class: str = GET,
    endpoint: str = A,
) -> float:
    labels = (("endpoint", endpoint), ("request_class", request_class), ("service", "cart"))
    return found[f"attnroute_training_{name}"][labels]


def test_windows_add_up() -> None:
    counted = page()
    first = {"errors": np.array([2.0, 0.0])}
    add(counted, {(GET, A): (3, 0.3), (ODD, B): (1, 0.5)}, change=first, rtt_s={A: 0.001})
    add(counted, {(GET, A): (4, 0.2)}, extra_endpoints=(B,), concurrency={B: 4.0})
    found = samples(counted)
    assert cell(found, "latency_seconds_sum") == pytest.approx(0.3 + 0.003 + 0.2)
    assert cell(found, "latency_seconds_count") == 7
    assert cell(found, "errors_total") == 2
    assert cell(found, "estimated_service_seconds_total") == pytest.approx(0.5)
    assert cell(found, "service_seconds_total") == 0
    assert cell(found, "service_samples_total") == 0
    # A class that the window does not list any more is gone.
    assert not any(ODD in str(labels) for labels in found["attnroute_training_errors_total"])
    assert set(found["attnroute_endpoint_inflight_seconds_total"].values()) == {0.5}
    assert list(found["attnroute_endpoint_concurrency"].values()) == [4.0]
    assert "attnroute_endpoint_rtt_seconds" not in found
    assert found["attnroute_sidecar_info"] == {
        (("sidecar_id", "ab" * 16), ("version", "0.1.0"), ("zone", "eu-1a")): 1
    }


def test_labels_are_escaped() -> None:
    counted = page()
    add(counted, {(ODD, A): (1, 0.5)}, started_s={A: 1234.5})
    found = samples(counted)
    assert cell(found, "latency_seconds_count", ODD) == 1
    (info,) = found["attnroute_endpoint_info"]
    assert dict(info) == {
        "service": "cart", "endpoint": A, "zone": "eu-1a", "incarnation": "1234.5",
        "labels": "rack=7",
    }  # fmt: skip


@pytest.mark.parametrize("odd", ["%s %% %.15g", 'a"b=\\c,d', "snow\u2603=\U0001f600", "{}", " "])
def test_odd_labels_of_an_endpoint_come_back_whole(odd: str) -> None:
    counted = page()
    window = service_window({(GET, A): (1, 0.5)})
    counted.add("cart", window, np.full(1, 0.25), [EndpointLabels(odd, odd)])
    (info,) = samples(counted)["attnroute_endpoint_info"]
    assert (dict(info)["labels"], dict(info)["zone"]) == (odd, odd)


def test_the_histogram_of_a_class_is_one() -> None:
    counted = page()
    add(counted, {(GET, A): (3, 0.3), (GET, B): (4, 0.4)})
    found = samples(counted)
    name = "attnroute_training_class_latency_seconds"
    by_bound = {dict(labels)["le"]: value for labels, value in found[f"{name}_bucket"].items()}
    assert len(by_bound) == BUCKETS
    assert by_bound["+Inf"] == 7
    bounds = sorted(float(bound) for bound in by_bound)
    assert bounds[:-1] == list(BOUNDS_S)
    assert [by_bound[str(bound)] for bound in BOUNDS_S[:5]] == [0, 0, 0, 7, 7]
    assert next(iter(found[f"{name}_count"].values())) == 7
    assert next(iter(found[f"{name}_sum"].values())) == pytest.approx(0.7)


def test_bounds_are_those_of_the_data_plane() -> None:
    assert BOUNDS_S[0] == 0.0001
    assert BOUNDS_S[1] == 0.00016
    assert BOUNDS_S[-1] == pytest.approx(1e-4 * 1.6**28, rel=1e-9)
    assert len(BOUNDS_S) == BUCKETS - 1


def test_an_endpoint_that_is_gone_takes_its_series_along() -> None:
    counted = page()
    add(counted, {(GET, A): (3, 0.3), (GET, B): (4, 0.4)})
    add(counted, {(GET, B): (1, 0.1)})
    assert A not in counted.render().decode()
    found = samples(counted)
    assert cell(found, "latency_seconds_count", endpoint=B) == 5
    add(counted, {(GET, A): (1, 0.1), (GET, B): (1, 0.1)})
    assert cell(samples(counted), "latency_seconds_count") == 1
    counted.keep(())
    assert "10.0.0" not in counted.render().decode()


def test_the_least_called_classes_share_other_when_there_are_too_many_series() -> None:
    counted = page(series=600)
    total = 0
    last: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]] = {}
    classes = [f"/m{index};bytes=unknown" for index in range(30)]
    for step in range(1, 6):
        cells = {(name, A): (float(index + 1), 0.1) for index, name in enumerate(classes)}
        window = add(counted, cells)
        total += int(window.cells.calls.sum())
        found = samples(counted)
        assert len(counted.render().splitlines()) < 700
        counts = found["attnroute_training_latency_seconds_count"]
        for labels, value in last.get("attnroute_training_latency_seconds_count", {}).items():
            assert counts.get(labels, math.inf) >= value, step
        last = found
    assert cell(last, "latency_seconds_count", classes[-1]) == 30 * 5
    assert classes[0] not in counted.render().decode()
    assert cell(last, "latency_seconds_count", "other") > 0
    assert last["attnroute_training_classes_folded_total"][()] == counted.folded > 0
    # What had its own series until it was folded counts in `other` only from then on.
    assert sum(counts.values()) <= total


def test_what_cannot_be_true_is_not_counted() -> None:
    counted = page()
    add(counted, {(GET, A): (3, math.nan), (GET, B): (4, 0.4)}, rtt_s={B: math.inf})
    found = samples(counted)
    assert cell(found, "latency_seconds_count", endpoint=B) == 4
    assert len(found["attnroute_training_latency_seconds_count"]) == 1
    assert "attnroute_endpoint_rtt_seconds" not in found


def test_an_empty_page_is_one() -> None:
    assert set(samples(page())) == {
        "attnroute_sidecar_info",
        "attnroute_training_classes_folded_total",
    }
