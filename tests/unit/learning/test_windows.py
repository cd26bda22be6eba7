"""Windows and request classes through the compiled picker, computed by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attnroute.dataplane import (
    WINDOW_CELL_DTYPE,
    WINDOW_ENDPOINT_DTYPE,
    ConfigError,
    Picker,
    Window,
    classes,
    window,
)

MS = 1_000_000
SECOND = 1_000 * MS
UNAVAILABLE, UNIMPLEMENTED = 14, 12


def picker(endpoints: int = 2, **settings: Any) -> Picker:
    config = {
        "name": "cart",
        "authorities": [],
        "balancer": {"type": "round_robin"},
        "request_class": {},
    }
    made = Picker(json.dumps(config | settings).encode(), 7)
    apply_endpoints(made, range(endpoints))
    return made


def apply_endpoints(to: Picker, numbers: range | list[int]) -> int:
    rows = [{"address": f"10.0.0.{number + 1}:80"} for number in numbers]
    return to.apply_endpoints(json.dumps({"endpoints": rows}).encode())


def call(made: Picker, path: str, at_ns: int, latency_ns: int, status: int = 0) -> int:
    index, _ = made.pick(at_ns, path=path, message_bytes=10)
    made.finished(index, at_ns + latency_ns, latency_ns, status)
    return index


def taken(made: Picker, now_ns: int) -> Window:
    return window(made.take_window(now_ns))


def test_row_sizes_are_those_of_the_data_plane() -> None:
    made = picker()
    call(made, "/a.B/C", 0, MS)
    found = made.take_window(SECOND)
    assert len(found[3]) == 2 * WINDOW_ENDPOINT_DTYPE.itemsize == 2 * 84
    assert len(found[4]) == WINDOW_CELL_DTYPE.itemsize == 168


def test_a_class_has_cells_of_its_own_once_it_is_admitted() -> None:
    made = picker(1)
    before, listed = classes(made.classes())
    assert [each.name for each in listed] == ["other"]
    call(made, "/a.B/C", 0, 10 * MS)
    call(made, "/nobody.Serves/This", 20 * MS, MS, UNIMPLEMENTED)
    after, listed = classes(made.classes())
    assert after > before
    assert [(each.name, each.kind, each.kind_index, each.size_bytes) for each in listed] == [
        ("other", "other", 0, None),
        ("/a.B/C;bytes=..1024", "/a.B/C", 1, 256.0),
    ]
    call(made, "/a.B/C", 100 * MS, 20 * MS)
    call(made, "/a.B/C", 200 * MS, 5 * MS, UNAVAILABLE)
    found = taken(made, SECOND)
    assert found.class_epoch == after
    assert found.length_s == pytest.approx(1.0)
    assert found.cells["class"].tolist() == [0, 1]
    assert found.cells["calls"].tolist() == [2, 1]
    assert found.cells["errors"].tolist() == [0, 1]
    assert found.cells["latency_s"] == pytest.approx([0.011, 0.02])
    assert found.cells["buckets"].sum(axis=1).tolist() == [2, 1]
    assert found.endpoints["calls"].tolist() == [4]
    assert found.endpoints["inflight_s"] == pytest.approx([0.036])
    assert len(taken(made, 2 * SECOND).cells) == 0


def test_rows_follow_the_endpoint_set() -> None:
    made = picker(3)
    for number in range(3):
        call(made, "/a.B/C", number * MS, (number + 1) * MS)
    epoch = apply_endpoints(made, [2, 5, 0])
    found = taken(made, SECOND)
    assert found.endpoint_epoch == epoch
    by_endpoint = dict(zip(found.cells["endpoint"].tolist(), found.cells["calls"], strict=True))
    assert by_endpoint == {0: 1, 2: 1}
    assert len(set(found.endpoints["id"].tolist())) == 3
    assert found.endpoints["usable"].tolist() == [1, 1, 1]
    assert np.isnan(found.endpoints["rtt_s"]).all()


def test_what_the_operator_knows_of_concurrency_divides_the_wait() -> None:
    made = picker(1, concurrency=2, sidecars=1)
    for _ in range(4):
        made.pick(0)
    for _ in range(4):
        made.finished(0, 40 * MS, 40 * MS, 0)
    (cell,) = taken(made, SECOND).cells
    # 0, 1, 2 and 3 calls were before them, for two workers: 1, 1, 1.5 and 2 turns.
    expected = 0.04 * (1 + 1 + 1 / 1.5 + 1 / 2)
    assert cell["estimated_s"] == pytest.approx(expected)


def test_nothing_is_counted_where_nobody_asks() -> None:
    made = picker(1, request_class=None)
    call(made, "/a.B/C", 0, MS)
    found = taken(made, SECOND)
    assert (len(found.cells), found.endpoints["calls"].tolist()) == (0, [0])


@pytest.mark.parametrize(
    "request_class",
    [
        {"message_bytes_buckets": [5, 5]},
        {"message_bytes_buckets": [0]},
        {"message_bytes_buckets": list(range(1, 17))},
        {"headers": ["no header"]},
        {"headers": ["x"] * 9},
        {"priority_header": ""},
        {"max_classes": 0},
        {"max_classes": 257},
    ],
)
def test_a_wrong_configuration_is_refused(request_class: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        picker(request_class=request_class)
