"""Facts as the matrices that the network reads; serving and training call the same function.

Nothing here depends on how long a window is: a sidecar extracts once a second, the trainer once a
scrape of several seconds, and both must mean the same. Endpoint columns are multiples of 1/16 and
age goes in steps, so that a sidecar encodes an endpoint again only when something has changed, and
what it has cached is exactly what would come out now.

Pure: no clock; C classes, E endpoints, float32 out. Columns: `features.schema`, docs/model.md.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute.features.facts import Facts
from attnroute.features.neighbours import neighbours
from attnroute.features.schema import (
    CLASS_FEATURES,
    ENDPOINT_FEATURES,
    HEADER_SLOTS,
    LABEL_SLOTS,
    LOCALITY,
    LOCALITY_SLOTS,
    METHOD_SLOTS,
    PAIR_FEATURES,
    FeatureError,
    columns,
)
from attnroute.features.table import OTHER, Array, Index

__all__ = ["Matrices", "age_step", "extract", "method_slot", "quantise", "request_class_row"]

Matrix = npt.NDArray[np.float32]

_STEPS = 16.0
_RANGE = 4.0
"""Endpoint columns are cut off there: nothing true is beyond, and a fault must not blow up."""
_AGE_STEP_S = 5.0
_AGE_LINEAR_S = 60.0
_AGE_DOUBLINGS = 6
_FAST_CALLS = 3.0
_KIND_CALLS = 2.0
_RECENT_MEANS = 0.2
_UNBOUNDED = 16.0
"""A bucket without a bound counts as so many times as wide as its other bound."""


@dataclass(frozen=True)
class Matrices:
    """What goes into the graphs of a bundle, by the names of their inputs."""

    endpoint: Matrix
    """[E, Fe]."""
    request_class: Matrix
    """[C, Fc]."""
    pair: Matrix
    """[C, E, Fp]."""
    table_cost_s: Matrix
    """S0, [C, E]."""
    rtt_s: Matrix
    """[E]."""
    mask: Matrix
    """[E], 1 usable, 0 not."""

    def tensors(self) -> dict[str, Matrix]:
        """By the names that `bundle.GRAPHS` has for them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def extract(facts: Facts) -> Matrices:
    """The matrices of these facts.

    Raises FeatureError if shapes contradict each other.
    """
    shape = (len(facts.classes), len(facts.endpoints))
    if facts.sums.den.shape != shape or facts.table.cost_s.shape != shape:
        raise FeatureError(
            f"facts of {shape[0]} classes and {shape[1]} endpoints have sums of shape "
            f"{facts.sums.den.shape} and a table of shape {facts.table.cost_s.shape}"
        )
    rows = [request_class_row(name) for name in facts.classes]
    request_class = np.stack(rows) if rows else np.zeros((0, len(CLASS_FEATURES)), np.float32)
    return Matrices(
        endpoint=quantise(columns(ENDPOINT_FEATURES, _endpoint(facts))),
        request_class=request_class,
        pair=columns(PAIR_FEATURES, _pair(facts)),
        table_cost_s=facts.table.cost_s.astype(np.float32),
        rtt_s=np.nan_to_num(facts.rtt_s).astype(np.float32),
        mask=facts.usable.astype(np.float32),
    )


def quantise(features: Matrix) -> Matrix:
    """Multiples of 1/16 between -4 and 4; rows that are equal afterwards are one row of a cache."""
    clipped = np.clip(features, -_RANGE, _RANGE)
    # Adding 0 makes the negative zero a plain one: bytes are compared.
    steps = np.rint(clipped * np.float32(_STEPS)) / np.float32(_STEPS) + np.float32(0)
    return np.asarray(steps, dtype=np.float32)


def age_step(age_s: Array) -> Array:
    """Age in steps of 5 s up to 60 s, then in doublings up to 64 minutes; NaN stays."""
    with np.errstate(invalid="ignore", divide="ignore"):
        linear = np.floor(np.maximum(age_s, 0.0) / _AGE_STEP_S) * _AGE_STEP_S
        doublings = np.floor(np.log2(np.maximum(age_s, _AGE_LINEAR_S) / _AGE_LINEAR_S))
        doubled = _AGE_LINEAR_S * 2.0 ** np.minimum(doublings, _AGE_DOUBLINGS)
    return np.asarray(np.where(age_s < _AGE_LINEAR_S, linear, doubled))


