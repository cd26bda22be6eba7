"""Windows and sums as messages of `proto/attnroute/fleet/v1/fleet.proto`, and back.

What comes from another process is checked here: a message that contradicts itself is refused as a
whole, with what is wrong; numbers that cannot be true are left to `Cells.sound`. The messages of
`packed.proto` have the same bytes, with columns in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnroute._proto.fleet.v1 import fleet_pb2, packed_pb2
from attnroute.bundle.manifest import is_name, parse_version
from attnroute.features.table import Array, Cells, Index
from attnroute.features.view import OwnWindow
from attnroute.features.window import BUCKETS, FleetState, ServiceWindow, Split
from attnroute.fleet.columns import (
    ColumnError,
    floats,
    numbers,
    packed_floats,
    packed_numbers,
)

__all__ = [
    "MESSAGE_BYTES_MAX",
    "METHOD",
    "PROTOCOL",
    "PROTOCOL_MIN",
    "SERVICE",
    "MessageError",
    "ModelReport",
    "read_models",
    "read_update",
    "read_window",
    "update_message",
    "window_message",
]

SERVICE = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]
METHOD = f"/{SERVICE.full_name}/Exchange"

MESSAGE_BYTES_MAX = 16 << 20
"""65,536 cells with their buckets fit."""

PROTOCOL = 1
"""Version this process speaks."""

PROTOCOL_MIN = 1
"""Oldest version it understands."""

MODELS_MAX = 8
"""Bundles that one sidecar watches at a time."""

NAME_BYTES_MAX = 1024
"""Of a class or an address."""


class MessageError(Exception):
    """A message that no process of ours sends."""


@dataclass(frozen=True)
class ModelReport:
    """What the gate of one sidecar says of one bundle for one service."""

    name: str
    version: str
    gain: float
    """gd (docs/model.md): above 0 its costs fit better than the table's."""
    weight: float
    """Of the gate, 0 to 1."""
    windows: int
    """That the gate judged since the sidecar loaded the bundle."""
    serving: bool
    """It decides picks; else it only watches."""


def window_message(
    own: OwnWindow, now_s: float, models: Sequence[ModelReport] = ()
) -> packed_pb2.PackedSidecarMessage:
    """A window as it is sent; only what it has cells or endpoints for. models: that the sidecar
    watches for the service."""
    window, cells = own.window, own.window.cells
    used, cell_class = np.unique(cells.request_class, return_inverse=True)
    active = np.zeros(len(window.endpoints), dtype=bool)
    active[cells.endpoint] = True
    active |= (window.reports > 0) | (window.ended > 0) | np.isfinite(window.rtt_s)
    columns = np.flatnonzero(active)
    places, filled = window.filled
    message = packed_pb2.PackedWindow(
        number=own.number,
        length_s=window.length_s,
        age_s=max(0.0, now_s - own.ended_s),
        classes=[window.classes[index] for index in used],
        endpoints=_endpoints(window, columns),
        cells=packed_pb2.PackedCellWindows(
            class_index=packed_numbers(cell_class),
            endpoint_index=packed_numbers(np.searchsorted(columns, cells.endpoint)),
            calls=packed_numbers(cells.calls),
            errors=packed_numbers(window.errors),
            latency_s=packed_floats(cells.latency_s),
            service_samples=packed_numbers(cells.service_samples),
            service_s=packed_floats(cells.service_s),
            estimated_s=packed_floats(cells.estimated_s),
            bucket_place=packed_numbers(places),
            bucket_calls=packed_numbers(filled),
        ),
    )
    message.models.extend(
        fleet_pb2.ModelReport(
            name=report.name,
            version=report.version,
            gain=report.gain,
            weight=report.weight,
            windows=report.windows,
            serving=report.serving,
        )
        for report in models[:MODELS_MAX]
    )
    return packed_pb2.PackedSidecarMessage(window=message)


_SUMS = (
    "started_s", "utilization", "utilization_reports", "rps", "reports", "reported_inflight",
    "ended", "inflight_estimate",
)  # fmt: skip


def _endpoints(window: ServiceWindow, columns: Index) -> Iterator[fleet_pb2.EndpointWindow]:
    # As lists first: taking one number out of an array costs as much as the rest of its way.
    sums = np.stack([getattr(window, name)[columns] for name in _SUMS], axis=1).tolist()
    measured = np.stack((window.rtt_s[columns], window.concurrency[columns]), axis=1)
    optional = _or_none(measured)
    for column, values, (rtt_s, concurrency) in zip(columns.tolist(), sums, optional, strict=True):
        started_s, utilization, carried, rps, reports, reported, ended, estimate = values
        yield fleet_pb2.EndpointWindow(
            address=window.endpoints[column],
            incarnation=started_s,
            rtt_s=rtt_s,
            concurrency=concurrency,
            utilization=utilization,
            utilization_reports=carried,
            rps=rps,
            reports=reports,
            reported_inflight=reported,
            ended=ended,
            inflight_estimate=estimate,
        )


