"""Windows and sums as messages of `proto/attnroute/fleet/v1/fleet.proto`, and back.

What comes from another process is checked here: a message that contradicts itself is refused as a
whole, with what is wrong; numbers that cannot be true are left to `Cells.sound`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnroute._proto.fleet.v1 import fleet_pb2
from attnroute.bundle.manifest import is_name, parse_version
from attnroute.features.table import Array, Cells, Index
from attnroute.features.view import OwnWindow
from attnroute.features.window import BUCKETS, FleetState, ServiceWindow

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
) -> fleet_pb2.SidecarMessage:
    """A window as it is sent; only what it has cells or endpoints for. models: that the sidecar
    watches for the service."""
    window, cells = own.window, own.window.cells
    used, cell_class = np.unique(cells.request_class, return_inverse=True)
    active = np.zeros(len(window.endpoints), dtype=bool)
    active[cells.endpoint] = True
    active |= (window.reports > 0) | (window.ended > 0) | np.isfinite(window.rtt_s)
    columns = np.flatnonzero(active)
    message = fleet_pb2.Window(
        number=own.number,
        length_s=window.length_s,
        age_s=max(0.0, now_s - own.ended_s),
        classes=[window.classes[index] for index in used],
    )
    message.endpoints.extend(_endpoints(window, columns))
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
    columnar = message.cells
    columnar.class_index.extend(cell_class.tolist())
    columnar.endpoint_index.extend(np.searchsorted(columns, cells.endpoint).tolist())
    columnar.calls.extend(cells.calls.astype(np.uint32).tolist())
    columnar.errors.extend(window.errors.astype(np.uint32).tolist())
    columnar.latency_s.extend(cells.latency_s.tolist())
    columnar.service_samples.extend(cells.service_samples.astype(np.uint32).tolist())
    columnar.service_s.extend(cells.service_s.tolist())
    columnar.estimated_s.extend(cells.estimated_s.tolist())
    flat = window.buckets.reshape(-1)
    places = np.flatnonzero(flat)
    columnar.bucket_place.extend(places.tolist())
    columnar.bucket_calls.extend(flat[places].tolist())
    return fleet_pb2.SidecarMessage(window=message)


_SUMS = (
    "utilization", "utilization_reports", "rps", "reports", "reported_inflight", "ended",
    "inflight_estimate",
)  # fmt: skip


def _endpoints(window: ServiceWindow, columns: Index) -> Iterator[fleet_pb2.EndpointWindow]:
    # As lists first: taking one number out of an array costs as much as the rest of its way.
    sums = zip(*(getattr(window, name)[columns].tolist() for name in _SUMS), strict=True)
    for address, started_s, rtt_s, concurrency, values in zip(
        [window.endpoints[column] for column in columns.tolist()],
        window.started_s[columns].tolist(),
        window.rtt_s[columns].tolist(),
        window.concurrency[columns].tolist(),
        sums,
        strict=True,
    ):
        yield fleet_pb2.EndpointWindow(
            address=address,
            incarnation=started_s,
            rtt_s=rtt_s if math.isfinite(rtt_s) else None,
            concurrency=concurrency if math.isfinite(concurrency) else None,
            **dict(zip(_SUMS, values, strict=True)),
        )


def read_models(message: fleet_pb2.Window) -> tuple[ModelReport, ...]:
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


def read_window(message: fleet_pb2.Window) -> ServiceWindow:
    """The window of a message. Raises MessageError."""
    cells, endpoints = message.cells, message.endpoints
    size = len(cells.class_index)
    columns = (
        cells.endpoint_index, cells.calls, cells.errors, cells.latency_s, cells.service_samples,
        cells.service_s, cells.estimated_s,
    )  # fmt: skip
    if any(len(column) != size for column in columns):
        raise MessageError(f"columns of cells have different lengths, expected `{size}`")
    buckets = np.zeros(size * BUCKETS, dtype=np.uint32)
    places = _index(cells.bucket_place, size * BUCKETS, "bucket")
    if len(cells.bucket_calls) != len(places):
        raise MessageError("columns of buckets have different lengths")
    np.add.at(buckets, places, np.array(cells.bucket_calls, dtype=np.uint32))
    return ServiceWindow(
        length_s=message.length_s,
        classes=_names(message.classes),
        endpoints=_names(endpoint.address for endpoint in endpoints),
        started_s=_unless_broken([endpoint.incarnation for endpoint in endpoints]),
        rtt_s=_optional(endpoints, "rtt_s"),
        concurrency=_optional(endpoints, "concurrency"),
        utilization=_unless_broken([endpoint.utilization for endpoint in endpoints]),
        utilization_reports=_unless_broken(
            [endpoint.utilization_reports for endpoint in endpoints]
        ),
        rps=_unless_broken([endpoint.rps for endpoint in endpoints]),
        reports=_unless_broken([endpoint.reports for endpoint in endpoints]),
        reported_inflight=_unless_broken([endpoint.reported_inflight for endpoint in endpoints]),
        ended=_unless_broken([endpoint.ended for endpoint in endpoints]),
        inflight_estimate=_unless_broken([endpoint.inflight_estimate for endpoint in endpoints]),
        cells=Cells(
            request_class=_index(cells.class_index, len(message.classes), "class"),
            endpoint=_index(cells.endpoint_index, len(endpoints), "endpoint"),
            calls=_numbers(cells.calls),
            latency_s=_numbers(cells.latency_s),
            service_samples=_numbers(cells.service_samples),
            service_s=_numbers(cells.service_s),
            estimated_s=_numbers(cells.estimated_s),
        ),
        errors=_numbers(cells.errors),
        buckets=buckets.reshape(size, BUCKETS),
    )


def update_message(service: str, state: FleetState) -> fleet_pb2.FleetUpdate:
    """An update as it is sent."""
    message = fleet_pb2.FleetUpdate(
        service=service,
        sequence=state.sequence,
        sidecars=state.sidecars,
        watermark=state.watermark,
        trainer_id=state.trainer,
        protocol=PROTOCOL,
        full=state.full,
        classes=state.classes,
    )
    for column, address in enumerate(state.endpoints):
        endpoint = fleet_pb2.EndpointSums(
            address=address,
            incarnation=state.started_s[column],
            busy_s=state.busy_s[column],
            calls=state.calls[column],
        )
        if math.isfinite(state.rtt_s[column]):
            endpoint.rtt_s = state.rtt_s[column]
        if math.isfinite(state.concurrency[column]):
            endpoint.concurrency = state.concurrency[column]
        message.endpoints.append(endpoint)
    message.cells.class_index.extend(state.cell_class.tolist())
    message.cells.endpoint_index.extend(state.cell_endpoint.tolist())
    message.cells.service_s.extend(state.cell_s.tolist())
    message.cells.calls.extend(state.cell_calls.tolist())
    return message


def read_update(message: fleet_pb2.FleetUpdate) -> FleetState:
    """The sums of a message; those that cannot be true are 0, as if nothing were known. Raises
    MessageError."""
    cells, endpoints = message.cells, message.endpoints
    size = len(cells.class_index)
    if any(len(one) != size for one in (cells.endpoint_index, cells.service_s, cells.calls)):
        raise MessageError(f"columns of cells have different lengths, expected `{size}`")
    service_s, calls = _numbers(cells.service_s), _numbers(cells.calls)
    sound = np.isfinite(service_s) & np.isfinite(calls) & (calls >= 0)
    busy_s = _numbers([endpoint.busy_s for endpoint in endpoints])
    endpoint_calls = _numbers([endpoint.calls for endpoint in endpoints])
    whole = np.isfinite(busy_s) & np.isfinite(endpoint_calls) & (busy_s >= 0)
    whole &= endpoint_calls >= 0
    return FleetState(
        trainer=message.trainer_id,
        sequence=message.sequence,
        full=message.full,
        sidecars=message.sidecars,
        watermark=message.watermark,
        classes=_names(message.classes),
        endpoints=_names(endpoint.address for endpoint in endpoints),
        started_s=_unless_broken([endpoint.incarnation for endpoint in endpoints]),
        busy_s=np.where(whole, busy_s, 0.0),
        calls=np.where(whole, endpoint_calls, 0.0),
        rtt_s=_optional(endpoints, "rtt_s"),
        concurrency=_optional(endpoints, "concurrency"),
        cell_class=_index(cells.class_index, len(message.classes), "class"),
        cell_endpoint=_index(cells.endpoint_index, len(endpoints), "endpoint"),
        cell_s=np.where(sound, service_s, 0.0),
        cell_calls=np.where(sound, calls, 0.0),
    )


def _names(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    if len(set(found)) != len(found):
        raise MessageError("a name stands twice in a list")
    if any(not name or len(name) > NAME_BYTES_MAX for name in found):
        raise MessageError(f"a name is empty or longer than {NAME_BYTES_MAX} characters")
    return found


def _index(values: Iterable[int], size: int, what: str) -> Index:
    found = np.array(list(values), dtype=np.intp)
    if len(found) and found.max() >= size:
        raise MessageError(f"{what} `{found.max()}` is not in a list of `{size}`")
    return found


def _numbers(values: Iterable[float]) -> Array:
    return np.array(list(values), dtype=np.float64)


def _unless_broken(values: Iterable[float]) -> Array:
    """Numbers that are 0 where they cannot be true."""
    found = _numbers(values)
    return np.where(np.isfinite(found) & (found >= 0), found, 0.0)


def _optional(
    endpoints: Iterable[fleet_pb2.EndpointWindow | fleet_pb2.EndpointSums], name: str
) -> Array:
    """A value that may be missing: NaN then, and where it cannot be true."""
    found = _numbers(
        getattr(endpoint, name) if endpoint.HasField(name) else math.nan for endpoint in endpoints
    )
    return np.where(np.isfinite(found) & (found >= 0), found, math.nan)