# --- endpoints -----------------------------------------------------------------------------------


def _endpoint(facts: Facts) -> dict[str, Array]:
    table = facts.table
    age_s = age_step(np.where(np.isposinf(facts.age_s), 1e9, facts.age_s))
    known = np.isfinite(facts.utilization)
    found = {
        "factor": np.log(table.endpoint_factor),
        "fast_factor": _fast_factor(facts),
        "utilization": np.where(known, np.clip(facts.utilization, 0.0, 2.0), np.nan),
        "utilization_known": known.astype(np.float64),
        "inflight": np.log1p(np.maximum(facts.inflight, 0.0)),
        "error_share": np.clip(facts.error_share, 0.0, 1.0),
        "age": np.log1p(age_s / 5.0) / 3.0,
        "age_20": np.exp(-age_s / 20.0),
        "age_60": np.exp(-age_s / 60.0),
        "zone_match": facts.zone_match,
    }
    labels = np.array([_label_row(_key(one)) for one in facts.labels])
    labels = labels.reshape(len(facts.endpoints), len(LOCALITY) * LOCALITY_SLOTS + LABEL_SLOTS)
    names = [f"{level}_{slot}" for level in LOCALITY for slot in range(LOCALITY_SLOTS)]
    names += [f"label_{slot}" for slot in range(LABEL_SLOTS)]
    found |= {name: labels[:, place] for place, name in enumerate(names)}
    ratios, calls = _fingerprint(facts)
    for slot in range(METHOD_SLOTS):
        found[f"kind_ratio_{slot}"] = ratios[slot]
        found[f"kind_calls_{slot}"] = calls[slot]
    return found


def _fast_factor(facts: Facts) -> Array:
    """[E]: ln of busy over expected seconds of the last window or two, 0.2 g in both."""
    prior_s = _RECENT_MEANS * facts.table.mean_s
    expected_s = (facts.recent.den * facts.table.class_mean_s[:, None]).sum(axis=0)
    busy_s = np.maximum(facts.recent.busy_s, 0.0)
    return np.asarray(np.log((busy_s + prior_s) / (expected_s + prior_s)))


def _fingerprint(facts: Facts) -> tuple[Array, Array]:
    """[slots, E] each: ln r of the methods of a slot, and ln(1 + calls)/5."""
    size = len(facts.endpoints)
    measured_s = np.zeros((METHOD_SLOTS, size))
    expected_s, calls = np.zeros_like(measured_s), np.zeros_like(measured_s)
    own = np.array([name != OTHER for name in facts.classes], dtype=bool)
    slots: Index = np.array([method_slot(name) for name in facts.classes], dtype=np.intp)[own]
    den = facts.sums.den[own]
    table = facts.table
    np.add.at(measured_s, slots, facts.sums.num_s[own])
    np.add.at(expected_s, slots, den * table.class_mean_s[own, None] * table.endpoint_factor)
    np.add.at(calls, slots, den)
    mean_s = np.where(calls > 0, expected_s / np.where(calls > 0, calls, 1.0), table.mean_s)
    prior_s = _KIND_CALLS * mean_s
    ratios = np.log((np.maximum(measured_s, 0.0) + prior_s) / (expected_s + prior_s))
    return np.asarray(ratios), np.log1p(calls) / 5.0


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@functools.lru_cache(maxsize=4096)
def _label_row(labels: tuple[tuple[str, str], ...]) -> Array:
    """Where an endpoint is and what else is said of it, 12 + 8 numbers."""
    rest = dict(labels)
    row = np.zeros(len(LOCALITY) * LOCALITY_SLOTS + LABEL_SLOTS)
    path = ""
    for place, level in enumerate(LOCALITY):
        value = rest.pop(level, "")
        # Nested: racks of one name in two zones are two places.
        path = f"{path}/{value}"
        if value:
            bits = zlib.crc32(f"{level}:{path}".encode())
            for slot in range(LOCALITY_SLOTS):
                row[place * LOCALITY_SLOTS + slot] = 0.5 if bits >> (8 + slot) & 1 else -0.5
    _signed(row[len(LOCALITY) * LOCALITY_SLOTS :], [f"{k}={v}" for k, v in rest.items()], 0.5)
    row.setflags(write=False)
    return row