def read_models(message: packed_pb2.PackedWindow) -> tuple[ModelReport, ...]:
    """What a window says of models. Raises MessageError."""
    if len(message.models) > MODELS_MAX:
        raise MessageError(f"reports of `{len(message.models)}` models, at most {MODELS_MAX}")
    reports = []
    for report in message.models:
        try:
            parse_version(report.version)
        except ValueError as error:
            raise MessageError(str(error)) from error
        if not is_name(report.name):
            raise MessageError(f"`{report.name[:80]}` is no name of a model")
        if not math.isfinite(report.gain) or not 0 <= report.weight <= 1:
            raise MessageError(
                f"the gate of `{report.version}` says `{report.gain}` and `{report.weight}`"
            )
        reports.append(
            ModelReport(
                report.name,
                report.version,
                report.gain,
                report.weight,
                report.windows,
                report.serving,
            )
        )
    return tuple(reports)


def read_window(message: packed_pb2.PackedWindow) -> ServiceWindow:
    """The window of a message. Raises MessageError."""
    endpoints = message.endpoints
    cells, errors, buckets = _read_cells(message)
    sums = _unless_broken(
        [
            (
                one.incarnation, one.utilization, one.utilization_reports, one.rps, one.reports,
                one.reported_inflight, one.ended, one.inflight_estimate,
            )
            for one in endpoints
        ],
        len(_SUMS),
    )  # fmt: skip
    rtt_s, concurrency = _optional(endpoints)
    return ServiceWindow(
        length_s=message.length_s,
        classes=_names(message.classes),
        endpoints=_names(endpoint.address for endpoint in endpoints),
        rtt_s=rtt_s,
        concurrency=concurrency,
        cells=cells,
        errors=errors,
        buckets=buckets,
        **dict(zip(_SUMS, sums, strict=True)),
    )


def _read_cells(
    message: packed_pb2.PackedWindow,
) -> tuple[Cells, Array, npt.NDArray[np.uint32]]:
    """Cells, failures [n] and buckets [n, BUCKETS]."""
    packed = message.cells
    try:
        calls, errors, samples = (
            numbers(column) for column in (packed.calls, packed.errors, packed.service_samples)
        )
        seconds = [floats(one) for one in (packed.latency_s, packed.service_s, packed.estimated_s)]
        request_class = _index(packed.class_index, len(message.classes), "class")
        endpoint = _index(packed.endpoint_index, len(message.endpoints), "endpoint")
        size = len(request_class)
        if any(len(one) != size for one in (endpoint, calls, errors, samples, *seconds)):
            raise MessageError(f"columns of cells have different lengths, expected `{size}`")
        places = _index(packed.bucket_place, size * BUCKETS, "bucket")
        found = numbers(packed.bucket_calls)
    except ColumnError as error:
        raise MessageError(str(error)) from error
    if len(found) != len(places):
        raise MessageError("columns of buckets have different lengths")
    buckets = np.bincount(places, found, size * BUCKETS).astype(np.uint32)
    latency_s, service_s, estimated_s = seconds
    cells = Cells(
        request_class=request_class,
        endpoint=endpoint,
        calls=calls.astype(np.float64),
        latency_s=latency_s,
        service_samples=samples.astype(np.float64),
        service_s=service_s,
        estimated_s=estimated_s,
    )
    return cells, errors.astype(np.float64), buckets.reshape(size, BUCKETS)


def update_message(service: str, state: FleetState) -> packed_pb2.PackedFleetUpdate:
    """An update as it is sent."""
    sums = np.stack((state.started_s, state.busy_s, state.calls), axis=1).tolist()
    measured = np.stack((state.rtt_s, state.concurrency), axis=1)
    optional = _or_none(measured)
    return packed_pb2.PackedFleetUpdate(
        service=service,
        sequence=state.sequence,
        sidecars=state.sidecars,
        watermark=state.watermark,
        trainer_id=state.trainer,
        protocol=PROTOCOL,
        full=state.full,
        classes=state.classes,
        endpoints=[
            fleet_pb2.EndpointSums(
                address=address,
                incarnation=started_s,
                busy_s=busy_s,
                calls=calls,
                rtt_s=rtt_s,
                concurrency=concurrency,
            )
            for address, (started_s, busy_s, calls), (rtt_s, concurrency) in zip(
                state.endpoints, sums, optional, strict=True
            )
        ],
        cells=packed_pb2.PackedCellSums(
            class_index=packed_numbers(state.cell_class),
            endpoint_index=packed_numbers(state.cell_endpoint),
            service_s=packed_floats(state.cell_s),
            calls=packed_floats(state.cell_calls),
        ),
        split=None
        if state.split is None
        else packed_pb2.PackedSplit(
            classes=state.split.classes,
            endpoints=state.split.endpoints,
            probability=packed_floats(state.split.probability.reshape(-1)),
        ),
    )


