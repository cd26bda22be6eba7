"""Columns of messages as arrays: packed varints and floats, read and written as a whole.

A window has thousands of cells. Taking them one number after the other into a message and out of it
costs a sidecar more than everything else it does with them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["ColumnError", "floats", "numbers", "packed_floats", "packed_numbers"]

_MORE = 0x80
_BYTES_MAX = 5
"""Of a varint of 32 bits."""


class ColumnError(Exception):
    """Bytes that are no such column."""


def packed_floats(values: npt.ArrayLike) -> bytes:
    """[n] as `repeated float`, packed."""
    return np.asarray(values, dtype="<f4").tobytes()


def floats(packed: bytes) -> npt.NDArray[np.float64]:
    """[n]. Raises ColumnError."""
    if len(packed) % 4:
        raise ColumnError(f"a column of floats has `{len(packed)}` bytes, expected a multiple of 4")
    return np.frombuffer(packed, dtype="<f4").astype(np.float64)


def packed_numbers(values: npt.ArrayLike) -> bytes:
    """[n], each from 0 to 2^32 - 1, as `repeated uint32`, packed."""
    left = np.asarray(values, dtype=np.uint32)
    if len(left) == 0 or left.max() < _MORE:
        return left.astype(np.uint8).tobytes()
    # One column of bytes for each seventh power, those that a number does not have left out.
    columns, used = [], []
    has = np.ones(len(left), dtype=bool)
    while has.any():
        rest = left >> np.uint32(7)
        goes_on = rest > 0
        columns.append((left & np.uint32(0x7F)).astype(np.uint8) | goes_on.astype(np.uint8) * _MORE)
        used.append(has)
        left, has = rest, goes_on
    packed: npt.NDArray[np.uint8] = np.stack(columns, axis=1)[np.stack(used, axis=1)]
    return packed.tobytes()


def numbers(packed: bytes) -> npt.NDArray[np.int64]:
    """[n], each from 0 to 2^32 - 1. Raises ColumnError."""
    found = np.frombuffer(packed, dtype=np.uint8)
    last = found < _MORE
    if last.all():
        return found.astype(np.int64)
    if not last[-1]:
        raise ColumnError("a column of numbers ends within a number")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _BYTES_MAX:
        raise ColumnError(f"a number has `{lengths.max()}` bytes, expected at most {_BYTES_MAX}")
    shifts = 7 * (np.arange(len(found)) - np.repeat(starts, lengths))
    values = np.add.reduceat((found & 0x7F).astype(np.int64) << shifts, starts)
    if values.max() >= 1 << 32:
        raise ColumnError(f"number `{values.max()}` does not fit into 32 bits")
    return np.asarray(values, dtype=np.int64)
