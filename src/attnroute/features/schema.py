"""Every feature of the network by name, in the order of its column, and one hash over all of it.

A bundle carries the hash of what it was trained on; a sidecar whose own hash is another refuses the
bundle, because a column that means something else is wrong without looking wrong. Change a name, a
transform, a missing value, the order or a constant of `features.extract` and the hash changes with
it (`REVISION` stands for what no row says).

A column is a number of about -3 to 3. What is unknown is NaN until the last step, which puts the
missing value of the column in its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from attnroute.errors import AttnrouteError

__all__ = [
    "CLASS_FEATURES",
    "ENDPOINT_FEATURES",
    "HEADER_SLOTS",
    "LABEL_SLOTS",
    "LOCALITY",
    "LOCALITY_SLOTS",
    "METHOD_SLOTS",
    "PAIR_FEATURES",
    "REVISION",
    "FeatureError",
    "FeatureSpec",
    "columns",
    "schema_hash",
]

REVISION = 1
"""Of the way in which features are computed, where no row of the lists tells."""

METHOD_SLOTS = 16
"""Methods are hashed into so many slots; those that share one are added up."""
HEADER_SLOTS = 8
LABEL_SLOTS = 8
LOCALITY = ("region", "zone", "rack")
"""Labels that say where an endpoint is, from large to small: its position encoding."""
LOCALITY_SLOTS = 4


class FeatureError(AttnrouteError):
    """Facts that contradict themselves."""


@dataclass(frozen=True)
class FeatureSpec:
    """One column."""

    name: str
    unit: str
    """Of what goes into the transform; `1` without one."""
    transform: str
    missing: float
    """What stands where the value is unknown, transformed."""


def _slots(name: str, count: int, unit: str, transform: str) -> tuple[FeatureSpec, ...]:
    return tuple(FeatureSpec(f"{name}_{slot}", unit, transform, 0.0) for slot in range(count))


ENDPOINT_FEATURES: tuple[FeatureSpec, ...] = (
    FeatureSpec("factor", "1", "ln f", 0.0),
    FeatureSpec("fast_factor", "1", "ln of f of the recent sums, 0.2 g in both", 0.0),
    FeatureSpec("utilization", "1", "x", 0.0),
    FeatureSpec("utilization_known", "1", "1 where reported", 0.0),
    FeatureSpec("inflight", "calls", "ln(1 + x)", 0.0),
    FeatureSpec("error_share", "1", "x", 0.0),
    FeatureSpec("age", "s", "ln(1 + x/5)/3 of the step", 2.2),
    FeatureSpec("age_20", "s", "exp(-x/20) of the step", 0.0),
    FeatureSpec("age_60", "s", "exp(-x/60) of the step", 0.0),
    FeatureSpec("zone_match", "1", "x", 0.5),
    *(
        spec
        for level in LOCALITY
        for spec in _slots(level, LOCALITY_SLOTS, "label", "sign of a hash of the path, 0.5")
    ),
    *_slots("label", LABEL_SLOTS, "label", "signed hash, 0.5 each"),
    *_slots("kind_ratio", METHOD_SLOTS, "1", "ln r of the slot's methods"),
    *_slots("kind_calls", METHOD_SLOTS, "calls", "ln(1 + x)/5 of the slot's methods"),
)
"""Columns of `endpoint`; quantised to 1/16."""

CLASS_FEATURES: tuple[FeatureSpec, ...] = (
    *_slots("method", METHOD_SLOTS, "path", "1 in the slot of its hash"),
    FeatureSpec("size", "bytes", "ln(x/1024)/4 of the bucket's middle", 0.0),
    FeatureSpec("size_squared", "bytes", "square of size", 0.0),
    FeatureSpec("size_unknown", "1", "1 where unknown", 1.0),
    *_slots("header", HEADER_SLOTS, "text", "signed hash"),
)
"""Columns of `request_class`."""

PAIR_FEATURES: tuple[FeatureSpec, ...] = (
    FeatureSpec("ratio", "1", "ln(S0/cm)", 0.0),
    FeatureSpec("fast_ratio", "1", "ln((fnum + 3 S0)/((fden + 3) S0))", 0.0),
    FeatureSpec("calls", "calls", "ln(1 + x)/4", 0.0),
    FeatureSpec("fast_calls", "calls", "ln(1 + x)/4", 0.0),
    FeatureSpec("pair_factor", "1", "ln f", 0.0),
    FeatureSpec("endpoint_neighbours", "1", "ln(cm f e^x/S0), similar endpoints", 0.0),
    FeatureSpec("endpoint_neighbour_calls", "calls", "ln(1 + x)/4", 0.0),
    FeatureSpec("kind_neighbours", "1", "ln(cm f e^x/S0), similar methods", 0.0),
    FeatureSpec("kind_neighbour_calls", "calls", "ln(1 + x)/4", 0.0),
    FeatureSpec("residual", "1", "0 for the class `other`, whose S is S0; else 1", 1.0),
)
"""Columns of `pair`. The last one switches the network's correction."""


def columns(
    specs: Sequence[FeatureSpec], values: Mapping[str, npt.NDArray[np.float64]]
) -> npt.NDArray[np.float32]:
    """Columns in the order of specs, [..., F] float32, missing values put in.

    values: by name, of one shape, NaN where unknown. Raises FeatureError where a name lacks or is
    too many.
    """
    names = [spec.name for spec in specs]
    if set(names) != set(values):
        odd = sorted(set(names) ^ set(values))
        raise FeatureError(f"features `{'`, `'.join(odd)}` are not those of the schema")
    shape = np.shape(values[names[0]])
    found = np.empty((*shape, len(specs)), dtype=np.float32)
    for place, name in enumerate(names):
        found[..., place] = values[name]
    unknown = np.isnan(found)
    if unknown.any():
        missing = np.array([spec.missing for spec in specs], dtype=np.float32)
        found = np.where(unknown, missing, found)
    return found


def schema_hash() -> str:
    """16 hex digits over every list and constant of this file."""
    described = {
        "revision": REVISION,
        "endpoint": [asdict(spec) for spec in ENDPOINT_FEATURES],
        "request_class": [asdict(spec) for spec in CLASS_FEATURES],
        "pair": [asdict(spec) for spec in PAIR_FEATURES],
    }
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
