"""Columns as arrays are the bytes that the official library writes, and nothing else is read."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from attnroute._proto.fleet.v1 import fleet_pb2, packed_pb2
from attnroute.fleet.columns import ColumnError, floats, numbers, packed_floats, packed_numbers

UINT32 = st.integers(min_value=0, max_value=2**32 - 1)
PAIRS = {
    "PackedSidecarMessage": "SidecarMessage",
    "PackedWindow": "Window",
    "PackedCellWindows": "CellWindows",
    "PackedFleetUpdate": "FleetUpdate",
    "PackedCellSums": "CellSums",
    "PackedSplit": "Split",
}


@given(st.lists(st.one_of(UINT32, st.integers(0, 300))))
def test_numbers_are_what_the_library_writes(values: list[int]) -> None:
    written = fleet_pb2.CellWindows(calls=values).SerializeToString()
    packed = packed_pb2.PackedCellWindows(calls=packed_numbers(values))
    assert packed.SerializeToString() == written
    read = packed_pb2.PackedCellWindows.FromString(written)
    assert numbers(read.calls).tolist() == values


@given(st.lists(st.floats(width=32)))
def test_floats_are_what_the_library_writes(values: list[float]) -> None:
    written = fleet_pb2.CellWindows(latency_s=values).SerializeToString()
    packed = packed_pb2.PackedCellWindows(latency_s=packed_floats(values))
    assert packed.SerializeToString() == written
    np.testing.assert_array_equal(floats(packed.latency_s), np.array(values))


@given(st.binary(max_size=40))
def test_whatever_comes_is_read_or_refused(packed: bytes) -> None:
    try:
        found = numbers(packed)
    except ColumnError:
        return
    assert ((found >= 0) & (found < 2**32)).all()
    # A number may be written with more bytes than it needs, never with fewer.
    assert len(packed_numbers(found)) <= len(packed)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"\x01\x80", "ends within a number"),
        (b"\xff\xff\xff\xff\xff\x01", "at most 5"),
        (b"\xff\xff\xff\xff\x7f", "32 bits"),
    ],
)
def test_no_numbers(packed: bytes, words: str) -> None:
    with pytest.raises(ColumnError, match=words):
        numbers(packed)


def test_floats_that_are_cut_off() -> None:
    with pytest.raises(ColumnError, match="multiple of 4"):
        floats(b"\x00\x00\x00")


@pytest.mark.parametrize(("packed", "plain"), PAIRS.items())
def test_packed_messages_have_the_fields_of_the_plain_ones(packed: str, plain: str) -> None:
    ours = packed_pb2.DESCRIPTOR.message_types_by_name[packed]
    theirs = fleet_pb2.DESCRIPTOR.message_types_by_name[plain]
    assert [(one.name, one.number) for one in ours.fields] == [
        (one.name, one.number) for one in theirs.fields
    ]
    for mine, other in zip(ours.fields, theirs.fields, strict=True):
        if mine.type == FieldDescriptor.TYPE_BYTES and other.type != mine.type:
            assert (other.is_repeated, other.is_packed) == (True, True), other.full_name
            continue
        assert (mine.type, mine.is_repeated) == (other.type, other.is_repeated), other.full_name
        if mine.message_type is not None:
            assert other.message_type is not None
            name = other.message_type.name
            assert mine.message_type.name in (name, f"Packed{name}"), other.full_name
