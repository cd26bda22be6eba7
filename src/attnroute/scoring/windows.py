"""Windows of the data plane as scores and pages take them: with names instead of epochs.

The data plane hands out a window once, so nothing of it may be lost to a race: its epochs say which
lists of classes and endpoints its rows mean, and lists of those epochs are what it is read with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnroute import dataplane
from attnroute.features.table import Cells
from attnroute.features.window import ServiceWindow
from attnroute.scoring.service import Layout
from attnroute.telemetry.training import EndpointLabels

__all__ = ["TakenWindow", "WindowReader", "WindowSource"]


class WindowSource(Protocol):
    """The part of the data plane this module reads."""

    def classes(self, service: str) -> tuple[int, bytes]: ...
    def endpoints(self, service: str) -> tuple[int, bytes]: ...
    def take_window(self, service: str) -> tuple[int, int, int, bytes, bytes]: ...


@dataclass(frozen=True)
class TakenWindow:
    """One window: per endpoint [E], in the layout's order."""

    layout: Layout
    window: ServiceWindow
    labels: tuple[EndpointLabels, ...]
    usable: npt.NDArray[np.bool_]
    inflight_s: npt.NDArray[np.float64]
    """Own calls in flight, integrated over the window."""
    attributes: tuple[Mapping[str, str], ...]
    """Labels of endpoints, their zone under `zone`."""


@dataclass(frozen=True)
class _Listed:
    """Endpoints as the data plane lists them. epoch, ids: of the set; the ids tell a service that
    was removed and came back from what it was before."""

    epoch: int
    ids: bytes
    names: tuple[str, ...]
    labels: tuple[EndpointLabels, ...]
    attributes: tuple[Mapping[str, str], ...]


class WindowReader:
    """Takes windows of one data plane; keeps the lists of classes and endpoints while their epochs
    stay."""

    def __init__(self, source: WindowSource) -> None:
        self._source = source
        self._classes: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._endpoints: dict[str, _Listed] = {}
        self.lost = 0
        """Windows whose lists had changed again before they could be read."""

    def take(self, service: str) -> TakenWindow | None:
        """The window since the last call; None if it cannot be told what its rows mean."""
        taken = dataplane.window(self._source.take_window(service))
        rows = taken.endpoints
        classes = self._class_names(service, taken.class_epoch)
        listed = self._listed(service, taken.endpoint_epoch, rows["id"].tobytes())
        if classes is None or listed is None or len(listed.names) != len(rows):
            self.lost += 1
            return None
        layout = Layout(
            class_epoch=taken.class_epoch,
            endpoint_epoch=taken.endpoint_epoch,
            classes=classes,
            endpoints=listed.names,
            ids=tuple(rows["id"].tolist()),
        )
        return TakenWindow(
            layout=layout,
            window=_named(taken, layout),
            labels=listed.labels,
            usable=(rows["usable"] != 0) & (rows["ejected"] == 0),
            inflight_s=rows["inflight_s"],
            attributes=listed.attributes,
        )

    def forget(self, service: str) -> None:
        """Drops what is kept of a service that is gone."""
        self._classes.pop(service, None)
        self._endpoints.pop(service, None)

    def _class_names(self, service: str, epoch: int) -> tuple[str, ...] | None:
        known = self._classes.get(service)
        if known is None or known[0] != epoch:
            found, listed = dataplane.classes(self._source.classes(service))
            known = found, tuple(one.name for one in listed)
            self._classes[service] = known
        return known[1] if known[0] == epoch else None

    def _listed(self, service: str, epoch: int, ids: bytes) -> _Listed | None:
        known = self._endpoints.get(service)
        if known is None or (known.epoch, known.ids) != (epoch, ids):
            found, document = self._source.endpoints(service)
            entries = json.loads(document)
            known = self._endpoints[service] = _Listed(
                found,
                ids,
                tuple(entry["address"] for entry in entries),
                tuple(_labels(entry["zone"], entry["labels"]) for entry in entries),
                tuple(
                    {**entry["labels"], "zone": entry["zone"]} if entry["zone"] else entry["labels"]
                    for entry in entries
                ),
            )
        return known if known.epoch == epoch else None


def _labels(zone: str, labels: Mapping[str, str]) -> EndpointLabels:
    return EndpointLabels(zone, ",".join(f"{key}={value}" for key, value in sorted(labels.items())))


def _named(taken: dataplane.Window, layout: Layout) -> ServiceWindow:
    rows, cells = taken.endpoints, taken.cells

    def column(name: str) -> npt.NDArray[np.float64]:
        return rows[name].astype(np.float64)

    def cell(name: str) -> npt.NDArray[np.float64]:
        return cells[name].astype(np.float64)

    return ServiceWindow(
        length_s=taken.length_s,
        classes=layout.classes,
        endpoints=layout.endpoints,
        started_s=column("started_s"),
        rtt_s=column("rtt_s"),
        concurrency=column("concurrency"),
        utilization=column("utilization"),
        utilization_reports=column("utilization_reports"),
        rps=column("rps"),
        reports=column("reports"),
        reported_inflight=column("reported_inflight"),
        ended=column("calls"),
        inflight_estimate=column("inflight_estimate"),
        cells=Cells(
            request_class=cells["class"].astype(np.intp),
            endpoint=cells["endpoint"].astype(np.intp),
            calls=cell("calls"),
            latency_s=cell("latency_s"),
            service_samples=cell("service_samples"),
            service_s=cell("service_s"),
            estimated_s=cell("estimated_s"),
        ),
        errors=cell("errors"),
        buckets=cells["buckets"],
    )
