"""The K/V table: rows are encoded once, and what is kept is what the encoder says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnroute.scoring.kv_table import KvTable

Matrix = npt.NDArray[np.float32]


class Encoder:
    """Twice a row as keys [n, 2, 1], its sum as values [n, 1]."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.fails = False

    def __call__(self, features: Matrix) -> tuple[Matrix, ...]:
        if self.fails:
            raise RuntimeError("no")
        self.rows.append(len(features))
        return (2 * features)[:, :2, None], features.sum(axis=1, keepdims=True)


def rows(*values: float) -> Matrix:
    return np.array([[value, value + 1, 0] for value in values], dtype=np.float32)


def check(found: tuple[Matrix, ...], features: Matrix) -> None:
    for one, expected in zip(found, Encoder()(features), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_a_row_is_encoded_once() -> None:
    encoder = Encoder()
    table = KvTable(encoder, 8)
    check(table.look_up(rows(1, 2, 1)), rows(1, 2, 1))
    check(table.look_up(rows(2, 1)), rows(2, 1))
    assert encoder.rows == [2]
    assert (table.hits, table.misses, table.epoch) == (3, 2, 1)
    check(table.look_up(rows(2, 3, 1)), rows(2, 3, 1))
    assert encoder.rows == [2, 1]
    assert (table.hits, table.misses, table.epoch) == (5, 3, 2)
    assert table.usage == 3 / 8


def test_those_used_last_are_kept() -> None:
    encoder = Encoder()
    table = KvTable(encoder, 3)
    table.look_up(rows(1, 2, 3))
    table.look_up(rows(1))
    check(table.look_up(rows(4, 1)), rows(4, 1))  # 2 goes
    assert (table.evicted, len(table)) == (1, 3)
    table.look_up(rows(1, 3, 4))
    assert encoder.rows == [3, 1]
    table.look_up(rows(2))
    assert encoder.rows == [3, 1, 1]


def test_more_rows_than_may_be_kept_are_encoded_and_not_kept() -> None:
    encoder = Encoder()
    table = KvTable(encoder, 2)
    table.look_up(rows(1, 2))
    check(table.look_up(rows(1, 2, 3)), rows(1, 2, 3))
    assert (len(table), table.evicted) == (2, 0)
    table.look_up(rows(1, 2))
    assert encoder.rows == [2, 3]


def test_no_rows_have_encodings_of_the_right_shape() -> None:
    found = KvTable(Encoder(), 2).look_up(np.zeros((0, 3), dtype=np.float32))
    assert [one.shape for one in found] == [(0, 2, 1), (0, 1)]


def test_an_encoder_that_fails_costs_nothing_that_is_kept() -> None:
    encoder = Encoder()
    table = KvTable(encoder, 4)
    table.look_up(rows(1))
    encoder.fails = True
    with pytest.raises(RuntimeError):
        table.look_up(rows(1, 2))
    check(table.look_up(rows(1)), rows(1))
    encoder.fails = False
    check(table.look_up(rows(2, 1)), rows(2, 1))


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20), st.integers(1, 6))
def test_whatever_is_asked_for_is_what_the_encoder_says(
    asked: list[list[int]], capacity: int
) -> None:
    table = KvTable(Encoder(), capacity)
    for values in asked:
        features = rows(*values) if values else np.zeros((0, 3), dtype=np.float32)
        check(table.look_up(features), features)
        assert len(table) <= capacity
        assert 0 <= table.usage <= 1
    assert table.hits + table.misses == sum(len(values) for values in asked)