def read_update(message: packed_pb2.PackedFleetUpdate) -> FleetState:
    """The sums of a message; those that cannot be true are 0, as if nothing were known. Raises
    MessageError."""
    packed, endpoints = message.cells, message.endpoints
    try:
        service_s, calls = floats(packed.service_s), floats(packed.calls)
        cell_class = _index(packed.class_index, len(message.classes), "class")
        cell_endpoint = _index(packed.endpoint_index, len(endpoints), "endpoint")
    except ColumnError as error:
        raise MessageError(str(error)) from error
    size = len(cell_class)
    if any(len(one) != size for one in (cell_endpoint, service_s, calls)):
        raise MessageError(f"columns of cells have different lengths, expected `{size}`")
    sound = np.isfinite(service_s) & np.isfinite(calls) & (calls >= 0)
    listed = [(one.incarnation, one.busy_s, one.calls) for one in endpoints]
    sums = np.array(listed, dtype=np.float64).reshape(-1, 3).T
    whole = np.isfinite(sums[1:]).all(axis=0) & (sums[1:] >= 0).all(axis=0)
    rtt_s, concurrency = _optional(endpoints)
    return FleetState(
        trainer=message.trainer_id,
        sequence=message.sequence,
        full=message.full,
        sidecars=message.sidecars,
        watermark=message.watermark,
        classes=_names(message.classes),
        endpoints=_names(endpoint.address for endpoint in endpoints),
        started_s=np.where(np.isfinite(sums[0]) & (sums[0] >= 0), sums[0], 0.0),
        busy_s=np.where(whole, sums[1], 0.0),
        calls=np.where(whole, sums[2], 0.0),
        rtt_s=rtt_s,
        concurrency=concurrency,
        cell_class=cell_class,
        cell_endpoint=cell_endpoint,
        cell_s=np.where(sound, service_s, 0.0),
        cell_calls=np.where(sound, calls, 0.0),
        split=_read_split(message.split) if message.HasField("split") else None,
    )


def _read_split(message: packed_pb2.PackedSplit) -> Split:
    """Rows that cannot be probabilities are NaN, as if their class were not there."""
    classes, endpoints = _names(message.classes), _names(message.endpoints)
    try:
        found = floats(message.probability)
    except ColumnError as error:
        raise MessageError(str(error)) from error
    if len(found) != len(classes) * len(endpoints):
        raise MessageError(
            f"a split of `{len(classes)}` classes and `{len(endpoints)}` endpoints has "
            f"`{len(found)}` probabilities"
        )
    rows = found.reshape(len(classes), len(endpoints))
    good = (np.isfinite(rows) & (rows >= 0)).all(axis=1, keepdims=True)
    return Split(classes, endpoints, np.where(good, rows, np.nan))


def _or_none(values: Array) -> list[list[float | None]]:
    """Rows with None for what is unknown."""
    rows: list[list[float]] = values.tolist()
    return [[value if math.isfinite(value) else None for value in row] for row in rows]


def _names(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    if len(set(found)) != len(found):
        raise MessageError("a name stands twice in a list")
    if any(not name or len(name) > NAME_BYTES_MAX for name in found):
        raise MessageError(f"a name is empty or longer than {NAME_BYTES_MAX} characters")
    return found


def _index(packed: bytes, size: int, what: str) -> Index:
    found = numbers(packed)
    if len(found) and found.max() >= size:
        raise MessageError(f"{what} `{found.max()}` is not in a list of `{size}`")
    return found.astype(np.intp)


def _unless_broken(rows: Sequence[tuple[float, ...]], width: int) -> Array:
    """[width, n] of n rows, numbers 0 where they cannot be true."""
    found = np.array(rows, dtype=np.float64).reshape(-1, width).T
    return np.where(np.isfinite(found) & (found >= 0), found, 0.0)


def _optional(endpoints: Iterable[fleet_pb2.EndpointWindow | fleet_pb2.EndpointSums]) -> Array:
    """[2, n]: `rtt_s` and `concurrency`, NaN where they are missing or cannot be true."""
    rows = [
        (
            one.rtt_s if one.HasField("rtt_s") else np.nan,
            one.concurrency if one.HasField("concurrency") else np.nan,
        )
        for one in endpoints
    ]
    found = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return np.where(np.isfinite(found) & (found >= 0), found, np.nan)