def _signed(into: Array, texts: Sequence[str], size: float) -> None:
    """Adds each text to the slot of its hash, with the sign of its hash."""
    for text in texts:
        bits = zlib.crc32(text.encode())
        into[bits % len(into)] += size if bits >> 16 & 1 else -size


# --- request classes -----------------------------------------------------------------------------


def method_slot(request_class: str) -> int:
    """Where the method of a class, its path, is counted."""
    return zlib.crc32(request_class.split(";", 1)[0].encode()) % METHOD_SLOTS


@functools.lru_cache(maxsize=4096)
def request_class_row(request_class: str) -> Matrix:
    """[Fc]: a class as its canonical string says it."""
    _, *parts = request_class.split(";")
    found = {f"method_{slot}": 0.0 for slot in range(METHOD_SLOTS)}
    if request_class != OTHER:
        found[f"method_{method_slot(request_class)}"] = 1.0
    bucket = next((part[6:] for part in parts if part.startswith("bytes=")), "unknown")
    size = _log_size(bucket)
    found |= {
        "size": 0.0 if size is None else size,
        "size_squared": 0.0 if size is None else size * size,
        "size_unknown": float(size is None),
    }
    headers = np.zeros(HEADER_SLOTS)
    _signed(headers, [part for part in parts if not part.startswith("bytes=")], 1.0)
    found |= {f"header_{slot}": float(headers[slot]) for slot in range(HEADER_SLOTS)}
    row = columns(CLASS_FEATURES, {name: np.asarray(value) for name, value in found.items()})
    row.setflags(write=False)
    return row


def _log_size(bucket: str) -> float | None:
    """ln(middle/1 KiB)/4 of a bucket as docs/model.md writes it; None where unknown."""
    lower, dots, upper = bucket.partition("..")
    try:
        low = float(lower) if lower else 0.0
        high = float(upper) if upper else 0.0
    except ValueError:
        return None
    if not dots or (low <= 0 and high <= 0):
        return None
    if low <= 0:
        low = high / _UNBOUNDED
    if high <= 0:
        high = low * _UNBOUNDED
    return math.log(math.sqrt(low * high) / 1024.0) / 4.0


# --- pairs ---------------------------------------------------------------------------------------


def _pair(facts: Facts) -> dict[str, Array]:
    table, fast = facts.table, facts.fast
    shape = table.cost_s.shape
    # Rule (b) may leave a sum negative; S0 has a floor, and so has what stands beside it.
    fast_s = np.maximum(fast.num_s, -0.95 * _FAST_CALLS * table.cost_s) + (
        _FAST_CALLS * table.cost_s
    )
    other = np.array([name == OTHER for name in facts.classes], dtype=bool)
    near = neighbours(facts)
    usual = np.log(table.class_mean_s[:, None] * table.endpoint_factor / table.cost_s)
    return {
        "ratio": np.log(table.cost_s / table.class_mean_s[:, None]),
        "fast_ratio": np.log(fast_s / ((fast.den + _FAST_CALLS) * table.cost_s)),
        "calls": np.log1p(facts.sums.den) / 4.0,
        "fast_calls": np.log1p(fast.den) / 4.0,
        "pair_factor": np.broadcast_to(np.log(table.endpoint_factor), shape),
        "endpoint_neighbours": usual + near.endpoint_ratio,
        "endpoint_neighbour_calls": np.log1p(near.endpoint_calls) / 4.0,
        "kind_neighbours": usual + near.kind_ratio,
        "kind_neighbour_calls": np.log1p(near.kind_calls) / 4.0,
        "residual": np.broadcast_to(np.where(other, 0.0, 1.0)[:, None], shape),
    }
